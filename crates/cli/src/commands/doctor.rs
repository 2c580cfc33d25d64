//! `het doctor`: is this machine ready? Every ✘ comes with its fix.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anstream::println;
use het_core::{Bytes, Share};
use het_server::{ControlGroupFinding, Machine, control_groups, free_space, this_machine};
use owo_colors::OwoColorize;

use crate::fail::{Fail, code};
use crate::local::home;

/// Free space below which checkpoints of even a small model are at risk.
const SPACE_MIN_BYTES: u64 = 2 << 30;

/// One thing looked at.
enum Check {
    Pass(String),
    /// Works, but somebody may want more.
    Warning(String, Option<String>),
    Fail(String, String),
}

pub fn doctor() -> Result<u8, Fail> {
    let machine = this_machine();
    let mut checks = devices(&machine);
    checks.push(state_directory());
    checks.push(groups(&machine));
    checks.push(trainer());
    checks.push(program(
        "python3",
        &["-m", "pip", "--version"],
        "download models with pip",
        "install Python and pip, for example `apt-get install python3-pip`",
    ));
    checks.push(program(
        "torchrun",
        &["--help"],
        "run PyTorch scripts",
        "only PyTorch jobs need it: `pip install torch`",
    ));
    let mut bad = 0;
    for check in &checks {
        match check {
            Check::Pass(text) => println!("{} {text}", "✔".green()),
            Check::Warning(text, hint) => {
                println!("{} {text}", "!".yellow());
                hint.iter().for_each(|hint| println!("  hint: {hint}"));
            }
            Check::Fail(text, fix) => {
                bad += 1;
                println!("{} {text}", "✘".red());
                println!("  fix: {fix}");
            }
        }
    }
    Ok(if bad == 0 { code::OK } else { code::FAILED })
}

fn devices(machine: &Machine) -> Vec<Check> {
    let topology = &machine.topology;
    let mut checks: Vec<Check> = topology
        .device_ids()
        .map(|id| {
            let (device, class) = (topology.device(id), topology.class_of(id));
            let amount = match device.capacity {
                Share::WHOLE => String::new(),
                capacity => format!(", {} cores", capacity.whole_units()),
            };
            let memory = topology.memory_of(id);
            Check::Pass(format!("{} {}{amount}, {memory}", device.name, class.title))
        })
        .collect();
    let accelerators = topology.accelerators().next().is_some();
    if !accelerators {
        let text = "no accelerator: training runs on the CPU";
        checks.push(Check::Warning(text.to_owned(), None));
    }
    let findings = machine.discovery.diagnostics.iter();
    checks.extend(findings.map(|finding| Check::Warning(finding.to_string(), finding.hint())));
    checks
}

fn state_directory() -> Check {
    let home = match home() {
        Ok(home) => home,
        Err(_) => {
            let fix = "set `HET_HOME` to a directory that you can write";
            return Check::Fail("there is no state directory".to_owned(), fix.to_owned());
        }
    };
    let lock = home.lock_file();
    let root = lock.parent().unwrap_or(Path::new("/"));
    match free_space(root) {
        Ok(Bytes(free)) if free < SPACE_MIN_BYTES => Check::Fail(
            format!("`{}` has only {} free", root.display(), Bytes(free)),
            "free space there, or set `HET_HOME` to a larger disk".to_owned(),
        ),
        Ok(free) => Check::Pass(format!("state in `{}`, {free} free", root.display())),
        Err(_) => {
            Check::Warning(format!("state in `{}`, free space unknown", root.display()), None)
        }
    }
}

/// Keeping jobs from devices of others matters where there are any.
fn groups(machine: &Machine) -> Check {
    let finding = control_groups();
    let has_accelerators = machine.topology.accelerators().next().is_some();
    let hint = match finding {
        ControlGroupFinding::Usable { limits_memory: true, confines_devices, .. }
            if confines_devices || !has_accelerators =>
        {
            return Check::Pass(finding.to_string());
        }
        ControlGroupFinding::Usable { limits_memory: true, .. } => {
            "only a server of root can keep jobs from devices of others"
        }
        _ => "a server started by systemd with `packaging/het.service` may make them",
    };
    Check::Warning(finding.to_string(), Some(hint.to_owned()))
}

fn trainer() -> Check {
    let fix = "build it with `cargo build --release -p het-train`";
    let beside = env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("het-train")));
    match beside.filter(|path| path.exists()).or_else(|| in_path("het-train")) {
        Some(path) => Check::Pass(format!("built-in trainer `{}`", path.display())),
        None => {
            Check::Fail("the built-in trainer `het-train` was not found".to_owned(), fix.to_owned())
        }
    }
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|file| fs::metadata(file).is_ok())
}

fn program(name: &str, probe: &[&str], purpose: &str, hint: &str) -> Check {
    let works = in_path(name).is_some()
        && Command::new(name).args(probe).output().is_ok_and(|output| output.status.success());
    match works {
        true => Check::Pass(format!("`{name}` works: can {purpose}")),
        false => Check::Warning(
            format!("`{name}` does not work: cannot {purpose}"),
            Some(hint.to_owned()),
        ),
    }
}
