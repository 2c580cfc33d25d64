//! Queue and rate over time, as drawings of their own.

use het_perf::fabric::FluidPoint;

use super::plot::{Scale, Series, standalone};

/// SVG of the queue in kB over milliseconds.
pub fn queue_plot(points: &[FluidPoint]) -> String {
    let row = |point: &FluidPoint| (point.at_s * 1e3, point.queue_bytes / 1e3);
    let points = points.iter().map(row).collect();
    let series = [Series { name: "queue".to_owned(), points }];
    standalone(&series, "milliseconds", "kB", Scale::Linear)
}

/// SVG of every flow's rate in Gb/s over milliseconds.
pub fn rate_plot(points: &[FluidPoint]) -> String {
    let flows = points.first().map_or(0, |point| point.rates.len());
    let series = (0..flows).map(|flow| {
        let row = |point: &FluidPoint| (point.at_s * 1e3, point.rates[flow] * 8e-9);
        Series { name: format!("flow {flow}"), points: points.iter().map(row).collect() }
    });
    standalone(&series.collect::<Vec<_>>(), "milliseconds", "Gb/s", Scale::Linear)
}
