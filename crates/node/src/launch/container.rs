//! A rank's program inside of a container image: the words that a container runtime is started
//! with. The runtime takes the program's place: it is supervised, noticed and killed as that is.
//!
//! What the contract promises holds inside as well: the program starts where its job was submitted,
//! the job's own directory, its checkpoints and the files of the contract lie under their own
//! paths, and the network is the machine's (ranks find each other). Podman shows it no NVIDIA or
//! Ascend devices but its own; AMD's, and all that Apptainer shows, are chosen by variables only.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use het_core::{Access, Container, ContainerRuntime};

use crate::launch::environment::NOTICE;
use crate::launch::spec::{Order, containers_path};
use crate::process::variables::Variables;

/// Gives the words that let a container use these devices of a driver, or says why none do:
/// `het_devices::container_access`.
pub type ContainerAccess =
    fn(ContainerRuntime, driver: &str, ids: &[&str]) -> Result<Vec<String>, String>;

/// Where Debian and Fedora put the program that reaps and passes signals on inside of a container.
const INITS: [&str; 3] =
    ["/usr/bin/catatonit", "/usr/libexec/podman/catatonit", "/usr/libexec/catatonit/catatonit"];

/// How long podman may take to remove a container, in seconds.
const REMOVAL_LIMIT_S: &str = "30";

/// The programs of a runtime, best first.
pub(crate) fn programs(
    runtime: Option<ContainerRuntime>,
) -> &'static [(&'static str, ContainerRuntime)] {
    const ALL: &[(&str, ContainerRuntime)] = &[
        ("podman", ContainerRuntime::Podman),
        ("apptainer", ContainerRuntime::Apptainer),
        ("singularity", ContainerRuntime::Apptainer),
    ];
    match runtime {
        None => ALL,
        Some(ContainerRuntime::Podman) => &ALL[..1],
        Some(ContainerRuntime::Apptainer) => &ALL[1..],
    }
}

/// All words of the runtime's command line: `program` runs `argv` in the image.
///
/// # Errors
/// Why the container cannot be given what it needs.
pub(crate) fn words(
    order: &Order,
    container: &Container,
    (program, runtime): (&str, ContainerRuntime),
    told: &Variables,
    argv: &[String],
    rank: u32,
) -> Result<Vec<String>, String> {
    let binds = binds(order, container, runtime)?;
    let devices = devices(order, runtime, rank)?;
    let mut words = vec![program.to_owned()];
    match runtime {
        ContainerRuntime::Podman => {
            let fixed = ["run", "--rm", "--network=host", "--ipc=host", "--log-driver=none"];
            words.extend(fixed.map(str::to_owned));
            // Where SELinux is in force, nothing of the machine could be read inside, and marking
            // the job's directories for containers would take them from everybody else.
            words.push("--security-opt=label=disable".to_owned());
            words.push(format!("--cidfile={}", order.container_id(rank).display()));
            // A program that is the first of its container ignores signals that it does not handle.
            let init = INITS.iter().find(|path| Path::new(path).exists());
            words.extend(init.map(|_| "--init".to_owned()));
            words.push(format!("--workdir={}", order.launch.cwd));
            words.extend(binds.iter().map(|bind| format!("--volume={bind}")));
            // By name: values would stand in the list of processes.
            words.extend(told.iter().map(|(name, _)| format!("--env={name}")));
        }
        ContainerRuntime::Apptainer => {
            words.extend(["exec", "--pwd"].map(str::to_owned));
            words.push(order.launch.cwd.clone());
            words.extend(binds.iter().flat_map(|bind| ["--bind".to_owned(), bind.clone()]));
        }
    }
    words.extend(devices);
    words.push(container.image.clone());
    words.extend(argv.iter().cloned());
    Ok(words)
}

/// `SOURCE:TARGET[:ro]` of everything that is seen inside; a directory below another is there with
/// it. Of the engine's own files it is what this lease writes: others' are nothing to it.
fn binds(
    order: &Order,
    container: &Container,
    runtime: ContainerRuntime,
) -> Result<Vec<String>, String> {
    let own = [
        Some(PathBuf::from(&order.launch.cwd)),
        Some(PathBuf::from(&order.launch.workdir)),
        Some(order.lease_dir.clone()),
        Some(order.progress()),
        order.checkpoint_dir(),
        order.resume.as_ref().map(|checkpoint| PathBuf::from(&checkpoint.path)),
    ];
    let mut own: Vec<PathBuf> = own.into_iter().flatten().collect();
    own.sort();
    if let Some(why) = own.iter().find_map(|path| refusal(path, runtime)) {
        return Err(why);
    }
    own.dedup_by(|later, earlier| later.starts_with(earlier));
    let own = own.into_iter().map(|path| format!("{0}:{0}", path.display()));
    let asked = container.mounts.iter().map(|mount| match mount.access {
        Access::ReadWrite => format!("{}:{}", mount.source, mount.target),
        Access::ReadOnly => format!("{}:{}:ro", mount.source, mount.target),
    });
    Ok(own.chain(asked).collect())
}

/// Why a container cannot be given this path.
fn refusal(path: &Path, runtime: ContainerRuntime) -> Option<String> {
    if path == Path::new("/") {
        return Some(
            "a container cannot be given all of `/`, \
             hint: submit the job from the directory that it needs"
                .to_owned(),
        );
    }
    let separators: &[char] = match runtime {
        ContainerRuntime::Podman => &[':'],
        ContainerRuntime::Apptainer => &[':', ','],
    };
    let text = path.display().to_string();
    let separator = text.chars().find(|letter| separators.contains(letter))?;
    Some(format!(
        "a container cannot be given `{text}`, for `{separator}` is what paths are set apart by, \
         hint: give the directory another name"
    ))
}

fn devices(order: &Order, runtime: ContainerRuntime, rank: u32) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    for (driver, ids) in order.shown_devices(rank) {
        words.extend((order.container_access)(runtime, driver, &ids)?);
    }
    Ok(words)
}

/// The container that is named in this file of a runtime's.
pub(crate) fn named(file: &Path) -> Option<String> {
    let id = fs::read_to_string(file).ok()?;
    let id = id.trim();
    let is_id = !id.is_empty() && id.chars().all(|letter| letter.is_ascii_hexdigit());
    is_id.then(|| id.to_owned())
}

/// The containers of a lease, as far as they were named.
pub(crate) fn of_lease(lease_dir: &Path) -> Vec<String> {
    let files = fs::read_dir(containers_path(lease_dir)).into_iter().flatten().flatten();
    files.filter_map(|file| named(&file.path())).collect()
}

/// What removes containers whose runtime was killed, together with what runs in them: a runtime
/// that is killed while it starts one leaves it behind.
/// What its programs were told says where the runtime that made them keeps them.
pub(crate) fn removal(containers: &[String], told: &Variables) -> Command {
    let mut command = Command::new("timeout");
    command.args([REMOVAL_LIMIT_S, "podman", "rm", "--force", "--ignore", "--time=0"]);
    // It bears no mark: whatever does is killed.
    command.args(containers).envs(told.iter()).env_remove(NOTICE);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Removes what a lease left of which nobody is left to wait for its end.
pub(crate) fn remove_left(lease_dir: &Path) {
    let containers = of_lease(lease_dir);
    if !containers.is_empty() {
        // What cannot be removed is podman's to show.
        let _ = removal(&containers, &Variables::new()).status();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_mount_cannot_say_is_refused() {
        let check = |path: &str, runtime, expected: Option<&str>| {
            let told = refusal(Path::new(path), runtime);
            assert_eq!(told.is_some(), expected.is_some(), "{path}");
            assert!(told.unwrap_or_default().contains(expected.unwrap_or_default()), "{path}");
        };
        check("/", ContainerRuntime::Podman, Some("all of `/`"));
        check("/data/12:30", ContainerRuntime::Podman, Some("`:`"));
        check("/data/lr=1,b=2", ContainerRuntime::Podman, None);
        check("/data/lr=1,b=2", ContainerRuntime::Apptainer, Some("`,`"));
        check("/data", ContainerRuntime::Apptainer, None);
    }
}
