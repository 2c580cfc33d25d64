//! Broken files are refused with a sentence; sound ones come back as they were written.

use het_train::cpu::generate::generate;
use het_train::cpu::model::Model;
use het_train::error::Error;
use het_train::formats::Format;
use het_train::gguf::{self, Value};
use het_train::lora::{Adapter, CONFIG_FILE};
use het_train::names::{Kind, Name, Piece, Site};
use het_train::tokens;
use het_train::weights::{Parameters, Source};
use het_train::{export, tiny};
use std::fs;
use std::path::{Path, PathBuf};

/// A GGUF of the tiny model, by way of a first F32 file that only lends its metadata.
fn tiny_gguf(directory: &Path, format: Format) -> PathBuf {
    tiny_gguf_with(directory, format, &[])
}

/// As [`tiny_gguf`], with more metadata.
fn tiny_gguf_with(directory: &Path, format: Format, more: &[(&str, Value)]) -> PathBuf {
    let model = tiny::architecture();
    let shape = model.attention;
    let text = |text: &str| Value::Text(text.into());
    let tokenizer: serde_json::Value =
        serde_json::from_slice(tiny::tokenizer().expect("built in").json()).expect("JSON");
    let vocabulary = tokenizer["model"]["vocab"].as_object().expect("a map");
    let mut tokens = vec![text(""); model.vocabulary];
    for (token, id) in vocabulary {
        tokens[id.as_u64().expect("an id") as usize] = text(token);
    }
    let kinds = (0..model.vocabulary).map(|id| Value::I32(if id < 3 { 3 } else { 1 }));
    let size = |value: usize| Value::U32(value as u32);
    let metadata = [
        ("general.architecture", text("llama")),
        ("general.file_type", Value::U32(0)),
        ("llama.block_count", size(model.layers.len())),
        ("llama.embedding_length", size(model.hidden)),
        ("llama.feed_forward_length", size(model.mlp.feed_forward)),
        ("llama.attention.head_count", size(shape.heads)),
        ("llama.attention.head_count_kv", size(shape.kv_heads)),
        ("llama.context_length", size(model.positions_max)),
        ("llama.rope.freq_base", Value::F32(10_000.0)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(model.norm.epsilon)),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("smollm")),
        ("tokenizer.ggml.tokens", Value::Array(8, tokens)),
        ("tokenizer.ggml.merges", Value::Array(8, Vec::new())),
        ("tokenizer.ggml.token_type", Value::Array(5, kinds.collect())),
    ];
    let metadata = metadata.into_iter().chain(more.iter().cloned());
    let metadata: Vec<_> = metadata.map(|(k, v)| (k.to_owned(), v)).collect();
    let first = directory.join("metadata.gguf");
    gguf::write(&first, &metadata, &[]).expect("written");
    let source = Source::open(&first.display().to_string()).expect("it opens");
    export::gguf(&tiny::weights(1), &source, format, directory).expect("written")
}

fn largest_difference(a: &Parameters, b: &Parameters) -> f32 {
    let architecture = tiny::architecture();
    let pairs = a.tensors(&architecture).into_iter().zip(b.tensors(&architecture));
    let matrices = pairs
        .filter(|((tensor, _), _)| tensor.shape.len() > 1 && tensor.name.site != Site::Embedding);
    let pairs = matrices.flat_map(|((_, a), (_, b))| a.iter().zip(b));
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn a_gguf_comes_back_as_it_was_written() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    // Matrices lie within 1/√32. Of a block's largest value, rounding to int8 costs half of 1/127,
    // and rounding the scale to f16, which has 11 bits, costs 1/2048.
    let largest = 1.0 / 32f32.sqrt();
    let bound_q8_0 = largest * (0.5 / 127.0 + 1.0 / 2048.0);
    for (format, bound) in [(Format::F32, 0.0), (Format::Q8_0, bound_q8_0)] {
        let path = tiny_gguf(directory.path(), format);
        let source = Source::open(&path.display().to_string()).expect("it opens");
        let read = source.weights().expect("it holds the weights");
        let difference = largest_difference(&read.parameters, &tiny::weights(1).parameters);
        assert!(difference <= bound, "{}: {difference} against {bound}", format.name());
        assert_eq!(read.architecture, tiny::architecture());
    }
}

#[test]
fn a_key_of_a_gguf_that_nothing_knows_is_refused_by_its_name() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let check = |key: &str, value: Value, says: &str| {
        let path = tiny_gguf_with(directory.path(), Format::F32, &[(key, value)]);
        let source = Source::open(&path.display().to_string()).expect("it opens");
        match source.architecture() {
            Ok(_) => assert!(says.is_empty(), "{key} is read"),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(key) && text.contains(says) && !says.is_empty(), "{text}");
                assert!(error.hint().is_some());
            }
        }
    };
    let text = |text: &str| Value::Text(text.into());
    check("llama.expert_count", Value::U32(8), "experts");
    check("llama.expert_count", Value::U32(0), "");
    check("llama.rope.dimension_count", Value::U32(8), "");
    check("llama.rope.dimension_count", Value::U32(4), "the size of a head, 8");
    check("llama.rope.scaling.type", text("yarn"), "`linear`");
    check("llama.attention.sliding_window", Value::U32(8), "does not know what it asks for");
    check("llama.vocab_size", Value::U32(12), "259 tokens");
}

#[test]
fn truncated_weights_name_the_sizes() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let gguf = tiny_gguf(directory.path(), Format::F32);
    let hub = directory.path().join("hub");
    let tokenizer = tiny::tokenizer().expect("built in");
    let tensors = export::hub(&tiny::weights(1), &tokenizer, &hub).expect("written");
    for (path, spec) in [(&gguf, &gguf), (&tensors, &hub)] {
        let whole = fs::read(path).expect("it is there");
        for length in [0, 3, 11, 500, whole.len() / 2, whole.len() - 40] {
            fs::write(path, &whole[..length]).expect("written");
            let opened = Source::open(&spec.display().to_string());
            let error = opened.and_then(|source| source.weights()).expect_err("it is cut short");
            let Error::Truncated { expected, found, .. } = error else {
                panic!("{length} bytes: {error}");
            };
            assert_eq!(found, length as u64);
            assert!(expected > found && error.hint().is_some());
        }
        fs::write(path, [b'x'; 4096]).expect("written");
        let opened = Source::open(&spec.display().to_string());
        let error = opened.and_then(|source| source.weights()).expect_err("it is something else");
        assert!(matches!(error, Error::Weights { .. }), "{error}");
    }
}

#[test]
fn an_unreadable_corpus_is_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let tokenizer = tiny::tokenizer().expect("built in");
    let corpus = directory.path().join("corpus.txt");
    let output = directory.path().join("tokens");
    let check =
        || tokens::tokenize(&corpus, &output, &tokenizer, None).expect_err("it is unusable");
    assert!(check().to_string().contains("corpus.txt"));
    fs::write(&corpus, [0xff, 0xfe, 0x00]).expect("written");
    assert!(matches!(check(), Error::Corpus { .. }));
    fs::write(&corpus, "too short").expect("written");
    assert!(matches!(check(), Error::Corpus { .. }));
    fs::write(&corpus, "All of this is plain text. ".repeat(60)).expect("written");
    let manifest = tokens::tokenize(&corpus, &output, &tokenizer, None).expect("it is long enough");
    assert!(manifest.held_out_sequences > 0);
}

#[test]
fn an_adapter_comes_back_under_the_names_of_peft() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let adapter = Adapter::random(&tiny::architecture(), 4, 8.0, 5);
    adapter.write(directory.path(), "tiny").expect("written");
    let read = Adapter::open(directory.path(), &tiny::architecture()).expect("it opens");
    assert_eq!(read, adapter);
    let names: Vec<String> = adapter.tensors().map(|(name, _, _)| name).collect();
    let name = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight";
    assert!(names.iter().any(|found| found == name), "{names:?}");
    let norm = Name { site: Site::Norm, piece: Piece::Whole, kind: Kind::Weight };
    assert_eq!(norm.hub_name(tiny::architecture().family), "model.norm.weight");
}

#[test]
fn an_adapter_that_computes_otherwise_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let adapter = Adapter::random(&tiny::architecture(), 4, 8.0, 5);
    adapter.write(directory.path(), "tiny").expect("written");
    let path = directory.path().join(CONFIG_FILE);
    let text = fs::read_to_string(&path).expect("written");
    for (key, value) in [("use_dora", "true"), ("rank_pattern", "{\"q_proj\": 4}")] {
        let changed = text.replacen('{', &format!("{{\"{key}\": {value},"), 1);
        fs::write(&path, changed).expect("written");
        let error = Adapter::open(directory.path(), &tiny::architecture()).expect_err(key);
        assert!(error.to_string().contains(key), "{error}");
    }
}

#[test]
fn an_adapter_with_more_than_is_used_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let write = |adapter: &Adapter| {
        adapter.write(directory.path(), "tiny").expect("written");
    };
    let check = |what: &str| {
        let error = Adapter::open(directory.path(), &tiny::architecture()).expect_err(what);
        assert!(matches!(&error, Error::Adapter { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    };
    let mut adapter = Adapter::random(&tiny::architecture(), 4, 8.0, 5);
    let deeper = {
        let mut config = tiny::configuration();
        config.insert("num_hidden_layers".into(), 3.into());
        het_train::configuration::hub::read(&config).expect("it is known")
    };
    write(&Adapter::random(&deeper, 4, 8.0, 5));
    check("uses its tensor `base_model.model.model.layers.2.");
    write(&adapter);
    let path = directory.path().join(CONFIG_FILE);
    let text = fs::read_to_string(&path).expect("written");
    let change = |from: &str, to: &str| fs::write(&path, text.replacen(from, to, 1)).expect("ok");
    for (value, what) in [
        ("{\"use_x\": false,", "`use_x` is `false`"),
        ("{\"init_lora_weights_x\": 1,", "`init_lora_weights_x`"),
        ("{\"peft_version\": \"1\", \"bias_x\": \"a\",", "`bias_x` is `\"a\"`"),
    ] {
        change("{", value);
        check(what);
    }
    change("\"r\": 4", "\"r\": 1000000000");
    check("a rank of 1000000000 is above 64");
    change("\"r\": 4", "\"r\": 8");
    check("expected [8, 32]");
    adapter.values[7] = f32::NAN;
    write(&adapter);
    check("not finite");
}

/// Two files that hold all of the tiny model, and an index that shares it out.
fn twins(directory: &Path, file_of: impl Fn(usize, &str) -> Option<&'static str>) -> Error {
    let tokenizer = tiny::tokenizer().expect("built in");
    let whole = export::hub(&tiny::weights(1), &tokenizer, directory).expect("written");
    let bytes = fs::read(&whole).expect("written");
    let parsed = safetensors::SafeTensors::deserialize(&bytes).expect("sound");
    let mut names: Vec<String> = parsed.names().into_iter().map(str::to_owned).collect();
    names.sort();
    let names = names.iter().enumerate();
    let map: serde_json::Map<_, _> = names
        .filter_map(|(index, name)| Some((name.clone(), file_of(index, name)?.into())))
        .collect();
    for name in ["a.safetensors", "b.safetensors"] {
        fs::write(directory.join(name), &bytes).expect("written");
    }
    fs::remove_file(&whole).expect("it was there");
    let index = serde_json::json!({"weight_map": map}).to_string();
    fs::write(directory.join("model.safetensors.index.json"), index).expect("written");
    let source = Source::open(&directory.display().to_string()).expect("it opens");
    source.weights().expect_err("the index says otherwise")
}

#[test]
fn a_tensor_comes_from_the_file_that_the_index_says() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    let error = twins(directory, |index, _| {
        Some(if index % 2 == 0 { "a.safetensors" } else { "b.safetensors" })
    });
    assert!(error.to_string().contains("says that it is in"), "{error}");
    let error = twins(directory, |index, _| (index > 0).then_some("a.safetensors"));
    assert!(error.to_string().contains("does not name it"), "{error}");
}

#[test]
fn the_cache_changes_nothing() {
    let weights = std::sync::Arc::new(het_train::tiny::weights(1));
    let mut model = Model::new(&weights);
    let prompts: Vec<Vec<u32>> = vec![(3..80).collect(), vec![9, 8, 7], (40..60).collect()];
    let together = generate(&mut model, &prompts, Some(2), 12).expect("short prompts");
    for (prompt, cached) in prompts.iter().zip(&together) {
        let mut tokens = prompt.clone();
        for &expected in cached {
            // One token at a time, from the whole text and an empty cache.
            let next = generate(&mut model, &[tokens.clone()], Some(2), 1).expect("a short prompt");
            assert_eq!(next[0], vec![expected]);
            tokens.push(expected);
        }
    }
}
