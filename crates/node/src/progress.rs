//! What programs report through their progress files, and whether their steps have stalled.

mod file;
mod line;
mod stall;
mod tally;
mod watch;

pub(crate) use file::ProgressFile;
pub(crate) use stall::{SilenceDetector, StallDetector};
pub(crate) use tally::Tally;
pub(crate) use watch::{Changed, ProgressWatch};
