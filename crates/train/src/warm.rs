//! A start before the devices are free: `warm: true` in a job file.
//!
//! What needs no device is done first. Then the program waits for the file that `HET_WARM` names,
//! which says in the words of a shell which variables it has from now on.

use crate::error::{Error, IoContext, Result};
use crate::notice::Notice;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

const WARM: &str = "HET_WARM";
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The devices of this process, as variables say.
#[derive(Debug)]
pub enum Devices {
    /// It was started with them.
    Given,
    /// It was not, and has them now: values of variables, none for those that are gone.
    Granted(BTreeMap<String, Option<String>>),
}

/// Whether this process was started before its devices were free.
pub fn is_early() -> bool {
    file().is_some()
}

fn file() -> Option<PathBuf> {
    std::env::var_os(WARM).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Waits until the devices of this process are free; `None` where it is asked to stop before.
pub fn wait(notice: &Notice) -> Result<Option<Devices>> {
    let Some(file) = file() else { return Ok(Some(Devices::Given)) };
    while notice.reason().is_none() {
        match std::fs::read_to_string(&file) {
            Ok(text) => return parse(&text, &file).map(|given| Some(Devices::Granted(given))),
            Err(error) if error.kind() == ErrorKind::NotFound => sleep(LOOK_EVERY),
            Err(error) => return Err(error).at("read", &file),
        }
    }
    Ok(None)
}

fn parse(text: &str, file: &Path) -> Result<BTreeMap<String, Option<String>>> {
    let unknown = || Error::Usage {
        what: format!("`{}` does not say which devices this process has", file.display()),
        hint: "start the job again, or leave `warm` out of its file",
    };
    let mut words = shlex::split(text).ok_or_else(unknown)?.into_iter();
    let mut given = BTreeMap::new();
    while let Some(verb) = words.next() {
        let word = words.next().ok_or_else(unknown)?;
        let (name, value) = match (verb.as_str(), word.split_once('=')) {
            ("export", Some((name, value))) => (name.to_owned(), Some(value.to_owned())),
            ("unset", None) => (word, None),
            _ => return Err(unknown()),
        };
        given.insert(name, value);
    }
    Ok(given)
}

impl Devices {
    /// The variable of this process from now on.
    pub fn variable(&self, name: &str) -> Option<String> {
        match self {
            Self::Granted(given) if given.contains_key(name) => given[name].clone(),
            _ => std::env::var(name).ok(),
        }
    }

    /// Begins this program anew with the variables that it was granted: drivers of accelerators
    /// read them from the environment, which a process that has threads does not change. What it
    /// read so far is in memory. Returns only where there is nothing to change, or it cannot.
    pub fn begin_anew(&self) -> Result<()> {
        let Self::Granted(given) = self else { return Ok(()) };
        let program = std::env::current_exe().at("find", Path::new("het-train"))?;
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1).collect::<Vec<OsString>>()).env_remove(WARM);
        for (name, value) in given {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Err(command.exec()).at("start", &program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read_as_a_shell_reads_it() {
        let text = "unset A\nexport B='it'\\''s\ntwo lines'\nexport C=''\n";
        let given = parse(text, Path::new("file")).expect("it is well formed");
        let expected = [
            ("A".to_owned(), None),
            ("B".to_owned(), Some("it's\ntwo lines".to_owned())),
            ("C".to_owned(), Some(String::new())),
        ];
        assert_eq!(given, BTreeMap::from(expected));
        for wrong in ["export", "export A", "rm -rf", "export A='"] {
            assert!(parse(wrong, Path::new("file")).is_err(), "{wrong}");
        }
    }
}
