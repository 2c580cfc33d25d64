//! What programs report through their progress files, and whether their steps have stalled.

mod file;
mod stall;
mod watch;

pub(crate) use file::ProgressFile;
pub(crate) use stall::{SilenceDetector, StallDetector};
pub(crate) use watch::{Changed, ProgressWatch};
