//! What the cores of one machine compute: layers of blocks with hand-written backwards over plain
//! slices, the ends around them, and generation.
//!
//! Knows how to compute fast on the cores of one machine. Never knows files, steps or schedules.

pub mod ends;
pub mod generate;
pub mod layer;
pub mod lengths;
pub mod model;
