//! Where: free devices as a decision sees them, what a request asks for, which of the places that
//! would do is best, and when devices that are in use become free.

mod candidates;
mod contents;
mod device_set;
mod expected;
mod migration;
mod opportunity_cost;
pub mod packing;
mod place;
mod pool;
mod releases;
mod requests;
mod running;

pub use candidates::{Candidate, Stands, Terms, candidates};
pub use place::{place, reasons_why_not};
pub use pool::Pool;

pub(crate) use contents::{Contents, item};
pub(crate) use expected::{Expected, Part, waits};
pub(crate) use migration::{Improvement, evacuation, improvement, smaller};
pub(crate) use opportunity_cost::{OpportunityCost, Shape, WORTHWHILE, shape, shapes};
pub(crate) use place::{fits_one_node, on_class, place_among};
pub(crate) use pool::{Accepted, accepted};
pub(crate) use releases::{Ends, Unknown};
pub(crate) use requests::{Ask, AskId, Asks, Wanted, Words, wanted, words};
pub(crate) use running::Running;
