//! Scenarios × policies × seeds: the same scheduling code as on real machines, in virtual time.
//!
//! Knows: how scenarios are made from seeds and driven through the control loop.
//! Must never know: production servers.

mod bench;
mod draw;
mod drive;
mod scenario;

pub use bench::{RoundBench, RoundTimes, bench_rounds};
pub use draw::Draw;
pub use drive::{DriveError, drive};
pub use scenario::Scenario;
