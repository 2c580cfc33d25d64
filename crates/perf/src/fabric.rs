//! The fabric: what a network of links does to the flows and collectives that cross it. One model
//! of sharing serves PCIe, NVLink and network links alike; where queues decide, packets are
//! followed.

mod clos;
mod collective;
mod ecmp;
mod ecn;
mod fluid;
mod incast;
mod loading;
mod network;
mod packets;
mod paths;
mod rate_control;
mod sharing;
mod staging;

pub use clos::{Clos, Rail, SpineLeaf, dual_plane, rail, spine_leaf};
pub use collective::{
    Algorithm, Collective, CollectiveCost, Group, Library, Protocol, Transport, TransportKind,
};
pub use ecmp::{HASHED_MAX, MaxLinkLoad, ecmp_choice, max_link_load_distribution};
pub use ecn::{
    EcnProposal, EcnReason, PauseThresholds, TrafficMix, pause_thresholds, propose_marking,
};
pub use fluid::{Bottleneck, FLUID_STEPS_MAX, FluidPoint, SteadyState};
pub use incast::{Incast, IncastOutcome};
pub use loading::{Loading, LoadingLimit, LoadingTime};
pub use network::{Link, LinkId, Network, VertexId};
pub use packets::{Message, PacketModel, deliver};
pub use paths::{
    CHOICES_MAX, Demand, PATHS_MAX, PathError, Routes, shortest_paths, worst_link_load,
};
pub use rate_control::{Control, Dcqcn, Dctcp, Hpcc, Marking, Timely};
pub use sharing::{Flow, completion_times, max_min_rates};
pub use staging::{Route, Socket};

/// A number without pattern from a seed and a place in its sequence (SplitMix64, Steele et al.,
/// OOPSLA 2014).
pub fn hash(seed: u64, place: u64) -> u64 {
    let mut mixed = seed.wrapping_add(place.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
