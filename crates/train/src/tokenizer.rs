//! The model's own tokenizer, and the chat template around a request and its answer.
//!
//! Whatever the weights came in, the tokenizer is described as Hugging Face's `tokenizer.json`, so
//! one reader serves all and an exported model carries the same file.

use crate::error::{Error, IoContext, Result};
use crate::gguf::{Gguf, Value};
use crate::weights::Source;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

/// Every request is put behind this sentence, in training and in use.
const SYSTEM: &str = "You write Heterosis job files.";
const START: &str = "<|im_start|>";
const END: &str = "<|im_end|>";
/// ggml's token type for control tokens.
const CONTROL: i32 = 3;

#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// The token that ends a turn, where there are turns.
    end: Option<u32>,
    json: Vec<u8>,
}

impl Tokenizer {
    pub fn of(source: &Source) -> Result<Self> {
        let json = match source {
            Source::Gguf { file, .. } => describe(file)?.to_string().into_bytes(),
            Source::Hub(hub) => {
                let path = hub.tokenizer_path();
                std::fs::read(&path).at("read", &path)?
            }
        };
        Self::from_json(json)
    }

    pub fn from_json(json: Vec<u8>) -> Result<Self> {
        let mut inner = tokenizers::Tokenizer::from_bytes(&json).map_err(broken)?;
        // Settings of whoever saved the file: they would cut or fill every text in silence.
        inner.with_truncation(None).map_err(broken)?;
        inner.with_padding(None);
        let has_turns = inner.token_to_id(START).is_some();
        let end = inner.token_to_id(END).filter(|_| has_turns);
        Ok(Self { end, inner, json })
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
        Ok(self.inner.encode_fast(text, true).map_err(broken)?.get_ids().to_vec())
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
    let kind = file.get("tokenizer.ggml.model").and_then(Value::as_text).unwrap_or("none");
    let split = file.get("tokenizer.ggml.pre").and_then(Value::as_text).unwrap_or("default");
    if kind != "gpt2" || !matches!(split, "smollm" | "gpt-2" | "default") {
        return Err(Error::Tokenizer(format!("its kind `{kind}`, `{split}` is not known")));
    }
    let texts = |key: &str| -> Result<Vec<&str>> {
        Ok(file.require_array(key)?.iter().filter_map(Value::as_text).collect())
    };
    let tokens = texts("tokenizer.ggml.tokens")?;
    let merges = texts("tokenizer.ggml.merges")?;
    let types = file.require_array("tokenizer.ggml.token_type")?;
    let special = tokens.iter().zip(types).enumerate().filter_map(|(id, (token, kind))| {
        matches!(kind, Value::I32(CONTROL)).then_some((id, *token))
    });
    let vocabulary = tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), json!(id)));
    Ok(byte_level_bpe(vocabulary.collect(), &merges, special, split == "smollm"))
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
