//! What goes wrong, told in one sentence with a next step, and the exit codes of the contract.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::path::Path;

use anstream::eprintln;
use het_files::is_shortage;
use het_server::{CalibrationFault, HomeError, RunError, StoreError};
use het_wire::text::with_causes;
use owo_colors::OwoColorize;

use crate::printable::printable;

/// Exit codes, the same for every command.
pub mod code {
    pub const OK: u8 = 0;
    pub const FAILED: u8 = 1;
    pub const USAGE: u8 = 2;
    pub const NOT_FOUND: u8 = 3;
    pub const NOT_ALLOWED: u8 = 4;
    pub const UNREACHABLE: u8 = 5;
    pub const CONFLICT: u8 = 6;
    pub const TIMEOUT: u8 = 124;
    pub const INTERRUPTED: u8 = 130;
}

/// What to do where the machine or its disk cannot do what was asked at present.
const MEND_MACHINE: &str = "see to the disk, or to what the machine ran out of, and try again";

/// A command that cannot do what it was asked.
#[derive(Debug)]
pub enum Fail {
    /// Told line by line, each line a whole report already (job files).
    Report {
        code: u8,
        text: String,
    },
    Told {
        code: u8,
        message: String,
        hint: Option<String>,
    },
}

impl Fail {
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self::Told { code, message: message.into(), hint: None }
    }

    pub fn hint(self, hint: impl Into<String>) -> Self {
        match self {
            Self::Told { code, message, .. } => {
                Self::Told { code, message, hint: Some(hint.into()) }
            }
            report @ Self::Report { .. } => report,
        }
    }

    /// A file that cannot be read or written.
    pub fn file(path: &Path, error: io::Error) -> Self {
        let text = format!("`{}` cannot be used: {error}", path.display());
        match error.kind() {
            ErrorKind::NotFound => Self::new(code::NOT_FOUND, text).hint("check the path"),
            ErrorKind::PermissionDenied => {
                Self::new(code::NOT_ALLOWED, text).hint("see to its owner and permissions")
            }
            _ if is_shortage(&error) => Self::new(code::FAILED, text).hint(MEND_MACHINE),
            _ => Self::new(code::FAILED, text),
        }
    }

    /// Something that says itself what to do about it.
    pub fn from_error(error: impl Error + 'static) -> Self {
        let fail = Self::new(code::FAILED, with_causes(&error));
        if ran_short(&error) { fail.hint(MEND_MACHINE) } else { fail }
    }

    pub fn code(&self) -> u8 {
        match self {
            Self::Report { code, .. } | Self::Told { code, .. } => *code,
        }
    }

    /// In one line, without a hint.
    pub fn text(&self) -> String {
        match self {
            Self::Report { text, .. } => text.lines().next().unwrap_or_default().to_owned(),
            Self::Told { message, .. } => message.clone(),
        }
    }

    pub fn print(&self) {
        match self {
            Self::Report { text, .. } => eprintln!("{}", text.trim_end()),
            Self::Told { message, hint, .. } => {
                eprintln!("{} {}", "error:".red().bold(), printable(message));
                if let Some(hint) = hint {
                    eprintln!("{} {}", "hint:".cyan(), printable(hint));
                }
            }
        }
    }
}

impl From<HomeError> for Fail {
    fn from(error: HomeError) -> Self {
        let hint = "set `HET_HOME` to a directory that you can write";
        Self::new(code::FAILED, with_causes(&error)).hint(hint)
    }
}

impl From<CalibrationFault> for Fail {
    fn from(error: CalibrationFault) -> Self {
        let code = match error {
            CalibrationFault::Io { .. } => code::FAILED,
            _ => code::USAGE,
        };
        Self::new(code, with_causes(&error)).hint(error.hint())
    }
}

impl From<StoreError> for Fail {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::InUse => Self::new(code::CONFLICT, error.to_string())
                .hint("the job is running: wait for it, or stop it with Ctrl-C where it runs"),
            other => Self::new(code::FAILED, with_causes(&other))
                .hint("see `het history` for jobs that can be read"),
        }
    }
}

impl From<RunError> for Fail {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Home(error) => error.into(),
            RunError::Store(error) => error.into(),
            RunError::AlreadySucceeded { .. } => {
                Self::new(code::CONFLICT, error.to_string()).hint("run it again without `--resume`")
            }
            RunError::NeverSubmitted { .. } => Self::new(code::NOT_FOUND, error.to_string())
                .hint("run it again without `--resume`"),
            other => Self::new(code::FAILED, with_causes(&other)),
        }
    }
}

/// Whether the machine or its disk lies beneath an error.
fn ran_short(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref().is_some_and(is_shortage) || error.source().is_some_and(ran_short)
}
