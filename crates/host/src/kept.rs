//! What a submission leaves beside its event: the variables of its submitter, and its script.
//!
//! ```text
//! HASH.env            NAME=VALUE and a zero byte each, for its owner alone; an empty one ends
//!                     those that were named one by one
//! HASH/train.sh       a script as it was
//! ```
//!
//! Files are named after what is in them: a shell that submits a thousand jobs leaves one, which is
//! synced once, before the first of them is acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, DirEntry, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use het_core::{Alternative, Job, JobSpec, KeptVariables, Launch};
use sha2::{Digest, Sha256};

/// Bytes of all variables of a submission.
pub const ENVIRONMENT_BYTES_MAX: usize = 512 << 10;

/// Whether a process can have this variable: nothing ends its name or its value early.
pub fn is_variable(name: &str, value: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
}

/// Bytes that variables take up in a process: `NAME=VALUE` and a zero each.
pub fn environment_bytes<'a>(
    variables: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> usize {
    variables.into_iter().map(|(name, value)| name.len() + value.len() + 2).sum()
}

/// Keeps variables, those first that were `named` one by one; the path of their file.
///
/// # Errors
/// When it cannot be written.
pub fn keep_environment(
    dir: &Path,
    named: &BTreeMap<String, String>,
    others: &BTreeMap<String, String>,
) -> io::Result<PathBuf> {
    let mut text = String::new();
    named.iter().for_each(|(name, value)| text.extend([name, "=", value, "\0"]));
    text.push('\0');
    others.iter().for_each(|(name, value)| text.extend([name, "=", value, "\0"]));
    let path = dir.join(format!("{}.env", hash(text.as_bytes())));
    write(&path, text.as_bytes(), 0o600)?;
    Ok(path)
}

/// Keeps the variables that the job file sets: their names stay in the specification, their values
/// go to a file. Those of `public` are the server's own, and stay.
///
/// # Errors
/// When a name or a value can be no variable's, they are more than [`ENVIRONMENT_BYTES_MAX`], or
/// the file cannot be written.
pub fn keep_job_variables(
    dir: &Path,
    spec: &mut JobSpec,
    public: &BTreeMap<String, String>,
) -> io::Result<()> {
    // What several alternatives share they still share afterwards.
    let mut last: Option<(Arc<Launch>, Arc<Launch>)> = None;
    let stages = spec.stages.iter_mut();
    for Alternative { launch, .. } in stages.flat_map(|stage| &mut stage.alternatives) {
        let new = match &last {
            Some((old, new)) if Arc::ptr_eq(old, launch) => Arc::clone(new),
            _ => Arc::new(keep_launch_variables(dir, launch, public)?),
        };
        last = Some((Arc::clone(launch), Arc::clone(&new)));
        *launch = new;
    }
    Ok(())
}

fn keep_launch_variables(
    dir: &Path,
    launch: &Launch,
    public: &BTreeMap<String, String>,
) -> io::Result<Launch> {
    let (open, secret): (BTreeMap<_, _>, BTreeMap<_, _>) =
        launch.env.clone().into_iter().partition(|(name, value)| public.get(name) == Some(value));
    let is_wrong = |(name, value): (&String, &String)| !is_variable(name, value);
    if secret.iter().any(is_wrong) || environment_bytes(&secret) > ENVIRONMENT_BYTES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if secret.is_empty() {
        return Ok(launch.clone());
    }
    let file = keep_environment(dir, &secret, &BTreeMap::new())?.to_string_lossy().into_owned();
    let names = secret.keys().map(|name| name.as_str().into()).collect();
    Ok(Launch { env: open, kept_env: Some(KeptVariables { file, names }), ..launch.clone() })
}

/// Keeps a script under its name; the path of the copy.
///
/// # Errors
/// When it cannot be written, or the name is none of a file.
pub fn keep_script(dir: &Path, name: &str, text: &str) -> io::Result<PathBuf> {
    if Path::new(name).file_name().is_none_or(|file| file != name) {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    let path = dir.join(hash(text.as_bytes())).join(name);
    write(&path, text.as_bytes(), 0o700)?;
    Ok(path)
}

/// Removes what no job names any more, and that is older than so much: variables, scripts, and
/// copies of directories.
///
/// # Errors
/// When the directory cannot be read.
pub fn remove_unused<'a>(
    dir: &Path,
    jobs: impl Iterator<Item = &'a Job>,
    age: Duration,
) -> io::Result<()> {
    let launches = jobs.flat_map(|job| &job.spec.stages).flat_map(|stage| &stage.alternatives);
    let paths = launches.flat_map(|alternative| {
        let launch = &alternative.launch;
        let kept = launch.kept_env.iter().map(|kept| &kept.file);
        let files = launch.environment.iter().chain(kept).chain(&launch.kept_script);
        files.chain(&launch.argv).chain([&launch.cwd])
    });
    let named = paths.filter_map(|path| Path::new(path).strip_prefix(dir).ok()?.iter().next());
    let used: BTreeSet<_> = named.map(|name| name.to_owned()).collect();
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries.filter_map(Result::ok) {
        if !used.contains(&entry.file_name()) && is_older(&entry, age) {
            let path = entry.path();
            // What cannot be removed now is found again by the next server.
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
    }
    Ok(())
}

/// A clock that was set back makes nothing older.
fn is_older(entry: &DirEntry, age: Duration) -> bool {
    let since = entry.metadata().and_then(|metadata| metadata.modified());
    age.is_zero() || since.is_ok_and(|at| at.elapsed().is_ok_and(|passed| passed > age))
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes and syncs a file, unless it is there already.
fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let dir = path.parent().unwrap_or(path);
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let draft = dir.join(format!(".{}-{:?}", std::process::id(), std::thread::current().id()));
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn variables_are_kept_once_and_for_their_owner_alone() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let one = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let (named, others) = (one("A", "1\n2"), one("B", "3"));
        let path = keep_environment(dir.path(), &named, &others).expect("it can be written");
        assert_eq!(fs::read(&path).expect("it is there"), b"A=1\n2\0\0B=3\0");
        let mode = fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(keep_environment(dir.path(), &named, &others).expect("it is there"), path);
        let remove = |age| remove_unused(dir.path(), [].into_iter(), age);
        remove(Duration::from_secs(60)).expect("the directory can be read");
        assert!(path.exists(), "its job may be on its way");
        remove(Duration::ZERO).expect("the directory can be read");
        assert!(!path.exists());
    }

    #[test]
    fn a_script_is_kept_under_its_name() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let path = keep_script(dir.path(), "train.sh", "#!/bin/sh\n").expect("it can be written");
        assert!(path.ends_with("train.sh"));
        for name in ["", ".", "..", "a/b", "/etc/passwd"] {
            assert!(keep_script(dir.path(), name, "").is_err(), "{name}");
        }
    }
}
