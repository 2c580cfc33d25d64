//! Well-known models by name: shapes as their authors published them.
//!
//! Of the open models the figures are those of `config.json` in the repository that `source` names,
//! of the others those of the paper. `parameters` is what the publisher counts, norms, biases and
//! learned positions included, which `Transformer` leaves out.

use het_perf::training::{Embeddings, Experts, FeedForward, FeedForwardKind, Transformer};

/// A model that has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownModel {
    pub name: &'static str,
    /// `sequence` is what it was trained on at first.
    pub shape: Transformer,
    /// Longest sequence that it is made for.
    pub context: u32,
    /// As published.
    pub parameters: u64,
    /// Repository or paper.
    pub source: &'static str,
}

impl KnownModel {
    /// Where its weights are published, as `organisation/name`.
    pub fn repository(&self) -> Option<&'static str> {
        let plain = self.source.contains('/') && !self.source.contains([' ', ',']);
        plain.then_some(self.source)
    }
}

/// Every model of the table, in its order.
pub fn known_models() -> Vec<KnownModel> {
    [gpt_family(), llama_family(), qwen_family(), others()].concat()
}

/// The model of that name, in any case.
pub fn known_model(name: &str) -> Option<KnownModel> {
    known_models().into_iter().find(|model| model.name.eq_ignore_ascii_case(name))
}

/// Layers, width, heads, key-value heads and inner width of a gated model with heads of
/// `hidden / heads`.
fn gated(shape: [u32; 5], vocabulary: u32, sequence: u32, embeddings: Embeddings) -> Transformer {
    let [layers, hidden, heads, key_value_heads, inner] = shape;
    Transformer {
        key_value_heads,
        feed_forward: FeedForward { hidden: inner, kind: FeedForwardKind::Gated, experts: None },
        embeddings,
        ..Transformer::gpt(layers, hidden, heads, sequence, vocabulary)
    }
}

/// Narayanan et al. pad the vocabulary to 51,200.
fn gpt_family() -> Vec<KnownModel> {
    let gpt = |name, shape: [u32; 3], vocabulary, context, parameters, source| {
        let [layers, hidden, heads] = shape;
        let shape = Transformer::gpt(layers, hidden, heads, context, vocabulary);
        KnownModel { name, shape, context, parameters, source }
    };
    let korthikanti = "Korthikanti et al. 2022, arXiv 2205.05198, table 3";
    let brown = "Brown et al. 2020, arXiv 2005.14165, table 2.1";
    vec![
        gpt("gpt2", [12, 768, 12], 50_257, 1_024, 124_439_808, "openai-community/gpt2"),
        gpt("gpt-22b", [48, 6_144, 64], 51_200, 2_048, 22_000_000_000, korthikanti),
        gpt("gpt3-175b", [96, 12_288, 96], 51_200, 2_048, 175_000_000_000, brown),
        gpt("gpt-530b", [105, 20_480, 128], 51_200, 2_048, 530_000_000_000, korthikanti),
        gpt("gpt-1t", [128, 25_600, 160], 51_200, 2_048, 1_000_000_000_000, korthikanti),
    ]
}

/// Llama 3's herd was trained on 8,192 tokens before its context was stretched (Llama team 2024,
/// section 3.4).
fn llama_family() -> Vec<KnownModel> {
    let llama = |name, shape, vocabulary, sequence, context, parameters, source| KnownModel {
        name,
        shape: gated(shape, vocabulary, sequence, Embeddings::Untied),
        context,
        parameters,
        source,
    };
    let two = |name, shape, parameters, source| {
        llama(name, shape, 32_000, 4_096, 4_096, parameters, source)
    };
    let three = |name, shape, context, parameters, source| {
        llama(name, shape, 128_256, 8_192, context, parameters, source)
    };
    vec![
        two("llama2-7b", [32, 4_096, 32, 32, 11_008], 6_738_415_616, "meta-llama/Llama-2-7b-hf"),
        two("llama2-13b", [40, 5_120, 40, 40, 13_824], 13_015_864_320, "meta-llama/Llama-2-13b-hf"),
        two("llama2-70b", [80, 8_192, 64, 8, 28_672], 68_976_648_192, "meta-llama/Llama-2-70b-hf"),
        three(
            "llama3-8b",
            [32, 4_096, 32, 8, 14_336],
            8_192,
            8_030_261_248,
            "meta-llama/Meta-Llama-3-8B",
        ),
        three(
            "llama3-70b",
            [80, 8_192, 64, 8, 28_672],
            8_192,
            70_553_706_496,
            "meta-llama/Meta-Llama-3-70B",
        ),
        three(
            "llama3-405b",
            [126, 16_384, 128, 8, 53_248],
            131_072,
            405_853_388_800,
            "meta-llama/Llama-3.1-405B",
        ),
    ]
}

/// Trained on 4,096 tokens before the context was stretched (Qwen team 2024, arXiv 2412.15115,
/// section 3.3).
fn qwen_family() -> Vec<KnownModel> {
    let qwen = |name, shape, parameters, source| KnownModel {
        name,
        shape: gated(shape, 152_064, 4_096, Embeddings::Untied),
        context: 131_072,
        parameters,
        source,
    };
    vec![
        qwen("qwen2.5-7b", [28, 3_584, 28, 4, 18_944], 7_615_616_512, "Qwen/Qwen2.5-7B"),
        qwen("qwen2.5-14b", [48, 5_120, 40, 8, 13_824], 14_770_033_664, "Qwen/Qwen2.5-14B"),
        qwen("qwen2.5-32b", [64, 5_120, 40, 8, 27_648], 32_763_876_352, "Qwen/Qwen2.5-32B"),
        qwen("qwen2.5-72b", [80, 8_192, 64, 8, 29_568], 72_706_203_648, "Qwen/Qwen2.5-72B"),
    ]
}

fn others() -> Vec<KnownModel> {
    let mistral = gated([32, 4_096, 32, 8, 14_336], 32_000, 8_192, Embeddings::Untied);
    let small = |name, shape, parameters, source| KnownModel {
        name,
        shape: gated(shape, 49_152, 2_048, Embeddings::Tied),
        context: 8_192,
        parameters,
        source,
    };
    let smollm = "HuggingFaceTB/SmolLM2";
    vec![
        KnownModel {
            name: "mistral-7b",
            // A window of 4,096 tokens slides over the sequence.
            shape: Transformer { attention_span: 4_096, ..mistral },
            context: 32_768,
            parameters: 7_241_732_096,
            source: "mistralai/Mistral-7B-v0.1",
        },
        KnownModel {
            name: "mixtral-8x7b",
            shape: with_experts(mistral, Experts { count: 8, active: 2 }),
            context: 32_768,
            parameters: 46_702_792_704,
            source: "mistralai/Mixtral-8x7B-v0.1",
        },
        deepseek(),
        small("smollm2-135m", [30, 576, 9, 3, 1_536], 134_515_008, smollm),
        small("smollm2-360m", [32, 960, 15, 5, 2_560], 361_821_120, smollm),
        small("smollm2-1.7b", [24, 2_048, 32, 32, 8_192], 1_711_376_384, smollm),
    ]
}

/// As near as layers that are all alike come: the 58 of 61 with experts, latent attention as
/// attention with one key-value head, the shared expert as a ninth active one.
fn deepseek() -> KnownModel {
    let shape = gated([58, 7_168, 128, 1, 2_048], 129_280, 4_096, Embeddings::Untied);
    let shape = Transformer { head_width: 128, ..shape };
    KnownModel {
        name: "deepseek-v3-like",
        shape: with_experts(shape, Experts { count: 256, active: 9 }),
        context: 163_840,
        parameters: 671_000_000_000,
        source: "deepseek-ai/DeepSeek-V3",
    }
}

fn with_experts(model: Transformer, experts: Experts) -> Transformer {
    let feed_forward = FeedForward { experts: Some(experts), ..model.feed_forward };
    Transformer { feed_forward, ..model }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_as_many_weights_as_its_publisher_says() {
        for known in known_models() {
            let counted = known.shape.parameters() as f64;
            let error = counted / known.parameters as f64 - 1.0;
            assert!(error.abs() < 0.01, "{}: {counted} is {error:+.4} off", known.name);
            assert!(known.shape.sequence <= known.context, "{}", known.name);
        }
    }

    /// Of DeepSeek-V3's weights 37 billion are active for a token (its model card).
    #[test]
    fn a_mixture_activates_few() {
        let model = known_model("DeepSeek-V3-like").expect("in the table").shape;
        let active = u64::from(model.layers) * model.active_layer_parameters();
        let active = (active + model.embedding_parameters()) as f64;
        assert!((active / 37e9 - 1.0).abs() < 0.05, "{active}");
    }
}
