//! How one process ended.

use std::fmt;

use nix::sys::signal::Signal;

/// "Saved, call me again": `EX_TEMPFAIL` of sysexits.h.
pub(crate) const EXIT_SAVED: i32 = 75;
/// The exit code of a program that does not exist, as a shell gives it.
pub(crate) const EXIT_NOT_FOUND: i32 = 127;

/// How one process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal(Signal),
    /// Another process collected its status.
    Unknown,
}

impl Exit {
    /// Exit code, or 128 + signal as in a shell.
    pub(crate) fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal as i32,
            Self::Unknown => 255,
        }
    }

    /// The program ended by itself and left its files complete.
    pub(crate) fn is_orderly(self) -> bool {
        matches!(self, Self::Code(0 | EXIT_SAVED))
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => write!(f, "was killed by {signal}"),
            Self::Unknown => f.write_str("ended in an unknown way"),
        }
    }
}
