//! Flows that were followed packet by packet in ns-3: shares equal the published ones, and packets
//! take as long as there.

use het_lab::{FlowScore, read_collectives, read_flows, score_collectives, score_flows, summarise};

use crate::Data;

fn scores() -> Option<Vec<FlowScore>> {
    let data = Data::find("fabric/ns3-flow-completion.csv")?;
    let path = data.root.join("fabric/ns3-flow-completion.csv");
    let scenarios = read_flows(&path).expect("published flows");
    Some(score_flows(&scenarios))
}

#[test]
fn shares_of_links_equal_the_published_ones() {
    let Some(scores) = scores() else { return };
    let flows = scores.iter().flat_map(|score| &score.flows);
    let most = flows.map(|flow| flow.max_min_difference).fold(0.0, f64::max);
    assert!(most <= 1e-6, "{most}");
}

/// Median and mean error of a control, over all scenarios and over the odd ones of them.
fn check(family: &str, median: f64, mean: f64) {
    let Some(scores) = scores() else { return };
    for every in [1, 2] {
        let own = scores.iter().filter(|score| score.control.family() == family);
        let own = own.skip(every - 1).step_by(every);
        let errors = own.flat_map(|score| &score.flows).map(|flow| flow.predicted_error);
        let errors = summarise(errors).expect("some scenarios");
        assert!(errors.median <= median && errors.mean <= mean, "{family} {every}: {errors:?}");
    }
}

#[test]
fn dcqcn_takes_as_long_as_in_ns3() {
    check("dcqcn", 0.02, 0.10);
}

#[test]
fn dctcp_takes_as_long_as_in_ns3() {
    check("dctcp", 0.02, 0.10);
}

#[test]
fn timely_takes_as_long_as_in_ns3() {
    check("timely", 0.02, 0.10);
}

#[test]
fn hpcc_takes_as_long_as_in_ns3() {
    check("hpcc", 0.02, 0.10);
}

#[test]
fn packets_are_better_than_shares() {
    let Some(scores) = scores() else { return };
    for family in ["dcqcn", "dctcp", "timely", "hpcc"] {
        let of = |error: fn(&het_lab::FlowError) -> f64| {
            let own = scores.iter().filter(|score| score.control.family() == family);
            summarise(own.flat_map(|score| &score.flows).map(error)).expect("some scenarios")
        };
        let (packets, shares) = (of(|flow| flow.predicted_error), of(|flow| flow.max_min_error));
        assert!(packets.mean < shares.mean && packets.median < shares.median, "{family}");
    }
}

#[test]
fn collectives_cost_about_what_was_published() {
    let Some(data) = Data::find("fabric/collectives.csv") else { return };
    let path = data.root.join("fabric/collectives.csv");
    let published = read_collectives(&path).expect("published collectives");
    let scores = score_collectives(&published);
    let check = |group: &str, rows: usize, most: f64| {
        let found = scores.iter().filter(|score| score.group.contains(group));
        let found: Vec<_> = found.collect();
        assert_eq!(found.iter().map(|score| score.rows).sum::<usize>(), rows, "{group}");
        for score in found {
            assert!(score.error_mean <= most, "{}: {:.3}", score.group, score.error_mean);
        }
    };
    check("A100 NVLink 1 node", 77, 0.07);
    check("V100 NVLink 1 node", 77, 0.08);
    check("nccl-tests issue", 5, 0.12);
    check("nccl issue", 3, 0.22);
    check("SimAI calbusbw.h", 4, 0.05);
    // Rings of up to 1,024 ranks: the ratios hold another implementation's latencies.
    check("ring ratio", 88, 0.22);
    check("alltoall ratio", 55, 0.19);
}
