//! Playing forward: a scenario through the control loop, in virtual time.
//!
//! Knows: what a scenario is, and how the loop, a policy and the simulator carry it to its end.
//! Must never know: files, or production servers.

mod play;
mod scenario;

pub use het_control::{Cadence, Retention};
pub use het_sim::Fault;

pub use play::{PlayError, play, play_timed};
pub use scenario::Scenario;
