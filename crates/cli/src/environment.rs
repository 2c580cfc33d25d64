//! The variables that a job's programs get from whoever submits it.
//!
//! They get what they would have if they were started here, less what belongs to this terminal,
//! this login, or a job that this command runs in. The server's own variables are nobody's.

use std::collections::BTreeMap;
use std::env;

use anstream::eprintln;
use clap::Args;
use owo_colors::OwoColorize;

use crate::fail::{Fail, code};

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Environment")]
pub struct EnvironmentArgs {
    /// Variables for the job beside your own, which win over them: `NAME=VALUE`, or `NAME` for the
    /// value that it has here even where it is left out otherwise. May be repeated.
    #[arg(long = "env", value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// None of your own variables but `PATH`, `HOME`, `USER`, `LOGNAME`, `SHELL`, `LANG`, `TZ`.
    #[arg(long)]
    pub clean_env: bool,
}

/// Variables that a job does not get: of a terminal and of what shells note there, of a login
/// session that may be over when the job begins, and of a job or a launcher around this command.
const LEFT_OUT: [&str; 35] = [
    "COLUMNS",
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LINES",
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MAINPID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NNODES",
    "NODE_RANK",
    "NOTIFY_SOCKET",
    "OLDPWD",
    "PWD",
    "RANK",
    "SHLVL",
    "STY",
    "TERM",
    "TERMCAP",
    "TERM_PROGRAM",
    "TERM_PROGRAM_VERSION",
    "TERM_SESSION_ID",
    "TMUX",
    "TMUX_PANE",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "WAYLAND_DISPLAY",
    "WINDOWID",
    "WORLD_SIZE",
    "_",
];

/// The same by how they begin.
const LEFT_OUT_PREFIXES: [&str; 10] = [
    "BASH_FUNC_",
    "HET_",
    "OMPI_",
    "PET_",
    "PMIX_",
    "PMI_",
    "SLURM_",
    "SSH_",
    "TORCHELASTIC_",
    "XDG_SESSION_",
];

/// Of these, where a user keeps state and what language to speak: they are of no job.
const KEPT: [&str; 3] = ["HET_HOME", "HET_LANG", "HET_SERVER"];

/// What is left with `--clean-env`.
const CLEAN: [&str; 7] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ"];

/// The variables of a job: those that were named one by one, and the others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Variables {
    pub named: BTreeMap<String, String>,
    pub others: BTreeMap<String, String>,
}

/// The variables of a job. `export` is what a script says of them, as `--export` of sbatch(1):
/// `ALL`, `NONE`, or names of which only those are given, each with a value or as it is here.
pub fn variables(args: &EnvironmentArgs, export: Option<&str>) -> Result<Variables, Fail> {
    let (own, unreadable) = own();
    let mut others = match export {
        _ if args.clean_env => only(&own, &CLEAN),
        None => without_left_out(&own),
        Some(export) => exported(&own, export),
    };
    let lost: Vec<String> = unreadable.into_iter().filter(|name| !is_left_out(name)).collect();
    if !lost.is_empty() && !args.clean_env && export.is_none() {
        let names = lost.join("`, `");
        eprintln!("{} `{names}` is not given to the job: it is no UTF-8", "warning:".yellow());
    }
    let mut named = BTreeMap::new();
    for text in &args.env {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => (text.as_str(), own.get(text).cloned().ok_or_else(|| not_here(text))?),
        };
        if name.is_empty() {
            return Err(Fail::new(code::USAGE, format!("`--env {text}` names no variable"))
                .hint("write `--env NAME=VALUE`"));
        }
        named.insert(name.to_owned(), value);
    }
    let pairs = named.iter().chain(&others);
    let bytes: usize = pairs.map(|(name, value)| name.len() + value.len() + 2).sum();
    if bytes > het_server::ENVIRONMENT_BYTES_MAX {
        let text = format!("your variables have {bytes} bytes, more than a job can be given");
        return Err(Fail::new(code::USAGE, text).hint("`--clean-env` leaves them out"));
    }
    let path = path_with_companions(others.get("PATH"));
    others.insert("PATH".to_owned(), path);
    Ok(Variables { named, others })
}

fn not_here(name: &str) -> Fail {
    Fail::new(code::USAGE, format!("`{name}` has no value here"))
        .hint(format!("write `--env {name}=VALUE`"))
}

/// All variables of this process, and the names of those that are no UTF-8.
fn own() -> (BTreeMap<String, String>, Vec<String>) {
    let mut unreadable = Vec::new();
    let readable = env::vars_os().filter_map(|(name, value)| {
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => Some((name, value)),
            (Ok(name), Err(_)) => {
                unreadable.push(name);
                None
            }
            (Err(_), _) => None,
        }
    });
    (readable.collect(), unreadable)
}

fn is_left_out(name: &str) -> bool {
    let begins = || LEFT_OUT_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    !KEPT.contains(&name) && (LEFT_OUT.contains(&name) || begins())
}

fn without_left_out(own: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let kept = own.iter().filter(|(name, _)| !is_left_out(name));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn only(own: &BTreeMap<String, String>, names: &[&str]) -> BTreeMap<String, String> {
    let named = names.iter().filter_map(|name| own.get_key_value(*name));
    named.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn exported(own: &BTreeMap<String, String>, export: &str) -> BTreeMap<String, String> {
    let words: Vec<&str> = export.split(',').map(str::trim).collect();
    let mut variables = match words.as_slice() {
        ["NONE" | "NIL"] => return only(own, &CLEAN),
        words if words.contains(&"ALL") => without_left_out(own),
        _ => only(own, &CLEAN),
    };
    for word in words.into_iter().filter(|word| *word != "ALL") {
        match word.split_once('=') {
            Some((name, value)) => {
                variables.insert(name.to_owned(), value.to_owned());
            }
            None => variables.extend(only(own, &[word])),
        }
    }
    variables
}

/// `PATH` with the directory of this program first, so that the `het-train` installed beside it is
/// found.
fn path_with_companions(path: Option<&String>) -> String {
    let path = path.cloned().unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".to_owned());
    let beside = env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_path_buf()));
    match beside {
        Some(dir) => format!("{}:{path}", dir.display()),
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> BTreeMap<String, String> {
        let pairs = [
            ("PATH", "/bin"),
            ("LR", "1"),
            ("HET_TOKEN", "s"),
            ("HET_HOME", "/h"),
            ("SSH_TTY", "t"),
            ("RANK", "3"),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    fn names(variables: &BTreeMap<String, String>) -> Vec<&str> {
        variables.keys().map(String::as_str).collect()
    }

    #[test]
    fn what_belongs_to_a_login_or_an_outer_job_stays_here() {
        assert_eq!(names(&without_left_out(&own())), ["HET_HOME", "LR", "PATH"]);
        assert!(LEFT_OUT.is_sorted() && LEFT_OUT_PREFIXES.is_sorted());
    }

    #[test]
    fn scripts_say_what_they_are_given() {
        assert_eq!(names(&exported(&own(), "NONE")), ["PATH"]);
        assert_eq!(names(&exported(&own(), "ALL,A=1")), ["A", "HET_HOME", "LR", "PATH"]);
        let some = exported(&own(), "LR,B=x=y");
        assert_eq!(names(&some), ["B", "LR", "PATH"]);
        assert_eq!(some["B"], "x=y");
    }
}
