//! Measurements of the runtime itself, for `het bench graph`.

mod overhead;

pub use overhead::{Overhead, Shape, overhead};
