//! The model's own tokenizer, what is said of its special tokens, and the words around a request
//! and its answer.
//!
//! Whatever the weights came in, the tokenizer is described as Hugging Face's `tokenizer.json`, so
//! one reader serves all and an exported model carries the same file.

mod described;

use crate::error::{Error, IoContext, Result};
use crate::special::Special;
use crate::weights::Source;
use sha2::{Digest, Sha256};
use std::ops::Range;
use tokenizers::{PostProcessor, PostProcessorWrapper};

pub use described::{Split, added, byte_level_bpe};

/// Every request is put behind this sentence, in training and in use.
const SYSTEM: &str = "You write Heterosis job files.";
const START: &str = "<|im_start|>";
const END: &str = "<|im_end|>";

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
                (described::of_gguf(file)?.to_string().into_bytes(), Special::of_gguf(file)?)
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
