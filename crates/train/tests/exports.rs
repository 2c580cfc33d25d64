//! GGUFs of every family: keys, order of rows, offsets of norms, and what no GGUF says.
//!
//! `reference/exports.py` holds the same files against other programs.

use het_blocks::linear::Numbers;
use het_train::batch::{Batch, Sequence};
use het_train::configuration;
use het_train::error::Result;
use het_train::formats::Format;
use het_train::gguf::{Gguf, Value};
use het_train::names::Tensor;
use het_train::steps::Executor;
use het_train::tokenizer::Tokenizer;
use het_train::weights::{Parameters, Source, Weights};
use het_train::{export, tiny};
use serde_json::{Map, Value as Json, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    let parameters = Parameters::read(&architecture, Numbers::F32, |tensor| {
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

/// Logits after every token of a short text.
fn logits(weights: Weights) -> Vec<f32> {
    let sequence = Sequence { tokens: vec![7, 301, 12, 99, 4], scored: vec![true; 5] };
    let batch = Batch::pack([&sequence], 64);
    let mut executor = Executor::frozen(&Arc::new(weights)).expect("it starts");
    executor.logits(&batch).expect("a valid batch")
}

#[test]
fn every_family_comes_back_from_a_gguf_of_its_own() {
    let cases = [
        ("llama", json!({"attention_bias": false})),
        ("llama", json!({"attention_bias": true})),
        ("llama_linear", json!({})),
        ("llama_llama3", json!({})),
        ("llama_yarn", json!({})),
        ("mistral", json!({})),
        ("qwen2", json!({})),
        ("qwen3", json!({})),
        ("gemma2", json!({"query_pre_attn_scalar": 12})),
        (
            "gemma3",
            json!({"query_pre_attn_scalar": 12, "rope_local_base_freq": 10000.0,
                   "sliding_window_pattern": 6}),
        ),
        ("gpt2", json!({})),
        ("smollm3", json!({})),
    ];
    for (case, more) in cases {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (source, weights) = model(directory.path(), configuration(case, &more));
        let path = export::gguf(&weights, &source, Format::F32, &directory.path().join("out"));
        let path = path.unwrap_or_else(|error| panic!("{case}: {error}"));
        let read = Source::open(&path.display().to_string()).expect("it opens");
        let read = read.weights().unwrap_or_else(|error| panic!("{case}: {error}"));
        let (own, found) = (&weights.architecture, &read.architecture);
        let tensors = weights.parameters.tensors(own).into_iter();
        for ((tensor, own), (_, found)) in tensors.zip(read.parameters.tensors(found)) {
            // One is added to Gemma's norms, and taken away again.
            let is_close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-7 * (1.0 + a.abs());
            assert!(own.iter().zip(found).all(is_close), "{case}: {tensor:?}");
        }
        // A window that llama.cpp does not know is the longest context instead.
        let expected = if case == "mistral" { 5 } else { own.positions_max };
        assert_eq!(found.positions_max, expected, "{case}");
        let largest = logits(weights.clone());
        let scale = largest.iter().fold(0f32, |most, logit| most.max(logit.abs()));
        for (own, found) in largest.iter().zip(logits(read)) {
            assert!((own - found).abs() <= 1e-4 * scale, "{case}: {found}, not {own}");
        }
    }
}

/// A tokenizer of SentencePiece with bytes for what it has no tokens for.
fn sentence_piece() -> Json {
    let space = "\u{2581}";
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let words = ["a", "b", "c", "ab", "abc", space, "\u{2581}a", "\u{2581}ab", "bc", "\u{2581}abc"];
    let special = ["<unk>", "<s>", "</s>"];
    let all = special.into_iter().map(str::to_owned).chain(bytes).chain(words.map(str::to_owned));
    let vocabulary: Map<String, Json> =
        all.enumerate().map(|(id, token)| (token, json!(id))).collect();
    let added = special.iter().enumerate().map(|(id, content)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": true})
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": space},
            {"type": "Replace", "pattern": {"String": " "}, "content": space},
        ]},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": space}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "fuse_unk": true,
                  "byte_fallback": true, "vocab": vocabulary,
                  "merges": ["a b", "\u{2581} ab", "ab c", "b c", "\u{2581} a", "\u{2581}ab c"]},
    })
}

/// A byte-level BPE that splits words as Qwen or Llama 3 do.
fn by_pattern(digits: &str, normalizer: Json) -> Json {
    let text = fs::read_to_string(reference("bpe.json")).expect("it is there");
    let mut json: Json = serde_json::from_str(&text).expect("JSON");
    let words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+";
    let others = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let pattern = format!("{words}|{digits}|{others}");
    json["normalizer"] = normalizer;
    // One that a user defined, which stands for text and is found whole.
    let next = json["model"]["vocab"].as_object().map_or(0, Map::len);
    let defined = json!({"id": next, "content": "<think>", "single_word": false, "lstrip": false,
                         "rstrip": false, "normalized": false, "special": false});
    if let Some(added) = json["added_tokens"].as_array_mut() {
        added.push(defined);
    }
    json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
    ]});
    json
}

#[test]
fn every_tokenizer_comes_back_from_a_gguf() {
    let texts = [
        "abc ab  a b",
        "It's 2026-11-30, isn't it?\n\n  yes",
        "\u{e4}\u{4e2d}\u{1f980} ab",
        "a <think>b</think>",
        "  leading",
        "",
        "cab abcab",
    ];
    let nfc = json!({"type": "NFC"});
    for (name, json) in [
        ("SentencePiece", sentence_piece()),
        ("Qwen", by_pattern(r"\p{N}", nfc)),
        ("Llama 3", by_pattern(r"\p{N}{1,3}", Json::Null)),
    ] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (_, weights) = model(directory.path(), configuration("llama", &json!({})));
        fs::write(directory.path().join("tokenizer.json"), json.to_string()).expect("written");
        let source = Source::open(&directory.path().display().to_string()).expect("it opens");
        let own = Tokenizer::of(&source).unwrap_or_else(|error| panic!("{name}: {error}"));
        let path = export::gguf(&weights, &source, Format::F32, &directory.path().join("out"));
        let path = path.unwrap_or_else(|error| panic!("{name}: {error}"));
        let read = Source::open(&path.display().to_string()).expect("it opens");
        let read = Tokenizer::of(&read).unwrap_or_else(|error| panic!("{name}: {error}"));
        for text in texts {
            let tokens = own.encode(text).expect("it can be written");
            assert_eq!(read.encode(text).expect("it can be written"), tokens, "{name}: {text:?}");
            let said = own.decode(&tokens).expect("they are known");
            assert_eq!(read.decode(&tokens).expect("they are known"), said, "{name}");
        }
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
