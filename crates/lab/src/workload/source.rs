//! Text files, packed or not, and where in them something is wrong.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::WorkloadError;

/// A place in a file, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spot {
    pub path: PathBuf,
    pub line: usize,
    pub column: usize,
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.path.display(), self.line, self.column)
    }
}

/// A line that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{spot}: {reason}")]
pub struct TraceError {
    pub spot: Spot,
    pub reason: String,
}

/// The whole text of a file; `.gz` is unpacked.
pub(super) fn text(path: &Path) -> Result<String, WorkloadError> {
    let unreadable = |source| WorkloadError::Unreadable { path: path.to_owned(), source };
    let bytes = std::fs::read(path).map_err(unreadable)?;
    let packed = path.extension().is_some_and(|extension| extension == "gz");
    let mut text = String::new();
    let read = if packed {
        flate2::read::GzDecoder::new(bytes.as_slice()).read_to_string(&mut text)
    } else {
        bytes.as_slice().read_to_string(&mut text)
    };
    read.map_err(unreadable)?;
    Ok(text)
}

/// One line of separated fields, with the columns where they start.
pub(super) struct Fields<'a> {
    path: &'a Path,
    line: usize,
    fields: Vec<(usize, &'a str)>,
}

impl<'a> Fields<'a> {
    /// `line` counts from 1.
    pub fn split(path: &'a Path, line: usize, text: &'a str, separator: char) -> Self {
        let mut column = 1;
        let fields = text.trim_end_matches('\r').split(separator).map(|field| {
            let start = column;
            column += field.chars().count() + 1;
            (start, field)
        });
        Self { path, line, fields: fields.collect() }
    }

    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// # Errors
    /// When the line has fewer fields.
    pub fn text(&self, index: usize, name: &str) -> Result<&'a str, TraceError> {
        let field = self.fields.get(index).map(|(_, field)| *field);
        field.ok_or_else(|| self.wrong(self.len(), format!("`{name}` is missing")))
    }

    /// # Errors
    /// When the field is missing or is no number of this kind.
    pub fn number<T: std::str::FromStr>(&self, index: usize, name: &str) -> Result<T, TraceError> {
        let text = self.text(index, name)?;
        let parsed = text.trim().parse();
        parsed.map_err(|_| self.wrong(index, format!("`{name}` is `{text}`, not such a number")))
    }

    /// An error at a field.
    pub fn wrong(&self, index: usize, reason: String) -> TraceError {
        let column = self.fields.get(index).or(self.fields.last()).map_or(1, |(start, _)| *start);
        let spot = Spot { path: self.path.to_owned(), line: self.line, column };
        TraceError { spot, reason }
    }
}
