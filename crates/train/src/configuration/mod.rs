//! Model configurations in, [`Architecture`](crate::architecture::Architecture)s out: no key is
//! ignored.
//!
//! Every key is used, or is on the list of harmless ones, or the model is refused by that key.

pub mod gguf;
mod harmless;
pub mod hub;
pub mod keys;
mod layers;
pub mod rope;
