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
pub(crate) fn text(path: &Path) -> Result<String, WorkloadError> {
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

/// A file of comma-separated values with a header. Its fields hold no commas and no quotes, unless
/// it is `quoted`.
#[derive(Debug)]
pub(crate) struct CsvTable {
    path: PathBuf,
    text: String,
    separator: char,
    quotes: Quotes,
}

/// Whether a field may stand in quotes, with separators in it.
#[derive(Debug, Clone, Copy)]
enum Quotes {
    Never,
    Around,
}

impl CsvTable {
    /// # Errors
    /// When the file cannot be read.
    pub fn read(path: &Path) -> Result<Self, WorkloadError> {
        Ok(Self::of(path, &text(path)?))
    }

    pub fn of(path: &Path, text: &str) -> Self {
        let quotes = Quotes::Never;
        Self { path: path.to_owned(), text: text.to_owned(), separator: ',', quotes }
    }

    /// The same, with something else than commas between the fields.
    pub fn separated_by(self, separator: char) -> Self {
        Self { separator, ..self }
    }

    /// The same, where fields with separators in them stand in quotes. A quote inside is doubled
    /// and stays so; no field goes over the end of a line.
    pub fn quoted(self) -> Self {
        Self { quotes: Quotes::Around, ..self }
    }

    fn split<'a>(&'a self, line: usize, text: &'a str) -> Fields<'a> {
        match self.quotes {
            Quotes::Never => Fields::split(&self.path, line, text, self.separator),
            Quotes::Around => Fields::split_quoted(&self.path, line, text, self.separator),
        }
    }

    fn lines(&self) -> impl Iterator<Item = Fields<'_>> {
        let lines = self.text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        lines.map(|(index, line)| self.split(index + 1, line))
    }

    /// Where the named columns stand; their order differs between files.
    ///
    /// # Errors
    /// With the first name that the header does not have.
    pub fn columns<const N: usize>(&self, names: [&str; N]) -> Result<[usize; N], TraceError> {
        let header = self.header();
        let mut found = [0; N];
        for (place, name) in found.iter_mut().zip(names) {
            let missing = || header.wrong(0, format!("the header has no `{name}`"));
            *place = header.position(name).ok_or_else(missing)?;
        }
        Ok(found)
    }

    /// Where a column stands that not every file of its kind has.
    pub fn column_if_any(&self, name: &str) -> Option<usize> {
        self.header().position(name)
    }

    fn header(&self) -> Fields<'_> {
        let empty = Fields::split(&self.path, 1, "", self.separator);
        self.lines().next().unwrap_or(empty)
    }

    /// Every row below the header.
    ///
    /// # Errors
    /// The first that `read` has.
    pub fn rows<T>(
        &self,
        read: impl FnMut(Fields<'_>) -> Result<T, TraceError>,
    ) -> Result<Vec<T>, WorkloadError> {
        Ok(self.lines().skip(1).map(read).collect::<Result<_, _>>()?)
    }
}

/// One line of separated fields, with the columns where they start.
pub(crate) struct Fields<'a> {
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

    /// The same, with fields that may stand in quotes.
    fn split_quoted(path: &'a Path, line: usize, text: &'a str, separator: char) -> Self {
        let mut inside = false;
        let outside = |c: char| {
            inside ^= c == '"';
            !inside && c == separator
        };
        let mut column = 1;
        let fields = text.trim_end_matches('\r').split(outside).map(|field| {
            let start = column;
            column += field.chars().count() + 1;
            let bare = field.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            (start, bare.unwrap_or(field))
        });
        Self { path, line, fields: fields.collect() }
    }

    pub fn len(&self) -> usize {
        self.fields.len()
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|(_, field)| field.trim() == name)
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
