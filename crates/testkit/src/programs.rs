//! Programs that a machine may lack.

use std::process::Command;

/// Whether there is a `python3`; who needs it is skipped loudly where there is none.
#[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
pub fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").output().is_ok();
    if !found {
        eprintln!("SKIPPED: `python3` is not installed");
    }
    found
}
