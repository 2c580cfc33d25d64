//! A rank's program inside of a container image: the words that a container runtime is started
//! with. The runtime takes the program's place: it is supervised, noticed and killed as that is.
//!
//! What the contract promises holds inside as well: the program starts where its job was submitted,
//! the job's own directory, its checkpoints and the files of the contract lie under their own
//! paths, the network is the machine's (ranks find each other), and it sees its own devices only.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use het_core::{Access, Container, ContainerRuntime};

use crate::order::Order;

/// Gives the words that let a container use these devices of a driver, and no others:
/// `het_devices::container_access`.
pub type ContainerAccess = fn(ContainerRuntime, driver: &str, ids: &[&str]) -> Vec<String>;

/// Where Debian and Fedora put the program that reaps and passes signals on inside of a container.
const INITS: [&str; 3] =
    ["/usr/bin/catatonit", "/usr/libexec/podman/catatonit", "/usr/libexec/catatonit/catatonit"];

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
pub(crate) fn words(
    order: &Order,
    container: &Container,
    (program, runtime): (&str, ContainerRuntime),
    table: &BTreeMap<String, String>,
    argv: &[String],
    rank: u32,
) -> Vec<String> {
    let binds = binds(order, container);
    let devices = devices(order, runtime, rank);
    let mut words = vec![program.to_owned()];
    match runtime {
        ContainerRuntime::Podman => {
            let fixed = ["run", "--rm", "--network=host", "--ipc=host", "--log-driver=none"];
            words.extend(fixed.map(str::to_owned));
            // A program that is the first of its container ignores signals that it does not handle.
            let init = INITS.iter().find(|path| Path::new(path).exists());
            words.extend(init.map(|_| "--init".to_owned()));
            words.push(format!("--workdir={}", order.launch.cwd));
            words.extend(binds.iter().map(|bind| format!("--volume={bind}")));
            // By name: values would stand in the list of processes.
            words.extend(table.keys().map(|name| format!("--env={name}")));
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
    words
}

/// `SOURCE:TARGET[:ro]` of everything that is seen inside; a directory below another is there with
/// it.
fn binds(order: &Order, container: &Container) -> Vec<String> {
    let own = [
        Some(PathBuf::from(&order.launch.cwd)),
        Some(PathBuf::from(&order.launch.workdir)),
        Some(order.run_dir.clone()),
        order.checkpoint_dir(),
        order.resume.as_ref().map(|checkpoint| PathBuf::from(&checkpoint.path)),
    ];
    let mut own: Vec<PathBuf> = own.into_iter().flatten().collect();
    own.sort();
    own.dedup_by(|later, earlier| later.starts_with(earlier));
    let own = own.into_iter().map(|path| format!("{0}:{0}", path.display()));
    let asked = container.mounts.iter().map(|mount| match mount.access {
        Access::ReadWrite => format!("{}:{}", mount.source, mount.target),
        Access::ReadOnly => format!("{}:{}:ro", mount.source, mount.target),
    });
    own.chain(asked).collect()
}

fn devices(order: &Order, runtime: ContainerRuntime, rank: u32) -> Vec<String> {
    let shown = order.shown_devices(rank);
    shown
        .into_iter()
        .flat_map(|(driver, ids)| (order.container_access)(runtime, driver, &ids))
        .collect()
}
