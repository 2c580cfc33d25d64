//! Objects out of JSONL and Parquet files, one at a time, and blocks of text.
//!
//! Of a file no more is held than a buffer and the object or block that is being read:
//! [`BUFFER`] + [`LINE_MAX`] bytes of JSONL, [`BUFFER`] + 2 × [`BLOCK`] of text, and of Parquet the
//! pages of one row group that hold the current row.

use crate::error::{Error, IoContext, Result};
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::record::reader::RowIter;
use serde_json::{Map, Value as Json};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Bytes that a reader takes from a file at once.
pub const BUFFER: usize = 64 << 10;
/// Bytes of the longest line that is read.
pub const LINE_MAX: usize = 16 << 20;
/// Bytes of text that are tokenised at once.
pub const BLOCK: usize = 1 << 20;

/// One object and where it stands, such as `line 3`.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub place: String,
    pub object: Map<String, Json>,
}

/// Lines of JSON objects; empty lines are skipped.
#[derive(Debug)]
pub struct Lines<R> {
    path: PathBuf,
    reader: BufReader<R>,
    number: usize,
    line: Vec<u8>,
}

impl<R: Read> Lines<R> {
    /// `path` names the file in messages.
    pub fn new(path: &Path, reader: R) -> Self {
        let reader = BufReader::with_capacity(BUFFER, reader);
        Self { path: path.to_owned(), reader, number: 0, line: Vec::new() }
    }

    /// The next object; none at the end.
    pub fn next_entry(&mut self) -> Result<Option<Entry>> {
        loop {
            self.line.clear();
            let mut limited = (&mut self.reader).take(LINE_MAX as u64 + 1);
            let read = limited.read_until(b'\n', &mut self.line).at("read", &self.path)?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            if !self.line.trim_ascii().is_empty() {
                let place = format!("line {}", self.number);
                return match object(&self.line) {
                    Ok(object) => Ok(Some(Entry { place, object })),
                    Err((what, hint)) => Err(wrong(&self.path, &place, what, hint)),
                };
            }
        }
    }
}

/// What is wrong with a line, and the next step.
type Broken = (String, &'static str);

fn object(line: &[u8]) -> std::result::Result<Map<String, Json>, Broken> {
    const SAVE: &str = "save the file as UTF-8";
    if line.len() > LINE_MAX {
        let what = format!("it is longer than {} MiB", LINE_MAX >> 20);
        return Err((what, "split the record, or write records that are one a line"));
    }
    let text = std::str::from_utf8(line);
    let text = text
        .map_err(|error| (format!("byte {} of it is not UTF-8", error.valid_up_to() + 1), SAVE))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).trim();
    if text.starts_with('[') {
        let what = "it is a JSON list, not an object".to_owned();
        return Err((what, "write one object a line, as `jq -c '.[]' FILE` does"));
    }
    let read = serde_json::from_str::<Map<String, Json>>(text);
    read.map_err(|error| {
        // Its line is always the first one of what it was given.
        let (what, column) = (error.to_string(), error.column());
        let what = what.strip_suffix(&format!(" at line 1 column {column}")).unwrap_or(&what);
        let what = format!("it is not a JSON object: {what} at column {column}");
        (what, "write one object a line; a text file needs a name that ends in `.txt`")
    })
}

/// An error of one record.
pub fn wrong(path: &Path, place: &str, what: impl Into<String>, hint: &'static str) -> Error {
    Error::Record { path: path.to_owned(), place: place.to_owned(), what: what.into(), hint }
}

/// Rows of a Parquet file.
pub struct Rows {
    path: PathBuf,
    rows: RowIter<'static>,
    number: usize,
}

impl Rows {
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).at("open", path)?;
        let reader = SerializedFileReader::new(file).map_err(|error| parquet(path, &error))?;
        let rows = RowIter::from_file_into(Box::new(reader));
        Ok(Self { path: path.to_owned(), rows, number: 0 })
    }

    /// The next row; none at the end. Columns that are null in it are left out.
    pub fn next_entry(&mut self) -> Result<Option<Entry>> {
        let Some(row) = self.rows.next() else { return Ok(None) };
        self.number += 1;
        let place = format!("row {}", self.number);
        let row = row.map_err(|error| {
            wrong(&self.path, &place, error.to_string(), "write the file again, snappy or plain")
        })?;
        let Json::Object(object) = row.to_json_value() else { return Ok(None) };
        Ok(Some(Entry { place, object }))
    }
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows").field("path", &self.path).field("number", &self.number).finish()
    }
}

fn parquet(path: &Path, error: &parquet::errors::ParquetError) -> Error {
    Error::Corpus {
        path: path.to_owned(),
        what: format!("it is not a sound Parquet file: {error}"),
    }
}

/// Blocks of a text, cut behind the last line that ends in them.
#[derive(Debug)]
pub struct Blocks<R> {
    path: PathBuf,
    reader: R,
    /// Read and not yet handed out.
    rest: Vec<u8>,
    /// Bytes that were handed out.
    before: usize,
}

impl<R: Read> Blocks<R> {
    pub fn new(path: &Path, reader: R) -> Self {
        Self { path: path.to_owned(), reader, rest: Vec::new(), before: 0 }
    }

    /// The next block; none at the end.
    pub fn next_block(&mut self) -> Result<Option<String>> {
        let wanted = (BLOCK.saturating_sub(self.rest.len())) as u64;
        let mut limited = (&mut self.reader).take(wanted);
        let read = limited.read_to_end(&mut self.rest).at("read", &self.path)?;
        if self.rest.is_empty() {
            return Ok(None);
        }
        let is_last = (read as u64) < wanted;
        let end = if is_last { self.rest.len() } else { cut(&self.rest) };
        let after = self.rest.split_off(end);
        let block = std::mem::replace(&mut self.rest, after);
        let text = String::from_utf8(block).map_err(|error| {
            let at = self.before + error.utf8_error().valid_up_to() + 1;
            let what = format!("byte {at} of it is not UTF-8");
            Error::Corpus { path: self.path.clone(), what }
        })?;
        self.before += end;
        Ok(Some(text))
    }
}

/// Behind the last line, or before the last character that may go on, or all.
fn cut(bytes: &[u8]) -> usize {
    if let Some(line) = bytes.iter().rposition(|&byte| byte == b'\n') {
        return line + 1;
    }
    let tail = bytes.iter().rev().take(3).position(|&byte| byte & 0xc0 == 0xc0);
    tail.map_or(bytes.len(), |place| bytes.len() - 1 - place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    /// Repeats a text for ever and counts what was taken of it.
    struct Endless {
        text: &'static [u8],
        taken: Rc<Cell<usize>>,
    }

    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let start = self.taken.get() % self.text.len();
            let part = &self.text[start..];
            let count = part.len().min(buffer.len());
            buffer[..count].copy_from_slice(&part[..count]);
            self.taken.set(self.taken.get() + count);
            Ok(count)
        }
    }

    #[test]
    fn lines_are_never_read_further_ahead_than_the_buffer() {
        let text = b"{\"text\": \"some words\"}\n\n";
        let taken = Rc::new(Cell::new(0));
        let mut lines = Lines::new(Path::new("x"), Endless { text, taken: taken.clone() });
        for number in 1..=20_000 {
            let entry = lines.next_entry().expect("sound").expect("endless");
            assert_eq!(entry.place, format!("line {}", 2 * number - 1));
            let used = number * text.len();
            assert!(taken.get() <= used + BUFFER, "{} of {used}", taken.get());
        }
    }

    #[test]
    fn a_line_without_an_end_is_refused_at_the_bound() {
        let taken = Rc::new(Cell::new(0));
        let mut lines = Lines::new(Path::new("x"), Endless { text: b"[[", taken: taken.clone() });
        let error = lines.next_entry().expect_err("it never ends");
        assert!(error.to_string().contains("line 1 of `x`: it is longer than 16 MiB"), "{error}");
        assert!(taken.get() <= LINE_MAX + 1 + BUFFER);
    }

    #[test]
    fn text_is_never_read_further_ahead_than_a_block() {
        for text in ["one line of text, ünï\n".as_bytes(), "no lines, ünï, at all ✓ ".as_bytes()]
        {
            let taken = Rc::new(Cell::new(0));
            let mut blocks = Blocks::new(Path::new("x"), Endless { text, taken: taken.clone() });
            let mut used = 0;
            for _ in 0..4 {
                let block = blocks.next_block().expect("sound").expect("endless");
                assert!(block.len() <= BLOCK && block.len() + text.len() > BLOCK);
                used += block.len();
                assert!(taken.get() <= used + BLOCK);
            }
        }
    }
}
