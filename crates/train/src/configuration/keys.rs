//! A JSON object that knows which of its keys were used.

use serde_json::{Map, Value as Json};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Why a configuration is refused: the key, its value, and what would do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{key}` is `{value}`; {expected}")]
pub struct Refusal {
    pub key: String,
    pub value: String,
    pub expected: String,
}

pub type Read<T> = std::result::Result<T, Refusal>;

/// Beyond any real model, so that products of two sizes never overflow.
const SIZE_MAX: usize = 1 << 30;

/// Keys of one object; each read marks its key as used.
#[derive(Debug)]
pub struct Keys<'a> {
    /// What stands before a key in messages, such as `rope_scaling.`
    prefix: String,
    map: &'a Map<String, Json>,
    used: RefCell<BTreeSet<&'a str>>,
}

impl<'a> Keys<'a> {
    pub fn new(map: &'a Map<String, Json>, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), map, used: RefCell::default() }
    }

    /// The value of a key; `null` counts as absent.
    fn get(&self, key: &str) -> Option<&'a Json> {
        let (key, value) = self.map.get_key_value(key)?;
        self.used.borrow_mut().insert(key);
        Some(value).filter(|value| !value.is_null())
    }

    /// Refuses the value of `key`.
    pub fn refuse<T>(&self, key: &str, expected: impl Into<String>) -> Read<T> {
        let value = self.map.get(key).map_or_else(|| "absent".to_owned(), shortened);
        Err(Refusal { key: format!("{}{key}", self.prefix), value, expected: expected.into() })
    }

    fn read<T>(
        &self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Json) -> Option<T>,
    ) -> Read<Option<T>> {
        match self.get(key).map(convert) {
            None => Ok(None),
            Some(Some(value)) => Ok(Some(value)),
            Some(None) => self.refuse(key, expected),
        }
    }

    pub fn size(&self, key: &str) -> Read<Option<usize>> {
        let limited = |value: &Json| value.as_u64()?.try_into().ok().filter(|&v| v <= SIZE_MAX);
        self.read(key, "it must be a whole number of a possible size", limited)
    }

    pub fn required_size(&self, key: &str) -> Read<usize> {
        match self.size(key)? {
            Some(size) => Ok(size),
            None => self.refuse(key, "it must be a whole number"),
        }
    }

    pub fn real(&self, key: &str) -> Read<Option<f64>> {
        self.read(key, "it must be a finite number", |v| v.as_f64().filter(|v| v.is_finite()))
    }

    /// A number above zero.
    pub fn positive(&self, key: &str) -> Read<Option<f64>> {
        self.read(key, "it must be a number above 0", |value| {
            value.as_f64().filter(|value| value.is_finite() && *value > 0.0)
        })
    }

    /// As [`Keys::positive`]; `null` says that there is none, an absent key means `default`.
    pub fn positive_or_null(&self, key: &str, default: Option<f64>) -> Read<Option<f64>> {
        match self.map.get(key) {
            None => Ok(default),
            Some(_) => self.positive(key),
        }
    }

    /// As [`Keys::size`]; `null` says that there is none, an absent key means `default`.
    pub fn size_or_null(&self, key: &str, default: Option<usize>) -> Read<Option<usize>> {
        match self.map.get(key) {
            None => Ok(default),
            Some(_) => self.size(key),
        }
    }

    /// A whole number that may be below zero.
    pub fn integer(&self, key: &str) -> Read<Option<i64>> {
        self.read(key, "it must be a whole number", Json::as_i64)
    }

    pub fn flag(&self, key: &str) -> Read<Option<bool>> {
        self.read(key, "it must be true or false", Json::as_bool)
    }

    pub fn text(&self, key: &str) -> Read<Option<&'a str>> {
        self.read(key, "it must be a text", Json::as_str)
    }

    pub fn list(&self, key: &str) -> Read<Option<&'a [Json]>> {
        self.read(key, "it must be a list", |value| value.as_array().map(Vec::as_slice))
    }

    /// An object below a key.
    pub fn object(&self, key: &str) -> Read<Option<Keys<'a>>> {
        self.read(key, "it must be an object", |value| {
            Some(Keys::new(value.as_object()?, format!("{}{key}.", self.prefix)))
        })
    }

    pub fn has(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(|value| !value.is_null())
    }

    /// Refuses the first key that nothing used, unless `harmless` says that it changes nothing.
    pub fn finish(&self, harmless: impl Fn(&str, &Json) -> bool) -> Read<()> {
        let used = self.used.borrow();
        let unused = self.map.iter().filter(|(key, _)| !used.contains(key.as_str()));
        match unused.into_iter().find(|(key, value)| !harmless(key, value)) {
            None => Ok(()),
            Some((key, _)) => self.refuse(key, "this trainer does not know what it asks for"),
        }
    }
}

/// A value in a message, as JSON writes it, so that `"1"` is not taken for `1`: long ones are cut.
fn shortened(value: &Json) -> String {
    const LENGTH_MAX: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LENGTH_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
