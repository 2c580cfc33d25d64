//! GGUFs of every family: keys, order of rows, offsets of norms, and what no GGUF says.
//!
//! `reference/exports.py` holds the same files against other programs.

use het_train::configuration;
use het_train::error::Result;
use het_train::formats::Format;
use het_train::gguf::{Gguf, Value};
use het_train::names::Tensor;
use het_train::weights::{Parameters, Source, Weights};
use het_train::{export, tiny};
use serde_json::{Map, Value as Json, json};
use std::fs;
use std::path::{Path, PathBuf};

const ROWS: usize = 512;

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)
}

/// The configuration of a reference case, for the tokenizer of 512 tokens.
fn configuration(case: &str, more: &Json) -> Map<String, Json> {
    let text = fs::read_to_string(reference(&format!("families/{case}.json"))).expect("a case");
    let json: Json = serde_json::from_str(&text).expect("a case");
    let mut map = json["config"].as_object().expect("a configuration").clone();
    map.insert("vocab_size".into(), json!(ROWS));
    map.extend(more.as_object().expect("keys").clone());
    map
}

/// A value for every place, the same in every run.
fn value(tensor: &Tensor, index: usize) -> f32 {
    let seed = tensor
        .name
        .gguf_name()
        .bytes()
        .fold(7u32, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let mixed = seed.wrapping_add(index as u32).wrapping_mul(0x9e37_79b9);
    (mixed >> 16) as f32 / 65536.0 - 0.5
}

/// Writes a model of this configuration and opens it.
fn model(directory: &Path, config: Map<String, Json>) -> (Source, Weights) {
    let architecture = configuration::hub::read(&config).expect("it is known");
    let parameters = Parameters::read(&architecture, |tensor| {
        Ok((0..tensor.values()).map(|index| value(tensor, index)).collect())
    });
    let parameters = parameters.expect("made");
    let weights = Weights { architecture, parameters, configuration: Some(config) };
    export::hub(&weights, &tiny::tokenizer().expect("built in"), directory).expect("written");
    fs::copy(reference("bpe.json"), directory.join("tokenizer.json")).expect("copied");
    let special = json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": "x"});
    fs::write(directory.join("tokenizer_config.json"), special.to_string()).expect("written");
    (Source::open(&directory.display().to_string()).expect("it opens"), weights)
}

fn exported(case: &str, more: &Json, format: Format) -> (Weights, Result<Gguf>) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (source, weights) = model(directory.path(), configuration(case, more));
    let path = export::gguf(&weights, &source, format, &directory.path().join("out"));
    (weights, path.map(|path| Gguf::open(&path).expect("it opens")))
}

#[test]
fn every_family_has_its_keys_and_tensors() {
    let cases = [
        ("llama", json!({}), "llama"),
        ("mistral_full", json!({}), "llama"),
        ("smollm2", json!({"pad_token_id": null}), "llama"),
        ("qwen2", json!({}), "qwen2"),
        ("qwen3", json!({}), "qwen3"),
        ("gemma2", json!({"query_pre_attn_scalar": 12}), "gemma2"),
        (
            "gemma3",
            json!({"query_pre_attn_scalar": 12, "rope_local_base_freq": 10000.0,
                   "sliding_window_pattern": 6}),
            "gemma3",
        ),
        ("gpt2", json!({}), "gpt2"),
        ("smollm3", json!({}), "smollm3"),
    ];
    for (case, more, name) in cases {
        let (weights, file) = exported(case, &more, Format::F32);
        let file = file.unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(file.get("general.architecture"), Some(&Value::Text(name.into())));
        let number = |key: &str| file.get(&format!("{name}.{key}")).and_then(Value::as_u64);
        let architecture = &weights.architecture;
        assert_eq!(number("block_count"), Some(architecture.layers.len() as u64), "{case}");
        assert_eq!(number("embedding_length"), Some(32), "{case}");
        assert_eq!(file.get("tokenizer.ggml.pre"), Some(&Value::Text("gpt-2".into())));
        assert_eq!(file.require_texts("tokenizer.ggml.tokens").expect("tokens").len(), ROWS);
        for (tensor, values) in weights.parameters.tensors(architecture) {
            let name = tensor.name.gguf_name();
            let found = file.tensor(&name, &tensor.shape).unwrap_or_else(|e| panic!("{case}: {e}"));
            let is_moved = name.contains("attn_q.") || name.contains("attn_k.");
            if is_moved && matches!(case, "llama" | "mistral_full" | "smollm2" | "smollm3") {
                // The second row of a head is the first of its upper half.
                let width = tensor.columns();
                let upper = architecture.attention.head_size / 2 * width;
                assert_eq!(found[width..2 * width], values[upper..][..width], "{case} {name}");
            } else if case.starts_with("gemma") && name.contains("norm") {
                let added = values.iter().map(|value| value + 1.0);
                assert!(found.iter().copied().eq(added), "{case} {name}");
            } else {
                assert_eq!(found, values, "{case} {name}");
            }
        }
    }
}

#[test]
fn a_llama_comes_back_from_a_gguf_of_its_own() {
    let cases = [
        ("llama", json!({"attention_bias": false})),
        ("llama_linear", json!({})),
        ("llama_llama3", json!({})),
        ("mistral", json!({})),
    ];
    for (case, more) in cases {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (source, weights) = model(directory.path(), configuration(case, &more));
        let path = export::gguf(&weights, &source, Format::F32, &directory.path().join("out"));
        let path = path.unwrap_or_else(|error| panic!("{case}: {error}"));
        let read = Source::open(&path.display().to_string()).expect("it opens");
        let read = read.weights().unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(read.parameters, weights.parameters, "{case}");
        let ropes = weights.architecture.ropes[0].frequencies.iter();
        for (a, b) in ropes.zip(&read.architecture.ropes[0].frequencies) {
            assert!((a - b).abs() <= 1e-6 * a.abs(), "{case}: {a} {b}");
        }
        // A window that llama.cpp does not know is the longest context instead.
        let expected = if case == "mistral" { 5 } else { 64 };
        assert_eq!(read.architecture.positions_max, expected, "{case}");
    }
}

#[test]
fn formats_follow_from_what_a_tensor_is() {
    let wide = json!({"hidden_size": 256, "intermediate_size": 320, "head_dim": 64,
                      "tie_word_embeddings": false});
    let (_, file) = exported("llama", &wide, Format::Q4K);
    let file = file.expect("it is known");
    let format = |name: &str| file.tensors[name].format;
    assert_eq!(format("blk.0.attn_q.weight"), Format::Q4K);
    assert_eq!(format("blk.0.ffn_down.weight"), Format::Q8_0);
    assert_eq!(format("token_embd.weight"), Format::Q8_0);
    assert_eq!(format("output.weight"), Format::Q8_0);
    assert_eq!(format("blk.0.attn_norm.weight"), Format::F32);
    assert_eq!(file.get("general.file_type"), Some(&Value::U32(14)));
}

#[test]
fn what_no_gguf_says_is_refused_by_name() {
    let refuse = |case: &str, more: Json, says: &str| {
        let error = exported(case, &more, Format::F32).1.expect_err(case);
        assert!(error.to_string().contains(says), "{case}: {error}");
        assert!(error.hint().is_some());
    };
    refuse("llama_gelu", json!({}), "activation");
    refuse("qwen3_biases", json!({}), "biases");
    refuse(
        "gemma2_uncapped",
        json!({"query_pre_attn_scalar": 12, "attention_bias": false}),
        "caps",
    );
    refuse("gemma2", json!({}), "layer 0 multiplies scores");
    let near = json!({"query_pre_attn_scalar": 12, "rope_local_base_freq": 10000.0});
    refuse("gemma3", near, "slides otherwise");
    refuse("gpt2_unscaled", json!({"activation_function": "gelu_new"}), "multiplies scores");
    refuse("smollm3", json!({"no_rope_layers": [1, 0, 1, 1]}), "rotates otherwise");
    refuse("llama", json!({"vocab_size": 400}), "has no row for");
}

#[test]
fn values_that_a_format_cannot_hold_leave_no_file() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (source, mut weights) = model(directory.path(), configuration("llama", &json!({})));
    weights.parameters.layers[1].down.weight[3] = 1e6;
    let out = directory.path().join("out");
    let error = export::gguf(&weights, &source, Format::F16, &out).expect_err("too large");
    assert!(error.to_string().contains("`blk.1.ffn_down.weight` cannot be written"), "{error}");
    assert_eq!(fs::read_dir(&out).expect("it is there").count(), 0);
    export::gguf(&weights, &source, Format::F32, &out).expect("f32 holds it");
}
