//! How one job is cut over devices that need not be alike: data, tensor, pipeline, context and
//! expert parallel, uneven stages, uneven shares of a batch, and the tricks that make it fit.
//!
//! Knows: one model, one batch, the devices that one job may have, `het_perf`'s memory and time.
//! Must never know: other jobs, tenants, queues, clocks, files, launchers.
//!
//! The story: a [`Request`] says what is to be trained on which pools of devices. [`search`] walks
//! the space (`search_space`) in the order of lower bounds, shares layers over stages
//! (`layer_split`) and microbatches over replicas (`microbatch_shares`), prices what is left
//! (`price`) and ranks it. A [`Candidate`] says how every device takes part and what comes of it,
//! [`Rejection`] why the others did not win, [`Problem`] what is wrong with the question and what
//! would work. [`fit`] answers the small team, [`Rule`] the envelope.

mod candidate;
mod class_defaults;
mod finish;
mod fit;
mod layer_split;
mod layout;
mod microbatch_shares;
mod models;
mod outline;
mod price;
mod problem;
mod rejection;
mod request;
mod rule;
mod search;
mod search_space;

pub use candidate::{Candidate, Launch};
pub use class_defaults::{has_bf16, pool_of_class};
pub use finish::Finish;
pub use fit::{Fit, Outcome, Trick, fit, small_team};
pub use layout::{Layout, RankPlace, Replicas, Stage};
pub use models::{KnownModel, known_model, known_models};
pub use problem::{Problem, Remedy, Shortfall};
pub use rejection::{Rejection, RejectionReason, limit_name};
pub use request::{Batch, Choices, Collectives, Dataset, Pins, Pool, Request};
pub use rule::{Cause, Comparison, Rule};
pub use search::{Ranking, search};
