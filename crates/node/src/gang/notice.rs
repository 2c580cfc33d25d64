//! The notice to stop: a file and a signal.

use std::fs;
use std::str::FromStr;

use het_core::{Millis, Time};
use het_files::replace;
use nix::sys::signal::Signal;
use serde::Serialize;

use crate::launch::GangSpec;

/// The contents of the file.
#[derive(Serialize)]
struct Notice {
    /// Since the Unix epoch.
    deadline_ms: u64,
    grace_ms: u64,
    reason: &'static str,
}

/// Writes the file of the notice. Failures are ignored: the signal carries the same request, and a
/// full disk must not delay it.
pub(super) fn write(spec: &GangSpec, deadline: Time, grace: Millis, reason: &'static str) {
    let text = text(deadline, grace, reason);
    let _ = fs::create_dir(&spec.lease_dir);
    let _ = replace(&spec.notice_file(), text.as_bytes());
}

/// What stands in the file.
pub(crate) fn text(deadline: Time, grace: Millis, reason: &'static str) -> String {
    let notice = Notice { deadline_ms: deadline.0, grace_ms: grace.0, reason };
    serde_json::to_string(&notice).expect("text and numbers always become JSON")
}

pub(super) fn signal(spec: &GangSpec) -> Signal {
    let checkpoint = spec.launch.checkpoint.as_ref();
    checkpoint.map_or(Signal::SIGTERM, |checkpoint| signal_named(checkpoint.notice.as_str()))
}

/// The signal of the notice: `SIGUSR1`, `USR1`, `usr1`; SIGTERM by default.
pub(crate) fn signal_named(word: &str) -> Signal {
    let word = word.to_uppercase();
    let name = word.strip_prefix("SIG").unwrap_or(&word);
    Signal::from_str(&format!("SIG{name}")).unwrap_or(Signal::SIGTERM)
}
