//! Complete or absent: a checkpoint appears under its name in one rename, or not at all.

use crate::curve::Curve;
use crate::error::{Error, IoContext, Result};
use crate::optimiser::AdamW;
use crate::progress::Totals;
use crate::steps::Executor;
use crate::stored::{self, Stored, StoredFile, Values};
use crate::trainable::Trainable;
use crate::whole;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

const MOMENTS_FILE: &str = "optimizer.safetensors";
const STATE_FILE: &str = "state.json";
const KEPT: usize = 2;
/// What directories begin with that are no checkpoints, yet or any more.
const SCRATCH: &str = ".tmp-";

/// Everything beside what learns and the moments. The data position and the random order follow
/// from the step and the seed in `run`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Completed steps.
    pub step: u64,
    pub epoch: u64,
    /// Sequences of the current epoch that were used.
    pub position: u64,
    pub totals: Totals,
    #[serde(default)]
    pub losses: Curve,
    /// Held-out losses, each after so many steps.
    #[serde(default)]
    pub held_out: Vec<(u64, f64)>,
    /// What must be equal for a resume to continue the same run.
    pub run: Json,
}

/// Writes `DIRECTORY/checkpoint-STEP` and removes all but the newest two.
pub fn save(
    directory: &Path,
    state: &State,
    trainable: &Trainable<'_>,
    executor: &mut Executor,
) -> Result<PathBuf> {
    let name = format!("checkpoint-{}", state.step);
    let scratch = directory.join(format!("{SCRATCH}{name}-{}", std::process::id()));
    let path = directory.join(&name);
    let written = fill(&scratch, state, trainable, executor)
        .and_then(|()| publish(&scratch, &path, directory));
    if let Err(source) = written {
        let _ = fs::remove_dir_all(&scratch);
        return Err(Error::CheckpointWrite { step: state.step, source: Box::new(source) });
    }
    let mut older = list(directory);
    older.truncate(older.len().saturating_sub(KEPT));
    for (_, path) in older {
        let _ = discard(&path);
    }
    Ok(path)
}

/// Takes the name of a checkpoint away before its files, so that nothing under it is incomplete.
fn discard(path: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!("{SCRATCH}old-{name}-{}", std::process::id()));
    fs::rename(path, &aside).at("move aside", path)?;
    fs::remove_dir_all(&aside).at("remove", &aside)
}

/// Removes what runs left that were killed while they saved.
pub fn remove_unfinished(directory: &Path) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(SCRATCH)) else {
            continue;
        };
        let process = rest.rsplit_once('-').and_then(|(_, id)| id.parse::<u32>().ok());
        let lives = process.is_some_and(|id| Path::new(&format!("/proc/{id}")).exists());
        if rest.contains("checkpoint-") && !lives {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Complete checkpoints, oldest first.
pub fn list(directory: &Path) -> Vec<(u64, PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<(u64, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let step = name.to_str()?.strip_prefix("checkpoint-")?.parse().ok()?;
            Some((step, entry.path()))
        })
        .collect();
    found.sort();
    found
}

/// Reads a checkpoint: returns the state, and gives values and moments to where they are computed
/// with. Refuses one of another run.
pub fn load(
    path: &Path,
    run: &Json,
    trainable: &Trainable<'_>,
    executor: &mut Executor,
) -> Result<State> {
    let incomplete = |what: String| Error::Checkpoint { path: path.to_owned(), what };
    let file = path.join(STATE_FILE);
    let text = fs::read_to_string(&file).at("read", &file)?;
    let state: State =
        serde_json::from_str(&text).map_err(|error| incomplete(error.to_string()))?;
    let differences = differences(&state.run, run);
    if !differences.is_empty() {
        return Err(Error::Mismatch { path: path.to_owned(), differences });
    }
    trainable.load(executor, path)?;
    let file = path.join(MOMENTS_FILE);
    let mut file = StoredFile::open(&file)?;
    executor.with_moments(|moments| {
        let firsts = moments.iter_mut().map(|AdamW { first, .. }| &mut first[..]);
        file.read_parts("first", &mut firsts.collect::<Vec<_>>())?;
        let seconds = moments.iter_mut().map(|AdamW { second, .. }| &mut second[..]);
        file.read_parts("second", &mut seconds.collect::<Vec<_>>())
    })?;
    Ok(state)
}

/// Names every field that is not the same, such as ``` `seed` is 2, was 1 ```.
fn differences(saved: &Json, wanted: &Json) -> String {
    let empty = serde_json::Map::new();
    let saved = saved.as_object().unwrap_or(&empty);
    let wanted = wanted.as_object().unwrap_or(&empty);
    let changed = wanted.iter().filter_map(|(key, value)| match saved.get(key) {
        Some(before) if before == value => None,
        Some(before) => Some(format!("`{key}` is {value}, was {before}")),
        None => Some(format!("`{key}` is not in it")),
    });
    let gone = saved.iter().filter(|(key, _)| !wanted.contains_key(*key));
    let gone = gone.map(|(key, before)| format!("`{key}` was {before}"));
    changed.chain(gone).collect::<Vec<_>>().join("; ")
}

fn fill(
    scratch: &Path,
    state: &State,
    trainable: &Trainable<'_>,
    executor: &mut Executor,
) -> Result<()> {
    fs::create_dir_all(scratch).at("create", scratch)?;
    trainable.save(executor, scratch)?;
    executor.with_moments(|moments| {
        let firsts = moments.iter().map(|AdamW { first, .. }| &first[..]);
        let seconds = moments.iter().map(|AdamW { second, .. }| &second[..]);
        let both = [flat("first", firsts.collect()), flat("second", seconds.collect())];
        stored::write(&scratch.join(MOMENTS_FILE), &both)
    })?;
    let text = serde_json::to_string_pretty(state).expect("a plain struct serialises");
    whole::write(&scratch.join(STATE_FILE), text.as_bytes())?;
    sync_directory(scratch)
}

fn flat<'a>(name: &str, parts: Vec<&'a [f32]>) -> (String, Stored<'a>) {
    let shape = vec![parts.iter().map(|part| part.len()).sum()];
    (name.to_owned(), Stored { shape, values: Values::Parts(parts) })
}

fn publish(scratch: &Path, path: &Path, directory: &Path) -> Result<()> {
    // A rerun may reach a step whose checkpoint already exists; the new one is the same state.
    if path.exists() {
        discard(path)?;
    }
    fs::rename(scratch, path).at("move into place", path)?;
    sync_directory(directory)
}

fn sync_directory(path: &Path) -> Result<()> {
    File::open(path).and_then(|directory| directory.sync_all()).at("write", path)
}
