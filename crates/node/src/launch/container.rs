//! The command line of a container runtime that runs a rank's program in an image. The runtime
//! takes the place of the program: it is supervised, given notice and killed like one.
//!
//! The contract holds inside as well: the program starts where its job was submitted, the job's own
//! directory, its checkpoints and the files of the contract have the same paths, and the network is
//! the machine's (ranks find each other). Podman exposes no NVIDIA or Ascend devices but the rank's
//! own; AMD's, and all devices under Apptainer, are restricted by variables only.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use het_core::{Access, Container, ContainerRuntime, Failure};

use super::failure::{cannot_write, failure};
use super::lookup::find;
use super::spec::GangSpec;
use crate::process::{EXIT_NOT_FOUND, Inherited, Variables};

/// Where Debian and Fedora install the init process of containers.
const INITS: [&str; 3] =
    ["/usr/bin/catatonit", "/usr/libexec/podman/catatonit", "/usr/libexec/catatonit/catatonit"];

/// Path and arguments of the container runtime that runs the program of a rank in its image.
pub(super) fn containerized(
    spec: &GangSpec,
    container: &Container,
    (inherited, variables): (&Inherited, &Variables),
    argv: &[String],
    rank: u32,
) -> Result<(String, Vec<String>), Failure> {
    let programs = programs(container.runtime);
    let found = programs.iter().find_map(|&(program, runtime)| {
        Some((find(program, inherited.get("PATH"), &spec.launch.cwd).ok()?, program, runtime))
    });
    let Some((path, program, runtime)) = found else {
        let names: Vec<String> = programs.iter().map(|(name, _)| format!("`{name}`")).collect();
        let text = format!(
            "the image `{}` needs {}, which this machine does not have, hint: install one of them",
            container.image,
            names.join(" or ")
        );
        return Err(failure(rank, EXIT_NOT_FOUND, text));
    };
    create_mounted_files(spec, rank)?;
    let args =
        command_line(spec, container, (program, runtime), (inherited, variables), argv, rank);
    let args = args.map_err(|why| failure(rank, Failure::CANNOT_RUN, why))?;
    Ok((path, args))
}

/// Creates the files that are mounted by name: they have to exist.
fn create_mounted_files(spec: &GangSpec, rank: u32) -> Result<(), Failure> {
    let progress = spec.progress_file();
    let progress_made = OpenOptions::new().create(true).append(true).open(&progress);
    progress_made.map_err(|error| cannot_write(rank, &progress, &error))?;
    let id = spec.container_id_file(rank);
    let dir = id.parent().unwrap_or(&id);
    fs::create_dir_all(dir).map_err(|error| cannot_write(rank, dir, &error))
}

/// The programs of a runtime, preferred ones first.
fn programs(runtime: Option<ContainerRuntime>) -> &'static [(&'static str, ContainerRuntime)] {
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

/// The whole command line of the runtime: `program` runs `argv` in the image. The error says why
/// the container cannot get what it needs.
fn command_line(
    spec: &GangSpec,
    container: &Container,
    (program, runtime): (&str, ContainerRuntime),
    (inherited, variables): (&Inherited, &Variables),
    argv: &[String],
    rank: u32,
) -> Result<Vec<String>, String> {
    let binds = binds(spec, container, runtime)?;
    let devices = devices(spec, runtime, rank)?;
    let mut args = vec![program.to_owned()];
    match runtime {
        ContainerRuntime::Podman => {
            let fixed = ["run", "--rm", "--network=host", "--ipc=host", "--log-driver=none"];
            args.extend(fixed.map(str::to_owned));
            // Under SELinux no file of the machine would be readable inside, and relabelling the
            // job's directories for containers would deny them to other programs.
            args.push("--security-opt=label=disable".to_owned());
            args.push(format!("--cidfile={}", spec.container_id_file(rank).display()));
            // Without an init process, the program ignores signals that it does not handle.
            let init = INITS.iter().find(|path| Path::new(path).exists());
            args.extend(init.map(|_| "--init".to_owned()));
            args.push(format!("--workdir={}", spec.launch.cwd));
            args.extend(binds.iter().map(|bind| format!("--volume={bind}")));
            // Names only: values would be visible in the list of processes.
            let named = variables.iter().map(|(name, _)| name).chain(inherited.named());
            args.extend(named.map(|name| format!("--env={name}")));
        }
        ContainerRuntime::Apptainer => {
            args.extend(["exec", "--pwd"].map(str::to_owned));
            args.push(spec.launch.cwd.clone());
            args.extend(binds.iter().flat_map(|bind| ["--bind".to_owned(), bind.clone()]));
        }
    }
    args.extend(devices);
    args.push(container.image.clone());
    args.extend(argv.iter().cloned());
    Ok(args)
}

/// `SOURCE:TARGET[:ro]` of each mount; a directory below another comes with it. Of the engine's own
/// files, those that this lease writes.
fn binds(
    spec: &GangSpec,
    container: &Container,
    runtime: ContainerRuntime,
) -> Result<Vec<String>, String> {
    let own = [
        Some(PathBuf::from(&spec.launch.cwd)),
        Some(PathBuf::from(&spec.launch.workdir)),
        Some(spec.lease_dir.clone()),
        Some(spec.progress_file()),
        spec.checkpoint_dir(),
        spec.resume.as_ref().map(|checkpoint| PathBuf::from(&checkpoint.path)),
    ];
    let mut own: Vec<PathBuf> = own.into_iter().flatten().collect();
    own.sort();
    if let Some(why) = own.iter().find_map(|path| refusal(path, runtime)) {
        return Err(why);
    }
    own.dedup_by(|later, earlier| later.starts_with(earlier));
    let own = own.into_iter().map(|path| format!("{0}:{0}", path.display()));
    let requested = container.mounts.iter().map(|mount| match mount.access {
        Access::ReadWrite => format!("{}:{}", mount.source, mount.target),
        Access::ReadOnly => format!("{}:{}:ro", mount.source, mount.target),
    });
    Ok(own.chain(requested).collect())
}

/// Why this path cannot be mounted in a container.
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

fn devices(spec: &GangSpec, runtime: ContainerRuntime, rank: u32) -> Result<Vec<String>, String> {
    let mut args = Vec::new();
    for (driver, ids) in spec.visible_devices(rank) {
        args.extend((spec.container_access)(runtime, driver, &ids)?);
    }
    Ok(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_a_mount_cannot_express_are_refused() {
        let check = |path: &str, runtime, expected: Option<&str>| {
            let message = refusal(Path::new(path), runtime);
            assert_eq!(message.is_some(), expected.is_some(), "{path}");
            assert!(message.unwrap_or_default().contains(expected.unwrap_or_default()), "{path}");
        };
        check("/", ContainerRuntime::Podman, Some("all of `/`"));
        check("/data/12:30", ContainerRuntime::Podman, Some("`:`"));
        check("/data/lr=1,b=2", ContainerRuntime::Podman, None);
        check("/data/lr=1,b=2", ContainerRuntime::Apptainer, Some("`,`"));
        check("/data", ContainerRuntime::Apptainer, None);
    }
}
