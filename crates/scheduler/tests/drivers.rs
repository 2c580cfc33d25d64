//! Devices go to programs that have a driver for them.

use std::sync::Arc;

use het_core::{Action, Drivers, JobSpec, Name, Priority, Reason, State, Time, Topology};
use het_perf::Rates;
use het_scheduler::impossible;
use het_testkit::build::{alternative, job, stage, submitted, topology};
use het_testkit::scene;

const POLICIES: [&str; 5] = ["fifo", "dynamic", "hybrid", "feedback", "adaptive"];

/// Two cores, a GPU of each of two drivers, both of which Vulkan reaches, too.
fn node() -> Topology {
    let mut topology = topology(&[(&[("h100", 1), ("mi300", 1)], 2)]);
    for (device, driver) in topology.devices[1..].iter_mut().zip(["cuda", "rocm"]) {
        device.drivers = vec![driver.into(), "vulkan".into()];
    }
    topology
}

/// A job that asks for one of these, the first preferred; its program has these drivers.
fn asking(words: &[&str], drivers: &[&str]) -> JobSpec {
    let drivers: Drivers = drivers.iter().copied().collect();
    let mut alternatives: Vec<_> = words.iter().map(|word| alternative(word, 1)).collect();
    alternatives.iter_mut().for_each(|one| one.selector.drivers = drivers.clone());
    job(Priority::Normal, vec![stage("train", alternatives)])
}

/// Job and device of each start, and why the others wait.
fn planned(policy: &str, jobs: &[JobSpec]) -> (Vec<(u64, Name)>, Vec<Reason>) {
    let mut state = State::new(Arc::new(node()));
    for (id, spec) in (1..).zip(jobs) {
        state.apply(Time::ZERO, &submitted(id, spec.clone()));
    }
    let plan = scene::proposed(&state, &Rates::default(), policy);
    let starts = plan.actions.iter().filter_map(|action| match action {
        Action::Start { stage, placement, .. } => {
            let grant = placement.devices().next()?;
            Some((stage.job.0, state.topology().device(grant.device).name.clone()))
        }
        _ => None,
    });
    let mut starts: Vec<_> = starts.collect();
    starts.sort();
    (starts, plan.waits.iter().flat_map(|(_, reasons)| reasons.clone()).collect())
}

#[test]
fn the_same_words_mean_other_devices_to_other_programs() {
    let check = |jobs: &[JobSpec], expected: &[(u64, &str)]| {
        for policy in POLICIES {
            let (starts, _) = planned(policy, jobs);
            let starts: Vec<_> = starts.iter().map(|(job, name)| (*job, name.as_str())).collect();
            assert_eq!(starts, expected, "{policy}");
        }
    };
    let (rocm, cuda) = (asking(&["gpu"], &["rocm"]), asking(&["gpu"], &["cuda"]));
    check(&[rocm.clone(), cuda], &[(1, "mi3000"), (2, "h1000")]);
    check(&[rocm.clone(), rocm], &[(1, "mi3000")]);
    check(&[asking(&["gpu", "cpu"], &["cpu"])], &[(1, "cpu0")]);
    check(&[asking(&["h100", "any"], &["rocm"])], &[(1, "mi3000")]);
}

#[test]
fn one_driver_may_reach_devices_of_several() {
    let vulkan = asking(&["gpu"], &["level-zero", "vulkan"]);
    for policy in POLICIES {
        let (starts, _) = planned(policy, &[vulkan.clone(), vulkan.clone(), vulkan.clone()]);
        let mut devices: Vec<&str> = starts.iter().map(|(_, name)| name.as_str()).collect();
        devices.sort_unstable();
        assert_eq!(devices, ["h1000", "mi3000"], "{policy}");
    }
}

#[test]
fn a_stage_that_no_driver_helps_says_so() {
    for policy in POLICIES {
        let (starts, waits) = planned(policy, &[asking(&["gpu"], &["cann", "cpu"])]);
        assert_eq!(starts, [], "{policy}");
        let drivers = ["cann", "cpu"].map(Name::from).to_vec();
        assert_eq!(waits, [Reason::NoDriver { word: "gpu".into(), drivers }], "{policy}");
    }
}

#[test]
fn what_can_never_run_for_want_of_a_driver_is_told_before() {
    let said = |spec: JobSpec| {
        let found = impossible(&Arc::new(node()), &spec);
        found.first().map(ToString::to_string).unwrap_or_default()
    };
    let never = "stage `train` can never run here: this machine cannot give it";
    assert_eq!(said(asking(&["gpu", "cpu"], &["cpu"])), "");
    let only =
        format!("{never} `gpu:1 | h100:1`, for its program has only the drivers `cann`, `cpu`");
    assert_eq!(said(asking(&["gpu", "h100"], &["cpu", "cann"])), only);
    let none = format!("{never} `cpu:1`, for its program has no driver that works");
    assert_eq!(said(asking(&["cpu"], &[])), none);
    // A driver would be of no use.
    assert_eq!(said(asking(&["npu"], &["cpu"])), format!("{never} `npu:1`"));
}
