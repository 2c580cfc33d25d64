//! Checkpoints of a gang: directories that appear, when they are complete, and what they say.

mod follower;
mod tracker;
mod trainer_state;
mod watch;

pub(crate) use follower::{CheckpointFollower, Orderly};
