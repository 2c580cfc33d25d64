//! The jobs of a run, drawn: kinds of programs with speeds of their own on two device classes,
//! gangs, elastic ones, all priorities, and some that crash once.

use std::collections::BTreeMap;

use het_core::{Millis, Name};
use het_lab::Draw;
use het_sim::StageModel;
use serde_json::{Value, json};

use super::FidelityOptions;
use super::trainer::{CRASH_CODE, TRAINER_COMMAND, Table};

/// Kind, class and number of the devices that are declared.
pub(super) const DEVICES: [(&str, &str, u32); 2] = [("gpu", "photon", 4), ("npu", "muon", 4)];

/// A kind of program.
struct Program {
    name: &'static str,
    /// Of a step on one device of either class.
    step_ms: [f64; 2],
    /// What is left of each device's speed for every doubling of their number.
    scaling: f64,
    load_ms: u64,
    save_ms: u64,
    units: &'static [u32],
    elastic: bool,
}

/// Each is faster on another class, by another factor.
const PROGRAMS: [Program; 5] = [
    Program {
        name: "tune",
        step_ms: [40.0, 160.0],
        scaling: 0.9,
        load_ms: 600,
        save_ms: 150,
        units: &[1, 2],
        elastic: false,
    },
    Program {
        name: "embed",
        step_ms: [60.0, 50.0],
        scaling: 0.95,
        load_ms: 300,
        save_ms: 50,
        units: &[1],
        elastic: false,
    },
    Program {
        name: "pretrain",
        step_ms: [120.0, 200.0],
        scaling: 0.92,
        load_ms: 800,
        save_ms: 300,
        units: &[2, 4],
        elastic: false,
    },
    Program {
        name: "distil",
        step_ms: [80.0, 90.0],
        scaling: 0.9,
        load_ms: 400,
        save_ms: 100,
        units: &[2],
        elastic: true,
    },
    Program {
        name: "evaluate",
        step_ms: [30.0, 60.0],
        scaling: 0.9,
        load_ms: 200,
        save_ms: 50,
        units: &[1],
        elastic: false,
    },
];

/// Sizes that a job may have.
const SIZES: [u32; 3] = [1, 2, 4];
/// Seconds of work on one device of the faster class.
const WORK_S: (f64, f64) = (2.0, 30.0);
/// A checkpoint comes after so many seconds of work, about.
const CHECKPOINT_S: f64 = 4.0;
/// One job in so many crashes once.
const CRASHES: u64 = 20;

/// One job.
pub(super) struct Job {
    pub after: Millis,
    number: u32,
    priority: &'static str,
    program: &'static Program,
    units: u32,
    steps: u64,
    every: u64,
    crashes_at: Option<u64>,
}

pub(super) fn draw(options: &FidelityOptions) -> Vec<Job> {
    let mut draw = Draw::new(options.seed, 0);
    let mut after = 0.0;
    let mut jobs = Vec::new();
    for number in 0..options.jobs {
        after += draw.exponential(options.interval.0 as f64);
        let program = &PROGRAMS[draw.between(0, PROGRAMS.len() as u64 - 1) as usize];
        let units = program.units[draw.between(0, program.units.len() as u64 - 1) as usize];
        let priority = match draw.between(0, 9) {
            0 => "urgent",
            1 | 2 => "high",
            3 => "low",
            _ => "normal",
        };
        let fastest_ms = program.step_ms[0].min(program.step_ms[1]);
        let work_s = WORK_S.0 + (WORK_S.1 - WORK_S.0) * draw.part().powi(2);
        let steps = (work_s * 1e3 / fastest_ms).round().max(2.0) as u64;
        let every = (CHECKPOINT_S * 1e3 / fastest_ms).round() as u64;
        let crashes = draw.between(1, CRASHES) == 1;
        let crashes_at = crashes.then(|| draw.between(1, steps - 1));
        let after = Millis(after as u64);
        jobs.push(Job { after, number, priority, program, units, steps, every, crashes_at });
    }
    jobs
}

impl Job {
    fn step_ns(&self) -> Table {
        let of_class = |(class, step_ms): (&str, f64)| {
            let of_size = |units: u32| {
                let kept = self.program.scaling.powf(f64::from(units).log2());
                (units, (step_ms * 1e6 / (f64::from(units) * kept)).round() as u64)
            };
            (class.to_owned(), SIZES.map(of_size).into_iter().collect::<BTreeMap<_, _>>())
        };
        let classes = DEVICES.map(|(_, class, _)| class);
        classes.into_iter().zip(self.program.step_ms).map(of_class).collect()
    }

    /// Its job file.
    pub fn file(&self, program: &str) -> Value {
        let words = DEVICES.map(|(kind, _, _)| format!("{kind}:{}", self.units));
        let mut stage = json!({
            "name": "train", "kind": "train", "profile": self.program.name,
            "devices": words.join(" | "), "steps": self.steps, "retries": 1, "stall": "never",
            "run": [program, TRAINER_COMMAND], "logs": "none",
            "checkpoint": { "every": "1h", "grace": "10s" },
            "env": {
                "BENCH_STEP_NS": json!(self.step_ns()).to_string(),
                "BENCH_STEPS": self.steps.to_string(), "BENCH_EVERY": self.every.to_string(),
                "BENCH_LOAD_MS": self.program.load_ms.to_string(),
                "BENCH_SAVE_MS": self.program.save_ms.to_string(),
                "BENCH_CRASH_AT": self.crashes_at.map_or_else(String::new, |at| at.to_string()),
            },
        });
        if self.program.elastic {
            stage["elastic"] = json!({ "min": SIZES[0], "max": SIZES[2] });
        }
        json!({
            "apiVersion": "heterosis.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": { "name": format!("{}-{}", self.program.name, self.number) },
            "spec": { "priority": self.priority, "stages": [stage] },
        })
    }

    /// How it really behaves, as the simulator is told.
    pub fn model(&self) -> StageModel {
        let of_class = |(class, sizes): (String, BTreeMap<u32, u64>)| (Name::from(class), sizes);
        StageModel {
            steps: self.steps,
            step_ns: self.step_ns().into_iter().map(of_class).collect(),
            load: Millis(self.program.load_ms),
            save: Some(Millis(self.program.save_ms)),
            checkpoint_every: self.every,
            fails_at: self.crashes_at.map(|step| (step, i32::from(CRASH_CODE))),
            ..StageModel::default()
        }
    }
}
