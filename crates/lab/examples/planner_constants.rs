//! Fits the planner's constants again and prints them with their errors, also cross-validated:
//! `cargo run --release -p het-lab --example planner_constants FOLDER`, where `FOLDER` holds
//! `measured-training-runs.csv` and `measured-single-node.csv`.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;

use het_lab::measured::read_training_runs;
use het_perf::training::{Efficiency, Machine, Precision, step_time};
use het_planner::validation::{Constant, Setup, TrainingRun, Weighted, figures, fit};

/// Which runs, and how much each counts.
struct Part {
    name: &'static str,
    weight: f64,
    member: fn(&TrainingRun, &Setup) -> bool,
}

/// A device class's constants, where they start, and what they are fitted to and tried on.
struct Class {
    name: &'static str,
    start: Efficiency,
    constants: Vec<Constant>,
    fitted: Vec<Part>,
    /// Parts of those that the fit is repeated without, one after the other.
    held_out: Vec<Part>,
    untouched: Vec<Part>,
}

/// Parts that a fit is repeated without, each in turn.
const FOLDS: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).ok_or("give the folder")?;
    let mut runs = read_training_runs(&folder.join("measured-training-runs.csv"))?;
    runs.extend(read_training_runs(&folder.join("measured-single-node.csv"))?);
    let mut out = std::io::stdout().lock();
    for class in [a100(), h100()] {
        report(&class, &runs, &mut out)?;
    }
    Ok(())
}

fn report(class: &Class, runs: &[TrainingRun], out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let weighted: Vec<Weighted<'_>> =
        class.fitted.iter().flat_map(|part| members(part, runs)).collect();
    let mut fitted = fit(&class.start, &class.constants, &weighted, figures);
    writeln!(out, "# {}\n", class.name)?;
    for constant in &class.constants {
        writeln!(out, "{:22} {:.4e}", constant.name, *(constant.of)(&mut fitted))?;
    }
    writeln!(out, "\n| runs | rows | mean error | median | cross-validated |")?;
    writeln!(out, "| --- | ---: | ---: | ---: | ---: |")?;
    let others: Vec<Efficiency> = (0..FOLDS)
        .map(|fold| {
            let kept = weighted.iter().enumerate().filter(|(at, _)| at % FOLDS != fold);
            let kept: Vec<Weighted<'_>> = kept.map(|(_, run)| *run).collect();
            fit(&class.start, &class.constants, &kept, figures)
        })
        .collect();
    let mut before = 0;
    for part in &class.fitted {
        let rows = members(part, runs);
        let apart = rows.iter().enumerate().map(|(at, run)| {
            let fold = (before + at) % FOLDS;
            error(run.setup, &others[fold])
        });
        let apart: Vec<f64> = apart.collect();
        before += rows.len();
        line(out, part.name, &rows, &fitted, Some(&apart))?;
    }
    for part in &class.held_out {
        let rows = members(part, runs);
        let here = |run: &Weighted<'_>| rows.iter().any(|row| std::ptr::eq(row.setup, run.setup));
        let kept: Vec<Weighted<'_>> = weighted.iter().filter(|run| !here(run)).copied().collect();
        let without = fit(&class.start, &class.constants, &kept, figures);
        let apart: Vec<f64> = rows.iter().map(|run| error(run.setup, &without)).collect();
        line(out, part.name, &rows, &fitted, Some(&apart))?;
    }
    for part in &class.untouched {
        line(out, part.name, &members(part, runs), &fitted, None)?;
    }
    writeln!(out)?;
    Ok(())
}

fn line(
    out: &mut impl Write,
    name: &str,
    rows: &[Weighted<'_>],
    fitted: &Efficiency,
    apart: Option<&[f64]>,
) -> Result<(), Box<dyn Error>> {
    let mean = |errors: &[f64]| 100.0 * errors.iter().sum::<f64>() / errors.len() as f64;
    let mut errors: Vec<f64> = rows.iter().map(|run| error(run.setup, fitted)).collect();
    errors.sort_by(f64::total_cmp);
    let median = errors.get(errors.len() / 2).map_or(f64::NAN, |error| 100.0 * error);
    let apart =
        apart.map_or_else(|| "no part in the fit".to_owned(), |e| format!("{:.1}", mean(e)));
    let mean = mean(&errors);
    writeln!(out, "| {name} | {} | {mean:.1} | {median:.1} | {apart} |", rows.len())?;
    Ok(())
}

fn members<'a>(part: &Part, runs: &'a [TrainingRun]) -> Vec<Weighted<'a>> {
    let member = |run: &'a TrainingRun| {
        let setup = run.setup.as_ref().filter(|setup| (part.member)(run, setup))?;
        figures(setup.class)?.peak_flops(setup.config.precision)?;
        Some(Weighted { setup, weight: part.weight })
    };
    runs.iter().filter_map(member).collect()
}

fn error(setup: &Setup, efficiency: &Efficiency) -> f64 {
    let device = figures(setup.class).expect("members have figures");
    let machine = Machine { device, island: setup.island, efficiency: *efficiency };
    let time = step_time(&setup.model, &setup.config, &machine);
    time.map_or(f64::NAN, |time| (time.total_s / setup.seconds - 1.0).abs())
}

fn a100() -> Class {
    let constants = vec![
        Constant { name: "matrix", of: |efficiency| &mut efficiency.matrix },
        Constant { name: "stream", of: |efficiency| &mut efficiency.stream },
        Constant { name: "flash 1", of: |efficiency| &mut efficiency.flash[0] },
        Constant { name: "launch_forward_s", of: |efficiency| &mut efficiency.launch_forward_s },
        Constant { name: "launch_backward_s", of: |efficiency| &mut efficiency.launch_backward_s },
        Constant { name: "launch_tensor_s", of: |efficiency| &mut efficiency.launch_tensor_s },
        Constant { name: "step_s", of: |efficiency| &mut efficiency.step_s },
    ];
    let part = |name, weight, member| Part { name, weight, member };
    Class {
        name: "A100",
        start: Efficiency::A100,
        constants,
        fitted: vec![
            part("vTrain, many nodes, TP to 8", 4.0, |run, setup| {
                run.source.contains("vTrain") && setup.config.tensor <= 8
            }),
            part("vTrain, one node", 1.0, |run, _| run.source.contains("single-node")),
            part("MosaicML", 2.0, |run, setup| {
                run.source.contains("Mosaic") && setup.class.starts_with("a100")
            }),
        ],
        held_out: vec![
            part("vTrain, 3.6B held out", 4.0, |run, setup| {
                run.model.contains("3.6B") && setup.config.tensor <= 8
            }),
            part("vTrain, 39.1B held out", 4.0, |run, _| run.model.contains("39.1B")),
            part("vTrain, many nodes, held out", 4.0, |run, setup| {
                run.source.contains("vTrain") && setup.config.tensor <= 8
            }),
        ],
        untouched: vec![
            part("vTrain, TP 16", 1.0, |run, setup| {
                run.source.contains("vTrain") && setup.config.tensor > 8
            }),
            part("Korthikanti, table 5", 1.0, |run, _| run.source.contains("Korthikanti")),
            part("Megatron-LM README", 1.0, |run, _| run.source.contains("Megatron-LM")),
            part("BLOOM", 1.0, |run, _| run.source.contains("BLOOM")),
            part("MT-NLG", 1.0, |run, _| run.source.contains("MT-NLG")),
        ],
    }
}

fn h100() -> Class {
    let constants = vec![
        Constant { name: "matrix", of: |efficiency| &mut efficiency.matrix },
        Constant { name: "matrix_fp8", of: |efficiency| &mut efficiency.matrix_fp8 },
        Constant { name: "stream", of: |efficiency| &mut efficiency.stream },
        Constant { name: "flash 1", of: |efficiency| &mut efficiency.flash[0] },
        Constant { name: "flash 2", of: |efficiency| &mut efficiency.flash[1] },
        Constant { name: "flash 3", of: |efficiency| &mut efficiency.flash[2] },
        Constant { name: "tensor_exposed", of: |efficiency| &mut efficiency.tensor_exposed },
        Constant { name: "data_exposed", of: |efficiency| &mut efficiency.data_exposed },
    ];
    let part = |name, weight, member| Part { name, weight, member };
    Class {
        name: "H100",
        start: Efficiency::H100,
        constants,
        fitted: vec![
            part("MosaicML, 16 bits", 1.0, |run, setup| {
                run.source.contains("Mosaic")
                    && setup.class.starts_with("h100")
                    && setup.config.precision == Precision::Bf16
            }),
            part("MosaicML, FP8", 1.0, |run, setup| {
                run.source.contains("Mosaic")
                    && setup.class.starts_with("h100")
                    && setup.config.precision == Precision::Fp8
            }),
            part("NeMo 24.07, pretraining", 2.0, |run, _| run.source.contains("24.07 pretrain")),
            part("Megatron-Bridge, H100, FP8", 1.0, |run, setup| {
                run.source.contains("Bridge") && setup.class.starts_with("h100")
            }),
        ],
        held_out: vec![part("NeMo 24.07, held out", 2.0, |run, _| {
            run.source.contains("24.07 pretrain")
        })],
        untouched: vec![
            part("NeMo 24.07, SFT", 1.0, |run, _| run.source.contains("24.07 SFT")),
            part("NeMo 24.07, LoRA", 1.0, |run, _| run.source.contains("24.07 LoRA")),
            part("Megatron-Bridge, B200 and GB200, FP8", 1.0, |run, setup| {
                run.source.contains("Bridge") && setup.class.contains("b200")
            }),
        ],
    }
}
