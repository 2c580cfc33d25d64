//! A `tokenizer.json` in the keys of a GGUF.
//!
//! llama.cpp has two tokenizers that these files describe: byte-level BPE, whose split of words it
//! knows by a name, and BPE of SentencePiece, whose merges it finds by scores.

use crate::error::{Error, Result};
use crate::gguf::Value;
use crate::tokenizer::{Split, Tokenizer};
use serde_json::{Map, Value as Json};

/// ggml's token types.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;
/// GGUF's numbers of element types.
const I32: u32 = 5;
const F32: u32 = 6;
const TEXT: u32 = 8;
/// What SentencePiece writes for a space.
const SPACE: &str = "\u{2581}";

type Read<T> = std::result::Result<T, String>;

/// The keys of a tokenizer for a token table of `rows`, or why llama.cpp would read other tokens.
pub fn describe(tokenizer: &Tokenizer, rows: usize) -> Result<Vec<(String, Value)>> {
    described(tokenizer, rows).map_err(|what| Error::Usage {
        what: format!("no GGUF says what this tokenizer does: {what}"),
        hint: "use `--merged`, which keeps everything",
    })
}

fn described(tokenizer: &Tokenizer, rows: usize) -> Read<Vec<(String, Value)>> {
    let json: Json = serde_json::from_slice(tokenizer.json()).map_err(|error| error.to_string())?;
    let model = &json["model"];
    if model.get("type").is_some_and(|kind| kind != "BPE") {
        return Err(format!("its model is of type {}, and only BPE is known", model["type"]));
    }
    let Some(vocabulary) = model["vocab"].as_object() else {
        return Err("its model has no `vocab`".into());
    };
    let merges = merges(model)?;
    let (tokens, mut types) = tokens(vocabulary, &json["added_tokens"], rows)?;
    let mut keys = Vec::new();
    let mut put = |key: &str, value: Value| keys.push((format!("tokenizer.ggml.{key}"), value));
    let texts = |all: &[String]| Value::Array(TEXT, all.iter().cloned().map(Value::Text).collect());
    if model["byte_fallback"] == true {
        put("model", Value::Text("llama".into()));
        put("pre", Value::Text("default".into()));
        put("add_space_prefix", Value::Bool(adds_space(&json)?));
        let scores = scores(&tokens, &merges);
        put("scores", Value::Array(F32, scores.into_iter().map(Value::F32).collect()));
        for (token, kind) in tokens.iter().zip(&mut types) {
            if is_byte(token) {
                *kind = BYTE;
            } else if model["unk_token"] == token.as_str() {
                *kind = UNKNOWN;
            }
        }
    } else {
        put("model", Value::Text("gpt2".into()));
        put("pre", Value::Text(split_name(&json)?.into()));
        let joined = merges.iter().map(|(first, second)| format!("{first} {second}"));
        put("merges", texts(&joined.collect::<Vec<_>>()));
    }
    put("tokens", texts(&tokens));
    put("token_type", Value::Array(I32, types.into_iter().map(Value::I32).collect()));
    let special = tokenizer.special();
    let around = tokenizer.encode_whole("").map_err(|error| error.to_string())?;
    let eos = tokenizer.end_of_text();
    let id = |token: &Option<String>| token.as_ref().and_then(|token| tokenizer.id_of(token));
    let bos = id(&special.bos);
    for (key, id) in [
        ("bos_token_id", bos),
        ("eos_token_id", eos),
        ("unknown_token_id", id(&special.unk)),
        ("padding_token_id", id(&special.pad)),
    ] {
        if let Some(id) = id {
            put(key, Value::U32(id));
        }
    }
    let is_added = |token: Option<u32>| token.is_some_and(|token| around.contains(&token));
    if around.iter().any(|&token| Some(token) != bos && Some(token) != eos) {
        return Err("it puts other tokens around a text than a beginning and an end".into());
    }
    put("add_bos_token", Value::Bool(is_added(bos)));
    put("add_eos_token", Value::Bool(is_added(eos) && eos != bos));
    if let Some(template) = &special.template {
        keys.push(("tokenizer.chat_template".into(), Value::Text(template.clone())));
    }
    Ok(keys)
}

/// Pairs that are joined, in the order of their rank.
fn merges(model: &Json) -> Read<Vec<(String, String)>> {
    let Some(merges) = model["merges"].as_array() else {
        return Err("its model has no `merges`".into());
    };
    let pair = |(place, merge): (usize, &Json)| {
        let pair = match merge {
            Json::String(text) => text.split_once(' '),
            Json::Array(pair) => match &pair[..] {
                [Json::String(first), Json::String(second)] => Some((&first[..], &second[..])),
                _ => None,
            },
            _ => None,
        };
        let plain = pair.filter(|(first, second)| !first.contains(' ') && !second.contains(' '));
        let owned = plain.map(|(first, second)| (first.to_owned(), second.to_owned()));
        owned.ok_or_else(|| format!("`merges[{place}]` is {merge}, not two tokens"))
    };
    merges.iter().enumerate().map(pair).collect()
}

/// Texts and types of all rows of the token table; rows without a token are filled.
fn tokens(
    vocabulary: &Map<String, Json>,
    added: &Json,
    rows: usize,
) -> Read<(Vec<String>, Vec<i32>)> {
    let mut tokens: Vec<String> = (0..rows).map(|id| format!("[PAD{id}]")).collect();
    let mut types = vec![UNUSED; rows];
    let mut put = |id: Option<u64>, token: &str, kind: i32| {
        let place = id.and_then(|id| usize::try_from(id).ok()).filter(|&id| id < rows);
        let Some(place) = place else {
            return Err(format!("the token table has no row for `{token}`: it has {rows}"));
        };
        token.clone_into(&mut tokens[place]);
        types[place] = kind;
        Ok(())
    };
    for (token, id) in vocabulary {
        put(id.as_u64(), token, NORMAL)?;
    }
    for token in added.as_array().into_iter().flatten() {
        let kind = if token["special"] == true { CONTROL } else { USER_DEFINED };
        put(token["id"].as_u64(), token["content"].as_str().unwrap_or_default(), kind)?;
    }
    Ok((tokens, types))
}

/// Scores by which llama.cpp joins pairs in the order of the merges: the earlier, the higher.
fn scores(tokens: &[String], merges: &[(String, String)]) -> Vec<f32> {
    let mut ranks = Map::new();
    for (rank, (first, second)) in merges.iter().enumerate() {
        ranks.entry(format!("{first}{second}")).or_insert_with(|| rank.into());
    }
    let last = merges.len() as f32;
    let score = |token: &String| match ranks.get(token).and_then(Json::as_u64) {
        Some(rank) => -(rank as f32),
        None => -last,
    };
    tokens.iter().map(score).collect()
}

fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// Steps of a normaliser or a pre-tokenizer, one or several.
fn steps<'a>(step: &'a Json, several: &str) -> Vec<&'a Json> {
    match step {
        Json::Null => Vec::new(),
        step if step["type"] == "Sequence" => {
            step[several].as_array().into_iter().flatten().collect()
        }
        step => vec![step],
    }
}

/// Whether SentencePiece begins a text with a space.
fn adds_space(json: &Json) -> Read<bool> {
    let mut adds = false;
    for step in steps(&json["normalizer"], "normalizers") {
        match step["type"].as_str() {
            Some("Prepend") if step["prepend"] == SPACE => adds = true,
            Some("Replace") if step["pattern"]["String"] == " " && step["content"] == SPACE => {}
            _ => return Err(format!("its normaliser {step} is not known")),
        }
    }
    for step in steps(&json["pre_tokenizer"], "pretokenizers") {
        match (step["type"].as_str(), step["prepend_scheme"].as_str()) {
            // Nothing is left to split: the spaces were replaced.
            (Some("Split"), _) if step["pattern"]["String"] == " " => {}
            (Some("Metaspace"), Some("never")) => {}
            (Some("Metaspace"), Some("first" | "always")) => adds = true,
            _ => return Err(format!("its pre-tokenizer {step} is not known")),
        }
    }
    Ok(adds)
}

/// llama.cpp's name of how a byte-level BPE splits words.
fn split_name(json: &Json) -> Read<&'static str> {
    // llama.cpp leaves NFC out, which changes decomposed letters alone.
    let normalizers = steps(&json["normalizer"], "normalizers");
    if let Some(step) = normalizers.iter().find(|step| step["type"] != "NFC") {
        return Err(format!("its normaliser {step} is not known"));
    }
    let split = &json["pre_tokenizer"];
    let all = steps(split, "pretokenizers");
    let is_bytes = |step: &Json, regex: bool| {
        step["type"] == "ByteLevel"
            && step["add_prefix_space"] != true
            && (step["use_regex"] != false) == regex
    };
    let name = match all[..] {
        [bytes] if is_bytes(bytes, true) => Some(Split::Gpt2),
        [digits, bytes] if digits["individual_digits"] == true && is_bytes(bytes, true) => {
            Some(Split::SmolLm)
        }
        [pattern, bytes] if pattern["type"] == "Split" && is_bytes(bytes, false) => {
            Split::of_pattern(&pattern["pattern"]["Regex"])
        }
        _ => None,
    };
    name.map(Split::name).ok_or_else(|| format!("its pre-tokenizer {split} is not known"))
}
