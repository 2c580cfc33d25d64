//! The rule of thumb, 6 FLOPs for each weight and token at a given utilisation, and why a plan
//! takes longer or shorter than it says.

use het_perf::training::{Limit, Transformer, days};

use crate::candidate::Candidate;
use crate::price::saveable;

/// A calculation on the back of an envelope.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    pub tokens: u64,
    pub devices: u32,
    /// Peak of a device.
    pub tflops: f64,
    /// Of the peak, a fraction.
    pub utilisation: f64,
}

/// A rule beside a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    pub rule_days: f64,
    pub plan_days: f64,
    /// Factors on the rule's days; their product is the plan's.
    pub causes: Vec<Cause>,
    /// Where the plan's time goes beside the model's own work: fractions of the step, most first.
    pub spent: Vec<(Limit, f64)>,
    /// What the bubble comes from: replicas, and the fewest microbatches one of them takes.
    pub replicas: u32,
    pub microbatches: u32,
}

/// A factor on the days, and what it comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cause {
    /// The plan reaches another share of the peaks than was given.
    Utilisation { factor: f64, given: f64, reached: f64 },
    /// Attention and logits, which weights do not show; embeddings, which are looked up; frozen
    /// weights, which have no gradients.
    Operations { factor: f64 },
    /// Devices that the batch, the heads or the layers leave no place for, or other peaks.
    Devices { factor: f64, used: u32, of: u32 },
    /// Failures, restarts and saves.
    Failures { factor: f64, productive: f64 },
    /// Samples that a batch above the critical one costs.
    Batch { factor: f64 },
    /// Weights and samples that are waited for.
    Reading { factor: f64 },
}

impl Rule {
    /// What the rule says.
    pub fn days(&self, model: &Transformer) -> f64 {
        days(self.operations(model), self.devices, self.tflops, self.utilisation)
    }

    fn operations(&self, model: &Transformer) -> f64 {
        6.0 * model.parameters() as f64 * self.tokens as f64
    }

    /// Why a plan for as many tokens says something else; `None` where it has no end, because the
    /// request said no tokens.
    pub fn against(&self, model: &Transformer, plan: &Candidate) -> Option<Comparison> {
        let finish = plan.finish?;
        let batch = plan.layout.batch;
        let flops = plan.layout.config().tuning.step_flops(model, batch);
        let step = &plan.step;
        let peaks = flops / (step.model_utilisation * step.total_s);
        let per_token = flops / (f64::from(batch) * f64::from(model.sequence));
        let reached = step.model_utilisation;
        let rule_days = self.days(model);
        let undisturbed_s = finish.days_undisturbed * 86_400.0;
        let worked_s = undisturbed_s - finish.reading_s;
        let needed = worked_s * plan.tokens_per_s / self.tokens as f64;
        let causes = vec![
            Cause::Utilisation {
                factor: self.utilisation / reached,
                given: self.utilisation,
                reached,
            },
            Cause::Operations { factor: per_token / (6.0 * model.parameters() as f64) },
            Cause::Devices {
                factor: f64::from(self.devices) * self.tflops * 1e12 / peaks,
                used: plan.devices,
                of: self.devices,
            },
            Cause::Failures { factor: 1.0 / finish.productive, productive: finish.productive },
            Cause::Batch { factor: needed },
            Cause::Reading { factor: undisturbed_s / worked_s },
        ];
        let mut spent: Vec<(Limit, f64)> =
            saveable(step).into_iter().map(|(limit, s)| (limit, s / step.total_s)).collect();
        spent.retain(|(_, share)| *share > 0.0);
        spent.sort_by(|a, b| b.1.total_cmp(&a.1));
        let kinds = &plan.layout.replicas;
        Some(Comparison {
            rule_days,
            plan_days: finish.days,
            causes,
            spent,
            replicas: kinds.iter().map(|kind| kind.count).sum(),
            microbatches: kinds.iter().map(|kind| kind.microbatches).min().unwrap_or(0),
        })
    }
}

impl Cause {
    /// On the rule's days.
    pub fn factor(&self) -> f64 {
        match self {
            Self::Utilisation { factor, .. }
            | Self::Operations { factor }
            | Self::Devices { factor, .. }
            | Self::Failures { factor, .. }
            | Self::Batch { factor }
            | Self::Reading { factor } => *factor,
        }
    }
}
