//! A mix of fine-tuning jobs, drawn from a seed.

use het_core::{Priority, StageKind};

use super::roofline::{MODELS, roofline};
use super::{TraceJob, TraceStage, Work};
use crate::Draw;

/// A mix of fine-tuning jobs: prepare data, load the model, train, validate.
#[derive(Debug, Clone, PartialEq)]
pub struct FineTuning {
    pub jobs: u32,
    /// Accelerator work that arrives, over what `h100s` H100 can do meanwhile.
    pub load: f64,
    pub h100s: u32,
    pub shapes: Shapes,
    pub seed: u64,
}

/// What jobs ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shapes {
    /// Whatever their stages can run on.
    Any,
    /// As a rule says: data on 16 cores, training on H100, so many by model, validation on one
    /// device of a class.
    Ruled { h100s: [u32; 4], validate_on: String },
}

/// How many of a hundred jobs tune which model, in the order of [`MODELS`].
const MODEL_PERCENT: [u64; 4] = [35, 30, 25, 10];

/// Steps of training: median, and σ of the logarithm.
const STEPS: (f64, f64) = (600.0, 1.0);

/// Validation reads one token for so many of training.
const VALIDATED_PART: f64 = 0.25;

/// Loading a base model: the median of Alibaba's 2026 GenAI data, 22.7 s, and a σ that gives its
/// 90th percentile of 42 s.
const LOAD_S: (f64, f64) = (22.7, 0.48);

const TENANTS: [&str; 4] = ["research", "product", "search", "speech"];

/// Jobs by arrival.
pub fn fine_tuning(mix: &FineTuning) -> Vec<TraceJob> {
    let speeds = roofline(1.0);
    let mut arrivals = Draw::new(mix.seed, 0);
    let mut jobs = Vec::new();
    let mut work_s = 0.0;
    for index in 0..mix.jobs {
        let mut draw = Draw::new(mix.seed, 1 + u64::from(index));
        let job = job(&mut draw, &mix.shapes);
        for stage in &job.stages[2..] {
            let Work::Steps(steps) = stage.work else { continue };
            let profile = stage.profile.as_deref().unwrap_or_default();
            let rate = speeds.rate(profile, "h100-sxm5-80", 1).unwrap_or(1.0);
            work_s += steps as f64 / rate;
        }
        jobs.push(job);
    }
    let span_s = work_s / f64::from(mix.h100s) / mix.load;
    let mut at = 0.0;
    for job in &mut jobs {
        job.arrival_s = at;
        at += arrivals.exponential(span_s / f64::from(mix.jobs));
    }
    jobs
}

fn job(draw: &mut Draw, shapes: &Shapes) -> TraceJob {
    let mut percent = draw.between(0, 99);
    let mut model = 0;
    while percent >= MODEL_PERCENT[model] {
        percent -= MODEL_PERCENT[model];
        model += 1;
    }
    let (name, _) = MODELS[model];
    let steps = (STEPS.0 * draw.lognormal(STEPS.1)).round().max(20.0);
    let load_s = LOAD_S.0 * draw.lognormal(LOAD_S.1);
    let priority = match draw.between(0, 99) {
        0..5 => Priority::Urgent,
        5..20 => Priority::High,
        20..80 => Priority::Normal,
        _ => Priority::Low,
    };
    let (cores, h100s, tune_on, validate_on) = match shapes {
        Shapes::Any => (0, 0, vec![], (0, vec![])),
        Shapes::Ruled { h100s, validate_on } => {
            (16, h100s[model], vec!["h100-sxm5-80".to_owned()], (1, vec![validate_on.clone()]))
        }
    };
    let stage = |kind, profile: String, units, classes, work| TraceStage {
        apart: None,
        exchange: 0.0,
        cores: 0,
        kind,
        profile: Some(profile),
        units,
        classes,
        work,
    };
    let validated = (steps * VALIDATED_PART).round().max(1.0);
    TraceJob {
        name: format!("tune-{name}"),
        arrival_s: 0.0,
        tenant: (*draw.pick(&TENANTS)).to_owned(),
        priority,
        stages: vec![
            stage(
                StageKind::Preprocess,
                "prepare".to_owned(),
                cores,
                vec![],
                Work::Steps(steps as u64),
            ),
            stage(
                StageKind::Load,
                "load".to_owned(),
                4,
                vec![],
                Work::Steps(load_s.round().max(1.0) as u64),
            ),
            stage(
                StageKind::Train,
                format!("tune-{name}"),
                h100s,
                tune_on,
                Work::Steps(steps as u64),
            ),
            stage(
                StageKind::Validate,
                format!("validate-{name}"),
                validate_on.0,
                validate_on.1,
                Work::Steps(validated as u64),
            ),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_and_the_load_holds() {
        let mix = FineTuning { jobs: 50, load: 1.0, h100s: 8, shapes: Shapes::Any, seed: 3 };
        assert_eq!(fine_tuning(&mix), fine_tuning(&mix));
        let span = |load| fine_tuning(&FineTuning { load, ..mix.clone() })[49].arrival_s;
        assert!((span(0.5) / span(1.0) - 2.0).abs() < 1e-9);
    }
}
