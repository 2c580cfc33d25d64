//! Published policies, re-implemented to be compared with. All but `fgd` decide in rounds.

mod fgd;
mod gavel;
mod index;
mod rounds;
mod sia;

pub(crate) use fgd::InOrder;
pub(crate) use gavel::{Objective, Shares};
pub(crate) use index::{Index, IndexPolicy};
pub(crate) use sia::Sia;
