//! Tokenised data on disk: one safetensors file a split, and a manifest that says whose tokens.

use crate::batch::Sequence;
use crate::dataset::{self, Example};
use crate::error::{Error, IoContext, Result};
use crate::hub::TensorFile;
use crate::tokenizer::Tokenizer;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde::{Deserialize, Serialize};
use std::path::Path;

pub const TRAIN: &str = "train.safetensors";
pub const HELD_OUT: &str = "heldout.safetensors";
const MANIFEST: &str = "tokens.json";
/// Plain text is cut into sequences of this many tokens.
const TEXT_LENGTH: usize = 256;
/// One plain-text sequence of this many is held out.
const TEXT_HELD_OUT: usize = 10;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub tokenizer: String,
    pub train_sequences: usize,
    pub train_tokens: usize,
    pub held_out_sequences: usize,
    pub held_out_tokens: usize,
}

/// Tokenises a directory of request/job pairs or a plain text file.
pub fn tokenize(input: &Path, output: &Path, tokenizer: &Tokenizer) -> Result<Manifest> {
    std::fs::create_dir_all(output).at("create", output)?;
    let (train, held_out) = if input.is_dir() {
        let read = |name: &str| dataset::read(&input.join(name));
        let (train, held_out) = (read(dataset::TRAIN_FILE)?, read(dataset::HELD_OUT_FILE)?);
        write_requests(output, &held_out)?;
        let pairs = |examples: &[Example]| -> Result<Vec<Sequence>> {
            examples.iter().map(|example| pair(tokenizer, example)).collect()
        };
        (pairs(&train)?, pairs(&held_out)?)
    } else {
        plain_text(input, tokenizer)?
    };
    let count = |split: &[Sequence]| split.iter().map(|s| s.tokens.len()).sum();
    let manifest = Manifest {
        tokenizer: tokenizer.fingerprint(),
        train_sequences: train.len(),
        train_tokens: count(&train),
        held_out_sequences: held_out.len(),
        held_out_tokens: count(&held_out),
    };
    write_split(&output.join(TRAIN), &train)?;
    write_split(&output.join(HELD_OUT), &held_out)?;
    let text = serde_json::to_string_pretty(&manifest).expect("a plain struct serialises");
    let path = output.join(MANIFEST);
    std::fs::write(&path, text).at("write", &path)?;
    Ok(manifest)
}

/// Reads one split, refusing tokens of another tokenizer.
pub fn read(directory: &Path, split: &str, tokenizer: &Tokenizer) -> Result<Vec<Sequence>> {
    let wrong = |what: String| Error::Tokens { path: directory.to_owned(), what };
    let path = directory.join(MANIFEST);
    let text = std::fs::read_to_string(&path).at("read", &path)?;
    let manifest: Manifest =
        serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if manifest.tokenizer != tokenizer.fingerprint() {
        return Err(wrong("another tokenizer made them".into()));
    }
    let file = TensorFile::open(&directory.join(split))?;
    let column = |name: &str, dtype: Dtype| {
        let lacks = || wrong(format!("`{split}` has no column `{name}` of type {dtype:?}"));
        file.bytes_of(name, dtype).ok_or_else(lacks)
    };
    let words = |bytes: &[u8]| -> Vec<u32> {
        bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    let (tokens, scored) = (words(column("tokens", Dtype::U32)?), column("scored", Dtype::U8)?);
    let bounds = words(column("bounds", Dtype::U32)?);
    let sequences: Option<Vec<Sequence>> = bounds
        .windows(2)
        .map(|pair| {
            let range = pair[0] as usize..pair[1] as usize;
            let scored = scored.get(range.clone())?.iter().map(|&s| s != 0).collect();
            Some(Sequence { tokens: tokens.get(range)?.to_vec(), scored })
        })
        .collect();
    let sequences = sequences.ok_or_else(|| wrong(format!("`{split}` is inconsistent")))?;
    if sequences.is_empty() {
        return Err(wrong(format!("`{split}` holds no sequences")));
    }
    Ok(sequences)
}

fn pair(tokenizer: &Tokenizer, example: &Example) -> Result<Sequence> {
    let mut tokens = tokenizer.prompt(&example.request)?;
    let mut scored = vec![false; tokens.len()];
    tokens.extend(tokenizer.answer(&example.job)?);
    scored.resize(tokens.len(), true);
    Ok(Sequence { tokens, scored })
}

fn plain_text(path: &Path, tokenizer: &Tokenizer) -> Result<(Vec<Sequence>, Vec<Sequence>)> {
    let wrong = |what: String| Error::Corpus { path: path.to_owned(), what };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let tokens = tokenizer.encode(&text)?;
    let pieces: Vec<Sequence> = tokens
        .chunks(TEXT_LENGTH)
        .filter(|piece| piece.len() > 1)
        .map(|piece| Sequence { tokens: piece.to_vec(), scored: vec![true; piece.len()] })
        .collect();
    if pieces.len() < 2 {
        return Err(wrong(format!("it holds {} tokens, too few to hold some out", tokens.len())));
    }
    let held = |index: &usize| index % TEXT_HELD_OUT == 1;
    let indexed = pieces.into_iter().enumerate();
    let (held_out, train): (Vec<_>, Vec<_>) = indexed.partition(|(index, _)| held(index));
    let plain = |split: Vec<(usize, Sequence)>| split.into_iter().map(|(_, s)| s).collect();
    Ok((plain(train), plain(held_out)))
}

/// Generation needs the requests in words, so they travel with the tokens.
fn write_requests(output: &Path, held_out: &[Example]) -> Result<()> {
    let path = output.join(dataset::HELD_OUT_FILE);
    let lines = held_out.iter().map(|example| {
        serde_json::to_string(example).expect("two strings always serialise") + "\n"
    });
    std::fs::write(&path, lines.collect::<String>()).at("write", &path)
}

fn write_split(path: &Path, sequences: &[Sequence]) -> Result<()> {
    let mut bounds = vec![0u32];
    for sequence in sequences {
        bounds.push(bounds[bounds.len() - 1] + sequence.tokens.len() as u32);
    }
    let tokens = sequences.iter().flat_map(|s| &s.tokens);
    let tokens: Vec<u8> = tokens.flat_map(|token| token.to_le_bytes()).collect();
    let scored: Vec<u8> = sequences.iter().flat_map(|s| &s.scored).map(|&s| u8::from(s)).collect();
    let bounds_bytes: Vec<u8> = bounds.iter().flat_map(|bound| bound.to_le_bytes()).collect();
    let columns = [
        ("tokens", Dtype::U32, tokens.len() / 4, &tokens),
        ("scored", Dtype::U8, scored.len(), &scored),
        ("bounds", Dtype::U32, bounds.len(), &bounds_bytes),
    ];
    let views = columns.into_iter().map(|(name, dtype, length, bytes)| {
        TensorView::new(dtype, vec![length], bytes).map(|view| (name, view))
    });
    let views = views.collect::<std::result::Result<Vec<_>, _>>();
    let bytes = views.and_then(|views| safetensors::serialize(views, None)).map_err(|error| {
        Error::Tokens { path: path.to_owned(), what: format!("they cannot be written: {error}") }
    })?;
    std::fs::write(path, bytes).at("write", path)
}
