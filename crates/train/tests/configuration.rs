//! No key of a configuration is ignored: it is used, listed as harmless, or refused by its name.

use het_train::architecture::Architecture;
use het_train::configuration::hub::read;
use het_train::configuration::keys::Refusal;
use serde_json::{Map, Value as Json, json};
use std::fs;
use std::path::Path;

type Config = Map<String, Json>;

/// Configurations of every family and option.
fn configurations() -> Vec<(String, Config)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/families");
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).expect("the folder is there") {
        let path = entry.expect("it is readable").path();
        let name = path.file_stem().expect("a file").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("it is readable");
        let case: Json = serde_json::from_str(&text).expect("it is JSON");
        for kind in ["config", "rewritten"] {
            if let Some(config) = case[kind].as_object() {
                all.push((format!("{name} {kind}"), config.clone()));
            }
        }
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// Values of every JSON type, sensible and not.
fn values() -> Vec<Json> {
    vec![
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(3),
        json!(-1),
        json!(64),
        json!(0.25),
        json!(1e300),
        json!(u64::MAX),
        json!(""),
        json!("silu"),
        json!("gelu"),
        json!("no such thing"),
        json!([]),
        json!([1, 0]),
        json!([1, 0, 1, 0]),
        json!(["full_attention", "sliding_attention"]),
        json!({}),
        json!({"rope_type": "linear", "factor": 2.0}),
        json!({"rope_type": "longrope", "factor": 2.0}),
        json!({"full_attention": {"rope_type": "linear", "factor": 2.0}}),
        json!({"unknown": 1}),
    ]
}

/// Keys with which any value changes nothing that is computed; the reasons are in `harmless.rs`.
const WITHOUT_EFFECT: &[&str] = &[
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "id2label",
    "initializer_range",
    "label2id",
    "n_ctx",
    "output_attentions",
    "output_hidden_states",
    "pretraining_tp",
    "problem_type",
    "reorder_and_upcast_attn",
    "return_dict",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "use_cache",
    "_name_or_path",
];

/// Keys that decide only together with others, or that may say what holds without them.
const CONDITIONAL: &[&str] = &[
    // What the family's code would do anyway, or the default.
    "architectures",
    "head_dim",
    "hidden_act",
    "hidden_activation",
    "num_key_value_heads",
    "scale_attn_by_inverse_layer_idx",
    "scale_attn_weights",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "attention_dropout",
    "n_inner",
    "activation_function",
    "rope_scaling",
    "rope_parameters",
    "is_llama_config",
    "rope_interleaved",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "pad_token_id",
    "rope_theta",
    "rope_local_base_freq",
    "rms_norm_eps",
    "layer_norm_epsilon",
    "attn_pdrop",
    "embd_pdrop",
    "resid_pdrop",
    // Off, or overruled by `layer_types`.
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "layer_types",
    "no_rope_layers",
    "no_rope_layer_interval",
    "use_bidirectional_attention",
    "add_cross_attention",
    "is_encoder_decoder",
    "chunk_size_feed_forward",
];

fn check(
    name: &str,
    base: &Architecture,
    key: &str,
    value: &Json,
    read: Result<Architecture, Refusal>,
) {
    match read {
        Err(refusal) => {
            assert!(!refusal.key.is_empty() && !refusal.expected.is_empty(), "{name}: {refusal}");
        }
        Ok(architecture) if architecture != *base => {}
        Ok(_) => {
            let listed = WITHOUT_EFFECT.contains(&key) || CONDITIONAL.contains(&key);
            assert!(listed, "{name}: `{key}` = {value} is ignored");
        }
    }
}

#[test]
fn every_configuration_of_the_reference_is_read() {
    for (name, config) in configurations() {
        read(&config).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    }
}

#[test]
fn a_changed_value_is_used_or_refused() {
    for (name, config) in configurations() {
        let base = read(&config).expect("it is known");
        for (key, old) in &config {
            for value in values().iter().filter(|value| *value != old) {
                let mut changed = config.clone();
                changed.insert(key.clone(), value.clone());
                check(&name, &base, key, value, read(&changed));
            }
        }
    }
}

/// Those of them that change none of these configurations: other values are refused, or a list
/// that the same file has decides.
const FIXED: &[&str] = &[
    "architectures",
    "is_llama_config",
    "rope_interleaved",
    "_sliding_window_pattern",
    "no_rope_layer_interval",
    "use_bidirectional_attention",
    "add_cross_attention",
    "is_encoder_decoder",
    "chunk_size_feed_forward",
];

/// Of the keys that decide only sometimes, each does so somewhere.
#[test]
fn what_is_conditional_is_used_somewhere() {
    let all = configurations();
    let is_used = |key: &str| {
        let mut having = all.iter().filter(|(_, config)| config.contains_key(key));
        having.any(|(_, config)| {
            let base = read(config).expect("it is known");
            values().into_iter().any(|value| {
                let mut changed = config.clone();
                changed.insert(key.into(), value);
                read(&changed).is_ok_and(|architecture| architecture != base)
            })
        })
    };
    let unused: Vec<&str> = CONDITIONAL.iter().copied().filter(|key| !is_used(key)).collect();
    assert_eq!(unused, FIXED);
}

/// Sizes decide, so each other value of each is used or refused, whatever the family.
#[test]
fn every_size_is_used() {
    let sizes = [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
        "n_embd",
        "n_layer",
        "n_head",
        "n_positions",
    ];
    for (name, config) in configurations() {
        let base = read(&config).expect("it is known");
        for key in sizes.iter().filter(|key| config.contains_key(**key)) {
            let mut changed = config.clone();
            let doubled = config[*key].as_u64().expect("a size") * 2;
            changed.insert((*key).into(), json!(doubled));
            assert!(read(&changed).ok().as_ref() != Some(&base), "{name}: `{key}` is ignored");
            changed.remove(*key);
            let refusal = read(&changed).expect_err("a size is missing");
            assert_eq!(refusal.key, **key, "{name}");
        }
    }
}

/// Real keys of other families, with values that ask for something.
#[test]
fn what_other_families_have_is_refused_by_its_key() {
    let foreign = [
        ("alibi", json!(true)),
        ("attention_chunk_size", json!(8192)),
        ("attention_multiplier", json!(0.5)),
        ("auto_map", json!({"AutoModelForCausalLM": "modeling.Other"})),
        ("clip_qkv", json!(8.0)),
        ("cross_attention_layers", json!([3])),
        ("decoder_sparse_step", json!(1)),
        ("embedding_multiplier", json!(12.0)),
        ("embedding_size", json!(64)),
        ("hidden_size_per_layer_input", json!(16)),
        ("kv_lora_rank", json!(512)),
        ("layer_norm_eps", json!(1e-5)),
        ("linear_num_key_heads", json!(16)),
        ("logit_scale", json!(0.06)),
        ("logits_scaling", json!(8.0)),
        ("mamba_d_state", json!(16)),
        ("moe_intermediate_size", json!(1024)),
        ("multi_query", json!(true)),
        ("num_experts_per_tok", json!(2)),
        ("num_local_experts", json!(8)),
        ("original_max_position_embeddings", json!(4096)),
        ("parallel_attn", json!(true)),
        ("partial_rotary_factor", json!(0.5)),
        ("qk_layernorm", json!(true)),
        ("quantization_config", json!({"quant_method": "gptq"})),
        ("residual_multiplier", json!(0.22)),
        ("rotary_pct", json!(0.25)),
        ("text_config", json!({})),
        ("use_bidirectional_attention", json!(true)),
        ("use_parallel_residual", json!(true)),
        ("use_qk_norm", json!(true)),
        ("vision_config", json!({})),
        ("vocab_size_per_layer_input", json!(256)),
        ("word_embed_proj_dim", json!(512)),
    ];
    for (name, config) in configurations() {
        for (key, value) in &foreign {
            let mut changed = config.clone();
            changed.insert((*key).into(), value.clone());
            let refusal = read(&changed).expect_err(&format!("{name}: `{key}`"));
            assert_eq!(refusal.key, *key, "{name}");
        }
    }
}

/// A key that is misspelt asks for something, too.
#[test]
fn a_key_that_nobody_knows_is_refused_by_its_name() {
    for (name, config) in configurations() {
        for (key, value) in &config {
            let mut changed = config.clone();
            changed.insert(format!("{key}_x"), value.clone());
            let refusal = read(&changed).expect_err(&format!("{name}: `{key}_x`"));
            assert_eq!(refusal.key, format!("{key}_x"), "{name}");
        }
    }
}

#[test]
fn rope_scaling_is_refused_by_the_key_within() {
    let base = configurations().into_iter().find(|(name, _)| name == "llama config");
    let (_, base) = base.expect("there");
    let check = |scaling: Json, key: &str| {
        let mut config = base.clone();
        config.insert("rope_scaling".into(), scaling.clone());
        let refusal = read(&config).expect_err(&scaling.to_string());
        assert_eq!(refusal.key, format!("rope_scaling.{key}"), "{scaling}");
    };
    check(json!({"rope_type": "longrope", "factor": 4.0}), "rope_type");
    check(json!({"type": "su", "factor": 4.0}), "type");
    check(json!({"type": "linear", "rope_type": "yarn", "factor": 4.0}), "type");
    check(json!({"rope_type": "linear"}), "factor");
    check(json!({"rope_type": "linear", "factor": -1}), "factor");
    check(json!({"rope_type": "linear", "factor": 2.0, "beta_fast": 3}), "beta_fast");
    check(json!({"rope_type": "default", "factor": 2.0}), "factor");
    check(json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1}), "high_freq_factor");
    check(json!({"rope_type": "yarn", "factor": 4.0, "finetuned": true}), "finetuned");
    let betas = json!({"rope_type": "yarn", "factor": 4.0, "beta_fast": 1, "beta_slow": 2});
    check(betas, "beta_fast");
    check(json!({"rope_type": "yarn", "factor": 4.0, "rope_theta": 0.5}), "rope_theta");
    check(json!({"rope_type": "default", "partial_rotary_factor": 0.5}), "partial_rotary_factor");
}

#[test]
fn frequencies_that_are_no_numbers_are_refused() {
    let (_, mut config) =
        configurations().into_iter().find(|(n, _)| n == "llama config").expect("");
    config.insert("rope_theta".into(), json!(1e-300));
    assert_eq!(read(&config).expect_err("they overflow").key, "rope_theta");
}

/// As `transformers` has it: absent means 4096, `null` none.
#[test]
fn a_sliding_qwen_without_a_window_has_the_default_one() {
    let (_, mut config) =
        configurations().into_iter().find(|(n, _)| n == "qwen2 config").expect("");
    config.retain(|key, _| key != "layer_types" && key != "sliding_window");
    config.insert("use_sliding_window".into(), json!(true));
    config.insert("max_window_layers".into(), json!(0));
    let windows = |config: &Config| {
        let layers = read(config).expect("it is known").layers;
        layers.iter().map(|layer| layer.window).collect::<Vec<_>>()
    };
    assert!(windows(&config).iter().all(|&window| window == Some(4096)));
    config.insert("sliding_window".into(), json!(null));
    assert!(windows(&config).iter().all(Option::is_none));
}

#[test]
fn values_of_the_wrong_kind_are_named_with_what_would_do() {
    let (_, mut config) = configurations().remove(0);
    config.insert("tie_word_embeddings".into(), json!("yes"));
    let refusal = read(&config).expect_err("a text is no flag");
    let expected = "`tie_word_embeddings` is `\"yes\"`; it must be true or false";
    assert_eq!(refusal.to_string(), expected);
}
