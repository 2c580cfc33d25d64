//! Broken models, tokenizers and data: each is refused by its place, with a next step, and leaves
//! nothing behind. What is said of all of them is one snapshot.

use het_train::error::Result;
use het_train::formats::Format;
use het_train::gguf::{self, Gguf, Output, Value};
use het_train::tokenizer::Tokenizer;
use het_train::weights::Source;
use het_train::{export, tiny, tokens};
use serde_json::{Value as Json, json};
use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// What is broken, the place that is named, and how it is broken.
type Case<T> = (&'static str, &'static str, fn(&mut T));
/// The same of a directory.
type DirectoryCase = (&'static str, &'static str, fn(&Path));

/// A directory with a sound model in both layouts.
struct Scene {
    directory: tempfile::TempDir,
    said: String,
    count: usize,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        Self { directory, said: String::new(), count: 0 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A sound model, made anew.
    fn model(&self) -> PathBuf {
        let path = self.path("model");
        let _ = fs::remove_dir_all(&path);
        export::hub(&tiny::weights(1), &tiny::tokenizer().expect("built in"), &path).expect("ok");
        path
    }

    fn gguf(&self) -> PathBuf {
        let source = open(&self.model()).expect("sound");
        let path = export::gguf(&tiny::weights(1), &source, Format::F32, &self.path("gguf"));
        path.expect("written")
    }

    /// Notes what is said of a broken input, once it has named its place and changed nothing.
    fn refused<T>(&mut self, name: &str, place: &str, act: impl FnOnce() -> Result<T>) {
        let before = listing(self.directory.path());
        let Err(error) = act() else { panic!("{name} is taken") };
        let text = error.to_string();
        assert!(text.contains(place), "{name}: `{place}` is not in: {text}");
        let hint = error.hint().unwrap_or_default();
        assert!(!hint.is_empty(), "{name}: {text}");
        assert_eq!(listing(self.directory.path()), before, "{name} leaves something behind");
        let root = self.directory.path().display().to_string();
        let _ = writeln!(self.said, "{name}\n  {}\n  {hint}", text.replace(&root, "DIR"));
        self.count += 1;
    }
}

/// Every file below a directory and its length.
fn listing(directory: &Path) -> Vec<(PathBuf, u64)> {
    let mut all = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).expect("readable") {
            let path = entry.expect("readable").path();
            let length = fs::metadata(&path).map_or(0, |metadata| metadata.len());
            if path.is_dir() {
                open.push(path.clone());
            }
            all.push((path, length));
        }
    }
    all.sort();
    all
}

fn open(path: &Path) -> Result<Source> {
    Source::open(&path.display().to_string())
}

fn load(path: &Path) -> Result<()> {
    let source = open(path)?;
    source.weights()?;
    Tokenizer::of(&source).map(|_| ())
}

fn edit_json(path: &Path, edit: impl FnOnce(&mut Json)) {
    let text = fs::read_to_string(path).expect("it is there");
    let mut json: Json = serde_json::from_str(&text).expect("sound");
    edit(&mut json);
    fs::write(path, json.to_string()).expect("written");
}

#[test]
fn broken_inputs_are_refused_by_their_place() {
    let mut scene = Scene::new();
    data(&mut scene);
    conversations(&mut scene);
    models(&mut scene);
    tokenizers(&mut scene);
    gguf_bytes(&mut scene);
    gguf_metadata(&mut scene);
    assert!(scene.count >= 40, "{}", scene.count);
    insta::assert_snapshot!(scene.said);
}

/// What is broken, the file's name and content, and the place that is named.
const DATA: [(&str, &str, &str, &str); 15] = [
    ("an empty file", "empty.jsonl", "", "empty.jsonl"),
    ("a file of white space", "white.jsonl", "\n \n", "white.jsonl"),
    ("JSON that is cut short", "cut.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"a", "line 2 of"),
    ("a list of records", "list.json", "[{\"text\": \"a\"}]", "line 1 of"),
    ("a list instead of a record", "items.jsonl", "{\"text\": \"a b\"}\n[1]\n", "line 2 of"),
    ("no known keys", "keys.jsonl", "{\"question\": \"a\"}\n", "line 1 of"),
    (
        "two kinds in a record",
        "both.jsonl",
        "{\"prompt\": \"a\", \"completion\": \"b\", \"messages\": []}\n",
        "line 1 of",
    ),
    (
        "a record of another kind",
        "mixed.jsonl",
        "{\"text\": \"a b\"}\n\n{\"instruction\": \"a\", \"output\": \"b\"}\n",
        "line 3 of",
    ),
    ("a text that is a number", "number.jsonl", "{\"text\": 7}\n", "line 1 of"),
    ("a record of no tokens", "none.jsonl", "{\"text\": \"\"}\n", "line 1 of"),
    ("a single record", "single.jsonl", "{\"text\": \"a b\"}\n", "single.jsonl"),
    (
        "a history beside an instruction",
        "history.jsonl",
        "{\"instruction\": \"a\", \"output\": \"b\", \"history\": [[\"c\", \"d\"]]}\n",
        "line 1 of",
    ),
    (
        "an output that is a list",
        "output.jsonl",
        "{\"instruction\": \"a\", \"output\": [\"b\"]}\n",
        "line 1 of",
    ),
    ("a text of one token", "short.txt", "a", "short.txt"),
    ("a Parquet file that is cut short", "cut.parquet", "PAR1 and no more", "cut.parquet"),
];

fn data(scene: &mut Scene) {
    let model = scene.model();
    let tokenizer = Tokenizer::of(&open(&model).expect("sound")).expect("sound");
    for (name, file, content, place) in DATA {
        let (input, output) = (scene.path(file), scene.path("tokens"));
        fs::write(&input, content).expect("written");
        scene.refused(name, place, || tokens::tokenize(&input, &output, &tokenizer, None));
    }
    let (input, output) = (scene.path("latin.jsonl"), scene.path("tokens"));
    fs::write(&input, b"{\"text\": \"caf\xe9\"}\n").expect("written");
    scene.refused("a line in Latin-1", "line 1 of", || {
        tokens::tokenize(&input, &output, &tokenizer, None)
    });
    let input = scene.path("latin.txt");
    fs::write(&input, b"some caf\xe9").expect("written");
    scene.refused("a text in Latin-1", "byte 9", || {
        tokens::tokenize(&input, &output, &tokenizer, None)
    });
    let input = scene.path("folder");
    fs::create_dir(&input).expect("created");
    scene.refused("a folder without data", "folder", || {
        tokens::tokenize(&input, &output, &tokenizer, None)
    });
    let input = scene.path("absent.jsonl");
    scene
        .refused("no file", "absent.jsonl", || tokens::tokenize(&input, &output, &tokenizer, None));
}

fn conversations(scene: &mut Scene) {
    let model = scene.model();
    let (input, output) = (scene.path("chat.jsonl"), scene.path("tokens"));
    let user = json!({"role": "user", "content": "a"});
    let answer = json!({"role": "assistant", "content": "b"});
    let plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                 {% if add_generation_prompt %}<assistant>{% endif %}";
    let cases = [
        ("no template", Json::Null, json!([user, answer]), "has no `chat_template`"),
        ("a template that is none", json!("{% for %}"), json!([user, answer]), "its line 1"),
        (
            "a template that refuses",
            json!("{{ raise_exception('no users') }}"),
            json!([user, answer]),
            "line 1 of",
        ),
        (
            "a template that writes the date",
            json!("{{ strftime_now('%d %b %Y') }}"),
            json!([user, answer]),
            "`strftime_now`",
        ),
        (
            "a template that changes earlier turns",
            json!("{% for m in messages %}{{ m.content if loop.last else '' }}{% endfor %}"),
            json!([answer, user]),
            "line 1 of",
        ),
        (
            "several templates",
            json!([{"name": "a", "template": ""}]),
            json!([]),
            "tokenizer_config",
        ),
        ("no answers", json!(plain), json!([user]), "line 1 of"),
        ("a turn without a role", json!(plain), json!([{"content": "a"}]), "messages[0]"),
        (
            "a role that nobody knows",
            json!(plain),
            json!([user, {"role": "tool", "content": "a"}]),
            "messages[1]",
        ),
        (
            "a call of a tool",
            json!(plain),
            json!([user, {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]),
            "messages[1]",
        ),
        (
            "content in parts",
            json!(plain),
            json!([{"role": "user", "content": [{"type": "text", "text": "a"}]}, answer]),
            "messages[0]",
        ),
    ];
    for (name, template, messages, place) in cases {
        let config = json!({"chat_template": template}).to_string();
        fs::write(model.join("tokenizer_config.json"), config).expect("written");
        fs::write(&input, json!({"messages": messages}).to_string()).expect("written");
        scene.refused(name, place, || {
            let tokenizer = Tokenizer::of(&open(&model)?)?;
            tokens::tokenize(&input, &output, &tokenizer, None)
        });
    }
}

fn models(scene: &mut Scene) {
    let cases: [DirectoryCase; 9] = [
        ("no configuration", "config.json", |model| {
            fs::remove_file(model.join("config.json")).expect("removed");
        }),
        ("a configuration that is no JSON", "config.json", |model| {
            fs::write(model.join("config.json"), "{").expect("written");
        }),
        ("another family", "`model_type` is `\"mamba\"`", |model| {
            edit_json(&model.join("config.json"), |json| json["model_type"] = json!("mamba"));
        }),
        ("a size that is absent", "hidden_size", |model| {
            edit_json(&model.join("config.json"), |json| json["hidden_size"] = Json::Null);
        }),
        ("another size than the tensors", "model.embed_tokens.weight", |model| {
            edit_json(&model.join("config.json"), |json| json["vocab_size"] = json!(300));
        }),
        ("a key that changes the model", "quantization_config", |model| {
            edit_json(&model.join("config.json"), |json| {
                json["quantization_config"] = json!({"bits": 4});
            });
        }),
        ("no tensors", "model.safetensors", |model| {
            fs::remove_file(model.join("model.safetensors")).expect("removed");
        }),
        ("tensors that are cut short", "model.safetensors", |model| {
            let path = model.join("model.safetensors");
            let bytes = fs::read(&path).expect("it is there");
            fs::write(&path, &bytes[..bytes.len() - 7]).expect("written");
        }),
        ("a file that is no model", "model.safetensors", |model| {
            fs::write(model.join("model.safetensors"), [b'x'; 99]).expect("written");
        }),
    ];
    for (name, place, break_it) in cases {
        let model = scene.model();
        break_it(&model);
        scene.refused(name, place, || load(&model));
    }
}

fn tokenizers(scene: &mut Scene) {
    let cases: [DirectoryCase; 5] = [
        ("no tokenizer", "tokenizer.json", |model| {
            fs::remove_file(model.join("tokenizer.json")).expect("removed");
        }),
        ("a tokenizer that is cut short", "tokenizer", |model| {
            let path = model.join("tokenizer.json");
            let bytes = fs::read(&path).expect("it is there");
            fs::write(&path, &bytes[..bytes.len() / 2]).expect("written");
        }),
        ("a merge of unknown tokens", "tokenizer", |model| {
            edit_json(&model.join("tokenizer.json"), |json| {
                json["model"]["merges"] = json!(["zz yy"]);
            });
        }),
        ("an end that is no token", "`eos_token`", |model| {
            let config = json!({"eos_token": "</nothing>"}).to_string();
            fs::write(model.join("tokenizer_config.json"), config).expect("written");
        }),
        ("a special token that is a number", "bos_token", |model| {
            let config = json!({"bos_token": 1}).to_string();
            fs::write(model.join("tokenizer_config.json"), config).expect("written");
        }),
    ];
    for (name, place, break_it) in cases {
        let model = scene.model();
        break_it(&model);
        scene.refused(name, place, || load(&model));
    }
}

/// Where the numbers of a tensor's entry begin: dimensions, sizes, type and start.
fn entry(bytes: &[u8], name: &str) -> usize {
    let place = bytes.windows(name.len()).position(|window| window == name.as_bytes());
    place.expect("it has the tensor") + name.len()
}

fn gguf_bytes(scene: &mut Scene) {
    // Of two dimensions: 4 bytes of their number, 8 of each, 4 of the type, 8 of the start.
    const NAME: &str = "blk.0.attn_q.weight";
    let cases: [Case<Vec<u8>>; 9] = [
        ("another magic", "model.gguf", |bytes| bytes[..4].copy_from_slice(b"GGML")),
        ("an old version", "version 1", |bytes| bytes[4] = 1),
        ("big-endian", "big-endian", |bytes| bytes[4..8].copy_from_slice(&[0, 0, 0, 3])),
        ("more keys than bytes", "model.gguf", |bytes| bytes[23] = 0x7f),
        ("no dimensions", NAME, |bytes| {
            let at = entry(bytes, NAME);
            bytes[at] = 0;
        }),
        ("an impossible size", NAME, |bytes| {
            let at = entry(bytes, NAME);
            bytes[at + 11] = 0x7f;
        }),
        ("an unknown type of tensor", NAME, |bytes| {
            let at = entry(bytes, NAME);
            bytes[at + 20] = 99;
        }),
        ("a tensor between two places", NAME, |bytes| {
            let at = entry(bytes, NAME);
            bytes[at + 24] += 4;
        }),
        ("tensors over one another", "lie over one another", |bytes| {
            let at = entry(bytes, NAME);
            bytes[at + 24..at + 32].fill(0);
        }),
    ];
    for (name, place, break_it) in cases {
        let path = scene.gguf();
        let mut bytes = fs::read(&path).expect("written");
        break_it(&mut bytes);
        fs::write(&path, bytes).expect("written");
        scene.refused(name, place, || load(&path));
    }
    let path = scene.gguf();
    let bytes = fs::read(&path).expect("written");
    fs::write(&path, &bytes[..bytes.len() - 100]).expect("written");
    scene.refused("a GGUF that is cut short", "model.gguf", || load(&path));
}

type Metadata = Vec<(String, Value)>;

fn set(metadata: &mut Metadata, key: &str, value: Value) {
    metadata.retain(|(name, _)| name != key);
    metadata.push((key.to_owned(), value));
}

fn items<'a>(metadata: &'a mut [(String, Value)], key: &str) -> &'a mut Vec<Value> {
    let value = metadata.iter_mut().find(|(name, _)| name == key).map(|(_, value)| value);
    match value {
        Some(Value::Array(_, items)) => items,
        other => panic!("{key}: {other:?}"),
    }
}

const METADATA: [Case<Metadata>; 18] = [
    ("a key twice", "`llama.block_count` twice", |metadata| {
        metadata.push(("llama.block_count".into(), Value::U32(2)));
    }),
    ("an alignment of three", "general.alignment", |metadata| {
        set(metadata, "general.alignment", Value::U32(3));
    }),
    ("an alignment that is a text", "general.alignment", |metadata| {
        set(metadata, "general.alignment", Value::Text("32".into()));
    }),
    ("another architecture", "mamba", |metadata| {
        set(metadata, "general.architecture", Value::Text("mamba".into()));
    }),
    ("a size that is a text", "llama.embedding_length", |metadata| {
        set(metadata, "llama.embedding_length", Value::Text("32".into()));
    }),
    ("another size than the tensors", "expected [", |metadata| {
        set(metadata, "llama.feed_forward_length", Value::U32(48));
    }),
    ("more layers than tensors", "blk.2.", |metadata| {
        set(metadata, "llama.block_count", Value::U32(3));
    }),
    ("one part of several", "split.count", |metadata| {
        set(metadata, "split.count", Value::U16(2));
    }),
    ("no tokens", "tokenizer.ggml.tokens", |metadata| {
        metadata.retain(|(key, _)| key != "tokenizer.ggml.tokens");
    }),
    ("fewer tokens than rows", "token_embd.weight", |metadata| {
        items(metadata, "tokenizer.ggml.tokens").pop();
        items(metadata, "tokenizer.ggml.token_type").pop();
        metadata.retain(|(key, _)| key != "llama.vocab_size");
    }),
    ("a token twice", "tokenizer.ggml.tokens", |metadata| {
        let tokens = items(metadata, "tokenizer.ggml.tokens");
        tokens[9] = tokens[8].clone();
    }),
    ("types of fewer tokens", "tokenizer.ggml.token_type", |metadata| {
        items(metadata, "tokenizer.ggml.token_type").pop();
    }),
    ("an unknown type of token", "tokenizer.ggml.token_type[4]", |metadata| {
        items(metadata, "tokenizer.ggml.token_type")[4] = Value::I32(9);
    }),
    ("a merge of unknown tokens", "tokenizer.ggml.merges[0]", |metadata| {
        items(metadata, "tokenizer.ggml.merges").push(Value::Text("zz yy".into()));
    }),
    ("an end beyond the tokens", "tokenizer.ggml.eos_token_id", |metadata| {
        set(metadata, "tokenizer.ggml.eos_token_id", Value::U32(9999));
    }),
    ("another kind of tokenizer", "`rwkv`", |metadata| {
        set(metadata, "tokenizer.ggml.model", Value::Text("rwkv".into()));
    }),
    ("a SentencePiece without scores", "tokenizer.ggml.scores", |metadata| {
        set(metadata, "tokenizer.ggml.model", Value::Text("llama".into()));
    }),
    ("scores that are no numbers", "tokenizer.ggml.scores", |metadata| {
        set(metadata, "tokenizer.ggml.model", Value::Text("llama".into()));
        metadata
            .push(("tokenizer.ggml.scores".into(), Value::Array(6, vec![Value::F32(f32::NAN)])));
    }),
];

fn gguf_metadata(scene: &mut Scene) {
    for (name, place, break_it) in METADATA {
        let path = scene.gguf();
        let mut metadata = Gguf::open(&path).expect("sound").metadata;
        break_it(&mut metadata);
        rewrite(&path, &metadata, false);
        scene.refused(name, place, || load(&path));
    }
    let path = scene.gguf();
    let metadata = Gguf::open(&path).expect("sound").metadata;
    rewrite(&path, &metadata, true);
    scene.refused("a tensor twice", "output_norm.weight` twice", || load(&path));
}

/// The tiny model under other metadata.
fn rewrite(path: &Path, metadata: &[(String, Value)], twice: bool) {
    let weights = tiny::weights(1);
    let tensors = weights.parameters.tensors(&weights.architecture);
    let mut outputs: Vec<Output<'_>> = tensors
        .into_iter()
        .map(|(tensor, values)| Output {
            name: tensor.name.gguf_name(),
            shape: tensor.shape.into_iter().rev().collect(),
            format: Format::F32,
            values: Cow::Borrowed(values),
        })
        .collect();
    if twice {
        let last = outputs.last().expect("it has tensors");
        let again = Output {
            name: last.name.clone(),
            shape: last.shape.clone(),
            format: last.format,
            values: last.values.clone(),
        };
        outputs.push(again);
    }
    gguf::write(path, metadata, &outputs).expect("written");
}
