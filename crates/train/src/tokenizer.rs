//! The model's own tokenizer, what is said of its special tokens, and the words around a request
//! and its answer.
//!
//! Whatever the weights came in, the tokenizer is described as Hugging Face's `tokenizer.json`, so
//! one reader serves all and an exported model carries the same file.

use crate::error::{Error, IoContext, Result};
use crate::gguf::{Gguf, Value};
use crate::special::Special;
use crate::weights::Source;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use std::ops::Range;
use tokenizers::{PostProcessor, PostProcessorWrapper};

/// Every request is put behind this sentence, in training and in use.
const SYSTEM: &str = "You write Heterosis job files.";
const START: &str = "<|im_start|>";
const END: &str = "<|im_end|>";
/// ggml's token type for control tokens.
const CONTROL: i32 = 3;

#[derive(Debug)]
pub struct Tokenizer {
    /// Without the step that puts tokens around a text: it would move the places of others.
    inner: tokenizers::Tokenizer,
    around: Option<PostProcessorWrapper>,
    /// The token that ends a turn, where there are turns.
    end: Option<u32>,
    json: Vec<u8>,
    special: Special,
}

/// Tokens of a text, and which of them are answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marked {
    pub tokens: Vec<u32>,
    pub answers: Vec<bool>,
}

impl Tokenizer {
    pub fn of(source: &Source) -> Result<Self> {
        Self::read(source).map_err(|error| match error {
            Error::Tokenizer(what) => {
                Error::Tokenizer(format!("`{}`: {what}", source.path().display()))
            }
            other => other,
        })
    }

    fn read(source: &Source) -> Result<Self> {
        let (json, special) = match source {
            Source::Gguf { file, .. } => {
                (describe(file)?.to_string().into_bytes(), Special::of_gguf(file)?)
            }
            Source::Hub(hub) => {
                let path = hub.tokenizer_path();
                (std::fs::read(&path).at("read", &path)?, Special::of_hub(hub.path())?)
            }
        };
        let mut tokenizer = Self::from_json(json)?;
        tokenizer.special = special.known_to(&tokenizer.inner)?;
        Ok(tokenizer)
    }

    pub fn from_json(json: Vec<u8>) -> Result<Self> {
        let mut inner = tokenizers::Tokenizer::from_bytes(&json).map_err(broken)?;
        // Settings of whoever saved the file: they would cut or fill every text in silence.
        inner.with_truncation(None).map_err(broken)?;
        inner.with_padding(None);
        let has_turns = inner.token_to_id(START).is_some();
        let end = inner.token_to_id(END).filter(|_| has_turns);
        let around = inner.get_post_processor().cloned();
        inner.with_post_processor(None::<PostProcessorWrapper>);
        Ok(Self { end, inner, around, json, special: Special::default() })
    }

    /// What is said of the special tokens beside the tokenizer.
    pub fn special(&self) -> &Special {
        &self.special
    }

    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token that ends a text, by its id.
    pub fn end_of_text(&self) -> Option<u32> {
        self.special.eos.as_ref().and_then(|token| self.id_of(token)).or(self.end)
    }

    /// The description this tokenizer was read from, as `tokenizer.json` holds it.
    pub fn json(&self) -> &[u8] {
        &self.json
    }

    /// Tells two tokenizers apart.
    pub fn fingerprint(&self) -> String {
        Sha256::digest(&self.json).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }

    /// The token that ends a turn, where this tokenizer has one.
    pub fn end(&self) -> Option<u32> {
        self.end
    }

    fn turn_end(&self) -> Result<u32> {
        let lacks = || Error::Tokenizer(format!("it has no `{START}` and `{END}` tokens"));
        self.end.ok_or_else(lacks)
    }

    pub fn vocabulary(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.inner.encode_fast(text, false).map_err(broken)?.get_ids().to_vec())
    }

    /// As [`Tokenizer::encode`], with the tokens that the tokenizer itself puts around a text.
    pub fn encode_whole(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.encode_marked(text, &[], true)?.tokens)
    }

    /// Tokens of a text, of which those that begin in one of the byte ranges `answers` are marked;
    /// with `whole`, also the tokens that the tokenizer itself puts around a text.
    pub fn encode_marked(
        &self,
        text: &str,
        answers: &[Range<usize>],
        whole: bool,
    ) -> Result<Marked> {
        let encoding = self.inner.encode(text, false).map_err(broken)?;
        let places = encoding.get_offsets().iter();
        let marks: Vec<bool> = places
            .map(|&(start, end)| end > start && answers.iter().any(|range| range.contains(&start)))
            .collect();
        let Some(around) = self.around.as_ref().filter(|_| whole) else {
            return Ok(Marked { tokens: encoding.get_ids().to_vec(), answers: marks });
        };
        let encoding = around.process(encoding, None, true).map_err(broken)?;
        let mut marks = marks.into_iter();
        let added = encoding.get_special_tokens_mask().iter();
        let answers = added.map(|&added| added == 0 && marks.next().unwrap_or(false)).collect();
        Ok(Marked { tokens: encoding.get_ids().to_vec(), answers })
    }

    /// Whether a text ends with a token that stands for no text.
    pub fn ends_with_special(&self, text: &str) -> bool {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        added.values().any(|token| token.special && text.ends_with(&token.content))
    }

    /// Text of the tokens; special ones are left out.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.inner.decode(tokens, true).map_err(broken)
    }

    /// Everything up to the point where the answer begins.
    pub fn prompt(&self, request: &str) -> Result<Vec<u32>> {
        self.turn_end()?;
        self.encode(&format!(
            "{START}system\n{SYSTEM}{END}\n{START}user\n{request}{END}\n{START}assistant\n"
        ))
    }

    /// The answer and the token that ends it.
    pub fn answer(&self, text: &str) -> Result<Vec<u32>> {
        let mut tokens = self.encode(text)?;
        tokens.push(self.turn_end()?);
        Ok(tokens)
    }
}

fn broken(error: impl std::fmt::Display) -> Error {
    Error::Tokenizer(error.to_string())
}

/// Rebuilds `tokenizer.json` from GGUF metadata.
fn describe(file: &Gguf) -> Result<Json> {
    let refuse = |what: String| Err(Error::Tokenizer(what));
    let kind = file.get("tokenizer.ggml.model").and_then(Value::as_text).unwrap_or("none");
    let split = file.get("tokenizer.ggml.pre").and_then(Value::as_text).unwrap_or("default");
    if kind != "gpt2" || !matches!(split, "smollm" | "gpt-2" | "default") {
        return refuse(format!("its kind `{kind}`, `{split}` is not known"));
    }
    let tokens = file.require_texts("tokenizer.ggml.tokens")?;
    let merges = file.require_texts("tokenizer.ggml.merges")?;
    let types = file.require_array("tokenizer.ggml.token_type")?;
    if types.len() != tokens.len() {
        let (types, tokens) = (types.len(), tokens.len());
        return refuse(format!(
            "`tokenizer.ggml.token_type` has {types} values for {tokens} tokens"
        ));
    }
    let mut vocabulary = serde_json::Map::new();
    for (id, token) in tokens.iter().enumerate() {
        if let Some(first) = vocabulary.insert((*token).to_owned(), json!(id)) {
            return refuse(format!("`tokenizer.ggml.tokens` has `{token}` at {first} and at {id}"));
        }
    }
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
    let mut special = Vec::new();
    for (id, kind) in types.iter().enumerate() {
        match kind {
            Value::I32(CONTROL) => special.push((id, tokens[id])),
            Value::I32(1..=6) => {}
            other => {
                return refuse(format!(
                    "`tokenizer.ggml.token_type[{id}]` is {other:?}, not 1 to 6"
                ));
            }
        }
    }
    let digits = split == "smollm";
    let mut json = byte_level_bpe(vocabulary, &merges, special.into_iter(), digits);
    let has = |key: &str| matches!(file.get(key), Some(Value::Bool(true)));
    let around = [
        ("bos", has("tokenizer.ggml.add_bos_token")),
        ("eos", has("tokenizer.ggml.add_eos_token")),
    ];
    if around.iter().any(|&(_, is_added)| is_added) {
        json["post_processor"] = added_around(file, &tokens, around)?;
    }
    Ok(json)
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

/// A byte-level BPE in the words of `tokenizer.json`; SmolLM also splits digits one by one.
pub fn byte_level_bpe<'a>(
    vocabulary: serde_json::Map<String, Json>,
    merges: &[&str],
    special: impl Iterator<Item = (usize, &'a str)>,
    split_digits: bool,
) -> Json {
    let added: Vec<Json> = special
        .map(|(id, content)| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false, "special": true})
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false,
                            "trim_offsets": true, "use_regex": true});
    let digits = json!({"type": "Digits", "individual_digits": true});
    let steps =
        if split_digits { vec![digits, byte_level.clone()] } else { vec![byte_level.clone()] };
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": null,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocabulary, "merges": merges},
    })
}
