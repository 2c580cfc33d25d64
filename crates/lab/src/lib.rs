//! Scenarios × policies × seeds: the same scheduling code as on real machines, in virtual time.
//!
//! Knows: published workloads and clusters, how scenarios are made from them or from seeds,
//! and what came of playing them.
//! Must never know: production servers.

mod bench;
mod bound;
mod cluster;
mod collectives;
mod draw;
mod fabric;
mod fairness;
mod faults;
mod from_log;
pub mod measured;
mod outcome;
mod pack;
mod random;
mod recording;
pub mod report;
mod what_if;
pub mod workload;

pub use het_control::Past;
pub use het_forecast::{Cadence, Fault, PlayError, Retention, Scenario, play};

pub use bench::{RoundBench, RoundTimes, bench_rounds, mixed_cluster};
pub use bound::Bound;
pub use cluster::{ClusterError, cluster};
pub use collectives::{CollectiveScore, PublishedCollective, read_collectives, score_collectives};
pub use draw::Draw;
pub use fabric::{
    ControlName, ErrorSummary, FlowError, FlowScenario, FlowScore, PATH_HOSTS_MAX, PublishedFlow,
    parse_flows, read_flows, score_flows, summarise,
};
pub use fairness::Fairness;
pub use faults::{FAULT_RATES, FaultCourse, FaultRates, draw_faults, read_faults};
pub use from_log::{Completions, LeftOut, LoggedRun, LoggedTrace, from_log, trace_of_log};
pub use outcome::{Outcome, TenantOutcome, Utilisation, simulate};
pub use pack::{PACKING_SEED, pack};
pub use random::{
    random_changing_scenario, random_scenario, with_start_conditions, with_warm_starts,
};
pub use recording::{Recording, record};
pub use what_if::{Assumptions, CheckpointModel, Noise, Restart, WhatIfError, what_if};
