//! The shape of a decoder-only transformer: what it has to store and to compute.

/// Shape of the model and of what it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transformer {
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    pub heads: u32,
    /// Fewer than `heads` with grouped-query attention.
    pub key_value_heads: u32,
    /// Width of one head; `hidden / heads` in most models.
    pub head_width: u32,
    pub feed_forward: FeedForward,
    /// Tokens of a sample.
    pub sequence: u32,
    /// Tokens that a token can attend to: `sequence`, less with a sliding window or packed samples.
    pub attention_span: u32,
    pub vocabulary: u32,
    pub embeddings: Embeddings,
}

/// The two or three matrices behind attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedForward {
    /// Inner width, of one expert where there are several.
    pub hidden: u32,
    pub kind: FeedForwardKind,
    pub experts: Option<Experts>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedForwardKind {
    /// Up and down.
    Plain,
    /// Up, gate and down (SwiGLU and kin).
    Gated,
}

/// A mixture: every token goes through `active` of `count` experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    pub count: u32,
    pub active: u32,
}

/// Whether the matrix before the first layer and the one behind the last are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Embeddings {
    Tied,
    Untied,
}

impl Transformer {
    /// The GPT-3 family's proportions: as many key-value heads as heads, an inner width of four
    /// times the hidden one, tied embeddings (Brown et al. 2020, table 2.1).
    pub fn gpt(layers: u32, hidden: u32, heads: u32, sequence: u32, vocabulary: u32) -> Self {
        let plain = FeedForwardKind::Plain;
        Self {
            layers,
            hidden,
            heads,
            key_value_heads: heads,
            head_width: hidden / heads.max(1),
            feed_forward: FeedForward { hidden: 4 * hidden, kind: plain, experts: None },
            sequence,
            attention_span: sequence,
            vocabulary,
            embeddings: Embeddings::Tied,
        }
    }

    /// Weights of the attention matrices of a layer; biases and norms, below 0.1 %, are left out
    /// here and everywhere.
    pub fn attention_parameters(&self) -> u64 {
        let heads = 2 * u64::from(self.heads) + 2 * u64::from(self.key_value_heads);
        heads * u64::from(self.head_width) * u64::from(self.hidden)
    }

    /// Weights of one expert, or of the feed-forward part where there are none.
    pub fn expert_parameters(&self) -> u64 {
        let matrices = match self.feed_forward.kind {
            FeedForwardKind::Plain => 2,
            FeedForwardKind::Gated => 3,
        };
        matrices * u64::from(self.hidden) * u64::from(self.feed_forward.hidden)
    }

    /// Weights of a layer.
    pub fn layer_parameters(&self) -> u64 {
        let experts = u64::from(self.feed_forward.experts.map_or(1, |experts| experts.count));
        self.attention_parameters() + experts * self.expert_parameters()
    }

    /// Weights of a layer that a token passes through.
    pub fn active_layer_parameters(&self) -> u64 {
        self.attention_parameters() + u64::from(self.experts_active()) * self.expert_parameters()
    }

    /// Weights of one embedding matrix.
    pub fn embedding_parameters(&self) -> u64 {
        u64::from(self.vocabulary) * u64::from(self.hidden)
    }

    /// All weights.
    pub fn parameters(&self) -> u64 {
        let matrices = match self.embeddings {
            Embeddings::Tied => 1,
            Embeddings::Untied => 2,
        };
        u64::from(self.layers) * self.layer_parameters() + matrices * self.embedding_parameters()
    }

    /// Model FLOPs of a step over `samples` samples, forward and backward and nothing twice:
    /// 72·B·s·l·h²·(1 + s/6h + V/12lh) in the GPT family (Narayanan et al., SC'21, without their
    /// recomputation); attention is counted whole, as if no token were masked.
    pub fn step_flops(&self, samples: u32) -> f64 {
        let span = f64::from(self.attention_span);
        let attention = 2.0 * span * self.attention_width();
        let layer = self.active_layer_parameters() as f64 + attention;
        let token = f64::from(self.layers) * layer + self.embedding_parameters() as f64;
        6.0 * token * f64::from(samples) * f64::from(self.sequence)
    }

    pub(super) fn attention_width(&self) -> f64 {
        f64::from(self.heads) * f64::from(self.head_width)
    }

    pub(super) fn experts_active(&self) -> u32 {
        self.feed_forward.experts.map_or(1, |experts| experts.active)
    }
}

/// Days that `flops` take on so many devices with a peak of `tflops` each, at a model-FLOP
/// utilisation (a fraction).
pub fn days(flops: f64, devices: u32, tflops: f64, utilisation: f64) -> f64 {
    flops / (f64::from(devices) * tflops * 1e12 * utilisation) / 86_400.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Model sizes as printed: GPT-3 175B; Llama 2 70B and Llama 3 8B from their papers' shapes.
    #[test]
    fn parameters_are_the_published_ones() {
        let check = |model: Transformer, billions: f64| {
            let counted = model.parameters() as f64 / 1e9;
            assert!((counted / billions - 1.0).abs() < 0.005, "{counted} for {billions}");
        };
        let gated = |model: Transformer, hidden, key_value_heads| {
            let feed_forward = FeedForward { hidden, kind: FeedForwardKind::Gated, experts: None };
            Transformer { feed_forward, key_value_heads, embeddings: Embeddings::Untied, ..model }
        };
        check(Transformer::gpt(96, 12_288, 96, 2_048, 51_200), 174.6);
        check(gated(Transformer::gpt(80, 8_192, 64, 4_096, 32_000), 28_672, 8), 68.98);
        let llama = gated(Transformer::gpt(32, 4_096, 32, 8_192, 128_256), 14_336, 8);
        check(llama, 8.03);
        // Mixtral 8x7B: 46.7 billion weights, 12.9 of them active (Jiang et al. 2024).
        let experts = Some(Experts { count: 8, active: 2 });
        let feed_forward = FeedForward { experts, ..llama.feed_forward };
        let mixtral = Transformer { feed_forward, vocabulary: 32_000, ..llama };
        check(mixtral, 46.7);
        let embeddings = 2 * mixtral.embedding_parameters();
        let active = 32 * mixtral.active_layer_parameters() + embeddings;
        assert!((active as f64 / 12.9e9 - 1.0).abs() < 0.005, "{active}");
    }

    /// 175 billion weights, 300 billion tokens, 6 FLOPs each: 5 days on 20,000 A100 at 11.6 % of
    /// 312 TFLOP/s, 19 hours on as many H100 at 1,979.
    #[test]
    fn the_simple_rule_gives_the_brief_its_days() {
        let flops = 6.0 * 175e9 * 300e9;
        let a100 = days(flops, 20_000, 312.0, 0.116);
        assert!((a100 - 5.0).abs() < 0.05, "{a100}");
        let h100 = days(flops, 20_000, 1_979.0, 0.116);
        assert!((h100 * 24.0 - 19.0).abs() < 0.2, "{h100}");
    }

    /// The bracket of Narayanan et al. for the GPT family.
    #[test]
    fn flops_of_a_step_are_megatrons() {
        let (layers, hidden, sequence, vocabulary) = (96.0, 12_288.0, 2_048.0, 51_200.0);
        let bracket = 1.0 + sequence / (6.0 * hidden) + vocabulary / (12.0 * layers * hidden);
        let expected = 72.0 * 1_536.0 * sequence * layers * hidden * hidden * bracket;
        let counted = Transformer::gpt(96, 12_288, 96, 2_048, 51_200).step_flops(1_536);
        assert!((counted / expected - 1.0).abs() < 1e-12);
    }
}
