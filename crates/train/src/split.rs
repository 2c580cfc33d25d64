//! Tokenised sequences on disk, read one at a time.
//!
//! A split is a safetensors file with four columns: `tokens` and `scored` of all sequences end to
//! end, and of each sequence its end (`ends`) and the first place that counts (`first_scored`).
//! Of an open split, [`INDEX_BYTES`] a sequence are in memory, and nothing of its tokens: a data
//! set may be larger than that by any factor.

use crate::batch::Sequence;
use crate::error::{Error, IoContext, Result};
use crate::tokenizer::Tokenizer;
use crate::whole;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub const TRAIN: &str = "train.safetensors";
pub const HELD_OUT: &str = "heldout.safetensors";
pub const MANIFEST: &str = "tokens.json";
/// Bytes in memory for each sequence of an open split.
pub const INDEX_BYTES: usize = size_of::<u64>() + size_of::<u32>();
/// Where no prediction of a sequence counts.
const NEVER: u32 = u32::MAX;
/// Bytes of the index that are read at once.
const INDEX_BUFFER: usize = 1 << 20;

/// Whose tokens a directory holds, and how many.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub tokenizer: String,
    pub train_sequences: usize,
    pub train_tokens: usize,
    pub held_out_sequences: usize,
    pub held_out_tokens: usize,
    /// Keys or columns of the input that nothing was read from.
    pub unused: Vec<String>,
}

/// Bytes at places of a file.
pub trait ReadAt: Send + Sync + std::fmt::Debug {
    /// Fills `buffer` from byte `start` on.
    fn fill(&self, buffer: &mut [u8], start: u64) -> std::io::Result<()>;
}

impl ReadAt for File {
    fn fill(&self, buffer: &mut [u8], start: u64) -> std::io::Result<()> {
        self.read_exact_at(buffer, start)
    }
}

/// A split that was opened.
#[derive(Debug)]
pub struct Split {
    path: PathBuf,
    bytes: Box<dyn ReadAt>,
    ends: Vec<u64>,
    first_scored: Vec<u32>,
    tokens_at: u64,
    scored_at: u64,
}

#[derive(Deserialize)]
struct Column {
    dtype: String,
    data_offsets: (u64, u64),
}

impl Split {
    /// Opens one split of a directory, refusing tokens of another tokenizer.
    pub fn open(directory: &Path, split: &str, tokenizer: &Tokenizer) -> Result<Self> {
        let path = directory.join(MANIFEST);
        let text = std::fs::read_to_string(&path).at("read", &path)?;
        let manifest: Manifest = serde_json::from_str(&text)
            .map_err(|error| unusable(&path, format!("it is broken: {error}")))?;
        if manifest.tokenizer != tokenizer.fingerprint() {
            return Err(unusable(directory, "another tokenizer made them"));
        }
        let path = directory.join(split);
        let file = File::open(&path).at("open", &path)?;
        let length = file.metadata().at("read", &path)?.len();
        Self::of(&path, Box::new(file), length)
    }

    /// As [`Split::open`], of `length` bytes that may come from elsewhere than a file.
    pub fn of(path: &Path, bytes: Box<dyn ReadAt>, length: u64) -> Result<Self> {
        let header = header(path, bytes.as_ref(), length)?;
        let begin = 8 + header.len() as u64;
        let columns: BTreeMap<String, Column> = serde_json::from_slice(&header)
            .map_err(|error| unusable(path, format!("its header is broken: {error}")))?;
        let column = |name: &str, dtype: &str, width: u64| -> Result<(u64, u64)> {
            let found = columns.get(name).filter(|column| column.dtype == dtype);
            let Some(&Column { data_offsets: (start, end), .. }) = found else {
                return Err(unusable(path, format!("it has no column `{name}` of type {dtype}")));
            };
            match end.checked_sub(start).filter(|size| size.is_multiple_of(width)) {
                Some(size) if begin.saturating_add(end) <= length => {
                    Ok((begin + start, size / width))
                }
                _ => Err(unusable(path, format!("its column `{name}` lies outside of it"))),
            }
        };
        let (ends_at, count) = column("ends", "U64", 8)?;
        let (first_at, firsts) = column("first_scored", "U32", 4)?;
        let (tokens_at, tokens) = column("tokens", "U32", 4)?;
        let (scored_at, scored) = column("scored", "U8", 1)?;
        if firsts != count || scored != tokens {
            return Err(unusable(path, "its columns are not of one length"));
        }
        let read = |at: u64, count: u64| index(path, bytes.as_ref(), at, count);
        let ends: Vec<u64> = read(ends_at, count * 8)?
            .as_chunks()
            .0
            .iter()
            .copied()
            .map(u64::from_le_bytes)
            .collect();
        let first_scored: Vec<u32> = read(first_at, count * 4)?
            .as_chunks()
            .0
            .iter()
            .copied()
            .map(u32::from_le_bytes)
            .collect();
        if ends.is_empty() {
            return Err(unusable(path, "it holds no sequences"));
        }
        if !ends.is_sorted() || ends.last() != Some(&tokens) {
            return Err(unusable(path, "its `ends` are not those of its `tokens`"));
        }
        Ok(Self { path: path.to_owned(), bytes, ends, first_scored, tokens_at, scored_at })
    }

    /// How many sequences there are; never none.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    fn start(&self, index: usize) -> u64 {
        if index == 0 { 0 } else { self.ends[index - 1] }
    }

    /// Tokens of one sequence.
    pub fn length(&self, index: usize) -> usize {
        (self.ends[index] - self.start(index)) as usize
    }

    /// Whether a prediction within the first `length_max` tokens of a sequence counts.
    pub fn is_scored(&self, index: usize, length_max: usize) -> bool {
        let first = self.first_scored[index];
        first != NEVER && (first as usize) < length_max
    }

    /// Reads the first `length_max` tokens of a sequence, and nothing else.
    pub fn sequence(&self, index: usize, length_max: usize) -> Result<Sequence> {
        let (start, length) = (self.start(index), self.length(index).min(length_max));
        let mut tokens = vec![0; length * 4];
        self.bytes.fill(&mut tokens, self.tokens_at + start * 4).at("read", &self.path)?;
        let mut scored = vec![0; length];
        self.bytes.fill(&mut scored, self.scored_at + start).at("read", &self.path)?;
        let tokens = tokens.as_chunks().0.iter().copied().map(u32::from_le_bytes).collect();
        Ok(Sequence { tokens, scored: scored.iter().map(|&scored| scored != 0).collect() })
    }

    /// Refuses data of which no prediction counts, and says what cut it away.
    pub fn check_scored(&self, length_max: usize) -> Result<()> {
        let all = self.count();
        if (0..all).any(|index| self.is_scored(index, length_max)) {
            return Ok(());
        }
        let cut = (0..all).filter(|&index| self.is_scored(index, usize::MAX)).count();
        Err(Error::Usage {
            what: match cut {
                0 => format!("no token is scored in any of {all} sequences"),
                cut => format!(
                    "no token is scored: {cut} of {all} sequences are cut to {length_max} tokens \
                     before their first scored one"
                ),
            },
            hint: match cut {
                0 => "run `het-train tokenize` again, with answers in its input",
                _ => "raise `--seq`",
            },
        })
    }
}

#[cfg(test)]
impl Split {
    /// A split of these, in a file without a name.
    pub fn of_sequences(sequences: &[Sequence]) -> Self {
        let directory = tempfile::tempdir().expect("there is room");
        let path = directory.path().join(TRAIN);
        let mut writer = Writer::new(directory.path()).expect("it can be written");
        for sequence in sequences {
            writer.push(sequence, &path).expect("it can be written");
        }
        writer.finish(&path).expect("it can be written");
        let file = File::open(&path).expect("it is there");
        let length = file.metadata().expect("it is there").len();
        Self::of(&path, Box::new(file), length).expect("it is whole")
    }
}

fn unusable(path: &Path, what: impl Into<String>) -> Error {
    Error::Tokens { path: path.to_owned(), what: what.into() }
}

/// The header of a safetensors file, once its length is known to be possible.
fn header(path: &Path, bytes: &dyn ReadAt, length: u64) -> Result<Vec<u8>> {
    let mut head = [0; 8];
    if length >= 8 {
        bytes.fill(&mut head, 0).at("read", path)?;
    }
    let size = u64::from_le_bytes(head);
    if length < 8 || size > length - 8 {
        return Err(unusable(path, format!("it is {length} bytes long, too short for its header")));
    }
    let mut header = vec![0; size as usize];
    bytes.fill(&mut header, 8).at("read", path)?;
    Ok(header)
}

fn index(path: &Path, bytes: &dyn ReadAt, at: u64, size: u64) -> Result<Vec<u8>> {
    let mut all = vec![0; size as usize];
    let mut at = at;
    for part in all.chunks_mut(INDEX_BUFFER) {
        bytes.fill(part, at).at("read", path)?;
        at += part.len() as u64;
    }
    Ok(all)
}

/// Writes a split column by column, without holding it.
#[derive(Debug)]
pub struct Writer {
    columns: [BufWriter<File>; 4],
    pub sequences: usize,
    pub tokens: usize,
}

const COLUMNS: [(&str, &str); 4] =
    [("ends", "U64"), ("first_scored", "U32"), ("tokens", "U32"), ("scored", "U8")];

impl Writer {
    /// Columns are kept in files without a name below `directory` until the end.
    pub fn new(directory: &Path) -> Result<Self> {
        let column = || tempfile::tempfile_in(directory).map(BufWriter::new);
        let columns = || Ok([column()?, column()?, column()?, column()?]);
        let columns = columns().at("create a file in", directory)?;
        Ok(Self { columns, sequences: 0, tokens: 0 })
    }

    /// Adds one sequence; `path` is named where it cannot be written.
    pub fn push(&mut self, sequence: &Sequence, path: &Path) -> Result<()> {
        self.sequences += 1;
        self.tokens += sequence.tokens.len();
        let first = sequence.scored.iter().skip(1).position(|&scored| scored);
        let first = first.and_then(|first| u32::try_from(first + 1).ok()).unwrap_or(NEVER);
        let tokens: Vec<u8> = sequence.tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        let scored: Vec<u8> = sequence.scored.iter().map(|&scored| u8::from(scored)).collect();
        let ends = (self.tokens as u64).to_le_bytes();
        let first = first.to_le_bytes();
        let parts: [&[u8]; 4] = [&ends, &first, &tokens, &scored];
        for (column, bytes) in self.columns.iter_mut().zip(parts) {
            column.write_all(bytes).at("write", path)?;
        }
        Ok(())
    }

    /// Joins the columns in one file.
    pub fn finish(self, path: &Path) -> Result<()> {
        let (sequences, tokens) = (self.sequences, self.tokens);
        let sizes = [(sequences, 8), (sequences, 4), (tokens, 4), (tokens, 1)];
        let mut header = serde_json::Map::new();
        let mut end = 0;
        for ((name, dtype), (length, width)) in COLUMNS.into_iter().zip(sizes) {
            let start = end;
            end += length * width;
            let column = json!({"dtype": dtype, "shape": [length], "data_offsets": [start, end]});
            header.insert(name.to_owned(), column);
        }
        let mut header = serde_json::Value::Object(header).to_string();
        // The format wants values at multiples of their size.
        header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
        let mut columns = Vec::new();
        for column in self.columns {
            let file = column.into_inner().map_err(|error| error.into_error());
            columns.push(file.at("write", path)?);
        }
        whole::write_with(path, |file| {
            file.write_all(&(header.len() as u64).to_le_bytes())?;
            file.write_all(header.as_bytes())?;
            for column in &mut columns {
                column.rewind()?;
                std::io::copy(column, file)?;
            }
            Ok(())
        })
    }
}
