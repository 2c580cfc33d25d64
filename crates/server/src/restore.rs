//! Backups of a server's state, and state directories that come from one or are a copy: what ran
//! belongs to the original, so nothing is taken up, ended or started by itself.

use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};

use het_control::{Log, LogError, Past};
use het_core::{Event, Outcome, Time};
use het_files::{Kind, Links, list, read, remove_tree};
use het_host::{Home, HomeError, Instance, claim_instance, instance};
use thiserror::Error;

use crate::store::{EventStore, KeptFile, StoreError, StoreReader, unused_beside};

/// Longest kept file.
const KEPT_BYTES_MAX: u64 = 1 << 30;
/// Kept files lie no deeper.
const DEPTH_MAX: usize = 16;
const ENVIRONMENT: &str = "env";

/// Whether a backup has the variables of submitters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Environments {
    LeftOut,
    Included,
}

/// What becomes of a store that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    Refused,
    MovedAside,
}

/// Why a backup cannot be restored.
#[derive(Debug, Error)]
pub enum RestoreError {
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("`{}` cannot be used", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("`{}` has a state already", path.display())]
    Existing { path: PathBuf },
    #[error("the backup is damaged: {}", .0[0])]
    Damaged(Vec<StoreError>),
}

/// What was restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    pub events: u64,
    /// Jobs that had not ended: all are held.
    pub held: usize,
}

/// Writes a backup of a store in use beside it; the number of its events.
///
/// # Errors
/// When something cannot be read or written.
pub fn back_up(
    store: &StoreReader,
    home: &Home,
    environments: Environments,
) -> Result<u64, RestoreError> {
    let path = home.backup();
    let trouble = |source| RestoreError::Io { path: path.clone(), source };
    remove_tree(&path).map_err(trouble)?;
    let mut files = Vec::new();
    collect(&home.kept(), (String::new(), 0), environments, &mut files).map_err(trouble)?;
    Ok(store.back_up(&path, &files)?)
}

/// Kept files below a directory. What went meanwhile no job needs any more.
fn collect(
    dir: &Path,
    (below, depth): (String, usize),
    environments: Environments,
    files: &mut Vec<KeptFile>,
) -> io::Result<()> {
    for entry in list(dir, usize::MAX).entries {
        let name = format!("{below}{}", entry.name.to_string_lossy());
        let is_environment = entry.path.extension().is_some_and(|it| it == ENVIRONMENT);
        match entry.kind {
            Kind::Directory if depth < DEPTH_MAX => {
                collect(&entry.path, (format!("{name}/"), depth + 1), environments, files)?;
            }
            Kind::File if is_environment && environments == Environments::LeftOut => {}
            Kind::File => match read(&entry.path, Links::Refused, KEPT_BYTES_MAX) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                bytes => files.push((name, bytes?)),
            },
            _ => {}
        }
    }
    Ok(())
}

/// Puts the state of a backup into a state directory where no server runs. All its jobs that have
/// not ended are held, and nothing of them runs.
///
/// # Errors
/// When there is a state already, the backup is damaged, or something cannot be written.
pub fn restore(home: &Home, backup: File, existing: Existing) -> Result<Restored, RestoreError> {
    home.server_dir()?;
    let path = home.store();
    let is_there = path.exists() || !home.server_jobs()?.is_empty();
    if is_there && existing == Existing::Refused {
        return Err(RestoreError::Existing { path: home.root().to_owned() });
    }
    let draft = path.with_extension("restored");
    let trouble = |source| RestoreError::Io { path: draft.clone(), source };
    remove_tree(&draft).map_err(trouble)?;
    copy(backup, het_files::create_private(&draft).map_err(trouble)?).map_err(trouble)?;
    // Whatever leader's log was here, this one is older.
    remove_tree(&home.epoch()).map_err(trouble)?;
    let mut store = EventStore::open(&draft)?;
    let damage = store.check().damage;
    if !damage.is_empty() {
        drop((store, fs::remove_file(&draft)));
        return Err(RestoreError::Damaged(damage));
    }
    for (name, bytes) in store.take_files()? {
        put_back(&home.kept(), &name, &bytes).map_err(trouble)?;
    }
    let mut past = store.recover()?.past;
    let held = halt(&mut store, &mut past)?;
    let events = store.length();
    drop(store);
    if path.exists() {
        fs::rename(&path, unused_beside(&path, "before")).map_err(trouble)?;
    }
    remove_tree(&home.store_copy()).map_err(trouble)?;
    fs::rename(&draft, &path).map_err(trouble)?;
    Ok(Restored { events, held })
}

/// Copies a file as a whole, onto the disk.
///
/// # Errors
/// When one cannot be read or the other not be written.
pub fn copy(mut source: File, mut target: File) -> io::Result<()> {
    io::copy(&mut source, &mut target)?;
    target.sync_all()
}

/// Names of a backup lead nowhere but below the directory.
fn put_back(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let is_plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if !is_plain {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap_or(dir))?;
    het_files::replace_private(&path, bytes)
}

/// Where the state directory is a copy, lets go of what runs under the original; a sentence for
/// people. From now on this directory is an original.
///
/// # Errors
/// When something cannot be read or written.
pub(crate) fn part_from_original(
    home: &Home,
    store: &mut EventStore,
    past: &mut Past,
) -> Result<Option<String>, RestoreError> {
    let (dir, file) = (home.server_dir()?, home.instance());
    let trouble = |source| RestoreError::Io { path: file.clone(), source };
    let found = instance(&dir, &file).map_err(trouble)?;
    let news = match found {
        Instance::Original => return Ok(None),
        Instance::New => None,
        Instance::Copy => {
            // Its records are of programs of the original.
            remove_tree(&home.run_dir("server")).map_err(trouble)?;
            let held = halt(store, past)?;
            Some(format!(
                "this state directory is a copy: nothing that runs is taken up, and {held} jobs \
                 are held, `het release all` lets them go on"
            ))
        }
    };
    claim_instance(&dir, &file).map_err(trouble)?;
    Ok(news)
}

/// Ends what ran and holds what has not ended, by events; how many jobs.
fn halt(store: &mut EventStore, past: &mut Past) -> Result<usize, LogError> {
    let at = past.state.now();
    let live = past.state.jobs().iter().filter(|(_, job)| job.end.is_none());
    let jobs: Vec<_> = live.map(|(&job, record)| (job, record.held)).collect();
    let held = jobs.iter().filter(|(_, held)| !held).map(|&(job, _)| Event::JobHeld { job });
    let leases = past.state.leases().keys();
    let ended = leases.map(|&lease| Event::StageEnded { lease, outcome: Outcome::Lost });
    let events: Vec<(Time, Event)> = held.chain(ended).map(|event| (at, event)).collect();
    store.append(&events)?;
    events.iter().for_each(|(at, event)| past.apply(*at, event));
    Ok(jobs.len())
}
