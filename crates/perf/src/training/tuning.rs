//! Which weights a job trains, and what a step costs when the others are frozen.

use super::Transformer;

/// Which weights learn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tuning {
    Full,
    /// Low-rank adapters beside every matrix of a layer; the weights stay as they are.
    Lora {
        rank: u32,
    },
    /// The same over weights of 4 bits.
    Qlora {
        rank: u32,
    },
}

impl Tuning {
    /// Trainable weights of a layer: a pair of matrices `in × rank` and `rank × out` beside each of
    /// the layer's with adapters (Hu et al. 2021), all of them without.
    pub fn trainable_parameters(self, model: &Transformer) -> u64 {
        let rank = match self {
            Self::Full => return model.layer_parameters(),
            Self::Lora { rank } | Self::Qlora { rank } => u64::from(rank),
        };
        let hidden = u64::from(model.hidden);
        let heads = u64::from(model.heads) * u64::from(model.head_width);
        let key_values = u64::from(model.key_value_heads) * u64::from(model.head_width);
        let inner = u64::from(model.feed_forward.hidden);
        let matrices = model.expert_parameters() / (hidden * inner).max(1);
        let experts = u64::from(model.feed_forward.experts.map_or(1, |experts| experts.count));
        let attention = 2 * (hidden + heads) + 2 * (hidden + key_values);
        rank * (attention + experts * matrices * (hidden + inner))
    }

    /// Model FLOPs of a step over `samples` samples. A frozen matrix is multiplied with forward and
    /// backward with its output's gradient, but has no gradient of its own: 4 FLOPs a weight and
    /// token, not 6 (Kaplan et al. 2020, arXiv 2001.08361, section 2.1, counts 2 + 2 + 2). Scores
    /// have no weights and cost what they did. Adapters, a few hundredths, are left out here as in
    /// the times.
    pub fn step_flops(self, model: &Transformer, samples: u32) -> f64 {
        match self {
            Self::Full => model.step_flops(samples),
            Self::Lora { .. } | Self::Qlora { .. } => {
                let layers = f64::from(model.layers) * model.active_layer_parameters() as f64;
                let frozen = layers + model.embedding_parameters() as f64;
                let tokens = f64::from(samples) * f64::from(model.sequence);
                model.step_flops(samples) - 2.0 * frozen * tokens
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FeedForward, FeedForwardKind};
    use super::*;

    /// QLoRA paper's own count: rank 64 on every matrix of a 7B Llama is about 160 million weights.
    #[test]
    fn adapters_are_counted() {
        let kind = FeedForwardKind::Gated;
        let feed_forward = FeedForward { hidden: 11_008, kind, experts: None };
        let llama = Transformer { feed_forward, ..Transformer::gpt(32, 4_096, 32, 4_096, 32_000) };
        let adapters = 32 * Tuning::Lora { rank: 64 }.trainable_parameters(&llama);
        assert!((adapters as f64 / 160e6 - 1.0).abs() < 0.01, "{adapters}");
        assert_eq!(Tuning::Full.trainable_parameters(&llama), llama.layer_parameters());
    }

    /// 4 FLOPs for each frozen weight where 6 are for each that learns; attention's stay.
    #[test]
    fn frozen_weights_have_no_gradient_of_their_own() {
        let blind =
            Transformer { attention_span: 0, ..Transformer::gpt(32, 4_096, 32, 4_096, 32_000) };
        let lora = |model: Transformer| Tuning::Lora { rank: 16 }.step_flops(&model, 8);
        assert_eq!(lora(blind) * 3.0, blind.step_flops(8) * 2.0);
        let seeing = Transformer { attention_span: 4_096, ..blind };
        let spared = seeing.step_flops(8) - lora(seeing);
        assert_eq!(spared, blind.step_flops(8) - lora(blind));
        assert_eq!(Tuning::Full.step_flops(&seeing, 8), seeing.step_flops(8));
    }
}
