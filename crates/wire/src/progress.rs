//! What programs report of their progress: lines of JSON, and what they add up to. No I/O.

mod line;
mod tally;

pub use line::to_line;
pub use tally::Tally;

/// Longest line that stands in an annotation.
pub const LINE_BYTES_MAX: usize = 16 * 1024;
