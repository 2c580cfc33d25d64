//! Tokenizers in the words of `tokenizer.json`: byte-level BPE, and BPE of SentencePiece, from the
//! keys of a GGUF.

use crate::error::{Error, Result};
use crate::gguf::{Gguf, Value};
use serde_json::{Map, Value as Json, json};

/// ggml's token types.
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
/// What SentencePiece writes for a space.
const SPACE: &str = "\u{2581}";

/// How a byte-level BPE splits words before it joins their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    Gpt2,
    /// As GPT-2, with digits one by one.
    SmolLm,
    Qwen2,
    Llama3,
}

impl Split {
    const ALL: [Self; 4] = [Self::Gpt2, Self::SmolLm, Self::Qwen2, Self::Llama3];

    /// llama.cpp's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpt2 => "gpt-2",
            Self::SmolLm => "smollm",
            Self::Qwen2 => "qwen2",
            Self::Llama3 => "llama-bpe",
        }
    }

    /// The one of a pattern, as `tokenizer.json` holds it.
    pub fn of_pattern(pattern: &Json) -> Option<Self> {
        Self::ALL.into_iter().find(|split| split.pattern().is_some_and(|own| pattern == own))
    }

    /// Of the file's own name for it. Files from before there were names leave it out, and of them
    /// only a GPT-2's is known.
    fn of(file: &Gguf) -> Option<Self> {
        let is_gpt2 = || {
            let architecture = file.get("general.architecture").and_then(Value::as_text);
            architecture == Some("gpt2")
        };
        match file.get("tokenizer.ggml.pre").and_then(Value::as_text) {
            None | Some("default") => is_gpt2().then_some(Self::Gpt2),
            Some("llama3" | "llama-v3") => Some(Self::Llama3),
            Some(name) => Self::ALL.into_iter().find(|split| split.name() == name),
        }
    }

    /// Of those that split by a pattern of their own.
    fn pattern(self) -> Option<&'static str> {
        match self {
            Self::Gpt2 | Self::SmolLm => None,
            Self::Qwen2 => Some(concat!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            )),
            Self::Llama3 => Some(concat!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            )),
        }
    }

    fn steps(self) -> Vec<Json> {
        let bytes = |regex: bool| {
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                   "use_regex": regex})
        };
        match (self, self.pattern()) {
            (_, Some(pattern)) => vec![
                json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
                       "invert": false}),
                bytes(false),
            ],
            (Self::SmolLm, None) => {
                vec![json!({"type": "Digits", "individual_digits": true}), bytes(true)]
            }
            (_, None) => vec![bytes(true)],
        }
    }
}

/// Rebuilds `tokenizer.json` from GGUF metadata.
pub fn of_gguf(file: &Gguf) -> Result<Json> {
    let kind = file.get("tokenizer.ggml.model").and_then(Value::as_text).unwrap_or("none");
    let known = match kind {
        "llama" => Some(None),
        "gpt2" => Split::of(file).map(Some),
        _ => None,
    };
    let Some(split) = known else {
        let split = file.get("tokenizer.ggml.pre").and_then(Value::as_text).unwrap_or("default");
        return refuse(format!("its kind `{kind}`, `{split}` is not known"));
    };
    let tokens = file.require_texts("tokenizer.ggml.tokens")?;
    let types = types(file, tokens.len())?;
    let mut vocabulary = Map::new();
    for (id, token) in tokens.iter().enumerate() {
        if let Some(first) = vocabulary.insert((*token).to_owned(), json!(id)) {
            return refuse(format!("`tokenizer.ggml.tokens` has `{token}` at {first} and at {id}"));
        }
    }
    let mut json = match split {
        Some(split) => {
            let merges = merges(file, &vocabulary)?;
            byte_level_bpe(vocabulary, &merges, added_tokens(&tokens, &types), split)
        }
        None => sentence_piece(file, vocabulary, &tokens, &types)?,
    };
    let has = |key: &str, default: bool| match file.get(key) {
        Some(Value::Bool(is_added)) => *is_added,
        _ => default,
    };
    // What llama.cpp does where a file does not say it.
    let begins = matches!(split, None | Some(Split::Llama3));
    let around = [
        ("bos", has("tokenizer.ggml.add_bos_token", begins)),
        ("eos", has("tokenizer.ggml.add_eos_token", false)),
    ];
    if around.iter().any(|&(_, is_added)| is_added) {
        json["post_processor"] = added_around(file, &tokens, around)?;
    }
    Ok(json)
}

fn refuse<T>(what: String) -> Result<T> {
    Err(Error::Tokenizer(what))
}

fn types(file: &Gguf, tokens: usize) -> Result<Vec<i32>> {
    let types = file.require_array("tokenizer.ggml.token_type")?;
    if types.len() != tokens {
        return refuse(format!(
            "`tokenizer.ggml.token_type` has {} values for {tokens} tokens",
            types.len()
        ));
    }
    let kinds = types.iter().enumerate().map(|(id, kind)| match kind {
        Value::I32(kind @ 1..=6) => Ok(*kind),
        other => refuse(format!("`tokenizer.ggml.token_type[{id}]` is {other:?}, not 1 to 6")),
    });
    kinds.collect()
}

fn merges<'f>(file: &'f Gguf, vocabulary: &Map<String, Json>) -> Result<Vec<&'f str>> {
    let merges = file.require_texts("tokenizer.ggml.merges")?;
    for (place, merge) in merges.iter().enumerate() {
        let parts = merge.split_once(' ').filter(|(_, second)| !second.contains(' '));
        let is_known = |(first, second): (&str, &str)| {
            [first, second, &format!("{first}{second}")].iter().all(|t| vocabulary.contains_key(*t))
        };
        if !parts.is_some_and(is_known) {
            let what = format!(
                "`tokenizer.ggml.merges[{place}]`, `{merge}`, does not join two \
                                tokens to a third"
            );
            return refuse(what);
        }
    }
    Ok(merges)
}

/// The step that puts a beginning or an end around a text.
fn added_around(file: &Gguf, tokens: &[&str], around: [(&str, bool); 2]) -> Result<Json> {
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let (mut single, mut special) = (vec![text], serde_json::Map::new());
    for (name, _) in around.into_iter().filter(|&(_, is_added)| is_added) {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let id = file.get(&key).and_then(Value::as_u64).and_then(|id| usize::try_from(id).ok());
        let Some((id, token)) = id.and_then(|id| Some((id, tokens.get(id)?))) else {
            return Err(Error::Tokenizer(format!("`{key}` is not the number of a token")));
        };
        let place = if name == "bos" { 0 } else { single.len() };
        single.insert(place, json!({"SpecialToken": {"id": token, "type_id": 0}}));
        special.insert((*token).to_owned(), json!({"id": token, "ids": [id], "tokens": [token]}));
    }
    let (kind, pair) = ("TemplateProcessing", json!([]));
    Ok(json!({"type": kind, "single": single, "pair": pair, "special_tokens": special}))
}

/// A byte-level BPE in the words of `tokenizer.json`.
pub fn byte_level_bpe(
    vocabulary: Map<String, Json>,
    merges: &[&str],
    added: Vec<Json>,
    split: Split,
) -> Json {
    let decoder = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                         "use_regex": true});
    // Qwen's files compose letters; Llama 3's take a word that is a token as it is.
    let normalizer = if split == Split::Qwen2 { json!({"type": "NFC"}) } else { Json::Null };
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": split.steps()},
        "post_processor": null,
        "decoder": decoder,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false,
                  "ignore_merges": split == Split::Llama3,
                  "vocab": vocabulary, "merges": merges},
    })
}

/// Tokens that are found in a text as they are: those that stand for no text, and those that users
/// defined.
fn added_tokens(tokens: &[&str], types: &[i32]) -> Vec<Json> {
    let all = types.iter().zip(tokens).enumerate();
    all.filter(|(_, (kind, _))| matches!(**kind, UNKNOWN | CONTROL | USER_DEFINED))
        .map(|(id, (kind, token))| added(id, token, *kind != USER_DEFINED))
        .collect()
}

/// A token that is found in a text as it is.
pub fn added(id: usize, content: &str, is_special: bool) -> Json {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
           "normalized": false, "special": is_special})
}

/// A BPE of SentencePiece, whose merges follow from the scores of tokens: the higher one first.
fn sentence_piece(
    file: &Gguf,
    vocabulary: Map<String, Json>,
    tokens: &[&str],
    types: &[i32],
) -> Result<Json> {
    let scores = file.require_array("tokenizer.ggml.scores")?;
    let scores: Option<Vec<f32>> = scores
        .iter()
        .map(|score| match score {
            Value::F32(score) => Some(*score).filter(|score| !score.is_nan()),
            _ => None,
        })
        .collect();
    let Some(scores) = scores.filter(|scores| scores.len() == tokens.len()) else {
        let count = tokens.len();
        return refuse(format!("`tokenizer.ggml.scores` is not {count} numbers, one a token"));
    };
    let added = added_tokens(tokens, types);
    let unknown = types.iter().position(|kind| *kind == UNKNOWN).map(|id| tokens[id]);
    let begins_with_space =
        !matches!(file.get("tokenizer.ggml.add_space_prefix"), Some(Value::Bool(false)));
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let (mut normalizers, mut decoders) = (
        vec![spaces],
        vec![
            json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ],
    );
    if begins_with_space {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let merges = merges_by_score(&vocabulary, tokens, &scores);
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "dropout": null, "unk_token": unknown,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
                  "vocab": vocabulary, "merges": merges},
    }))
}

/// Every pair of tokens that makes a third. Of pairs that make the same one the longer first half
/// comes first.
fn merges_by_score(vocabulary: &Map<String, Json>, tokens: &[&str], scores: &[f32]) -> Vec<Json> {
    let mut all = Vec::new();
    for (token, score) in tokens.iter().zip(scores) {
        for (place, _) in token.char_indices().skip(1) {
            let (first, second) = token.split_at(place);
            if vocabulary.contains_key(first) && vocabulary.contains_key(second) {
                all.push((*score, first, second));
            }
        }
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.chars().count().cmp(&a.1.chars().count())));
    all.into_iter().map(|(_, first, second)| json!([first, second])).collect()
}
