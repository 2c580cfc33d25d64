//! `het bench graph --quality`.

use std::sync::Arc;

use anstream::eprintln;
use clap::Args;
use het_core::Bytes;
use het_runtime::drivers::dummy::Noise;
use het_runtime::measure::{self, Factorisation, Quality, READYS, Transfers, Workload};
use het_runtime::schedulers::{SCHEDULERS, SchedulerKind};
use serde_json::{Value, json};

use crate::fail::{Fail, code};
use crate::output::{self, Column, Form, Shown};

#[derive(Debug, Args)]
pub struct QualityArgs {
    /// Tiles a side of the matrices.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "4,6,8,10,12")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=40), requires = "quality")]
    pub tiles: Vec<u16>,
    /// CPUs and GPUs.
    #[arg(long, value_name = "CPUS+GPUS,…", value_delimiter = ',', default_value = "2+2,4+1,1+3")]
    #[arg(value_parser = shape, requires = "quality")]
    pub devices: Vec<(u16, u16)>,
    /// Milliseconds of the four kernels of a factorisation on a CPU, then on a GPU, instead of the
    /// published ones.
    #[arg(long, value_name = "MS,MS,MS,MS:MS,MS,MS,MS", value_parser = durations)]
    #[arg(requires = "quality")]
    pub durations: Option<Durations>,
    /// Standard deviations of durations, as parts of them.
    #[arg(long, value_name = "PART,…", value_delimiter = ',', default_value = "0,0.2,0.4")]
    #[arg(value_parser = noise, requires = "quality")]
    pub noise: Vec<f64>,
    /// Runs with other random numbers, of which the mean is shown.
    #[arg(long, value_name = "N", default_value_t = 20, requires = "quality")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub seeds: u64,
}

/// Class by class.
#[derive(Debug, Clone, Copy)]
pub struct Durations([[f64; 4]; 2]);

fn shape(word: &str) -> Result<(u16, u16), String> {
    let parts = word
        .split_once('+')
        .and_then(|(cpus, gpus)| Some((cpus.parse::<u16>().ok()?, gpus.parse::<u16>().ok()?)));
    let fits = |(cpus, gpus): &(u16, u16)| (1..=32).contains(&(cpus + gpus)) && *gpus < 32;
    parts.filter(fits).ok_or_else(|| "two numbers are needed, 1 to 32 in all: `2+2`".to_owned())
}

fn noise(word: &str) -> Result<f64, String> {
    let part = word.parse().ok().filter(|part: &f64| (0.0..=1.0).contains(part));
    part.ok_or_else(|| "a number from 0 to 1 is needed".to_owned())
}

fn durations(word: &str) -> Result<Durations, String> {
    let class = |word: &str| {
        let numbers: Option<Vec<f64>> = word.split(',').map(|one| one.parse().ok()).collect();
        let numbers: [f64; 4] = numbers?.try_into().ok()?;
        numbers.iter().all(|one| (1e-3..=1e6).contains(one)).then_some(numbers)
    };
    let classes = word.split_once(':').and_then(|(cpu, gpu)| Some([class(cpu)?, class(gpu)?]));
    let needed = "four durations of a CPU and four of a GPU are needed, each from 0.001 to \
                  1000000: `18,57,52,95:11,2,8,3`";
    classes.map(Durations).ok_or_else(|| needed.to_owned())
}

/// Columns of a table of makespans.
const QUALITY: [Column; 13] = [
    Column("GRAPH", "graph", Shown::Always),
    Column("DEVICES", "devices", Shown::Always),
    Column("TRANSFERS", "transfers", Shown::Always),
    Column("NOISE", "noise", Shown::Always),
    Column("SCHEDULER", "scheduler", Shown::Always),
    Column("MAKESPAN_MS", "makespan_ms", Shown::Always),
    Column("OF_HEFT", "of_heft", Shown::Always),
    Column("WORST", "of_heft_max", Shown::Always),
    Column("GAP_CLOSED", "gap_closed", Shown::Always),
    Column("OF_BOUND", "of_bound", Shown::Always),
    Column("AREA_MS", "area_bound_ms", Shown::Wide),
    Column("CRITICAL_PATH_MS", "critical_path_ms", Shown::Wide),
    Column("ASSIGNMENT_MS", "assignment_bound_ms", Shown::Wide),
];

/// Training graphs: layers, microbatches, groups of gradient sums.
const STEPS: [(usize, usize, usize); 3] = [(4, 8, 2), (8, 12, 3), (6, 24, 4)];

/// How much slower a CPU is in those.
const CPU_FACTORS: [f64; 2] = [4.0, 12.0];

/// Memory of a GPU.
const GPU_MEMORY: Bytes = Bytes(16 << 30);

pub(super) fn quality(args: &QualityArgs, form: Form) -> Result<u8, Fail> {
    let durations = args.durations.map_or(READYS, |durations| durations.0);
    let mut workloads = Vec::new();
    for kind in [Factorisation::Cholesky, Factorisation::Lu, Factorisation::Qr] {
        let tiles = args.tiles.iter().map(|tiles| usize::from(*tiles));
        workloads.extend(tiles.map(|tiles| Workload::factorisation(kind, tiles, &durations)));
    }
    for (layers, microbatches, groups) in STEPS {
        let of = |factor| Workload::training(layers, microbatches, groups, &[factor, 1.0]);
        workloads.extend(CPU_FACTORS.map(of));
    }
    let kinds: Vec<SchedulerKind> =
        SCHEDULERS.iter().copied().filter(|kind| kind.name != "heft").collect();
    let mut items = Vec::new();
    for workload in &workloads {
        eprintln!("{} …", workload.name);
        for devices in &args.devices {
            for transfers in [Transfers::Free, Transfers::Linked] {
                for noise in &args.noise {
                    items.extend(rows(
                        workload,
                        (*devices, transfers, *noise),
                        args.seeds,
                        &kinds,
                    )?);
                }
            }
        }
    }
    output::list("GraphQualityList", &items, &QUALITY, form);
    Ok(code::OK)
}

fn rows(
    workload: &Workload,
    ((cpus, gpus), transfers, deviation): ((u16, u16), Transfers, f64),
    seeds: u64,
    kinds: &[SchedulerKind],
) -> Result<Vec<Value>, Fail> {
    let failed = |why: String| Fail::new(code::FAILED, why);
    let machine = measure::machine(&[cpus, gpus], transfers, GPU_MEMORY);
    let machine = Arc::new(machine.map_err(|error| failed(error.to_string()))?);
    // Without noise all seeds are alike.
    let seeds = if deviation > 0.0 { seeds } else { 1 };
    let noises: Vec<Noise> = (1..=seeds).map(|seed| Noise { deviation, seed }).collect();
    let found = measure::quality(workload, &machine, kinds, &noises).map_err(failed)?;
    let row = |name: &str, makespan: f64, worst: f64| {
        json!({
            "graph": workload.name,
            "tasks": workload.count(),
            "devices": format!("{cpus}+{gpus}"),
            "transfers": transfers.name(),
            "noise": deviation,
            "seeds": seeds,
            "scheduler": name,
            "makespan_ms": rounded(makespan / 1e6),
            "of_heft": rounded(makespan / found.heft),
            "of_heft_max": rounded(worst),
            "gap_closed": found.gap_closed(makespan).map(rounded),
            "of_bound": rounded(makespan / found.bounds.most()),
            "area_bound_ms": rounded(found.bounds.area / 1e6),
            "critical_path_ms": rounded(found.bounds.critical_path / 1e6),
            "assignment_bound_ms": rounded(found.bounds.assignment / 1e6),
        })
    };
    let Quality { heft, heft_foreseen, schedulers, .. } = &found;
    let mut rows: Vec<Value> = Vec::new();
    rows.extend(schedulers.iter().map(|one| row(one.name, one.makespan, one.worst_of_heft)));
    rows.push(row("heft", *heft, 1.0));
    rows.push(row("heft-foreseen", *heft_foreseen, found.worst_foreseen_of_heft));
    Ok(rows)
}

fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
