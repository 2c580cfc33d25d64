//! What submissions leave beside the log, variables and scripts, on its way to an agent: the
//! server's own directory is closed to users.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, Permissions, set_permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use het_core::{KeptVariables, Launch};
use het_files::{Links, replace_private};

/// Longest file that travels: a script or variables of a submission.
const BYTES_MAX: u64 = 4 << 20;
/// Most files of a user that are looked through at a time.
const FILES_MAX: usize = 100_000;

/// Kept files that a launch has, as they are called in their directory. What the submitter chose,
/// such as a word of the program, leads to none.
pub(crate) fn named<'a>(launch: &'a Launch, dir: &'a Path) -> impl Iterator<Item = &'a Path> {
    let below = move |path: &'a String| Path::new(path).strip_prefix(dir).ok();
    let kept = launch.kept_env.iter().map(|kept| &kept.file);
    launch.environment.iter().chain(kept).chain(&launch.kept_script).filter_map(below)
}

/// `HASH/NAME`, and nothing that leads out of its directory.
fn is_script(name: &Path) -> bool {
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    name.components().count() == 2 && name.components().all(is_plain)
}

/// What a kept file holds.
///
/// # Errors
/// When it cannot be read, or is no text.
pub(crate) fn read(dir: &Path, name: &Path) -> io::Result<String> {
    let bytes = het_files::read(&dir.join(name), Links::Refused, BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Keeps a file in the user's own directory. Variables are for their owner to read, scripts to run.
///
/// # Errors
/// When it cannot be written, or its name leads elsewhere.
pub(crate) fn keep(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    let name = Path::new(name);
    let is_plain = name.components().all(|part| matches!(part, Component::Normal(_)));
    if !is_plain || name.as_os_str().is_empty() {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    let path = dir.join(name);
    let parent = path.parent().unwrap_or(dir);
    DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    replace_private(&path, text.as_bytes())?;
    match is_script(name) {
        true => set_permissions(&path, Permissions::from_mode(0o700)),
        false => Ok(()),
    }
}

/// Removes what none of these launches names.
pub(crate) fn remove_others<'a>(dir: &Path, launches: impl Iterator<Item = &'a Launch>) {
    let first = |name: &Path| Some(dir.join(name.components().next()?));
    let used: BTreeSet<PathBuf> = launches
        .flat_map(|launch| named(launch, dir).filter_map(first).collect::<Vec<_>>())
        .collect();
    for entry in het_files::list(dir, FILES_MAX).entries {
        if !used.contains(&entry.path) {
            // What cannot be removed now is found again by the next agent.
            let _ = het_files::remove_tree(&entry.path);
        }
    }
}

/// The launch with its kept files in another directory.
pub(crate) fn moved(launch: &Arc<Launch>, from: &Path, to: &Path) -> Arc<Launch> {
    let names: BTreeSet<PathBuf> = named(launch, from).map(Path::to_owned).collect();
    if names.is_empty() {
        return Arc::clone(launch);
    }
    let moved = |path: &String| -> String {
        let name = Path::new(path).strip_prefix(from).ok().filter(|name| names.contains(*name));
        name.map_or_else(|| path.clone(), |name| to.join(name).to_string_lossy().into_owned())
    };
    let (kept_env, script) = (launch.kept_env.as_ref(), launch.kept_script.as_ref());
    // The script is a part of a word at most.
    let word = |word: &String| match script {
        Some(script) => word.replace(script.as_str(), &moved(script)),
        None => word.clone(),
    };
    Arc::new(Launch {
        environment: launch.environment.as_ref().map(moved),
        kept_env: kept_env
            .map(|kept| KeptVariables { file: moved(&kept.file), names: kept.names.clone() }),
        kept_script: script.map(moved),
        argv: launch.argv.iter().map(word).collect(),
        ..(**launch).clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_program_lead_to_no_file_but_its_own_script() {
        let words = ["/kept/b/run.sh", "/kept/c/other.sh", "/kept/../tokens.json", "/kept/c.env"];
        let launch = Arc::new(Launch {
            environment: Some("/kept/a.env".to_owned()),
            kept_script: Some("/kept/b/run.sh".to_owned()),
            argv: words.map(str::to_owned).to_vec(),
            ..Launch::default()
        });
        let names: Vec<&Path> = named(&launch, Path::new("/kept")).collect();
        assert_eq!(names, [Path::new("a.env"), Path::new("b/run.sh")]);
        let there = moved(&launch, Path::new("/kept"), Path::new("/own"));
        assert_eq!(there.environment.as_deref(), Some("/own/a.env"));
        assert_eq!(there.argv[0], "/own/b/run.sh");
        assert_eq!(there.argv[1..], launch.argv[1..]);
    }

    #[test]
    fn what_is_kept_lies_in_its_directory_for_its_owner_alone() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        for name in ["", "..", "../x", "/etc/x", "a/../../x"] {
            assert!(keep(dir.path(), name, "text").is_err(), "{name}");
        }
        keep(dir.path(), "b/run.sh", "true").expect("it can be written");
        keep(dir.path(), "a.env", "A=1").expect("it can be written");
        keep(dir.path(), "c.env", "C=1").expect("it can be written");
        let text = read(dir.path(), Path::new("b/run.sh")).expect("it is there");
        assert_eq!(text, "true");
        let used = Launch {
            environment: Some(dir.path().join("a.env").display().to_string()),
            ..Launch::default()
        };
        remove_others(dir.path(), [&used].into_iter());
        assert!(dir.path().join("a.env").exists());
        assert!(!dir.path().join("b").exists() && !dir.path().join("c.env").exists());
    }
}
