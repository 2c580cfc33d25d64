//! What somebody asks of the API server, read from an HTTP request.

use http::Method;
use serde_json::Value;

use super::store::{Key, Kind};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Bind,
    Delete,
    /// Of the status.
    Patch,
    Replace,
}

impl Verb {
    pub fn writes(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

#[derive(Debug, Clone)]
pub struct Ask {
    pub verb: Verb,
    /// Its name is empty where all objects are asked for.
    pub key: Key,
    /// After which version a watch goes on.
    pub after: u64,
    pub body: Value,
}

impl Ask {
    /// `None` of what this server does not know.
    pub fn of(method: &Method, uri: &http::Uri, body: &[u8]) -> Option<Self> {
        let parts: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
        let rest = match parts.as_slice() {
            ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] => (*namespace, rest),
            rest => ("", rest),
        };
        let (plural, name, part) = match rest {
            [plural] => (plural, "", ""),
            [plural, name] => (plural, *name, ""),
            [plural, name, part] => (plural, *name, *part),
            _ => return None,
        };
        let query = uri.query().unwrap_or_default();
        let verb = verb_of(method, part, (name, query))?;
        let body = serde_json::from_slice(body).unwrap_or_default();
        let mut key = Key::new(Kind::of_plural(plural)?, namespace, name);
        if verb == Verb::Create {
            key.name = text(&body, "/metadata/name")?.to_owned();
        }
        Some(Self { verb, key, after: after(query), body })
    }

    /// The epoch that a pod or binding names.
    pub fn epoch(&self) -> Option<u64> {
        text(&self.body, "/metadata/annotations/heterosis.dev~1epoch")?.parse().ok()
    }
}

fn verb_of(method: &Method, part: &str, (name, query): (&str, &str)) -> Option<Verb> {
    Some(match (method.as_str(), part) {
        ("GET", "") if !name.is_empty() => Verb::Get,
        ("GET", "") if query.split('&').any(|pair| pair == "watch=true") => Verb::Watch,
        ("GET", "") => Verb::List,
        ("POST", "binding") => Verb::Bind,
        ("POST", "") => Verb::Create,
        ("DELETE", "") => Verb::Delete,
        ("PATCH", "status") => Verb::Patch,
        ("PUT", "") => Verb::Replace,
        _ => return None,
    })
}

fn after(query: &str) -> u64 {
    let version = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion="));
    version.and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// A text inside of an object.
pub fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    object.pointer(pointer).and_then(Value::as_str)
}
