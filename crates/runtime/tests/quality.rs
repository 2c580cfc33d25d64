//! How long runs are in virtual time: beside HEFT, and beside what no schedule can beat.

use std::sync::Arc;

use het_core::Bytes;
use het_runtime::Machine;
use het_runtime::drivers::dummy::Noise;
use het_runtime::measure::{Factorisation, READYS, Transfers, Workload, machine, quality};
use het_runtime::schedulers::{SCHEDULERS, SchedulerKind, scheduler_named};

const EXACT: Noise = Noise { deviation: 0.0, seed: 0 };

fn ours() -> [SchedulerKind; 1] {
    [scheduler_named("adaptive").expect("the default")]
}

/// Factorisations and training steps on three machines, with and without transfers.
fn scenes() -> Vec<(Workload, Arc<Machine>)> {
    let kinds = [Factorisation::Cholesky, Factorisation::Lu, Factorisation::Qr];
    let mut workloads: Vec<Workload> =
        kinds.map(|kind| Workload::factorisation(kind, 5, &READYS)).to_vec();
    workloads.push(Workload::training(4, 6, 2, &[4.0, 1.0]));
    let machines = [[2, 2], [4, 1], [1, 3]].into_iter().flat_map(|counts| {
        [Transfers::Free, Transfers::Linked].map(|transfers| {
            Arc::new(machine(&counts, transfers, Bytes(16 << 30)).expect("a machine"))
        })
    });
    let machines: Vec<Arc<Machine>> = machines.collect();
    let pair = |workload: Workload| {
        machines.iter().map(move |machine| (workload.clone(), Arc::clone(machine)))
    };
    workloads.into_iter().flat_map(pair).collect()
}

#[test]
fn no_run_beats_the_bounds() {
    for (workload, machine) in scenes() {
        for noise in [EXACT, Noise { deviation: 0.4, seed: 5 }] {
            let found = quality(&workload, &machine, SCHEDULERS, &[noise]).expect("it runs");
            let least = 0.999_999 * found.bounds.most();
            assert!(found.heft_foreseen >= least, "{}", workload.name);
            for row in &found.schedulers {
                assert!(row.makespan >= least, "{} by {}", workload.name, row.name);
            }
        }
    }
}

#[test]
fn with_exact_models_ours_is_no_longer_than_heft() {
    for (workload, machine) in scenes() {
        let found = quality(&workload, &machine, &ours(), &[EXACT]).expect("it runs");
        let ratio = found.schedulers[0].makespan / found.heft;
        assert!(ratio <= 1.05, "{}: {ratio:.3}", workload.name);
    }
}

#[test]
fn published_makespans_of_heft_are_not_exceeded() {
    let machine = Arc::new(machine(&[2, 2], Transfers::Free, Bytes(0)).expect("a machine"));
    // READYS prints these for HEFT on two CPUs and two GPUs.
    for (tiles, published) in [(4, 75.0), (6, 152.0), (8, 266.0), (10, 437.0)] {
        let workload = Workload::factorisation(Factorisation::Cholesky, tiles, &READYS);
        let made = (ours()[0].make)();
        let makespan = workload.makespan(&machine, made, EXACT).expect("it runs") / 1e6;
        assert!(makespan <= published, "{tiles}: {makespan}");
    }
}

#[test]
fn under_noise_half_of_what_heft_loses_is_made_good() {
    for deviation in [0.2, 0.4] {
        let (mut heft, mut foreseen, mut ours_all) = (0.0, 0.0, 0.0);
        for (workload, machine) in scenes() {
            let noises: Vec<Noise> = (1..=4).map(|seed| Noise { deviation, seed }).collect();
            let found = quality(&workload, &machine, &ours(), &noises).expect("it runs");
            heft += 1.0;
            foreseen += found.heft_foreseen / found.heft;
            ours_all += found.schedulers[0].makespan / found.heft;
        }
        let closed = (heft - ours_all) / (heft - foreseen);
        assert!(closed >= 0.5, "noise {deviation}: {closed:.2} of the gap");
    }
}

#[test]
fn devices_that_are_much_slower_are_used_and_worth_their_part() {
    // Eight fast ones, one of a third of their speed, and a CPU of a twelfth, each with gradients
    // of its own, which are added up at the end.
    let workload = Workload::training(6, 160, 10, &[12.0, 1.0, 3.0]);
    for transfers in [Transfers::Free, Transfers::Linked] {
        let machine = Arc::new(machine(&[1, 8, 1], transfers, Bytes(16 << 30)).expect("a machine"));
        let found = quality(&workload, &machine, &ours(), &[EXACT]).expect("it runs");
        let ideal = found.bounds.most() / found.schedulers[0].makespan;
        assert!(ideal >= 0.95, "{}: {ideal:.3} of what they can do together", transfers.name());
        let spans = workload.spans(&machine, (ours()[0].make)(), EXACT).expect("it runs");
        for device in machine.device_ids() {
            assert!(spans.iter().any(|span| span.device == device), "{device:?} did nothing");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for (workload, machine) in scenes().into_iter().step_by(5) {
        let noise = Noise { deviation: 0.3, seed: 9 };
        for kind in SCHEDULERS {
            let run = || workload.makespan(&machine, (kind.make)(), noise).expect("it runs");
            assert!((run() - run()).abs() < 0.5, "{} by {}", workload.name, kind.name);
        }
    }
}

#[test]
fn memories_that_hold_a_part_of_the_data_are_enough() {
    let workload = Workload::factorisation(Factorisation::Cholesky, 6, &READYS);
    // Five tiles of 36.
    let small = Bytes(5 * 960 * 960 * 8);
    let machine = Arc::new(machine(&[1, 2], Transfers::Linked, small).expect("a machine"));
    for kind in SCHEDULERS {
        workload.makespan(&machine, (kind.make)(), EXACT).expect("it runs");
    }
}
