//! The engine against a real API server: `cargo xtask cluster up` starts one.

mod beginning;
mod contract;
mod logs;
mod loopback;
mod nodes;
mod resource;
mod rig;
