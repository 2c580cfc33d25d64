//! `het doctor`: is this machine ready? Every ✘ comes with its fix.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, iter};

use anstream::println;
use het_core::{Bytes, Device, Drivers, Name, Share, Topology};
use het_server::{
    ControlGroupFinding, Machine, Trainer, TrainerDriver, control_groups, free_space, this_machine,
};
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
    checks.extend(trainer(&machine.topology));
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

/// The built-in trainer, and the devices here that it cannot compute on.
fn trainer(topology: &Topology) -> Vec<Check> {
    let Some(trainer) = Trainer::installed() else {
        let text = match in_path("het-train") {
            Some(other) => format!(
                "the built-in trainer is not installed beside `het`, and `{}` is not asked for its \
                 drivers",
                other.display()
            ),
            None => "the built-in trainer `het-train` was not found".to_owned(),
        };
        let fix = "build it with `cargo build --release -p het-train`, and install it beside `het`";
        return vec![Check::Fail(text, fix.to_owned())];
    };
    let program = trainer.program().display();
    match trainer.drivers() {
        Ok(drivers) => {
            let works = drivers.iter().filter(|driver| driver.starts);
            let works: Vec<&str> = works.map(|driver| driver.name.as_str()).collect();
            let text = format!("built-in trainer `{program}`, computes by: {}", works.join(", "));
            let found = Check::Pass(text);
            iter::once(found).chain(devices_without_driver(topology, &drivers)).collect()
        }
        Err(fault) => vec![Check::Fail(fault.to_string(), fault.hint())],
    }
}

/// One line for the devices of each set of drivers that the trainer has none of.
fn devices_without_driver(topology: &Topology, drivers: &[TrainerDriver]) -> Vec<Check> {
    let works = drivers.iter().filter(|driver| driver.starts);
    let works: Drivers = works.map(|driver| driver.name.as_str()).collect();
    let mut alike: BTreeMap<&[Name], Vec<&Device>> = BTreeMap::new();
    for id in topology.device_ids().filter(|&id| !topology.class_of(id).software) {
        let device = topology.device(id);
        if !works.reach(device) {
            alike.entry(&device.drivers).or_default().push(device);
        }
    }
    let row = |(of_devices, devices): (&[Name], Vec<&Device>)| {
        let names = quoted(devices.iter().map(|device| &device.name));
        let is_broken = |it: &&TrainerDriver| {
            !it.starts && of_devices.iter().any(|driver| driver.as_str() == it.name)
        };
        let broken = drivers.iter().filter(is_broken);
        let broken: String =
            broken.map(|it| format!("; `{}` does not start: {}", it.name, it.detail)).collect();
        let run_by = quoted(of_devices.iter());
        let text = format!("the built-in trainer has no driver for {names} ({run_by}){broken}");
        let class = &topology.classes[devices[0].class].id;
        let hint = format!(
            "a program that has one is given them: `het run --devices {class} -- python train.py`"
        );
        Check::Warning(text, Some(hint))
    };
    alike.into_iter().map(row).collect()
}

fn quoted<'a>(names: impl Iterator<Item = &'a Name>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
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

#[cfg(test)]
mod tests {
    use het_wire::topology::from_word;

    use super::*;

    #[test]
    fn devices_that_the_trainer_cannot_use_are_told() {
        let cluster = from_word("epyc-h100x8-910b").expect("the word is known").topology;
        let driver = |name: &str, starts, detail: &str| TrainerDriver {
            name: name.to_owned(),
            starts,
            detail: detail.to_owned(),
        };
        let told = |drivers: &[TrainerDriver]| -> Vec<String> {
            let checks = devices_without_driver(&cluster, drivers).into_iter();
            let text = |check| match check {
                Check::Warning(text, Some(hint)) => format!("{text} | {hint}"),
                _ => "told otherwise".to_owned(),
            };
            checks.map(text).collect()
        };
        let npu = "the built-in trainer has no driver for `npu0` (`cann`) | a program that has one \
                   is given them: `het run --devices ascend-910b -- python train.py`";
        let cpu = driver("cpu", true, "4 threads");
        assert_eq!(told(&[cpu.clone(), driver("cuda", true, "")]), [npu]);
        let broken = told(&[cpu, driver("cuda", false, "no library")]);
        assert_eq!((broken.len(), broken[0].as_str()), (2, npu));
        assert!(
            broken[1].contains("`gpu7` (`cuda`); `cuda` does not start: no library"),
            "{broken:?}"
        );
    }
}
