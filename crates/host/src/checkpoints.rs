//! Checkpoints on disk: which are complete, and what of them the log has missed.

use std::path::Path;

use het_core::{Checkpoint, Event, Failure, Job, JobId, Outcome, StageIndex, State};
use het_files::{is_file, list};
use het_node::verify;

/// Written last into a checkpoint: by het-train, which renames the directory into place with it,
/// and by Hugging Face.
const MARKERS: [&str; 2] = ["state.json", "trainer_state.json"];

/// Most entries of a directory that are looked at.
const ENTRIES_MAX: usize = 10_000;

/// The newest complete checkpoint of a stage that the log or the disk knows.
pub fn newest_checkpoint(job: &Job, index: StageIndex) -> Option<Checkpoint> {
    let stage = &job.stages[index.index()];
    let logged = stage.checkpoint.clone();
    let launches = job.spec.stage(index).alternatives.iter().map(|shape| &shape.launch);
    let dirs = launches.filter_map(|launch| Some(launch.checkpoint.as_ref()?.dir.clone()));
    let on_disk = dirs.flat_map(|dir| complete_checkpoints(Path::new(&dir)));
    let on_disk = on_disk.filter(|checkpoint| !stage.has_rejected(checkpoint));
    logged.into_iter().chain(on_disk).max_by_key(|checkpoint| checkpoint.step)
}

/// What happened to a job while no control loop ran, where its processes are gone: newer
/// checkpoints may be complete, live leases are lost, and its user wants it to go on.
pub fn missed_facts(state: &State, id: JobId) -> Vec<Event> {
    let Some(job) = state.job(id) else { return Vec::new() };
    let mut facts = Vec::new();
    for (&lease, held) in state.leases() {
        if let Some(checkpoint) = newest_checkpoint(job, held.stage.stage)
            && job.stages[held.stage.stage.index()].checkpoint.as_ref() != Some(&checkpoint)
        {
            facts.push(Event::Checkpointed { lease, checkpoint });
        }
        let outcome = Outcome::Failed(Failure::unseen());
        facts.push(Event::StageEnded { lease, outcome });
    }
    if job.held {
        facts.push(Event::JobReleased { job: id });
    }
    facts
}

fn complete_checkpoints(dir: &Path) -> Vec<Checkpoint> {
    let entries = list(dir, ENTRIES_MAX).entries.into_iter();
    let complete = entries.filter_map(|entry| {
        let step = entry.name.to_str()?.strip_prefix("checkpoint-")?.parse().ok()?;
        let is_complete = MARKERS.iter().any(|marker| is_file(&entry.path.join(marker)));
        let counts = is_complete && verify(&entry.path).is_ok();
        counts.then(|| Checkpoint { step, path: entry.path.to_string_lossy().into_owned() })
    });
    complete.collect()
}
