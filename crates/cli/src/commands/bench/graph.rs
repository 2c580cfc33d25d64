//! `het bench graph`.

mod quality;
mod starpu;

use anstream::eprintln;
use clap::Args;
use het_runtime::measure::{Overhead, Shape, overhead};
use het_runtime::schedulers::{SCHEDULERS, SchedulerKind};
use serde_json::{Value, json};

use crate::fail::{Fail, code};
use crate::output::{self, Column, Form, Shown};

use quality::QualityArgs;
use starpu::Starpu;

#[derive(Debug, Args)]
pub struct GraphBenchArgs {
    /// Empty tasks of each run.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "10000,100000")]
    #[arg(value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    pub tasks: Vec<u32>,
    /// Threads that run them.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub workers: Vec<u16>,
    /// Runs of each, in turn with StarPU's; medians are shown.
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=100))]
    pub runs: u16,
    /// Compare how long schedulers take for known graphs instead, in virtual time.
    #[arg(long)]
    pub quality: bool,
    #[command(flatten)]
    pub of_quality: QualityArgs,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

/// Columns of a table of overheads.
const OVERHEADS: [Column; 6] = [
    Column("SCHEDULER", "scheduler", Shown::Always),
    Column("SHAPE", "shape", Shown::Always),
    Column("TASKS", "tasks", Shown::Always),
    Column("WORKERS", "workers", Shown::Always),
    Column("US_PER_TASK", "us_per_task", Shown::Always),
    Column("STARPU_US_PER_TASK", "starpu_us_per_task", Shown::Always),
];

pub(super) fn graph(args: &GraphBenchArgs) -> Result<u8, Fail> {
    if args.quality {
        return quality::quality(&args.of_quality, args.output);
    }
    let starpu = Starpu::built().inspect_err(|why| {
        eprintln!("StarPU is not compared: {why}");
        eprintln!(
            "hint: install its headers and a C compiler (`libstarpu-dev` and `gcc` on Debian)"
        );
    });
    let starpu = starpu.ok();
    // A plan of all that is there, made again with every batch, would measure nothing but plans.
    let kinds: Vec<SchedulerKind> =
        SCHEDULERS.iter().copied().filter(|kind| kind.name != "heft").collect();
    let mut items = Vec::new();
    for shape in Shape::ALL {
        for workers in args.workers.iter().copied() {
            for tasks in args.tasks.iter().copied() {
                eprintln!("{}, {tasks} tasks, {workers} workers …", shape.name());
                let case = Case { shape, workers, tasks, runs: args.runs };
                items.extend(case.timed(&kinds, starpu.as_ref())?);
            }
        }
    }
    output::list("GraphBenchList", &items, &OVERHEADS, args.output);
    Ok(code::OK)
}

struct Case {
    shape: Shape,
    workers: u16,
    tasks: u32,
    runs: u16,
}

impl Case {
    /// A row a scheduler: each round runs StarPU once and each scheduler once.
    fn timed(&self, kinds: &[SchedulerKind], starpu: Option<&Starpu>) -> Result<Vec<Value>, Fail> {
        let Self { shape, workers, tasks, runs } = *self;
        let failed = |why: String| Fail::new(code::FAILED, why);
        let mut theirs = Vec::new();
        let mut ours = vec![Vec::new(); kinds.len()];
        for _ in 0..runs {
            if let Some(starpu) = starpu {
                theirs.push(starpu.run(shape.name(), tasks, workers).map_err(failed)?);
            }
            for (kind, times) in kinds.iter().zip(&mut ours) {
                let what = Overhead { scheduler: *kind, shape, tasks: tasks as usize, workers };
                times.push(overhead(&what).map_err(failed)?);
            }
        }
        let theirs = median(&mut theirs);
        let rows = kinds.iter().zip(&mut ours).map(|(kind, times)| {
            json!({
                "scheduler": kind.name,
                "shape": shape.name(),
                "tasks": tasks,
                "workers": workers,
                "us_per_task": median(times),
                "starpu_us_per_task": theirs,
                "starpu_scheduler": theirs.map(|_| starpu::SCHEDULER),
            })
        });
        Ok(rows.collect())
    }
}

/// To the nanosecond.
fn median(times: &mut [f64]) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    let middle = times.get(times.len() / 2)?;
    Some((middle * 1e3).round() / 1e3)
}
