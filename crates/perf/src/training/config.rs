//! How a job is cut over devices, and what does not add up.

use std::error::Error;
use std::fmt;

use super::{Transformer, Tuning};

/// How one job is cut. Devices: `data × tensor × pipeline × context`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParallelConfig {
    pub data: u32,
    pub tensor: u32,
    pub pipeline: u32,
    pub context: u32,
    /// Ranks of the data-parallel dimension that share the experts among them.
    pub expert: u32,
    /// Pieces that a stage is cut into (interleaved schedule); 1 is plain 1F1B.
    pub virtual_stages: u32,
    /// Samples a replica takes at once.
    pub microbatch: u32,
    /// Samples of a step, over all replicas.
    pub global_batch: u32,
    pub precision: Precision,
    pub gradients: GradientWidth,
    pub recompute: Recompute,
    pub sequence_parallel: SequenceParallel,
    pub zero: Zero,
    pub offload: Offload,
    pub optimizer: Optimizer,
    pub tuning: Tuning,
    pub attention: Attention,
    pub overlap: Overlap,
}

/// What matrices are multiplied in. Below fp32 there is a master copy of the weights in fp32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    Fp32,
    Fp16,
    Bf16,
    Fp8,
}

/// Width in which gradients are kept and exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GradientWidth {
    Half,
    Single,
}

/// What the backward pass computes again instead of keeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recompute {
    None,
    /// The core of attention (Korthikanti et al. 2022).
    Selective,
    /// The whole layer from its input.
    Full,
}

/// Whether norms and dropout are cut along the sequence within a tensor group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequenceParallel {
    Off,
    On,
}

/// What data-parallel ranks share out among them (Rajbhandari et al. 2020).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Zero {
    None,
    /// Optimizer states.
    One,
    /// And gradients.
    Two,
    /// And weights (fully sharded).
    Three,
}

/// Where optimizer states live and the update is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    None,
    Cpu,
    Nvme,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Optimizer {
    Sgd,
    Momentum,
    Adam,
    /// AdamW with states of 8 bits.
    AdamW8bit,
}

/// The attention kernel. Software of the generation of `Flash2` and later also fuses the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attention {
    /// Scores are written to memory.
    Plain,
    /// FlashAttention (2022) and Triton kernels after it.
    Flash1,
    /// FlashAttention-2 (2023), cuDNN 8: masked blocks are skipped.
    Flash2,
    /// FlashAttention-3 (2024), cuDNN 9: written for Hopper and later.
    Flash3,
}

/// Whether exchange waits for kernels, or is cut up and sent while they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlap {
    None,
    /// Tensor- and data-parallel exchange is split (as in NeMo and Megatron-Core).
    Split,
}

/// Why a configuration is none for this model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigProblem {
    Zero { name: &'static str },
    HeadsNotDivisible { heads: u32, tensor: u32 },
    BatchNotDivisible { batch: u32, by: u32, nearest: u32 },
    FewerLayersThanStages { layers: u32, stages: u32 },
    InterleavingNeedsStages { pipeline: u32 },
    ExpertsNotDivisible { experts: u32, expert: u32 },
    ExpertsNotInData { expert: u32, data: u32 },
    MoreActiveThanExperts { active: u32, experts: u32 },
}

impl ParallelConfig {
    /// One device, bf16, Adam, nothing clever.
    pub fn single(microbatch: u32, global_batch: u32) -> Self {
        Self {
            data: 1,
            tensor: 1,
            pipeline: 1,
            context: 1,
            expert: 1,
            virtual_stages: 1,
            microbatch,
            global_batch,
            precision: Precision::Bf16,
            gradients: GradientWidth::Single,
            recompute: Recompute::None,
            sequence_parallel: SequenceParallel::Off,
            zero: Zero::None,
            offload: Offload::None,
            optimizer: Optimizer::Adam,
            tuning: Tuning::Full,
            attention: Attention::Flash2,
            overlap: Overlap::None,
        }
    }

    pub fn devices(&self) -> u32 {
        self.data * self.tensor * self.pipeline * self.context
    }

    /// Microbatches that a replica makes one step of.
    pub fn microbatches(&self) -> u32 {
        self.global_batch / (self.data * self.microbatch).max(1)
    }

    /// # Errors
    /// The first thing that does not add up.
    pub fn check(&self, model: &Transformer) -> Result<(), ConfigProblem> {
        let counts = [
            ("layers", model.layers),
            ("hidden", model.hidden),
            ("heads", model.heads),
            ("key_value_heads", model.key_value_heads),
            ("sequence", model.sequence),
            ("data", self.data),
            ("tensor", self.tensor),
            ("pipeline", self.pipeline),
            ("context", self.context),
            ("expert", self.expert),
            ("virtual_stages", self.virtual_stages),
            ("microbatch", self.microbatch),
            ("global_batch", self.global_batch),
        ];
        if let Some((name, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(ConfigProblem::Zero { name });
        }
        if !model.heads.is_multiple_of(self.tensor) {
            let (heads, tensor) = (model.heads, self.tensor);
            return Err(ConfigProblem::HeadsNotDivisible { heads, tensor });
        }
        let by = self.data * self.microbatch;
        if !self.global_batch.is_multiple_of(by) {
            let batch = self.global_batch;
            let nearest = ((batch + by / 2) / by).max(1) * by;
            return Err(ConfigProblem::BatchNotDivisible { batch, by, nearest });
        }
        let stages = self.pipeline * self.virtual_stages;
        // Embedding and head may be pieces of their own, as in Llama 3 405B's 126 layers on 128.
        let ends = if self.virtual_stages > 1 { 2 } else { 0 };
        if model.layers + ends < stages {
            let layers = model.layers;
            return Err(ConfigProblem::FewerLayersThanStages { layers, stages });
        }
        if self.virtual_stages > 1 && self.pipeline < 2 {
            return Err(ConfigProblem::InterleavingNeedsStages { pipeline: self.pipeline });
        }
        self.check_experts(model)
    }

    fn check_experts(&self, model: &Transformer) -> Result<(), ConfigProblem> {
        let count = model.feed_forward.experts.map_or(1, |experts| experts.count);
        if model.experts_active() > count {
            let active = model.experts_active();
            return Err(ConfigProblem::MoreActiveThanExperts { active, experts: count });
        }
        if !count.is_multiple_of(self.expert) {
            let expert = self.expert;
            return Err(ConfigProblem::ExpertsNotDivisible { experts: count, expert });
        }
        let data = self.data * self.context;
        if !data.is_multiple_of(self.expert) {
            return Err(ConfigProblem::ExpertsNotInData { expert: self.expert, data });
        }
        Ok(())
    }
}

impl Optimizer {
    /// Bytes of state a parameter, beside the master copy.
    pub fn state_bytes(self) -> u32 {
        match self {
            Self::Sgd => 0,
            Self::Momentum => 4,
            Self::Adam => 8,
            Self::AdamW8bit => 2,
        }
    }
}

impl GradientWidth {
    pub fn bytes(self) -> u32 {
        match self {
            Self::Half => 2,
            Self::Single => 4,
        }
    }
}

impl Precision {
    /// Bytes of a stored weight.
    pub fn weight_bytes(self) -> u32 {
        match self {
            Self::Fp32 => 4,
            Self::Fp16 | Self::Bf16 | Self::Fp8 => 2,
        }
    }

    /// Bytes of the master copy of a weight.
    pub fn master_bytes(self) -> u32 {
        match self {
            Self::Fp32 => 0,
            Self::Fp16 | Self::Bf16 | Self::Fp8 => 4,
        }
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero { name } => write!(f, "`{name}` is zero"),
            Self::HeadsNotDivisible { heads, tensor } => {
                write!(f, "{heads} heads cannot be cut into {tensor} equal parts")
            }
            Self::BatchNotDivisible { batch, by, nearest } => write!(
                f,
                "a global batch of {batch} cannot be cut into microbatches of all replicas, \
                 {by} samples; hint: {nearest}"
            ),
            Self::FewerLayersThanStages { layers, stages } => {
                write!(
                    f,
                    "{layers} layers cannot fill {stages} stages; hint: no more than {layers}"
                )
            }
            Self::InterleavingNeedsStages { pipeline } => {
                write!(f, "virtual stages need a pipeline, and this has {pipeline} stage")
            }
            Self::ExpertsNotDivisible { experts, expert } => {
                write!(f, "{experts} experts cannot be cut into {expert} equal parts")
            }
            Self::ExpertsNotInData { expert, data } => {
                write!(f, "{expert} ranks that share experts do not fit evenly into {data}")
            }
            Self::MoreActiveThanExperts { active, experts } => {
                write!(f, "a token cannot go through {active} of {experts} experts")
            }
        }
    }
}

impl Error for ConfigProblem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_add_up_is_said_with_what_would() {
        let model = Transformer::gpt(24, 1_024, 16, 1_024, 51_200);
        let check = |config: ParallelConfig, words: &str| {
            let said = config.check(&model).map_err(|problem| problem.to_string());
            assert_eq!(said.as_ref().map_or_else(String::as_str, |()| ""), words);
        };
        let config = ParallelConfig::single(4, 64);
        check(config, "");
        check(ParallelConfig { tensor: 0, ..config }, "`tensor` is zero");
        let words = "16 heads cannot be cut into 3 equal parts";
        check(ParallelConfig { tensor: 3, ..config }, words);
        let words = "a global batch of 64 cannot be cut into microbatches of all replicas, \
                     12 samples; hint: 60";
        check(ParallelConfig { data: 3, ..config }, words);
        let words = "24 layers cannot fill 32 stages; hint: no more than 24";
        check(ParallelConfig { pipeline: 32, ..config }, words);
        let words = "1 experts cannot be cut into 2 equal parts";
        check(ParallelConfig { data: 2, expert: 2, ..config }, words);
        let none = Transformer { heads: 0, ..model };
        assert_eq!(config.check(&none), Err(ConfigProblem::Zero { name: "heads" }));
    }
}
