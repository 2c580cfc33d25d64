//! Decides when a `checkpoint-N` directory is complete. No I/O.
//!
//! Checkpoints that a program reports itself are taken as complete. Otherwise (Hugging Face
//! `Trainer` and the like), a directory is complete when it was renamed into place; one that was
//! created in place is complete when it contains a whole `trainer_state.json` (written last), when
//! the next checkpoint appears, or when every process exited with 0 or 75 (a process killed in the
//! middle of a save leaves half a checkpoint). Directories that existed before the start belong to
//! earlier attempts and are not reported again.

use std::collections::{BTreeSet, VecDeque};

use het_core::Checkpoint;

/// How many reported checkpoints are remembered, so that none is reported twice.
const REMEMBERED_MAX: usize = 256;

/// The step in a directory's name, `checkpoint-N`.
pub(super) fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix("checkpoint-")?.parse().ok()
}

/// Checkpoint directories that appeared during one lease.
#[derive(Debug, Default)]
pub(super) struct CheckpointTracker {
    /// Created in place and perhaps being written.
    open: BTreeSet<u64>,
    complete: VecDeque<u64>,
    /// What was reported, by the program or by a rule.
    reported: VecDeque<Checkpoint>,
}

impl CheckpointTracker {
    /// A directory was created in place: the ones before it are complete.
    pub(super) fn created(&mut self, step: u64) {
        self.complete_open();
        if !self.complete.contains(&step) {
            self.open.insert(step);
        }
    }

    /// A directory was renamed into place.
    pub(super) fn moved_in(&mut self, step: u64) {
        self.complete_open();
        self.complete.push_back(step);
    }

    /// A directory contains a whole `trainer_state.json`.
    pub(super) fn state_written(&mut self, step: u64) {
        if self.open.remove(&step) {
            self.complete.push_back(step);
        }
    }

    /// Every process exited with 0 or 75.
    pub(super) fn exited_orderly(&mut self) {
        self.complete_open();
    }

    pub(super) fn is_open(&self, step: u64) -> bool {
        self.open.contains(&step)
    }

    /// Steps that became complete since the last call.
    pub(super) fn take(&mut self) -> impl Iterator<Item = u64> + use<> {
        std::mem::take(&mut self.complete).into_iter()
    }

    /// Whether this is reported for the first time. Another step may have the same path.
    pub(super) fn is_new(&mut self, checkpoint: &Checkpoint) -> bool {
        if self.reported.contains(checkpoint) {
            return false;
        }
        if self.reported.len() == REMEMBERED_MAX {
            self.reported.pop_front();
        }
        self.reported.push_back(checkpoint.clone());
        true
    }

    fn complete_open(&mut self) {
        self.complete.extend(std::mem::take(&mut self.open));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replays events, one word each, and checks the steps that are complete after them.
    #[track_caller]
    fn check(events: &str, complete: &[u64]) {
        let mut tracker = CheckpointTracker::default();
        for word in events.split_whitespace() {
            match word.split_once(':') {
                Some(("created", step)) => tracker.created(step.parse().expect("a step")),
                Some(("moved", step)) => tracker.moved_in(step.parse().expect("a step")),
                Some(("state", step)) => tracker.state_written(step.parse().expect("a step")),
                _ => tracker.exited_orderly(),
            }
        }
        assert_eq!(tracker.take().collect::<Vec<_>>(), complete, "{events}");
    }

    #[test]
    fn the_rule() {
        check("moved:5", &[5]);
        check("created:5", &[]);
        check("created:5 exit", &[5]);
        check("created:5 created:10", &[5]);
        check("created:5 moved:10", &[5, 10]);
        check("created:5 state:5", &[5]);
        check("created:5 state:5 created:10 exit", &[5, 10]);
        check("state:5", &[]);
    }

    #[test]
    fn names() {
        assert_eq!(step_of("checkpoint-500"), Some(500));
        assert_eq!(step_of("checkpoint-500.tmp"), None);
        assert_eq!(step_of("tmp-checkpoint-500"), None);
    }

    #[test]
    fn a_checkpoint_is_new_once() {
        let mut tracker = CheckpointTracker::default();
        let last = |step| Checkpoint { step, path: "/c/last.ckpt".to_owned() };
        assert!(tracker.is_new(&last(5)));
        assert!(!tracker.is_new(&last(5)));
        assert!(tracker.is_new(&last(10)));
    }
}
