//! What one device must hold: weights, gradients, optimizer states, activations.
//!
//! Activations of a layer follow Korthikanti et al. 2022 (arXiv 2205.05198), equations 1 to 6, with
//! grouped-query attention, gated and expert feed-forward parts, context parallelism and flash
//! attention put in where they belong.

use het_core::Bytes;

use super::constants::NF4_BYTES;
use super::{
    Attention, Embeddings, FeedForwardKind, Offload, ParallelConfig, Recompute, SequenceParallel,
    Transformer, Tuning, Zero,
};

/// What the driver, collectives' buffers and fragmentation take of a device: an estimate.
pub const RESERVED: Bytes = Bytes(2 << 30);

/// Which stage, and how many layers it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagePlace {
    /// From 0, the one with the embedding.
    pub stage: u32,
    pub layers: u32,
}

/// What a device of a stage holds at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageMemory {
    /// Weights, gradients and optimizer states of the layers.
    pub layers: Bytes,
    /// The same of embedding and head.
    pub embeddings: Bytes,
    /// What the microbatches under way keep for their backward pass.
    pub activations: Bytes,
    /// What is there for a moment: a layer that is computed again, logits, gathered weights.
    pub working: Bytes,
}

impl StageMemory {
    /// All of it, without `RESERVED`.
    pub fn total(&self) -> Bytes {
        Bytes(self.layers.0 + self.embeddings.0 + self.activations.0 + self.working.0)
    }
}

/// What a device of a stage holds at most.
pub fn stage_memory(
    model: &Transformer,
    config: &ParallelConfig,
    place: StagePlace,
) -> StageMemory {
    let layers = f64::from(place.layers);
    let tensor = f64::from(config.tensor);
    let embedding = model.embedding_parameters() as f64 / tensor;
    let matrices = match (place.stage == 0, place.stage + 1 == config.pipeline, model.embeddings) {
        (true, true, Embeddings::Tied) | (true, false, _) | (false, true, _) => 1.0,
        (true, true, Embeddings::Untied) => 2.0,
        (false, false, _) => 0.0,
    };
    let embeddings = match config.tuning {
        Tuning::Full => matrices * embedding * trained_bytes(config),
        Tuning::Lora { .. } | Tuning::Qlora { .. } => {
            matrices * embedding * frozen_bytes(config, 2.0)
        }
    };
    StageMemory {
        layers: bytes(layers * layer_weights(model, config)),
        embeddings: bytes(embeddings),
        activations: bytes(activations(model, config, place)),
        working: bytes(working(model, config, place)),
    }
}

/// Bytes of weights, gradients and states of a layer on one device.
fn layer_weights(model: &Transformer, config: &ParallelConfig) -> f64 {
    let tensor = f64::from(config.tensor);
    let expert = f64::from(config.expert);
    let attention = model.attention_parameters() as f64;
    let rest = (model.layer_parameters() - model.attention_parameters()) as f64;
    let own = (attention + rest / expert) / tensor;
    let adapters = config.tuning.trainable_parameters(model) as f64 / (tensor * expert);
    match config.tuning {
        Tuning::Full => own * trained_bytes(config),
        Tuning::Lora { .. } => {
            let kept = f64::from(config.precision.weight_bytes());
            own * frozen_bytes(config, kept) + adapters * trained_bytes(config)
        }
        Tuning::Qlora { .. } => {
            own * frozen_bytes(config, NF4_BYTES) + adapters * trained_bytes(config)
        }
    }
}

/// Bytes of a weight that learns: itself, its gradient, its states, as ZeRO shares them out
/// (Rajbhandari et al. 2020, figure 1) and what offloading leaves.
fn trained_bytes(config: &ParallelConfig) -> f64 {
    let ranks = f64::from(config.data * config.context);
    let weight = f64::from(config.precision.weight_bytes());
    let gradient = f64::from(config.gradients.bytes());
    let state = match config.offload {
        Offload::None => config.precision.master_bytes() + config.optimizer.state_bytes(),
        Offload::Cpu | Offload::Nvme => 0,
    };
    let state = f64::from(state);
    match config.zero {
        Zero::None => weight + gradient + state,
        Zero::One => weight + gradient + state / ranks,
        Zero::Two => weight + (gradient + state) / ranks,
        Zero::Three => (weight + gradient + state) / ranks,
    }
}

/// Bytes of a weight that does not learn.
fn frozen_bytes(config: &ParallelConfig, weight: f64) -> f64 {
    match config.zero {
        Zero::Three => weight / f64::from(config.data * config.context),
        Zero::None | Zero::One | Zero::Two => weight,
    }
}

/// Bytes that the microbatches under way keep.
fn activations(model: &Transformer, config: &ParallelConfig, place: StagePlace) -> f64 {
    let kept = match config.recompute {
        Recompute::Full => layer_input(model, config),
        Recompute::None | Recompute::Selective => layer_activations(model, config),
    };
    f64::from(place.layers) * kept * under_way(config, place.stage)
}

/// Microbatches whose activations a stage keeps at once, in 1F1B `pipeline − stage` of them; in an
/// interleaved schedule pieces of more (Narayanan et al., SC'21; the first stage of Korthikanti et
/// al. keeps 1 + (p − 1)/(p·v) times as much).
fn under_way(config: &ParallelConfig, stage: u32) -> f64 {
    let (pipeline, pieces) = (config.pipeline, config.virtual_stages);
    let microbatches = f64::from(config.microbatches().max(1));
    if pieces == 1 {
        return f64::from(pipeline.saturating_sub(stage)).min(microbatches);
    }
    let behind = pipeline.saturating_sub(stage + 1);
    let chunks = 2 * behind + (pieces - 1) * pipeline + 1;
    (f64::from(chunks) / f64::from(pieces)).min(microbatches)
}

/// Bytes that a layer keeps of one microbatch: s·b·h·(10 + 24/t + 5·a·s/(h·t)) in the GPT family,
/// all of it over t with sequence parallelism, without the last term where scores are not kept.
fn layer_activations(model: &Transformer, config: &ParallelConfig) -> f64 {
    let tensor = f64::from(config.tensor);
    let tokens = tokens(model, config);
    // Inputs of the norms, of attention and of the feed-forward part; two dropout masks, which
    // models have had none of since flash attention.
    let whole = match config.attention {
        Attention::Plain => 10.0,
        Attention::Flash1 | Attention::Flash2 | Attention::Flash3 => 8.0,
    };
    let whole = whole * f64::from(model.hidden);
    let whole = match config.sequence_parallel {
        SequenceParallel::Off => whole,
        SequenceParallel::On => whole / tensor,
    };
    let width = f64::from(model.head_width);
    // Queries and the projection's input; keys and values, of which each rank has a head or more.
    let heads = 4.0 * f64::from(model.heads) * width / tensor;
    let own = (f64::from(model.key_value_heads) / tensor).max(1.0);
    let key_values = 4.0 * own * width;
    let inner = match model.feed_forward.kind {
        FeedForwardKind::Plain => 4.0,
        FeedForwardKind::Gated => 6.0,
    };
    let inner = inner * f64::from(model.experts_active() * model.feed_forward.hidden);
    let scores = match (config.attention, config.recompute) {
        (Attention::Plain, Recompute::None | Recompute::Full) => {
            5.0 * f64::from(model.heads) * f64::from(model.attention_span)
        }
        (Attention::Plain, Recompute::Selective)
        | (Attention::Flash1 | Attention::Flash2 | Attention::Flash3, _) => 0.0,
    };
    tokens * (whole + heads + key_values + (inner + scores) / tensor)
}

/// Bytes of a layer's input.
fn layer_input(model: &Transformer, config: &ParallelConfig) -> f64 {
    2.0 * tokens(model, config) * f64::from(model.hidden)
}

/// Bytes that are there for a moment.
fn working(model: &Transformer, config: &ParallelConfig, place: StagePlace) -> f64 {
    let again = match config.recompute {
        Recompute::Full => layer_activations(model, config),
        Recompute::None | Recompute::Selective => 0.0,
    };
    let last = place.stage + 1 == config.pipeline;
    // Logits in two bytes, their softmax in four.
    let logits = 6.0 * tokens(model, config) * f64::from(model.vocabulary);
    let logits = if last { logits / f64::from(config.tensor) } else { 0.0 };
    // A layer in use and the next one on its way.
    let gathered = match config.zero {
        Zero::Three => 2.0 * 2.0 * model.layer_parameters() as f64 / f64::from(config.tensor),
        Zero::None | Zero::One | Zero::Two => 0.0,
    };
    again.max(logits) + gathered
}

fn tokens(model: &Transformer, config: &ParallelConfig) -> f64 {
    super::layer::tokens(model, config)
}

/// Whole bytes, upwards.
fn bytes(count: f64) -> Bytes {
    Bytes(count.ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::super::{Experts, FeedForward, GradientWidth, Optimizer, Precision};
    use super::*;

    /// A model of Korthikanti et al., figure 1 and table 3: layers, hidden, heads, and how it is
    /// cut: tensor, pipeline, virtual stages, microbatch.
    struct Published {
        model: Transformer,
        config: ParallelConfig,
    }

    fn published(shape: [u32; 3], cut: [u32; 4]) -> Published {
        let [layers, hidden, heads] = shape;
        let [tensor, pipeline, virtual_stages, microbatch] = cut;
        let model = Transformer::gpt(layers, hidden, heads, 2_048, 51_200);
        let config = ParallelConfig {
            tensor,
            pipeline,
            virtual_stages,
            attention: Attention::Plain,
            ..ParallelConfig::single(microbatch, microbatch * 8 * pipeline)
        };
        Published { model, config }
    }

    fn models() -> [Published; 4] {
        [
            published([48, 6_144, 64], [8, 1, 1, 4]),
            published([96, 12_288, 96], [8, 8, 3, 1]),
            published([105, 20_480, 128], [8, 35, 3, 1]),
            published([128, 25_600, 160], [8, 64, 1, 1]),
        ]
    }

    fn first(published: &Published, config: ParallelConfig) -> StageMemory {
        let layers = published.model.layers / config.pipeline;
        stage_memory(&published.model, &config, StagePlace { stage: 0, layers })
    }

    fn gibibytes(bytes: Bytes) -> f64 {
        bytes.0 as f64 / f64::from(1 << 30)
    }

    /// GiB of weights and states, of activations as they come, and with sequence parallelism and
    /// selective recomputation, to the printed digit.
    #[test]
    fn gibibytes_are_the_published_ones() {
        let expected = [
            [45.5625, 59.25, 9.5625],
            [45.5625, 66.84375, 12.3515625],
            [31.640625, 114.0234375, 23.076171875],
            [32.958984375, 131.25, 26.5625],
        ];
        for (published, [weights, none, both]) in models().iter().zip(expected) {
            let plain = first(published, published.config);
            assert_eq!(gibibytes(plain.layers), weights);
            assert_eq!(gibibytes(plain.activations), none);
            let config = ParallelConfig {
                sequence_parallel: SequenceParallel::On,
                recompute: Recompute::Selective,
                ..published.config
            };
            assert_eq!(gibibytes(first(published, config).activations), both);
        }
    }

    /// Figure 7, percent of the activations without any of it. The figures are read off bars: the
    /// formulas are up to a tenth of a point away.
    #[test]
    fn percentages_are_the_published_ones() {
        let on = SequenceParallel::On;
        let off = SequenceParallel::Off;
        let ways = [
            (on, Recompute::None),
            (off, Recompute::Selective),
            (on, Recompute::Selective),
            (off, Recompute::Full),
        ];
        let expected = [
            [66.84, 49.42, 16.18, 7.64],
            [62.04, 56.53, 18.49, 8.71],
            [58.31, 62.04, 20.27, 9.42],
            [58.31, 62.04, 20.27, 9.42],
        ];
        for (published, expected) in models().iter().zip(expected) {
            let whole = first(published, published.config).activations.0 as f64;
            for ((sequence_parallel, recompute), expected) in ways.into_iter().zip(expected) {
                let config = ParallelConfig { sequence_parallel, recompute, ..published.config };
                let part = first(published, config).activations.0 as f64;
                let percent = 100.0 * part / whole;
                assert!((percent - expected).abs() < 0.15, "{percent} for {expected}");
            }
        }
    }

    /// ZeRO's figure 1: 7.5 billion weights, 64 ranks, gradients of two bytes: 120, 31.4, 16.6 and
    /// 1.9 GB. Our model has 7.25 billion in its layers; bytes a weight are what is compared.
    #[test]
    fn zero_shares_out_what_was_published() {
        let model = Transformer::gpt(36, 4_096, 32, 2_048, 51_200);
        let weights = 36.0 * model.layer_parameters() as f64;
        let check = |zero, gradients, expected: f64| {
            let config =
                ParallelConfig { data: 64, zero, gradients, ..ParallelConfig::single(1, 64) };
            let memory = stage_memory(&model, &config, StagePlace { stage: 0, layers: 36 });
            let each = memory.layers.0 as f64 / weights;
            assert!((each - expected).abs() < 1e-6, "{each} for {expected}");
        };
        check(Zero::None, GradientWidth::Half, 16.0);
        check(Zero::One, GradientWidth::Half, 4.0 + 12.0 / 64.0);
        check(Zero::Two, GradientWidth::Half, 2.0 + 14.0 / 64.0);
        check(Zero::Three, GradientWidth::Half, 16.0 / 64.0);
        // Megatron's distributed optimizer: 6 + 12/d.
        check(Zero::One, GradientWidth::Single, 6.0 + 12.0 / 64.0);
        check(Zero::None, GradientWidth::Single, 18.0);
    }

    /// Rank 64 on a 7B Llama: the base of 6.5 billion weights takes 12.1 GiB in bf16 and 3.1 in 4
    /// bits; 160 million adapters take 18 bytes each.
    #[test]
    fn adapters_leave_the_base_frozen() {
        let kind = FeedForwardKind::Gated;
        let feed_forward = FeedForward { hidden: 11_008, kind, experts: None };
        let model = Transformer { feed_forward, ..Transformer::gpt(32, 4_096, 32, 4_096, 32_000) };
        let check = |tuning, expected: f64| {
            let config = ParallelConfig { tuning, ..ParallelConfig::single(1, 1) };
            let memory = stage_memory(&model, &config, StagePlace { stage: 0, layers: 32 });
            let gib = gibibytes(memory.layers);
            assert!((gib - expected).abs() < 0.05, "{gib} for {expected}");
        };
        let adapters = 159.9e6 * 18.0 / f64::from(1 << 30);
        check(Tuning::Lora { rank: 64 }, 12.06 + adapters);
        check(Tuning::Qlora { rank: 64 }, 3.11 + adapters);
    }

    /// Eight heads of keys and values on sixteen ranks: each holds one, which is what it held on
    /// eight. Megatron-LM copies heads the same way.
    #[test]
    fn keys_and_values_are_cut_no_further_than_their_heads() {
        let model = Transformer { key_value_heads: 8, ..Transformer::gpt(1, 8_192, 64, 4_096, 1) };
        let kept = |tensor| {
            let config = ParallelConfig {
                tensor,
                sequence_parallel: SequenceParallel::On,
                ..ParallelConfig::single(1, 1)
            };
            layer_activations(&model, &config)
        };
        let one_head = 4.0 * f64::from(model.head_width) * f64::from(model.sequence);
        assert_eq!(kept(16) - one_head, (kept(8) - one_head) / 2.0);
    }

    #[test]
    fn what_is_cut_further_takes_less() {
        let model = Transformer::gpt(32, 4_096, 32, 4_096, 32_000);
        let total = |model: Transformer, config| {
            stage_memory(&model, &config, StagePlace { stage: 0, layers: 32 }).total()
        };
        let config = ParallelConfig::single(1, 8);
        let whole = total(model, config);
        let grouped = Transformer { key_value_heads: 8, ..model };
        assert!(total(grouped, config) < whole);
        assert!(total(model, ParallelConfig { context: 2, ..config }) < whole);
        assert!(total(model, ParallelConfig { offload: Offload::Cpu, ..config }) < whole);
        let optimizer = Optimizer::AdamW8bit;
        assert!(total(model, ParallelConfig { optimizer, ..config }) < whole);
        let precision = Precision::Fp32;
        assert!(total(model, ParallelConfig { precision, ..config }) <= whole);
        let experts = Some(Experts { count: 8, active: 2 });
        let mixture =
            Transformer { feed_forward: FeedForward { experts, ..model.feed_forward }, ..model };
        let shared = ParallelConfig { data: 8, expert: 8, ..config };
        assert!(total(mixture, shared) < total(mixture, ParallelConfig { expert: 1, ..shared }));
    }
}
