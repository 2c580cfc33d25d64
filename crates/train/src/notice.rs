//! Requests to stop: a notice file from the scheduler, or SIGTERM and SIGINT.

use crate::error::{IoContext, Result};
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code that says: saved, call me again.
pub const EXIT_SAVED: u8 = 75;

#[derive(Debug, Clone, Default)]
pub struct Notice {
    signalled: Arc<AtomicBool>,
    file: Option<PathBuf>,
}

impl Notice {
    /// Watches the process's signals and the file that `HET_NOTICE` names.
    pub fn from_environment() -> Result<Self> {
        let signalled = Arc::new(AtomicBool::new(false));
        let register = |signal, flag: &Arc<AtomicBool>| {
            signal_hook::flag::register(signal, flag.clone())
                .at("watch signals for", Path::new("het-train"))
        };
        // A second signal ends a process that is stuck in a long step.
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register_conditional_shutdown(
                signal,
                128 + signal,
                signalled.clone(),
            )
            .at("watch signals for", Path::new("het-train"))?;
            register(signal, &signalled)?;
        }
        // Handled, a file-size limit becomes an error of the write instead of the end.
        register(SIGXFSZ, &Arc::default())?;
        let file = std::env::var_os("HET_NOTICE").filter(|path| !path.is_empty());
        Ok(Self { signalled, file: file.map(PathBuf::from) })
    }

    /// Why to stop, once someone asked.
    pub fn reason(&self) -> Option<String> {
        if self.signalled.load(Ordering::Relaxed) {
            return Some("signal".into());
        }
        let path = self.file.as_ref().filter(|path| path.exists())?;
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        Some(json["reason"].as_str().unwrap_or("notice").to_owned())
    }
}
