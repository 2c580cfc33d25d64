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
    let notice = Notice { deadline_ms: deadline.0, grace_ms: grace.0, reason };
    let text = serde_json::to_string(&notice).expect("text and numbers always become JSON");
    let _ = fs::create_dir(&spec.lease_dir);
    let _ = replace(&spec.notice_file(), text.as_bytes());
}

/// The signal of the notice: `SIGUSR1`, `USR1`, `usr1`; SIGTERM by default.
pub(super) fn signal(spec: &GangSpec) -> Signal {
    let Some(checkpoint) = &spec.launch.checkpoint else { return Signal::SIGTERM };
    let word = checkpoint.notice.as_str().to_uppercase();
    let name = word.strip_prefix("SIG").unwrap_or(&word);
    Signal::from_str(&format!("SIG{name}")).unwrap_or(Signal::SIGTERM)
}
