//! What is said of a tokenizer beside its `tokenizer.json`: special tokens and the chat template.

use crate::error::{Error, IoContext, Result};
use crate::gguf::{Gguf, Value};
use serde_json::{Map, Value as Json};
use std::path::Path;

/// `tokenizer_config.json` of Hugging Face models.
pub const CONFIG: &str = "tokenizer_config.json";
/// Their chat template, where it is a file of its own.
pub const TEMPLATE: &str = "chat_template.jinja";
const MAP: &str = "special_tokens_map.json";

/// Special tokens by their texts; none where nothing says so.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Special {
    pub bos: Option<String>,
    pub eos: Option<String>,
    pub unk: Option<String>,
    pub pad: Option<String>,
    /// A Jinja template
    pub template: Option<String>,
    /// The end of a text by its number, which `config.json` has.
    eos_id: Option<u32>,
}

impl Special {
    /// From the files of a directory; each may be absent.
    pub fn of_hub(directory: &Path) -> Result<Self> {
        let config = optional(&directory.join(CONFIG))?.unwrap_or_default();
        let map = optional(&directory.join(MAP))?.unwrap_or_default();
        let token = |key: &str| -> Result<Option<String>> {
            let own = token(&config, key).map_err(|what| in_file(CONFIG, &what))?;
            match own {
                Some(token) => Ok(Some(token)),
                None => token_of_map(&map, key),
            }
        };
        let file = directory.join(TEMPLATE);
        let template = match file.is_file() {
            true => Some(std::fs::read_to_string(&file).at("read", &file)?),
            false => template(&config).map_err(|what| in_file(CONFIG, &what))?,
        };
        let model = optional(&directory.join("config.json"))?.unwrap_or_default();
        let eos_id = match model.get("eos_token_id") {
            Some(Json::Array(ids)) => ids.first().and_then(Json::as_u64),
            other => other.and_then(Json::as_u64),
        };
        Ok(Self {
            bos: token("bos_token")?,
            eos: token("eos_token")?,
            unk: token("unk_token")?,
            pad: token("pad_token")?,
            template,
            eos_id: eos_id.and_then(|id| u32::try_from(id).ok()),
        })
    }

    /// From the metadata of a GGUF.
    pub fn of_gguf(file: &Gguf) -> Result<Self> {
        let tokens = file.require_array("tokenizer.ggml.tokens")?;
        let token = |name: &str| -> Result<Option<String>> {
            let key = format!("tokenizer.ggml.{name}_token_id");
            let Some(value) = file.get(&key) else { return Ok(None) };
            let id = value.as_u64().and_then(|id| usize::try_from(id).ok());
            match id.and_then(|id| tokens.get(id)).and_then(Value::as_text) {
                Some(text) => Ok(Some(text.to_owned())),
                None => {
                    let what = format!("`{key}` is not the number of one of {}", tokens.len());
                    Err(Error::Tokenizer(format!("{what} tokens")))
                }
            }
        };
        let template = file.get("tokenizer.chat_template").and_then(Value::as_text);
        Ok(Self {
            bos: token("bos")?,
            eos: token("eos")?,
            unk: token("unknown")?,
            pad: token("padding")?,
            template: template.map(str::to_owned),
            eos_id: None,
        })
    }

    /// The same, for a tokenizer with these tokens; refuses a beginning or an end that it lacks.
    pub fn known_to(mut self, vocabulary: &tokenizers::Tokenizer) -> Result<Self> {
        if self.eos.is_none() {
            self.eos = self.eos_id.and_then(|id| vocabulary.id_to_token(id));
        }
        let named = [("bos_token", &self.bos), ("eos_token", &self.eos)];
        let is_lacking = |token: &String| vocabulary.token_to_id(token).is_none();
        for (key, token) in named {
            if let Some(token) = token.as_ref().filter(|token| is_lacking(token)) {
                return Err(Error::Tokenizer(format!("it lacks its `{key}`, `{token}`")));
            }
        }
        // Nothing here fills up texts or reads unknown words.
        self.unk.take_if(|token| is_lacking(token));
        self.pad.take_if(|token| is_lacking(token));
        Ok(self)
    }

    /// The tokens under the names that templates and `tokenizer_config.json` have for them.
    pub fn named(&self) -> Map<String, Json> {
        let all = [
            ("bos_token", &self.bos),
            ("eos_token", &self.eos),
            ("unk_token", &self.unk),
            ("pad_token", &self.pad),
        ];
        let there = all.into_iter().filter_map(|(key, token)| Some((key, token.clone()?)));
        there.map(|(key, token)| (key.to_owned(), Json::String(token))).collect()
    }
}

fn in_file(name: &str, what: &str) -> Error {
    Error::Tokenizer(format!("`{name}` {what}"))
}

fn optional(path: &Path) -> Result<Option<Map<String, Json>>> {
    if !path.is_file() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path).at("read", path)?;
    let broken = |error| Error::Tokenizer(format!("`{}` is broken: {error}", path.display()));
    serde_json::from_str(&text).map(Some).map_err(broken)
}

fn token_of_map(map: &Map<String, Json>, key: &str) -> Result<Option<String>> {
    token(map, key).map_err(|what| in_file(MAP, &what))
}

/// A token is a text, or an object whose `content` is one.
fn token(map: &Map<String, Json>, key: &str) -> std::result::Result<Option<String>, String> {
    match map.get(key) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(text)) => Ok(Some(text.clone())),
        Some(other) => match other.get("content").and_then(Json::as_str) {
            Some(text) => Ok(Some(text.to_owned())),
            None => Err(format!("has a `{key}` that is no token")),
        },
    }
}

/// A template is a text, or the one called `default` of several.
fn template(config: &Map<String, Json>) -> std::result::Result<Option<String>, String> {
    match config.get("chat_template") {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(text)) => Ok(Some(text.clone())),
        Some(Json::Array(several)) => {
            let default = several.iter().find(|one| one["name"] == "default");
            match default.and_then(|one| one["template"].as_str()) {
                Some(text) => Ok(Some(text.to_owned())),
                None => Err("has several `chat_template`s, none of them `default`".into()),
            }
        }
        Some(_) => Err("has a `chat_template` that is no text".into()),
    }
}
