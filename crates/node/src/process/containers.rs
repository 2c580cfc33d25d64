//! Containers that a lease left behind: how they are found and removed.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::run_dir::{NOTICE, containers_path};

/// How long podman may take to remove a container, in seconds.
const REMOVAL_LIMIT_S: &str = "30";

/// The container id in a file that a runtime wrote.
pub(crate) fn id_in(file: &Path) -> Option<String> {
    let id = fs::read_to_string(file).ok()?;
    let id = id.trim();
    let is_id = !id.is_empty() && id.chars().all(|letter| letter.is_ascii_hexdigit());
    is_id.then(|| id.to_owned())
}

/// The containers of a lease whose ids were written.
pub(crate) fn of_lease(lease_dir: &Path) -> Vec<String> {
    let files = fs::read_dir(containers_path(lease_dir)).into_iter().flatten().flatten();
    files.filter_map(|file| id_in(&file.path())).collect()
}

/// A command that removes containers whose runtime was killed, and what runs in them: a runtime
/// that is killed while it starts a container leaves it behind. `variables` are those of the
/// programs, which say where the runtime stores its containers.
pub(crate) fn removal<'a>(
    containers: &[String],
    variables: impl Iterator<Item = (&'a str, &'a str)>,
) -> Command {
    let mut command = Command::new("timeout");
    command.args([REMOVAL_LIMIT_S, "podman", "rm", "--force", "--ignore", "--time=0"]);
    // Without the marker: every process that has it is killed.
    command.args(containers).envs(variables).env_remove(NOTICE);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Removes the containers of a lease that no supervisor watches, and waits for it.
pub(crate) fn remove_of_lease(lease_dir: &Path) {
    let containers = of_lease(lease_dir);
    if !containers.is_empty() {
        // Podman lists what cannot be removed.
        let _ = removal(&containers, std::iter::empty()).status();
    }
}
