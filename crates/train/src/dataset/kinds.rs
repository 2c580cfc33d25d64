//! The kinds of training data: which keys make them, and what a record of each holds.

use super::Example;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// What the records of a file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// `request` and `job`, as `het-train dataset` writes them.
    Requests,
    /// `messages`: `[{"role": …, "content": …}]`
    Messages,
    /// ShareGPT's `conversations`: `[{"from": …, "value": …}]`
    Conversations,
    /// `instruction`, `output` and, where there is one, `input`
    Alpaca,
    /// `prompt` and `completion`
    Completion,
    /// `text`
    Text,
}

const KINDS: [Kind; 6] = [
    Kind::Requests,
    Kind::Messages,
    Kind::Conversations,
    Kind::Alpaca,
    Kind::Completion,
    Kind::Text,
];

/// Keys that change what a model is asked in other trainers; none is known here.
const MEANINGFUL: [&str; 8] = [
    "chat_template_kwargs",
    "documents",
    "functions",
    "history",
    "images",
    "system",
    "tool_calls",
    "tools",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    pub role: Role,
    pub content: String,
}

/// One record, whatever it was written as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    Request(Example),
    Chat(Vec<Turn>),
    Answer { prompt: String, answer: String },
    Text(String),
}

type Read<T> = std::result::Result<T, String>;

impl Kind {
    /// The keys that every record of this kind has.
    pub fn keys(self) -> &'static [&'static str] {
        match self {
            Kind::Requests => &["request", "job"],
            Kind::Messages => &["messages"],
            Kind::Conversations => &["conversations"],
            Kind::Alpaca => &["instruction", "output"],
            Kind::Completion => &["prompt", "completion"],
            Kind::Text => &["text"],
        }
    }

    /// Whether a record of this kind is read from this key.
    pub fn uses(self, key: &str) -> bool {
        self.keys().contains(&key) || (self == Kind::Alpaca && key == "input")
    }

    /// The kind of a file whose first record this is.
    ///
    /// `text` beside the keys of another kind is taken for its rendered form, which such files
    /// often carry.
    pub fn of(object: &Map<String, Json>) -> Read<Self> {
        let has = |key: &&str| object.get(*key).is_some_and(|value| !value.is_null());
        let mut found: Vec<Kind> =
            KINDS.into_iter().filter(|kind| kind.keys().iter().all(&has)).collect();
        if found.len() > 1 {
            found.retain(|&kind| kind != Kind::Text);
        }
        match found[..] {
            [kind] => Ok(kind),
            [] => {
                let keys: Vec<String> = object.keys().map(|key| format!("`{key}`")).collect();
                let keys = if keys.is_empty() { "no keys".into() } else { keys.join(", ") };
                Err(format!("it is of no known kind: it has {keys}"))
            }
            [first, second, ..] => Err(format!(
                "it may be read in two ways, by {} or by {}",
                quoted(first.keys()),
                quoted(second.keys())
            )),
        }
    }

    /// Reads a record of this kind.
    pub fn read(self, object: &Map<String, Json>) -> Read<Record> {
        let meaningful = MEANINGFUL.iter().find(|&&key| object.get(key).is_some_and(is_something));
        if let Some(key) = meaningful {
            return Err(format!("it has `{key}`, which this trainer does not know"));
        }
        let text = |key: &str| self.text(object, key);
        match self {
            Kind::Requests => {
                Ok(Record::Request(Example { request: text("request")?, job: text("job")? }))
            }
            Kind::Messages => turns(self.list(object)?, "messages", "role", "content"),
            Kind::Conversations => turns(self.list(object)?, "conversations", "from", "value"),
            Kind::Alpaca => {
                let input = match object.get("input").filter(|input| !input.is_null()) {
                    Some(_) => text("input")?,
                    None => String::new(),
                };
                let prompt = alpaca(&text("instruction")?, &input);
                Ok(Record::Answer { prompt, answer: text("output")? })
            }
            Kind::Completion => {
                Ok(Record::Answer { prompt: text("prompt")?, answer: text("completion")? })
            }
            Kind::Text => Ok(Record::Text(text("text")?)),
        }
    }

    fn value(self, object: &Map<String, Json>, key: &str) -> Read<Json> {
        match object.get(key) {
            Some(value) if !value.is_null() => Ok(value.clone()),
            _ => Err(format!(
                "it has no `{key}`, but the first record of the file has {}",
                quoted(self.keys())
            )),
        }
    }

    fn text(self, object: &Map<String, Json>, key: &str) -> Read<String> {
        match self.value(object, key)? {
            Json::String(text) => Ok(text),
            Json::Array(_) if self == Kind::Completion => {
                Err(format!("its `{key}` is a list: write both as one list of `messages`"))
            }
            other => Err(format!("its `{key}` is {}, not a text", named(&other))),
        }
    }

    fn list(self, object: &Map<String, Json>) -> Read<Vec<Json>> {
        let key = self.keys()[0];
        match self.value(object, key)? {
            Json::Array(items) => Ok(items),
            other => Err(format!("its `{key}` is {}, not a list", named(&other))),
        }
    }
}

fn quoted(keys: &[&str]) -> String {
    keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(" and ")
}

fn named(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "true or false",
        Json::Number(_) => "a number",
        Json::String(_) => "a text",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

/// Whether a value is there: Parquet fills keys that only some rows have with nulls and empty ones.
fn is_something(value: &Json) -> bool {
    match value {
        Json::Null => false,
        Json::String(text) => !text.is_empty(),
        Json::Array(items) => !items.is_empty(),
        Json::Object(items) => items.values().any(is_something),
        Json::Bool(_) | Json::Number(_) => true,
    }
}

fn turns(items: Vec<Json>, list: &str, role_key: &str, content_key: &str) -> Read<Record> {
    let turns = items.into_iter().enumerate().map(|(index, item)| {
        turn(&item, role_key, content_key).map_err(|what| format!("its `{list}[{index}]` {what}"))
    });
    let turns = turns.collect::<Read<Vec<Turn>>>()?;
    match turns.iter().any(|turn| turn.role == Role::Assistant) {
        true => Ok(Record::Chat(turns)),
        false => Err(format!("its `{list}` hold no answer of an assistant to learn from")),
    }
}

fn turn(item: &Json, role_key: &str, content_key: &str) -> Read<Turn> {
    let Json::Object(object) = item else { return Err(format!("is {}", named(item))) };
    let unknown = object
        .iter()
        .find(|(key, value)| *key != role_key && *key != content_key && is_something(value));
    if let Some((key, _)) = unknown {
        return Err(format!("has `{key}`, which this trainer does not know"));
    }
    let text = |key: &str| match object.get(key) {
        Some(Json::String(text)) => Ok(text.clone()),
        Some(other) => Err(format!("has a `{key}` that is {}, not a text", named(other))),
        None => Err(format!("has no `{key}`")),
    };
    let role = match text(role_key)?.as_str() {
        "system" => Role::System,
        "user" | "human" => Role::User,
        "assistant" | "gpt" => Role::Assistant,
        other => {
            let known = "`system`, `user` (`human`) and `assistant` (`gpt`) are known";
            return Err(format!("is said by `{other}`; {known}"));
        }
    };
    Ok(Turn { role, content: text(content_key)? })
}

/// The prompt of Stanford Alpaca (Taori et al. 2023, `PROMPT_DICT` of its published `train.py`).
fn alpaca(instruction: &str, input: &str) -> String {
    if input.is_empty() {
        return format!(
            "Below is an instruction that describes a task. Write a response that appropriately \
             completes the request.\n\n### Instruction:\n{instruction}\n\n### Response:"
        );
    }
    format!(
        "Below is an instruction that describes a task, paired with an input that provides \
         further context. Write a response that appropriately completes the request.\n\n\
         ### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn kind(value: Json) -> Read<Kind> {
        Kind::of(value.as_object().expect("an object"))
    }

    #[test]
    fn kinds_are_told_apart_by_their_keys() {
        assert_eq!(kind(json!({"messages": [], "prompt": "x", "id": 3})), Ok(Kind::Messages));
        assert_eq!(kind(json!({"instruction": "", "output": "", "text": ""})), Ok(Kind::Alpaca));
        assert_eq!(kind(json!({"text": "a", "prompt": null, "completion": null})), Ok(Kind::Text));
        let two = kind(json!({"prompt": "", "completion": "", "messages": []}));
        assert!(two.expect_err("two kinds").contains("two ways, by `messages` or by `prompt` and"));
        let none = kind(json!({"question": "", "answer": ""})).expect_err("no kind");
        assert!(none.contains("it has `question`, `answer`"), "{none}");
    }

    #[test]
    fn what_would_change_a_prompt_is_refused_by_its_name() {
        let refuse = |kind: Kind, value: Json, says: &str| {
            let what = kind.read(value.as_object().expect("an object")).expect_err(says);
            assert!(what.contains(says), "{what}");
        };
        let user = json!({"role": "user", "content": "a"});
        refuse(Kind::Messages, json!({"messages": [user]}), "no answer of an assistant");
        refuse(Kind::Messages, json!({"messages": [user], "tools": [1]}), "it has `tools`");
        let call = json!({"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]});
        refuse(Kind::Messages, json!({"messages": [user, call]}), "`messages[1]` has `tool_calls`");
        let parts = json!({"role": "user", "content": [{"type": "text"}]});
        refuse(Kind::Messages, json!({"messages": [parts]}), "`content` that is a list");
        let tool = json!({"from": "tool", "value": "a"});
        refuse(Kind::Conversations, json!({"conversations": [tool]}), "is said by `tool`");
        refuse(
            Kind::Completion,
            json!({"prompt": [], "completion": "a"}),
            "one list of `messages`",
        );
    }
}
