//! The engine with real processes. No test waits for a fixed time: each waits for the fact it is
//! about.

mod adopt;
mod confined;
mod containers;
mod contract;
mod ends;
mod helper;
mod owners;
mod reap;
mod reports;
mod rig;
mod shards;
mod shims;
mod starts;
mod warm;
