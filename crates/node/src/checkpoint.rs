//! Checkpoints of a gang: directories that appear, when they are complete, and what they say.
//!
//! `follower` watches the directory that a job names for what its programs call `checkpoint-N`.
//! `verify` says whether one reads back. `search` finds those of frameworks, wherever below its
//! working directories a gang saves.

mod directory_watch;
mod follower;
mod format;
mod search;
mod tracker;
mod trainer_state;
mod verify;
mod watch;

pub(crate) use directory_watch::{ChangedDirectories, DirectoryWatch};
pub(crate) use follower::{CheckpointFollower, Orderly};
pub(crate) use search::{CheckpointSearch, Look, SearchRoots};
pub use verify::{Damage, verify};
