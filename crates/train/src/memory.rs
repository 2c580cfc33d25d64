//! How much memory a run takes at most, before it starts, and what is there.
//!
//! States of what learns, and the size of a model, are the planner's (`het_perf::training`). What
//! layers keep for their backward is what the blocks here keep, value by value: the planner's
//! formulas are those of kernels that keep other things, in two bytes a value.

use crate::architecture::{Architecture, HeadWeight};
use crate::cpu::lengths::{Lengths, VALUE};
use crate::error::{Error, IoContext, Result};
use crate::lora::Adapter;
use crate::names::{Tensor, buffers};
use crate::sampler::Sampler;
use crate::split::Split;
use crate::steps::Recompute;
use crate::training::{Method, Settings};
use het_blocks::linear::Numbers;
use het_blocks::mlp::Gate;
use het_core::Bytes;
use het_perf::training::{
    Embeddings, FeedForward, FeedForwardKind, GradientWidth, Optimizer, Precision, Transformer,
};
use std::path::Path;

/// What a product copies of its wider operand at most, in values: rows by columns. `faer` takes as
/// many for caches of 32 MiB, which is what the largest have.
const PRODUCT_COPY: [usize; 2] = [1 << 14, 512];
/// Batches that are looked at for the largest: those of long runs are drawn from the same data.
const BATCHES_MAX: u64 = 100_000;

/// What a run takes at most, by what takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// The program, its tokenizer and its data, as measured.
    pub program: u64,
    /// Weights, gradients and moments.
    pub states: u64,
    /// What layers keep for their backward.
    pub activations: u64,
    /// What is there for a moment.
    pub working: u64,
    /// All of that in further processes.
    pub workers: u64,
    /// A second copy of what a validation computes with, where there is one.
    pub validation: u64,
}

impl Estimate {
    pub fn total(&self) -> u64 {
        self.program
            + self.states
            + self.activations
            + self.working
            + self.workers
            + self.validation
    }
}

/// What a run is reckoned from.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    pub settings: &'a Settings,
    pub recompute: Recompute,
    pub architecture: &'a Architecture,
    pub data: &'a Split,
    /// Bytes of the process before it has weights.
    pub program: u64,
    /// Further processes, each with weights and gradients of its own, and parts of batches.
    pub workers: usize,
    /// Whether held-out losses are computed meanwhile.
    pub is_validated: bool,
}

impl Run<'_> {
    pub fn estimate(&self) -> Estimate {
        let (batch, working) = self.largest_batch();
        let layers = self.architecture.layers.len() as u64;
        let (input, layer) = (batch.input(self.architecture), batch.layer(self.architecture));
        let activations = match self.recompute {
            Recompute::Nothing => layers * layer,
            Recompute::Layers => layers * input + layer,
        };
        let activations = VALUE * activations;
        let copies = match self.settings.numbers {
            Numbers::F32 => VALUE * product_copy(self.architecture),
            Numbers::Bf16 => VALUE / 2 * batch.packed(self.architecture),
        };
        let working = VALUE * working + copies;
        // A part may be all of a batch, where a worker is by far the fastest.
        let worker = self.program + self.worker_states() + activations + working;
        let workers = worker * self.workers as u64;
        let validation = if self.is_validated { self.validation() } else { 0 };
        let states = self.states();
        Estimate { program: self.program, states, activations, working, workers, validation }
    }

    /// Bytes of the weights that a validation computes with: here, and in a worker where there are
    /// any.
    fn validation(&self) -> u64 {
        match &self.settings.method {
            Method::Lora(_) => self.matrix_value() * self.merged(),
            Method::Full | Method::Scratch => {
                VALUE * parameters(self.architecture) * if self.workers > 0 { 2 } else { 1 }
            }
        }
    }

    /// Bytes of a worker's weights and gradients.
    fn worker_states(&self) -> u64 {
        let all = parameters(self.architecture);
        match &self.settings.method {
            Method::Full | Method::Scratch => 2 * VALUE * all,
            Method::Lora(lora) => {
                let adapter = Adapter::length(self.architecture, lora) as u64;
                self.frozen_bytes() + VALUE * 2 * adapter
            }
        }
    }

    /// Values of layers that an adapter is worked into, beside those that stay as they were.
    fn merged(&self) -> u64 {
        let model = transformer(self.architecture);
        u64::from(model.layers) * model.layer_parameters()
    }

    /// Bytes of weights that an adapter lies beside, as they are and with it worked in.
    fn frozen_bytes(&self) -> u64 {
        self.matrix_value() * (parameters(self.architecture) + self.merged())
    }

    /// Bytes of a value of a frozen matrix, which are almost all values of a model.
    fn matrix_value(&self) -> u64 {
        match self.settings.numbers {
            Numbers::F32 => VALUE,
            Numbers::Bf16 => VALUE / 2,
        }
    }

    /// Bytes of weights, gradients and moments.
    fn states(&self) -> u64 {
        let learns = u64::from(
            Precision::Fp32.weight_bytes()
                + GradientWidth::Single.bytes()
                + Precision::Fp32.master_bytes()
                + Optimizer::Adam.state_bytes(),
        );
        match &self.settings.method {
            Method::Full | Method::Scratch => learns * parameters(self.architecture),
            Method::Lora(lora) => {
                let adapter = Adapter::length(self.architecture, lora) as u64;
                learns * adapter + self.frozen_bytes()
            }
        }
    }

    /// The batch that takes most, and the values that are there for a moment while it is computed.
    fn largest_batch(&self) -> (Lengths, u64) {
        let Settings { seed, seq, steps, accumulate, .. } = *self.settings;
        let mut sampler = Sampler::at(self.data, seq, seed, 0, 0);
        let batches = steps.saturating_mul(accumulate as u64).min(BATCHES_MAX);
        let all = (0..batches).map(|_| {
            let sequences = sampler.next_sequences(self.settings.shape());
            Lengths::of(sequences.iter().map(|index| self.data.length(*index).min(seq)))
        });
        let largest = all.max_by_key(|batch| batch.layer(self.architecture)).unwrap_or_default();
        (largest, largest.working(self.architecture))
    }

    /// Refuses a run that takes more than there is, with the nearest settings that would fit.
    pub fn check(&self, available: u64) -> Result<Estimate> {
        let estimate = self.estimate();
        if estimate.total() <= available {
            return Ok(estimate);
        }
        Err(Error::Memory {
            needed: Bytes(estimate.total()),
            available: Bytes(available),
            fits: self.nearest(available),
        })
    }

    fn fits(&self, available: u64) -> bool {
        self.estimate().total() <= available
    }

    /// The words of settings that fit: those that change least come first.
    fn nearest(&self, available: u64) -> Option<String> {
        if self.workers > 0 {
            let alone = Run { workers: 0, ..*self };
            return match alone.fits(available) {
                true => Some("no `--workers`".to_owned()),
                false => alone.nearest(available),
            };
        }
        let again = Run { recompute: Recompute::Layers, ..*self };
        for (run, more) in [(*self, ""), (again, " --recompute")] {
            let whole = run.settings.batch;
            // The same sequences make a step, in more passes.
            let parts = (1..=whole).filter(|parts| whole.is_multiple_of(*parts));
            for parts in parts {
                let (batch, accumulate) = (whole / parts, run.settings.accumulate * parts);
                let settings = Settings { batch, accumulate, ..run.settings.clone() };
                if (Run { settings: &settings, ..run }).fits(available) {
                    return Some(format!("`--batch {batch} --accumulate {accumulate}{more}`"));
                }
            }
        }
        if self.settings.method != Method::Full {
            return None;
        }
        let lora = crate::lora::Settings::default();
        let settings = Settings { method: Method::Lora(lora), ..self.settings.clone() };
        let adapter = Run { settings: &settings, ..*self };
        match adapter.fits(available) {
            true => Some("`--method lora`".to_owned()),
            false => {
                let words = adapter.nearest(available)?;
                Some(format!("`--method lora` with {words}"))
            }
        }
    }
}

/// Values that the largest product copies.
fn product_copy(architecture: &Architecture) -> u64 {
    let Architecture { hidden, vocabulary, attention, mlp, .. } = architecture;
    let widest = (*vocabulary).max(attention.qkv_width()).max(mlp.up_width());
    let [rows, columns] = PRODUCT_COPY;
    (widest.min(rows) * (*hidden).min(columns)) as u64
}

/// All values of a model.
fn parameters(architecture: &Architecture) -> u64 {
    let tensors = buffers(architecture).into_iter().flat_map(|buffer| buffer.tensors);
    tensors.map(|tensor: Tensor| tensor.values() as u64).sum()
}

/// A model as the planner describes it.
fn transformer(architecture: &Architecture) -> Transformer {
    let Architecture { hidden, vocabulary, positions_max, attention, mlp, .. } = architecture;
    let size = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    Transformer {
        layers: size(architecture.layers.len()),
        hidden: size(*hidden),
        heads: size(attention.heads),
        key_value_heads: size(attention.kv_heads),
        head_width: size(attention.head_size),
        feed_forward: FeedForward {
            hidden: size(mlp.feed_forward),
            kind: match mlp.gate {
                Gate::Gated => FeedForwardKind::Gated,
                Gate::Plain => FeedForwardKind::Plain,
            },
            experts: None,
        },
        sequence: size(*positions_max),
        attention_span: size(*positions_max),
        vocabulary: size(*vocabulary),
        embeddings: match architecture.head {
            HeadWeight::Tied => Embeddings::Tied,
            HeadWeight::Own => Embeddings::Untied,
        },
    }
}

/// What this process may take: what the machine has free beside it, or less where its control group
/// says so.
pub fn available() -> Result<u64> {
    let path = Path::new("/proc/meminfo");
    let text = std::fs::read_to_string(path).at("read", path)?;
    let free = kibibytes(&text, "MemAvailable:").unwrap_or(u64::MAX);
    let own = resident()?;
    Ok(free.saturating_add(own).min(control_group_limit()))
}

/// The least limit of this process's control group and those above it.
fn control_group_limit() -> u64 {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let lines = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        Some((fields.next()?, fields.next()?.trim_start_matches('/')))
    });
    let limits = lines.flat_map(|(controllers, group)| {
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => return Vec::new(),
        };
        let own = Path::new(root).join(group);
        let above = own.ancestors().take_while(|path| path.starts_with(root));
        let read = |path: &Path| {
            let text = std::fs::read_to_string(path.join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        above.filter_map(read).collect()
    });
    limits.min().unwrap_or(u64::MAX)
}

/// Bytes of this process that are in memory.
pub fn resident() -> Result<u64> {
    status("VmRSS:")
}

/// The most that this process had in memory at once.
pub fn peak() -> Result<u64> {
    status("VmHWM:")
}

fn status(key: &str) -> Result<u64> {
    let path = Path::new("/proc/self/status");
    let text = std::fs::read_to_string(path).at("read", path)?;
    Ok(kibibytes(&text, key).unwrap_or(0))
}

/// Bytes behind a key of a file of `/proc`, which has them in KiB.
fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let number = line.split_whitespace().next()?.parse::<u64>().ok()?;
    Some(number * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Sequence;
    use crate::tiny;

    fn settings(method: Method) -> Settings {
        Settings {
            steps: 4,
            batch: 8,
            accumulate: 1,
            seq: 64,
            pack: false,
            seed: 1,
            optimiser: crate::optimiser::Settings::default(),
            numbers: Numbers::F32,
            method,
        }
    }

    fn data() -> Split {
        Split::of_sequences(&vec![Sequence { tokens: vec![1; 64], scored: vec![true; 64] }; 20])
    }

    #[test]
    fn the_planner_counts_the_weights_of_this_model() {
        let architecture = tiny::architecture();
        let planned = transformer(&architecture).parameters() as f64;
        let own = parameters(&architecture) as f64;
        // It leaves the norms out.
        assert!((planned / own - 1.0).abs() < 0.02, "{planned}, not {own}");
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_does() {
        let (architecture, data) = (tiny::architecture(), data());
        let settings = settings(Method::Full);
        let run = Run {
            settings: &settings,
            recompute: Recompute::Nothing,
            architecture: &architecture,
            data: &data,
            program: 0,
            workers: 0,
            is_validated: false,
        };
        let whole = run.estimate();
        assert_eq!(run.check(whole.total()).expect("it fits"), whole);
        let validated = Run { is_validated: true, ..run };
        let weights = VALUE * parameters(&architecture);
        assert_eq!(validated.estimate().total(), whole.total() + weights);
        let shared = Run { workers: 2, ..run };
        assert!(shared.estimate().workers > whole.total());
        assert_eq!(shared.nearest(whole.total()).as_deref(), Some("no `--workers`"));
        let words = |available: u64| match run.check(available) {
            Err(Error::Memory { fits, .. }) => fits,
            other => panic!("{other:?}"),
        };
        let fits = words(whole.total() - 1).expect("half of it fits");
        assert_eq!(fits, "`--batch 4 --accumulate 2`");
        let one = Settings { batch: 1, accumulate: 8, ..settings.clone() };
        let least = Run { settings: &one, ..run };
        let fits = words(least.estimate().total() - 1).expect("computed again it fits");
        assert!(fits.ends_with("--recompute`"), "{fits}");
        let least = Run { recompute: Recompute::Layers, ..least };
        let fits = words(least.estimate().total() - 1).expect("an adapter fits");
        assert!(fits.starts_with("`--method lora`"), "{fits}");
        assert_eq!(words(1), None);
    }
}
