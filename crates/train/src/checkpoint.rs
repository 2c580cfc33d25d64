//! Complete or absent: a checkpoint appears under its name in one rename, or not at all.

use crate::error::{Error, IoContext, Result};
use crate::hub::{TensorFile, f32_bytes};
use crate::lora::{Adapter, CONFIG_FILE, TENSORS_FILE};
use crate::optimiser::AdamW;
use crate::progress::Totals;
use crate::whole;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

const MOMENTS_FILE: &str = "optimizer.safetensors";
const STATE_FILE: &str = "state.json";
const KEPT: usize = 2;

/// Everything beside the adapter and the moments. The data position and the random order follow
/// from the step and the seed in `run`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Completed steps.
    pub step: u64,
    pub epoch: u64,
    /// Sequences of the current epoch that were used.
    pub position: u64,
    pub totals: Totals,
    /// What must be equal for a resume to continue the same run.
    pub run: Json,
}

/// Writes `DIRECTORY/checkpoint-STEP` and removes all but the newest two.
pub fn save(
    directory: &Path,
    state: &State,
    adapter: &Adapter,
    base_model: &str,
    moments: &AdamW,
) -> Result<PathBuf> {
    let name = format!("checkpoint-{}", state.step);
    let scratch = directory.join(format!(".tmp-{name}-{}", std::process::id()));
    let path = directory.join(&name);
    let written = fill(&scratch, state, adapter, base_model, moments)
        .and_then(|()| publish(&scratch, &path, directory));
    if let Err(source) = written {
        let _ = fs::remove_dir_all(&scratch);
        return Err(Error::CheckpointWrite { step: state.step, source: Box::new(source) });
    }
    let mut older = list(directory);
    older.truncate(older.len().saturating_sub(KEPT));
    for (_, path) in older {
        let _ = fs::remove_dir_all(path);
    }
    Ok(path)
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

/// Reads a checkpoint into `adapter` and `moments`, refusing one of another run.
pub fn load(path: &Path, run: &Json, adapter: &mut Adapter, moments: &mut AdamW) -> Result<State> {
    let incomplete = |what: String| Error::Checkpoint { path: path.to_owned(), what };
    let file = path.join(STATE_FILE);
    let text = fs::read_to_string(&file).at("read", &file)?;
    let state: State =
        serde_json::from_str(&text).map_err(|error| incomplete(error.to_string()))?;
    let differences = differences(&state.run, run);
    if !differences.is_empty() {
        return Err(Error::Mismatch { path: path.to_owned(), differences });
    }
    let tensors = TensorFile::open(&path.join(TENSORS_FILE))?;
    for (name, shape, place) in adapter.tensors().collect::<Vec<_>>() {
        adapter.values[place].copy_from_slice(&tensors.get(&name, &shape)?);
    }
    let tensors = TensorFile::open(&path.join(MOMENTS_FILE))?;
    moments.first = tensors.get("first", &[moments.first.len()])?;
    moments.second = tensors.get("second", &[moments.second.len()])?;
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
    changed.collect::<Vec<_>>().join("; ")
}

fn fill(
    scratch: &Path,
    state: &State,
    adapter: &Adapter,
    base_model: &str,
    moments: &AdamW,
) -> Result<()> {
    fs::create_dir_all(scratch).at("create", scratch)?;
    write_adapter(scratch, adapter, base_model)?;
    let bytes = [f32_bytes(&moments.first), f32_bytes(&moments.second)];
    let views = ["first", "second"].into_iter().zip(&bytes).map(|(name, bytes)| {
        TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes).map(|view| (name, view))
    });
    let views = views.collect::<std::result::Result<Vec<_>, _>>();
    let packed = views
        .and_then(|views| safetensors::serialize(views, None))
        .map_err(|error| Error::Checkpoint { path: scratch.to_owned(), what: error.to_string() })?;
    whole::write(&scratch.join(MOMENTS_FILE), &packed)?;
    let text = serde_json::to_string_pretty(state).expect("a plain struct serialises");
    whole::write(&scratch.join(STATE_FILE), text.as_bytes())?;
    sync_directory(scratch)
}

fn publish(scratch: &Path, path: &Path, directory: &Path) -> Result<()> {
    // A rerun may reach a step whose checkpoint already exists; the new one is the same state.
    if path.exists() {
        fs::remove_dir_all(path).at("replace", path)?;
    }
    fs::rename(scratch, path).at("move into place", path)?;
    sync_directory(directory)
}

/// Writes the two files of a PEFT adapter.
pub fn write_adapter(directory: &Path, adapter: &Adapter, base_model: &str) -> Result<()> {
    whole::write(&directory.join(TENSORS_FILE), &adapter.to_safetensors()?)?;
    let text = serde_json::to_string_pretty(&adapter.peft_config(base_model))
        .expect("a JSON value serialises");
    whole::write(&directory.join(CONFIG_FILE), text.as_bytes())
}

fn sync_directory(path: &Path) -> Result<()> {
    File::open(path).and_then(|directory| directory.sync_all()).at("write", path)
}
