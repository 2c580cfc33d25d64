//! Logs of ranks: limiting their size, quoting their ends, and what those say of a failure.

mod cause;
mod error_file;
mod rotation;
mod tail;

pub(crate) use cause::cause;
pub(crate) use error_file::exception;
pub(crate) use rotation::LogRotation;
pub(crate) use tail::tail;
