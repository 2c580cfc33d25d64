//! Who is looked at first: waiting stages in order, in groups that ask for the same.

mod footprint;
mod group;
mod levels;
mod order;
mod pending;

pub(crate) use group::{FootprintId, Group, GroupId, Head};
pub(crate) use levels::{at_boundary, gives_way};
pub(crate) use order::{AGEING_STEP, Precedence, Quota, Rank};
pub(crate) use pending::PendingQueue;
