//! Keys of `config.json` that change nothing that is computed here, some only with some values.

use serde_json::Value as Json;

/// With any value: they name tokens, describe the file or the writer, or serve other heads, other
/// ways to compute the same, and generation.
const ANY: &[&str] = &[
    "_attn_implementation_autoset",
    "_name_or_path",
    "attn_implementation",
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_implementation",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "id2label",
    "initializer_factor",
    "initializer_range",
    "label2id",
    "length_penalty",
    "max_length",
    // Qwen's, which reads it; SmolLM3's files have it without a use.
    "max_window_layers",
    "min_length",
    "n_ctx",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "remove_invalid_values",
    "reorder_and_upcast_attn",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];

/// Only where they are off: false, null, zero or empty.
const OFF: &[&str] = &[
    "add_cross_attention",
    "attention_bias",
    "attn_logit_softcapping",
    "bad_words_ids",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "final_logit_softcapping",
    "is_decoder",
    "is_encoder_decoder",
    "mlp_bias",
    "pruned_heads",
    "quantization_config",
    "rope_interleaved",
    "rope_parameters",
    "rope_scaling",
    "sliding_window",
    "tie_encoder_decoder",
    "use_bidirectional_attention",
    "use_mrope",
    "use_sliding_window",
];

/// Whether nothing that is computed here follows from this key with this value.
pub fn is_harmless(key: &str, value: &Json) -> bool {
    // A Llama says so of itself in files of SmolLM2.
    ANY.contains(&key)
        || (OFF.contains(&key) && is_off(value))
        || (key == "is_llama_config" && value == &Json::Bool(true))
}

fn is_off(value: &Json) -> bool {
    match value {
        Json::Null => true,
        Json::Bool(on) => !on,
        Json::Number(number) => number.as_f64() == Some(0.0),
        Json::String(text) => text.is_empty(),
        Json::Array(items) => items.is_empty(),
        Json::Object(items) => items.is_empty(),
    }
}
