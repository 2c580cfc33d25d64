//! Whole questions and their answers.

mod answers;
mod laws;
mod machines;
mod refusals;
