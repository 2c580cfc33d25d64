//! `het profile`: what was measured of device classes on the user's own machines, kept for
//! `het size` and for what is planned of jobs that say what they train; and what limits a run.

mod show;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anstream::eprintln;
use clap::{Args, Subcommand, ValueEnum};
use het_devices::nvidia_class;
use het_lab::measured::{ProfiledSteps, read_kineto, read_progress, read_training_runs};
use het_perf::training::{
    Calibration, Machine, MeasuredStep, Overlap, ParallelConfig, Recompute, SequenceParallel,
    Tuning, Zero,
};
use het_wire::calibration::{CalibrationFactors, CalibrationFile};
use serde_json::{Value, json};

use super::size::{PrecisionWord, TuningWord, model, usual};
use crate::fail::{Fail, code};
use crate::local::home;
use crate::output::{Column, Form, Shown, list};
use crate::workload::unusable;

const COLUMNS: &[Column] = &[
    Column("CLASS", "class", Shown::Always),
    Column("STEPS", "steps", Shown::Always),
    Column("ERROR", "error", Shown::Always),
    Column("MATRIX", "matrix", Shown::Always),
    Column("ELEMENTWISE", "elementwise", Shown::Always),
    Column("EXCHANGE", "exchange", Shown::Always),
    Column("FROM", "from", Shown::Wide),
];

#[derive(Debug, Subcommand)]
pub enum ProfileCommand {
    /// Fit a class's constants to measured steps: CSV rows as `size validate` takes them, PyTorch
    /// profiles (`*.pt.trace.json[.gz]`), or progress of `het-train` (JSON Lines).
    ///
    /// Replaces what was measured of the class before: name old and new files together to add.
    Import(ProfileImportArgs),
    /// What limits the steps of a run, by the `timeline.json` beside its result.
    Show(show::ProfileShowArgs),
    /// What was measured, and how far to trust it.
    List(ProfileListArgs),
    /// Go by what is known of the class in general again.
    Forget { class: String },
}

#[derive(Debug, Args)]
pub struct ProfileImportArgs {
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Device class of the catalogue, where the file does not name its device.
    #[arg(long)]
    pub class: Option<String>,
    #[command(flatten)]
    pub ran: RanArgs,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

/// What ran while a profile was made; CSV rows say it themselves.
#[derive(Debug, Args)]
pub struct RanArgs {
    /// A known model, for example `llama3-8b`.
    #[arg(long)]
    pub model: Option<String>,
    /// Tokens of a sample; what the model was trained on at first if absent.
    #[arg(long)]
    pub sequence: Option<u32>,
    /// Samples of a step, over all devices.
    #[arg(long)]
    pub batch: Option<u32>,
    #[arg(long, default_value_t = 1)]
    pub microbatch: u32,
    #[arg(long, default_value_t = 1)]
    pub tensor: u32,
    #[arg(long, default_value_t = 1)]
    pub pipeline: u32,
    #[arg(long, default_value_t = 1)]
    pub context: u32,
    /// Replicas; what the profile's number of ranks leaves if absent, else one.
    #[arg(long)]
    pub data: Option<u32>,
    #[arg(long, value_enum, default_value_t = PrecisionWord::Bf16)]
    pub precision: PrecisionWord,
    /// What the backward pass computes again.
    #[arg(long, value_enum, default_value_t = RecomputeWord::None)]
    pub recompute: RecomputeWord,
    /// What replicas share out among them: 0 nothing, 1 states, 2 gradients too, 3 weights too.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=3))]
    pub zero: u8,
    /// `full`, `lora` or `qlora`.
    #[arg(long, value_enum, default_value_t = TuningWord::Full)]
    pub tuning: TuningWord,
    /// Of adapters.
    #[arg(long, default_value_t = 16)]
    pub rank: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RecomputeWord {
    None,
    Selective,
    Full,
}

#[derive(Debug, Args)]
pub struct ProfileListArgs {
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

pub fn profile(command: &ProfileCommand) -> Result<u8, Fail> {
    match command {
        ProfileCommand::Import(args) => import(args),
        ProfileCommand::List(args) => {
            let all: Vec<CalibrationFile> = home()?.calibrations().all()?.into_values().collect();
            show_calibrations(&all, args.output)
        }
        ProfileCommand::Show(args) => show::show(args),
        ProfileCommand::Forget { class } => {
            home()?.calibrations().forget(class)?;
            Ok(code::OK)
        }
    }
}

/// Steps of a class, and the files that they are from.
type Measured = BTreeMap<String, (Vec<MeasuredStep>, Vec<String>)>;

fn import(args: &ProfileImportArgs) -> Result<u8, Fail> {
    let mut measured = Measured::new();
    for path in &args.files {
        let steps = match form(path) {
            Kind::Table => rows(path)?,
            Kind::Trace => {
                let steps = read_kineto(path).map_err(|error| unusable(&error))?;
                vec![ran(args, path, &steps)?]
            }
            Kind::Progress => {
                let steps = read_progress(path).map_err(|error| unusable(&error))?;
                vec![ran(args, path, &steps)?]
            }
        };
        for (class, step) in steps {
            let (of_class, from) = measured.entry(class).or_default();
            of_class.push(step);
            let name = path.display().to_string();
            if from.last() != Some(&name) {
                from.push(name);
            }
        }
    }
    let fitted = measured.into_iter().map(|(class, (steps, from))| fit(&class, &steps, from));
    let fitted = fitted.collect::<Result<Vec<_>, _>>()?;
    let calibrations = home()?.calibrations();
    for file in &fitted {
        calibrations.store(file)?;
    }
    show_calibrations(&fitted, args.output)
}

/// What a file holds, by its name.
enum Kind {
    Table,
    Trace,
    Progress,
}

fn form(path: &Path) -> Kind {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    match () {
        () if name.ends_with(".csv") => Kind::Table,
        () if name.ends_with(".json") => Kind::Trace,
        () => Kind::Progress,
    }
}

fn rows(path: &Path) -> Result<Vec<(String, MeasuredStep)>, Fail> {
    let runs = read_training_runs(path).map_err(|error| unusable(&error))?;
    let all = runs.len();
    let steps: Vec<_> = runs
        .into_iter()
        .filter_map(|run| run.setup)
        .map(|setup| {
            let (model, config, seconds) = (setup.model, setup.config, setup.seconds);
            (setup.class.to_owned(), MeasuredStep { model, config, seconds })
        })
        .collect();
    if steps.is_empty() {
        let text = format!("no row of `{}` says enough to learn from", path.display());
        return Err(Fail::new(code::USAGE, text).hint(
            "a row needs its model's shape, `gpu`, `n_gpus`, how it is cut, and a measured time",
        ));
    }
    if steps.len() < all {
        eprintln!("{} of {all} rows of `{}` say too little", all - steps.len(), path.display());
    }
    Ok(steps)
}

/// A profile with what the arguments say of it.
fn ran(
    args: &ProfileImportArgs,
    path: &Path,
    steps: &ProfiledSteps,
) -> Result<(String, MeasuredStep), Fail> {
    let named = || steps.device.as_deref().map(nvidia_class);
    let class = args.class.clone().or_else(named).ok_or_else(|| {
        let text = format!("`{}` does not say what device it is from", path.display());
        Fail::new(code::USAGE, text).hint("name its class: `--class rtx-4090`")
    })?;
    let attention = usual(&class, 1)?.attention;
    let model = model(args.ran.model.as_deref(), args.ran.sequence)?;
    let config = ParallelConfig { attention, ..config(&args.ran, steps.world.unwrap_or(1))? };
    config.check(&model).map_err(|problem| Fail::new(code::USAGE, problem.to_string()))?;
    let seconds = steps.median_s().unwrap_or_default();
    if let Some(exchange) = steps.exchange.filter(|share| *share > 0.0) {
        eprintln!("{}: {:.0} % of kernel time is exchange", path.display(), exchange * 100.0);
    }
    Ok((class, MeasuredStep { model, config, seconds }))
}

fn config(ran: &RanArgs, world: u32) -> Result<ParallelConfig, Fail> {
    let cut = (ran.tensor * ran.pipeline * ran.context).max(1);
    let data = ran.data.unwrap_or((world / cut).max(1));
    let batch = ran.batch.ok_or_else(|| {
        Fail::new(code::USAGE, "how many samples did a step take?")
            .hint("say it with `--batch`, over all devices")
    })?;
    let tuning = match ran.tuning {
        TuningWord::Full => Tuning::Full,
        TuningWord::Lora => Tuning::Lora { rank: ran.rank },
        TuningWord::Qlora => Tuning::Qlora { rank: ran.rank },
        TuningWord::Any => {
            return Err(Fail::new(code::USAGE, "what ran was one way to train")
                .hint("say `--tuning full`, `lora` or `qlora`"));
        }
    };
    Ok(ParallelConfig {
        data,
        tensor: ran.tensor,
        pipeline: ran.pipeline,
        context: ran.context,
        precision: ran.precision.into(),
        recompute: match ran.recompute {
            RecomputeWord::None => Recompute::None,
            RecomputeWord::Selective => Recompute::Selective,
            RecomputeWord::Full => Recompute::Full,
        },
        sequence_parallel: match ran.tensor > 1 {
            true => SequenceParallel::On,
            false => SequenceParallel::Off,
        },
        zero: match ran.zero {
            0 => Zero::None,
            1 => Zero::One,
            2 => Zero::Two,
            _ => Zero::Three,
        },
        tuning,
        overlap: Overlap::Split,
        ..ParallelConfig::single(ran.microbatch, batch)
    })
}

fn fit(class: &str, steps: &[MeasuredStep], from: Vec<String>) -> Result<CalibrationFile, Fail> {
    let machine = usual(class, 1)?.machine;
    steps.iter().try_for_each(|step| plausible(class, &machine, step))?;
    let fitted = Calibration::fit(&machine, steps)
        .map_err(|error| Fail::new(code::USAGE, format!("a step of `{class}`: {error}")))?;
    let [matrix, elementwise, exchange] = fitted.factors;
    let factors = CalibrationFactors { matrix, elementwise, exchange };
    // Each step is held against the others: of few that says little.
    let error = match fitted.steps < STEPS_ENOUGH {
        true => fitted.error.max(ERROR_OF_FEW),
        false => fitted.error,
    };
    Ok(CalibrationFile::new(class, factors, error, fitted.steps, from))
}

/// Steps from which their own error can be believed, and the least that is stated of fewer.
const STEPS_ENOUGH: usize = 3;
const ERROR_OF_FEW: f64 = 0.1;

/// Refuses steps that no device could make: what ran is not what was said.
fn plausible(class: &str, machine: &Machine, step: &MeasuredStep) -> Result<(), Fail> {
    let MeasuredStep { model, config, seconds } = step;
    let peak = machine.device.peak_flops(config.precision).unwrap_or(f64::INFINITY);
    let peaks = peak * f64::from(config.devices());
    // Forward and the way back through what does not learn: the least that any tuning computes.
    let least = model.step_flops(config.global_batch) * 2.0 / 3.0;
    if least <= peaks * seconds {
        return Ok(());
    }
    let text = format!(
        "a step of {seconds:.4} s is faster than the peak of {} `{class}` allows, {:.4} s",
        config.devices(),
        least / peaks
    );
    Err(Fail::new(code::USAGE, text)
        .hint("check `--model`, `--batch`, `--sequence` and how many devices took part"))
}

fn show_calibrations(files: &[CalibrationFile], form: Form) -> Result<u8, Fail> {
    let rounded = |value: f64| (value * 1e4).round() / 1e4;
    let row = |file: &CalibrationFile| -> Value {
        let [matrix, elementwise, exchange] = file.factors.to_array().map(rounded);
        json!({
            "class": file.class,
            "steps": file.steps,
            "error": rounded(file.error),
            "matrix": matrix,
            "elementwise": elementwise,
            "exchange": exchange,
            "from": file.from,
        })
    };
    let rows: Vec<Value> = files.iter().map(row).collect();
    list("CalibrationList", &rows, COLUMNS, form);
    Ok(code::OK)
}
