//! The small team's question: which tricks make a model fit the devices there are, and how fast.

use het_core::Bytes;
use het_perf::training::{Offload, Optimizer, Recompute, Tuning, Zero};

use crate::candidate::Candidate;
use crate::problem::{Problem, checked};
use crate::request::{Choices, Request};
use crate::search::shortest;

/// A way to train, and what comes of it here.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    pub tuning: Tuning,
    pub optimizer: Optimizer,
    pub offload: Offload,
    pub outcome: Outcome,
}

/// Whether it fits.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The fastest that does, and what it takes beside the way itself.
    Fits {
        candidate: Box<Candidate>,
        tricks: Vec<Trick>,
    },
    /// With every trick a device still lacks so much; of the host where that is what is full.
    Lacks {
        device: Bytes,
    },
    LacksHost {
        each: Bytes,
    },
    /// Nothing comes out even.
    Uneven,
}

/// What makes it fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trick {
    /// Microbatches of so many samples, one after the other, their gradients added up.
    Accumulate {
        microbatch: u32,
        times: u32,
    },
    Recompute(Recompute),
    Share(Zero),
    Tensor(u32),
    Pipeline(u32),
}

/// Ways that are tried where a request names only one: everything, adapters, adapters over 4 bits.
pub fn small_team(rank: u32) -> Choices {
    Choices {
        tunings: vec![Tuning::Full, Tuning::Lora { rank }, Tuning::Qlora { rank }],
        optimizers: vec![Optimizer::Adam, Optimizer::AdamW8bit],
        offloads: vec![Offload::None, Offload::Cpu],
        ..Choices::default()
    }
}

/// Every way that the request's choices name, those that fit first and the fastest of them first,
/// among equally fast ones (to a hundredth) in the order of the choices; then by what they lack.
///
/// # Errors
/// When the request makes no sense; a way that does not fit is an outcome.
pub fn fit(request: &Request) -> Result<Vec<Fit>, Problem> {
    checked(request)?;
    let mut fits = Vec::new();
    for &tuning in &request.choices.tunings {
        for &optimizer in &request.choices.optimizers {
            for &offload in &request.choices.offloads {
                let mut one = Request { keep: 1, ..request.clone() };
                one.choices.tunings = vec![tuning];
                one.choices.optimizers = vec![optimizer];
                one.choices.offloads = vec![offload];
                fits.push(Fit { tuning, optimizer, offload, outcome: outcome(&one) });
            }
        }
    }
    fits.sort_by(|a, b| order(a).0.cmp(&order(b).0).then(order(a).1.total_cmp(&order(b).1)));
    Ok(fits)
}

fn outcome(request: &Request) -> Outcome {
    match shortest(request) {
        Ok(candidate) => {
            let tricks = tricks(&candidate);
            Outcome::Fits { candidate: Box::new(candidate), tricks }
        }
        Err(outcome) => outcome,
    }
}

fn tricks(candidate: &Candidate) -> Vec<Trick> {
    let config = candidate.layout.config();
    let (microbatch, times) = (config.microbatch, candidate.layout.replicas[0].microbatches);
    let used = [
        (times > 1, Trick::Accumulate { microbatch, times }),
        (config.recompute != Recompute::None, Trick::Recompute(config.recompute)),
        (config.zero != Zero::None, Trick::Share(config.zero)),
        (config.tensor > 1, Trick::Tensor(config.tensor)),
        (config.pipeline > 1, Trick::Pipeline(config.pipeline)),
    ];
    used.into_iter().filter(|(used, _)| *used).map(|(_, trick)| trick).collect()
}

/// Steps of the logarithm in which times are told apart.
const PER_CENT: f64 = 100.0;

fn order(fit: &Fit) -> (u8, f64) {
    match &fit.outcome {
        Outcome::Fits { candidate, .. } => (0, (candidate.sample_s.ln() * PER_CENT).round()),
        Outcome::LacksHost { each } => (1, each.0 as f64),
        Outcome::Lacks { device } => (2, device.0 as f64),
        Outcome::Uneven => (3, 0.0),
    }
}
