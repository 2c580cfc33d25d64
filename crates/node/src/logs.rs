//! Logs of ranks: limiting their size and quoting their ends.

mod rotation;
mod tail;

pub(crate) use rotation::LogRotation;
pub(crate) use tail::tail;
