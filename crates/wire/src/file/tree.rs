//! YAML as a tree in which every key and value knows its place. The only module that names the YAML
//! library.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::{Location, Spanned};

use super::problem::{Place, Problem, Severity};

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    pub value: Node,
    pub place: Place,
}

#[derive(Debug, Clone)]
pub(crate) enum Node {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    Text(String),
    List(Vec<Tree>),
    Map(Vec<Entry>),
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub key: String,
    pub key_place: Place,
    pub value: Tree,
}

/// Files larger than this are refused before they are parsed.
const BYTES_MAX: usize = 256 * 1024;
/// Most values of a file, lists and maps included, with what aliases (`*name`) repeat.
const VALUES_MAX: usize = 20_000;
/// Most lists and maps inside each other.
const DEPTH_MAX: usize = 32;
/// Most aliases.
const ALIASES_MAX: usize = 1_000;

impl Tree {
    /// What is wrong with the value that stands here.
    pub fn problem(&self, message: impl Into<String>, hint: impl Into<Option<String>>) -> Problem {
        Problem {
            severity: Severity::Error,
            place: self.place,
            length: self.length(),
            message: message.into(),
            hint: hint.into(),
        }
    }

    /// `kind` is what `het schema` calls such a file.
    pub fn parse(text: &str, kind: &str) -> Result<Self, Problem> {
        let at_start = |message: String, hint: &str| Problem {
            severity: Severity::Error,
            place: Place { line: 1, column: 1 },
            length: 1,
            message,
            hint: Some(hint.to_owned()),
        };
        if text.len() > BYTES_MAX {
            let message = format!("the file has {} bytes, more than {BYTES_MAX}", text.len());
            return Err(at_start(message, "keep data in files of its own and name them here"));
        }
        if text.trim().is_empty() {
            return Err(at_start("the file is empty".into(), &format!("see `het schema {kind}`")));
        }
        let limits = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_nodes: VALUES_MAX,
                max_depth: DEPTH_MAX,
                flow_nesting_limit: DEPTH_MAX,
                max_aliases: ALIASES_MAX,
            },
            alias_limits: serde_saphyr::alias_limits! {
                max_total_replayed_events: VALUES_MAX,
                max_replay_stack_depth: DEPTH_MAX,
            },
        };
        let read = serde_saphyr::from_str_with_options::<Spanned<Node>>(text, limits);
        read.map(Self::from).map_err(|error| {
            let place = error.location().map_or(Place { line: 1, column: 1 }, |at| place(&at));
            let message = error.without_snippet().to_string();
            let message = message.lines().next().unwrap_or("the YAML cannot be read");
            // The place is shown by the caret.
            let message = message.split(" at line ").next().unwrap_or(message);
            let hint = Some("check indentation and quotes".to_owned());
            let message = message.to_owned();
            Problem { severity: Severity::Error, place, length: 1, message, hint }
        })
    }

    /// The same data without places.
    pub fn to_json(&self) -> Value {
        match &self.value {
            Node::Null => Value::Null,
            Node::Bool(value) => Value::Bool(*value),
            Node::Number(value) => Value::Number(value.clone()),
            Node::Text(value) => Value::String(value.clone()),
            Node::List(items) => items.iter().map(Tree::to_json).collect(),
            Node::Map(entries) => {
                entries.iter().map(|entry| (entry.key.clone(), entry.value.to_json())).collect()
            }
        }
    }

    /// Follows a JSON pointer as far as it leads.
    pub fn at(&self, pointer: &str) -> &Tree {
        let steps = pointer.split('/').skip(1);
        steps.fold(self, |tree, step| {
            let step = step.replace("~1", "/").replace("~0", "~");
            let next = match &tree.value {
                Node::Map(entries) => {
                    entries.iter().find(|entry| entry.key == step).map(|entry| &entry.value)
                }
                Node::List(items) => step.parse::<usize>().ok().and_then(|i| items.get(i)),
                _ => None,
            };
            next.unwrap_or(tree)
        })
    }

    pub fn get(&self, key: &str) -> Option<&Tree> {
        self.entry(key).map(|entry| &entry.value)
    }

    pub fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Node::Map(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    /// The items of a list; nothing of what is none.
    pub fn items(&self) -> impl Iterator<Item = &Tree> {
        match &self.value {
            Node::List(items) => items.iter(),
            _ => [].iter(),
        }
    }

    /// The keys of a map; nothing of what is none.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let entries = match &self.value {
            Node::Map(entries) => entries.iter(),
            _ => [].iter(),
        };
        entries.map(|entry| entry.key.as_str())
    }

    /// The text of a field.
    pub fn text(&self, key: &str) -> Option<&str> {
        match &self.get(key)?.value {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Gives the value and all that is in it one place.
    pub fn stand_at(&mut self, place: Place) {
        self.place = place;
        match &mut self.value {
            Node::List(items) => items.iter_mut().for_each(|item| item.stand_at(place)),
            Node::Map(entries) => entries.iter_mut().for_each(|entry| {
                entry.key_place = place;
                entry.value.stand_at(place);
            }),
            _ => {}
        }
    }

    /// Characters to underline for this value.
    pub fn length(&self) -> usize {
        match &self.value {
            Node::Text(text) => text.lines().next().unwrap_or_default().chars().count(),
            Node::Number(number) => number.to_string().len(),
            Node::Bool(value) => value.to_string().len(),
            Node::Null | Node::List(_) | Node::Map(_) => 1,
        }
    }
}

fn place(location: &Location) -> Place {
    Place { line: (location.line() as usize).max(1), column: (location.column() as usize).max(1) }
}

impl From<Spanned<Node>> for Tree {
    fn from(spanned: Spanned<Node>) -> Self {
        Self { place: place(&spanned.referenced), value: spanned.value }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        let number = serde_json::Number::from_f64(value);
        Ok(number.map_or_else(|| Node::Text(value.to_string()), Node::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<Spanned<Node>>()? {
            list.push(Tree::from(item));
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            let value = entries.next_value::<Spanned<Node>>()?;
            map.push(Entry {
                key_place: place(&key.referenced),
                key: key.value,
                value: Tree::from(value),
            });
        }
        Ok(Node::Map(map))
    }
}
