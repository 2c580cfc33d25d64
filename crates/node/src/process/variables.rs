//! Environment variables in the form that system calls take.

use std::collections::{HashMap, VecDeque};
use std::ffi::CStr;
use std::fmt::{Display, Write};
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::OFlag;
use nix::unistd::{User, getuid};

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

/// The whole environment of a program: what it inherits, overridden by variables.
#[derive(Debug)]
pub(crate) struct Environment {
    inherited: Arc<Inherited>,
    /// Rows of it that are not overridden.
    rows: Vec<usize>,
    over: Variables,
}

impl Environment {
    /// # Errors
    /// When a name or a value holds a zero byte.
    pub(crate) fn new(inherited: &Arc<Inherited>, over: Variables) -> io::Result<Self> {
        over.pairs().try_for_each(|pair| pair.map(drop))?;
        let mut kept = vec![true; inherited.pairs.len()];
        for (name, _) in over.iter() {
            if let Some(&row) = inherited.by_name.get(name) {
                kept[row] = false;
            }
        }
        let rows = (0..kept.len()).filter(|&row| kept[row]).collect();
        Ok(Self { inherited: Arc::clone(inherited), rows, over })
    }

    /// `NAME=VALUE` each.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = &CStr> {
        let inherited = self.rows.iter().map(|&row| &*self.inherited.pairs[row]);
        // All were checked before.
        inherited.chain(self.over.pairs().flatten())
    }
}

/// What a program has before the variables of its rank: those of whoever submitted it. This
/// process's own are nobody's.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Inherited {
    pairs: Vec<Box<CStr>>,
    by_name: HashMap<String, usize>,
    /// So many come first that were named one by one: they count in containers too.
    named: usize,
}

impl Inherited {
    /// `NAME=VALUE` and a zero byte each; an empty one ends those that were named one by one.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let mut inherited = Self::default();
        for pair in bytes.split_inclusive(|byte| *byte == 0) {
            if pair == b"\0" {
                inherited.named = inherited.pairs.len();
            }
            let Ok(pair) = CStr::from_bytes_with_nul(pair) else { continue };
            let name = pair.to_bytes().split(|byte| *byte == b'=').next().unwrap_or_default();
            let Ok(name) = std::str::from_utf8(name) else { continue };
            if !name.is_empty() && !inherited.by_name.contains_key(name) {
                inherited.by_name.insert(name.to_owned(), inherited.pairs.len());
                inherited.pairs.push(pair.into());
            }
        }
        inherited
    }

    /// Of a job that nobody gave variables: what a login has before it reads any file.
    pub(crate) fn of_this_user() -> Self {
        let user = User::from_uid(getuid()).ok().flatten();
        let rows = user.map(|user| {
            let text = |path: &Path| path.to_string_lossy().into_owned();
            let (home, shell) = (text(&user.dir), text(&user.shell));
            [("HOME", home), ("LOGNAME", user.name.clone()), ("SHELL", shell), ("USER", user.name)]
        });
        let path = ("PATH", PATH_OF_A_LOGIN.to_owned());
        let mut bytes = Vec::new();
        for (name, value) in rows.into_iter().flatten().chain([path]) {
            bytes.extend([name, "=", &value, "\0"].into_iter().flat_map(str::bytes));
        }
        Self::parse(&bytes)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let pair = self.pairs[*self.by_name.get(name)?].to_str().ok()?;
        pair.split_once('=').map(|(_, value)| value)
    }

    /// Names and values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().filter_map(|pair| pair.to_str().ok()?.split_once('='))
    }

    /// Names of those that were named one by one.
    pub(crate) fn named(&self) -> impl Iterator<Item = &str> {
        let pairs = self.pairs[..self.named].iter().filter_map(|pair| pair.to_str().ok());
        pairs.filter_map(|pair| Some(pair.split_once('=')?.0))
    }
}

/// Where login(1) looks for programs.
const PATH_OF_A_LOGIN: &str = "/usr/local/bin:/usr/bin:/bin";

/// What files with the variables of submitters hold. A file never changes: its name says what is
/// in it.
#[derive(Debug, Default)]
pub(crate) struct Environments {
    known: VecDeque<(String, Arc<Inherited>)>,
    of_this_user: Option<Arc<Inherited>>,
}

/// Files that are remembered.
const KNOWN_MAX: usize = 64;

/// Longest file that is read.
const BYTES_MAX: u64 = 1 << 20;

impl Environments {
    /// What is in a file; the variables of a login without one.
    ///
    /// # Errors
    /// When it cannot be read, or is no plain file.
    pub(crate) fn of(&mut self, file: Option<&str>) -> io::Result<Arc<Inherited>> {
        let Some(path) = file else {
            let new = || Arc::new(Inherited::of_this_user());
            return Ok(Arc::clone(self.of_this_user.get_or_insert_with(new)));
        };
        if let Some((_, known)) = self.known.iter().find(|(known, _)| known == path) {
            return Ok(Arc::clone(known));
        }
        let inherited = Arc::new(Inherited::parse(&read(path)?));
        if self.known.len() == KNOWN_MAX {
            self.known.pop_front();
        }
        self.known.push_back((path.to_owned(), Arc::clone(&inherited)));
        Ok(inherited)
    }
}

fn read(path: &str) -> io::Result<Vec<u8>> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

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
    fn a_variable_hides_what_is_inherited() {
        let inherited = Arc::new(Inherited::parse(b"LR=1\0\0PATH=/bin\0LR=2\0=x\0PART"));
        assert_eq!(inherited.named().collect::<Vec<_>>(), ["LR"]);
        assert_eq!((inherited.get("LR"), inherited.get("PATH")), (Some("1"), Some("/bin")));
        let mut variables = Variables::new();
        variables.set("PATH", "/nowhere");
        let environment = Environment::new(&inherited, variables).expect("no byte is zero");
        assert_eq!(environment.pairs().collect::<Vec<_>>(), [c"LR=1", c"PATH=/nowhere"]);
    }

    #[test]
    fn a_file_of_variables_is_a_plain_file() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = dir.path().join("a.env");
        std::fs::write(&path, b"A=1\0").expect("a file can be written");
        let mut environments = Environments::default();
        let mut of = |path: &Path| environments.of(path.to_str());
        assert_eq!(of(&path).expect("it is there").get("A"), Some("1"));
        let link = dir.path().join("link.env");
        std::os::unix::fs::symlink(&path, &link).expect("a link can be made");
        assert!(of(&link).is_err() && of(dir.path()).is_err());
    }

    #[test]
    fn a_zero_byte_is_refused() {
        let mut variables = Variables::new();
        variables.set("A", "1\u{0}B=2");
        assert!(Environment::new(&Arc::default(), variables).is_err());
    }
}
