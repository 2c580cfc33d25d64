//! When a `checkpoint-N` directory counts as complete: a rule, without I/O.
//!
//! A program that reports its checkpoints itself is believed. For one that does not (Hugging Face
//! `Trainer` and kin), a directory is complete when it was renamed into place; one that was
//! created in place is complete when it holds a whole `trainer_state.json` (written last), when
//! the next checkpoint appears, or when every process exited orderly (0 or 75: a process killed in
//! the middle of a save leaves half a checkpoint). Directories that were there before the start
//! belong to earlier attempts and are not reported again.

use std::collections::{BTreeSet, VecDeque};

/// How many checkpoints are remembered, so as not to report one twice.
const REMEMBERED_MAX: usize = 256;

/// The step in a directory's name, `checkpoint-N`.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix("checkpoint-")?.parse().ok()
}

/// Checkpoint directories that appeared during one lease.
#[derive(Debug, Default)]
pub(crate) struct Saves {
    /// Created in place and perhaps still being written.
    open: BTreeSet<u64>,
    complete: VecDeque<u64>,
    /// Paths that were reported, by whichever way.
    reported: VecDeque<String>,
}

impl Saves {
    /// A directory was created in place: the ones before it are complete.
    pub(crate) fn created(&mut self, step: u64) {
        self.complete_open();
        if !self.complete.contains(&step) {
            self.open.insert(step);
        }
    }

    /// A directory was renamed into place.
    pub(crate) fn moved_in(&mut self, step: u64) {
        self.complete_open();
        self.complete.push_back(step);
    }

    /// A directory holds a whole `trainer_state.json`.
    pub(crate) fn state_written(&mut self, step: u64) {
        if self.open.remove(&step) {
            self.complete.push_back(step);
        }
    }

    /// Every process exited with 0 or 75.
    pub(crate) fn exited_orderly(&mut self) {
        self.complete_open();
    }

    pub(crate) fn is_open(&self, step: u64) -> bool {
        self.open.contains(&step)
    }

    /// Steps that became complete since the last call.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = u64> + use<> {
        std::mem::take(&mut self.complete).into_iter()
    }

    /// Whether this path is reported for the first time.
    pub(crate) fn is_news(&mut self, path: &str) -> bool {
        if self.reported.iter().any(|old| old == path) {
            return false;
        }
        if self.reported.len() == REMEMBERED_MAX {
            self.reported.pop_front();
        }
        self.reported.push_back(path.to_owned());
        true
    }

    fn complete_open(&mut self) {
        self.complete.extend(std::mem::take(&mut self.open));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a story, one word an event, and gives the steps that are complete after it.
    #[track_caller]
    fn check(story: &str, complete: &[u64]) {
        let mut saves = Saves::default();
        for word in story.split_whitespace() {
            match word.split_once(':') {
                Some(("created", step)) => saves.created(step.parse().expect("a step")),
                Some(("moved", step)) => saves.moved_in(step.parse().expect("a step")),
                Some(("state", step)) => saves.state_written(step.parse().expect("a step")),
                _ => saves.exited_orderly(),
            }
        }
        assert_eq!(saves.take().collect::<Vec<_>>(), complete, "{story}");
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
    fn a_path_is_news_once() {
        let mut saves = Saves::default();
        assert!(saves.is_news("/c/checkpoint-5"));
        assert!(!saves.is_news("/c/checkpoint-5"));
    }
}
