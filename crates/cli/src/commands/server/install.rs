//! `het server install`: a server of several users as a service of the machine.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anstream::{eprintln, println};
use clap::Args;
use het_server::Home;
use nix::unistd::{Group, User, geteuid};

use crate::fail::{Fail, code};

/// What systemd reads.
const UNIT: &str = "/etc/systemd/system/heterosis.service";
const SERVICE: &str = "heterosis.service";
/// There where systemd runs (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";

#[derive(Debug, Args)]
pub struct InstallArgs {
    /// As whom the server runs; made if there is no such user.
    #[arg(long, value_name = "USER", default_value = "heterosis")]
    run_as: String,
    /// Whose members may submit jobs, each as that user; made if there is no such group.
    #[arg(long, value_name = "GROUP", default_value = "heterosis-users")]
    members: String,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Further options of `het server`, such as `-- --listen 0.0.0.0:7443 …`.
    #[arg(last = true)]
    options: Vec<String>,
}

/// Something that root does.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Run(Vec<String>),
    Write { path: PathBuf, text: String },
}

pub(super) fn install(args: &InstallArgs) -> Result<u8, Fail> {
    if !args.dry_run && !geteuid().is_root() {
        return Err(Fail::new(code::NOT_ALLOWED, "only root can install a server")
            .hint("`sudo het server install`, or `--dry-run` to see what it does"));
    }
    let program = program()?;
    let is_there = |path: &str| Path::new(path).exists();
    let steps = steps(
        args,
        &program,
        &Machine {
            has_user: User::from_name(&args.run_as).ok().flatten().is_some(),
            has_group: Group::from_name(&args.members).ok().flatten().is_some(),
            unit: fs::read_to_string(UNIT).ok(),
            has_systemd: is_there(SYSTEMD),
        },
    );
    for step in &steps {
        step.tell();
        if !args.dry_run {
            step.take()?;
        }
    }
    if !is_there(SYSTEMD) {
        let (home, command) = (Home::OF_SYSTEM, command(args, &program));
        eprintln!("systemd does not run here: start `HET_HOME={home} {command}` as root yourself");
    }
    eprintln!("`usermod -aG {} NAME` lets a user of this machine submit jobs", args.members);
    Ok(code::OK)
}

/// What of a machine decides about the steps.
struct Machine {
    has_user: bool,
    has_group: bool,
    unit: Option<String>,
    has_systemd: bool,
}

fn steps(args: &InstallArgs, program: &Path, machine: &Machine) -> Vec<Step> {
    let run = |text: &str| Step::Run(text.split(' ').map(str::to_owned).collect());
    let mut steps = Vec::new();
    if !machine.has_group {
        steps.push(run(&format!("groupadd --system {}", args.members)));
    }
    if !machine.has_user {
        // With a group of its own: of what users write, the server reads what its group may.
        steps.push(run(&format!(
            "useradd --system --user-group --no-create-home --home-dir {} --shell \
             /usr/sbin/nologin {}",
            Home::OF_SYSTEM,
            args.run_as
        )));
    }
    let text = unit(&command(args, program));
    if machine.has_systemd {
        let is_new = machine.unit.as_ref() != Some(&text);
        if is_new {
            steps.push(Step::Write { path: UNIT.into(), text });
            steps.push(run("systemctl daemon-reload"));
        }
        steps.push(run(&format!("systemctl enable {SERVICE}")));
        // Jobs go on meanwhile.
        steps.push(run(&format!("systemctl restart {SERVICE}")));
    }
    steps
}

fn command(args: &InstallArgs, program: &Path) -> String {
    let options = args.options.iter().map(|option| format!(" {option}")).collect::<String>();
    let InstallArgs { run_as, members, .. } = args;
    format!("{} server --run-as {run_as} --members {members}{options}", program.display())
}

/// Jobs are no part of the service for systemd: they outlive it, and the next one takes them up.
fn unit(command: &str) -> String {
    let home = Home::OF_SYSTEM;
    format!(
        "# Written by `het server install`, which writes it again.\n\
         [Unit]\n\
         Description=Heterosis, a scheduler of training jobs\n\
         After=network-online.target nss-user-lookup.target\n\
         Wants=network-online.target\n\
         \n\
         [Service]\n\
         Type=exec\n\
         ExecStart={command}\n\
         Environment=HET_HOME={home}\n\
         KillMode=process\n\
         Delegate=yes\n\
         DelegateSubgroup=het-supervisor\n\
         TasksMax=infinity\n\
         LimitNOFILE=524288\n\
         Restart=on-failure\n\
         RestartSec=1\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n"
    )
}

impl Step {
    fn tell(&self) {
        match self {
            Self::Run(words) => println!("{}", words.join(" ")),
            Self::Write { path, text } => println!("write {}\n{text}", path.display()),
        }
    }

    fn take(&self) -> Result<(), Fail> {
        match self {
            Self::Run(words) => {
                let status = Command::new(&words[0]).args(&words[1..]).status();
                let status = status.map_err(|error| Fail::file(Path::new(&words[0]), error))?;
                let failed = || Fail::new(code::FAILED, format!("`{}` failed", words.join(" ")));
                status.success().then_some(()).ok_or_else(failed)
            }
            Self::Write { path, text } => {
                het_files::replace(path, text.as_bytes()).map_err(|error| Fail::file(path, error))
            }
        }
    }
}

/// This program, which root will run: nobody else may be able to change it.
fn program() -> Result<PathBuf, Fail> {
    let program = env::current_exe().and_then(fs::canonicalize);
    let program = program.map_err(|error| Fail::file(Path::new("het"), error))?;
    let is_roots = |path: &Path| {
        let found = fs::symlink_metadata(path);
        found.is_ok_and(|found| found.uid() == 0 && found.mode() & 0o022 == 0)
    };
    if let Some(others) = program.ancestors().find(|path| !is_roots(path)) {
        let text = format!("others than root can change `{}`", others.display());
        return Err(Fail::new(code::CONFLICT, text).hint(
            "put the programs where only root writes, \
             `sudo install het het-train /usr/local/bin`, and install from there",
        ));
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> InstallArgs {
        let (run_as, members) = ("heterosis".to_owned(), "heterosis-users".to_owned());
        let options = vec!["--listen".to_owned(), "127.0.0.1:7443".to_owned()];
        InstallArgs { run_as, members, dry_run: true, options }
    }

    fn told(machine: &Machine) -> String {
        let lines = steps(&args(), Path::new("/usr/local/bin/het"), machine);
        let line = |step: &Step| match step {
            Step::Run(words) => format!("{}\n", words.join(" ")),
            Step::Write { path, text } => format!("write {}\n{text}", path.display()),
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn a_new_machine_gets_all_of_it_and_an_old_one_what_is_missing() {
        let new = Machine { has_user: false, has_group: false, unit: None, has_systemd: true };
        insta::assert_snapshot!("new", told(&new));
        let unit = Some(unit(&command(&args(), Path::new("/usr/local/bin/het"))));
        let old = Machine { has_user: true, has_group: true, unit, has_systemd: true };
        insta::assert_snapshot!("old", told(&old));
    }
}
