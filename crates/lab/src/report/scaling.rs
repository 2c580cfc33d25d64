//! How rounds grow with the cluster and its queue, as a drawing of its own.

use std::collections::BTreeMap;

use super::plot::{Scale, Series, standalone};
use crate::RoundTimes;

/// A measured size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalingRow {
    pub nodes: u32,
    pub jobs: u64,
    pub times: RoundTimes,
}

/// SVG with a line of 99th percentiles over waiting jobs for each number of nodes.
pub fn scaling_plot(rows: &[ScalingRow]) -> String {
    let mut by_nodes: BTreeMap<u32, Vec<(f64, f64)>> = BTreeMap::new();
    for row in rows {
        by_nodes.entry(row.nodes).or_default().push((row.jobs as f64, row.times.p99_ms));
    }
    let series = |(nodes, points)| Series { name: format!("{nodes} nodes"), points };
    let series: Vec<Series> = by_nodes.into_iter().map(series).collect();
    standalone(&series, "waiting jobs", "p99 of a round, ms", Scale::Logarithmic)
}
