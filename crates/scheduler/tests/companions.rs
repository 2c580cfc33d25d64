//! Disk space and bandwidth that stages need beside their devices.

use std::sync::Arc;

use het_core::{
    Action, Bytes, HostResources, JobId, JobSpec, Priority, Reason, State, Time, Topology,
};
use het_perf::Rates;
use het_scheduler::impossible;
use het_testkit::build::{alternative, job, stage, submitted, topology};
use het_testkit::scene;

/// Two accelerators, 100 GiB of disk, of which 8 GiB can be read a second.
fn node() -> Topology {
    let mut topology = topology(&[(&[("h100", 2)], 0)]);
    topology.nodes[0].host.scratch = Bytes::gib(100);
    topology.nodes[0].host.read = Bytes::gib(8);
    topology
}

fn needing(scratch: u64, read: u64) -> JobSpec {
    let mut train = stage("train", vec![alternative("h100", 1)]);
    let (scratch, read) = (Bytes::gib(scratch), Bytes::gib(read));
    train.companions.host = HostResources { scratch, read, ..HostResources::NONE };
    job(Priority::Normal, vec![train])
}

/// Jobs that start, of these.
fn started(jobs: [JobSpec; 2]) -> Vec<JobId> {
    let mut state = State::new(Arc::new(node()));
    for (id, spec) in (1..).zip(jobs) {
        state.apply(Time::ZERO, &submitted(id, spec));
    }
    let plan = scene::proposed(&state, &Rates::default(), "adaptive");
    let why = plan.waits.iter().flat_map(|(_, reasons)| reasons);
    assert!(why.clone().all(|reason| matches!(reason, Reason::NoCompanions { .. })), "{plan:?}");
    let jobs = plan.actions.iter().filter_map(|action| match action {
        Action::Start { stage, .. } => Some(stage.job),
        _ => None,
    });
    jobs.collect()
}

#[test]
fn what_a_disk_holds_and_reads_is_not_promised_twice() {
    assert_eq!(started([needing(50, 4), needing(50, 4)]), [JobId(1), JobId(2)]);
    assert_eq!(started([needing(50, 4), needing(51, 1)]), [JobId(1)]);
    assert_eq!(started([needing(1, 4), needing(1, 5)]), [JobId(1)]);
}

#[test]
fn more_than_there_is_can_never_run() {
    let said = |spec: JobSpec| {
        let found = impossible(&Arc::new(node()), &spec);
        found.first().map(ToString::to_string).unwrap_or_default()
    };
    assert_eq!(said(needing(100, 8)), "");
    let expected = "stage `train` can never run here: this machine cannot give it `h100:1` with \
                    101GiB of scratch and 9GiB a second read";
    assert_eq!(said(needing(101, 9)), expected);
}
