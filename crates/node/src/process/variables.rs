//! Environment variables in the form that system calls take.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fmt::{Display, Write};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::sync::LazyLock;

/// Facts that some starts lack: those of an outer job must not leak into an inner one.
const NOT_INHERITED: [&str; 16] = [
    "HET_CHECKPOINT_DIR",
    "HET_CHECKPOINT_EVERY",
    "HET_MEAN_TIME_BETWEEN_FAILURES",
    "HET_PRECISION",
    "HET_RESUME_FROM",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "NNODES",
    "NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_NNODES",
    "PET_NODE_RANK",
    "PET_NPROC_PER_NODE",
    "RANK",
    "WORLD_SIZE",
];

/// Room for the variables of most ranks.
const ROWS: usize = 48;
const TEXT_BYTES: usize = 2_048;

/// Variables by name, in one text: allocating each would double the cost of a start.
#[derive(Debug)]
pub(crate) struct Variables {
    /// `NAME=VALUE` and a zero byte each, with overridden ones among them.
    text: String,
    rows: Vec<Row>,
}

/// Where a variable lies in the text.
#[derive(Debug, Clone)]
struct Row {
    name: Range<usize>,
    value: Range<usize>,
}

impl Variables {
    pub(crate) fn new() -> Self {
        Self { text: String::with_capacity(TEXT_BYTES), rows: Vec::with_capacity(ROWS) }
    }

    /// Sets a variable, also where it was set before.
    pub(crate) fn set(&mut self, name: &str, value: impl Display) {
        let start = self.text.len();
        self.text.push_str(name);
        let name = start..self.text.len();
        self.text.push('=');
        let start = self.text.len();
        // Writing to a `String` cannot fail.
        let _ = write!(self.text, "{value}");
        let value = start..self.text.len();
        self.text.push('\0');
        let row = Row { name, value };
        // As bytes: the ranges are known to be at character boundaries.
        let text = self.text.as_bytes();
        let is_same = |other: &&mut Row| text[other.name.clone()] == text[row.name.clone()];
        match self.rows.iter_mut().find(is_same) {
            Some(old) => *old = row,
            None => self.rows.push(row),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Names and values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rows.iter().map(|row| (&self.text[row.name.clone()], &self.text[row.value.clone()]))
    }

    fn pairs(&self) -> impl Iterator<Item = Result<&CStr, io::Error>> {
        self.rows.iter().map(|row| {
            let pair = &self.text.as_bytes()[row.name.start..=row.value.end];
            CStr::from_bytes_with_nul(pair).map_err(|_| io::ErrorKind::InvalidInput.into())
        })
    }
}

/// The whole environment of a program: that of this process, overridden by variables.
#[derive(Debug)]
pub(crate) struct Environment {
    own: Vec<&'static CStr>,
    over: Variables,
}

impl Environment {
    /// # Errors
    /// When a name or a value holds a zero byte.
    pub(crate) fn own_and(over: Variables) -> io::Result<Self> {
        over.pairs().try_for_each(|pair| pair.map(drop))?;
        let mut own: Vec<Option<&CStr>> =
            OWN.pairs.iter().map(|pair| Some(pair.as_ref())).collect();
        for (name, _) in over.iter() {
            if let Some(&index) = OWN.by_name.get(name) {
                own[index] = None;
            }
        }
        Ok(Self { own: own.into_iter().flatten().collect(), over })
    }

    /// `NAME=VALUE` each.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = &CStr> {
        // All were checked before.
        self.own.iter().copied().chain(self.over.pairs().flatten())
    }
}

/// This process's own environment, which does not change, without [`NOT_INHERITED`].
struct Own {
    pairs: Vec<Box<CStr>>,
    /// Names that are valid text: no others are ever set.
    by_name: HashMap<String, usize>,
}

static OWN: LazyLock<Own> = LazyLock::new(|| {
    let mut own = Own { pairs: Vec::new(), by_name: HashMap::new() };
    for (name, value) in std::env::vars_os() {
        let pair = [name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat();
        let (Ok(pair), name) = (CStr::from_bytes_with_nul(&pair), name.to_str()) else { continue };
        if name.is_some_and(|name| NOT_INHERITED.contains(&name)) {
            continue;
        }
        own.by_name.extend(name.map(|name| (name.to_owned(), own.pairs.len())));
        own.pairs.push(pair.into());
    }
    own
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_value_wins_at_the_place_of_the_earlier() {
        let mut variables = Variables::new();
        for (name, value) in [("A", "1"), ("AB", "2"), ("A", "three"), ("B", "")] {
            variables.set(name, value);
        }
        let rows: Vec<_> = variables.iter().collect();
        assert_eq!(rows, [("A", "three"), ("AB", "2"), ("B", "")]);
        assert_eq!((variables.get("AB"), variables.get("C")), (Some("2"), None));
    }

    #[test]
    fn a_variable_hides_this_processs_own() {
        let mut variables = Variables::new();
        variables.set("PATH", "/nowhere");
        let environment = Environment::own_and(variables).expect("no byte is zero");
        let paths = environment.pairs().filter(|pair| pair.to_bytes().starts_with(b"PATH="));
        assert_eq!(paths.collect::<Vec<_>>(), [c"PATH=/nowhere"]);
    }

    #[test]
    fn a_zero_byte_is_refused() {
        let mut variables = Variables::new();
        variables.set("A", "1\u{0}B=2");
        assert!(Environment::own_and(variables).is_err());
    }
}
