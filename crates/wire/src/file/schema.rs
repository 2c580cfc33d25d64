//! The JSON Schema of a file, and what a tree has against it.

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{ValidationError, Validator};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::problem::{Problem, Severity};
use super::tree::Tree;
use crate::words::closest;

/// What a file has to look like.
pub(crate) struct Form {
    /// What `het schema` calls it.
    kind: &'static str,
    schema: Value,
    validator: Validator,
    /// How to write a field, for those who got it wrong.
    example_of: fn(&str) -> String,
}

impl Form {
    pub fn of(
        kind: &'static str,
        schema: schemars::Schema,
        example_of: fn(&str) -> String,
    ) -> Self {
        let schema = schema.to_value();
        let validator =
            jsonschema::validator_for(&schema).expect("generated schemas compile, tested");
        Self { kind, schema, validator, example_of }
    }

    /// The tree of a text that has this form, and what it says.
    ///
    /// # Errors
    /// Everything in it that the form does not allow.
    pub fn read<T: DeserializeOwned>(&self, text: &str) -> Result<(Tree, T), Vec<Problem>> {
        let tree = Tree::parse(text, self.kind).map_err(|problem| vec![problem])?;
        let wrong = self.problems(&tree);
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let hint = || format!("see `het schema {}`", self.kind);
        let said = serde_json::from_value(tree.to_json())
            .map_err(|error| vec![tree.problem(error.to_string(), hint())])?;
        Ok((tree, said))
    }

    /// Everything in the tree that the form does not allow.
    pub fn problems(&self, tree: &Tree) -> Vec<Problem> {
        let json = tree.to_json();
        self.validator.iter_errors(&json).flat_map(|error| self.problem(tree, &error)).collect()
    }

    fn problem(&self, tree: &Tree, error: &ValidationError<'_>) -> Vec<Problem> {
        let example_of = self.example_of;
        let pointer = error.instance_path().as_str().to_owned();
        let at = tree.at(&pointer);
        let name = pointer.rsplit('/').next().unwrap_or_default().to_owned();
        let value = |message: String, hint: Option<String>| vec![at.problem(message, hint)];
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected }
            | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
                let known = known_keys(&self.schema, &pointer);
                unexpected.iter().map(|key| unknown_key(at, key, &known)).collect()
            }
            ValidationErrorKind::Required { property } => {
                let property = property.as_str().unwrap_or_default();
                value(format!("`{property}` is missing"), Some(example_of(property)))
            }
            ValidationErrorKind::Type { kind } => {
                let kinds = match kind {
                    TypeKind::Single(kind) => vec![kind.to_string()],
                    TypeKind::Multiple(kinds) => {
                        kinds.iter().map(|kind| kind.to_string()).collect()
                    }
                };
                let words = kinds.iter().filter(|kind| *kind != "null").map(|kind| type_word(kind));
                let wanted = words.collect::<Vec<_>>().join(" or ");
                let found = kind_of(&at.to_json());
                value(format!("`{name}` wants {wanted}, not {found}"), Some(example_of(&name)))
            }
            ValidationErrorKind::Enum { options } => {
                let options = texts(options);
                let text = at.to_json().as_str().unwrap_or_default().to_owned();
                one_of(&name, &text, &options, value)
            }
            ValidationErrorKind::OneOfNotValid { context }
            | ValidationErrorKind::AnyOf { context } => {
                let options = constants(&self.schema, error);
                let text = at.to_json().as_str().unwrap_or_default().to_owned();
                match meant(context, error) {
                    _ if !options.is_empty() => one_of(&name, &text, &options, value),
                    // Of a list the example says more than what one of its words is not.
                    Some(branch) if at.to_json().is_object() => {
                        branch.iter().flat_map(|error| self.problem(tree, error)).collect()
                    }
                    _ => value(format!("`{name}` has the wrong form"), Some(example_of(&name))),
                }
            }
            ValidationErrorKind::Pattern { .. } => value(
                format!("`{name}` may hold lower-case letters, digits and dashes only"),
                Some("for example `llama-lora`".to_owned()),
            ),
            ValidationErrorKind::MinItems { .. } | ValidationErrorKind::MinLength { .. } => {
                value(format!("`{name}` is empty"), Some(example_of(&name)))
            }
            ValidationErrorKind::MaxItems { limit } => {
                let count = at.items().count();
                value(format!("`{name}` has {count} items, more than {limit}"), None)
            }
            // The value itself may be the whole file.
            _ => value(format!("`{name}`: {}", error.masked()), None),
        }
    }
}

/// Of several forms that a value may have the one that its writer meant: the only one of its type.
fn meant<'a>(
    branches: &'a [Vec<ValidationError<'static>>],
    error: &ValidationError<'_>,
) -> Option<&'a [ValidationError<'static>]> {
    let is_of_type = |branch: &&Vec<ValidationError<'static>>| {
        !branch.iter().any(|inner| {
            inner.instance_path() == error.instance_path()
                && matches!(inner.kind(), ValidationErrorKind::Type { .. })
        })
    };
    let mut of_type = branches.iter().filter(is_of_type);
    of_type.next().filter(|_| of_type.next().is_none()).map(Vec::as_slice)
}

fn one_of(
    name: &str,
    text: &str,
    options: &[String],
    problem: impl Fn(String, Option<String>) -> Vec<Problem>,
) -> Vec<Problem> {
    let listed: Vec<String> = options.iter().map(|option| format!("`{option}`")).collect();
    let hint = closest(text, options.iter().map(String::as_str))
        .map(|near| format!("did you mean `{near}`?"));
    problem(format!("`{name}` is one of {}, not `{text}`", listed.join(", ")), hint)
}

fn texts(options: &Value) -> Vec<String> {
    let list = options.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(|option| option.as_str().map(str::to_owned)).collect()
}

/// The constants of a choice, read from the schema at the place that failed.
fn constants(whole: &Value, error: &ValidationError<'_>) -> Vec<String> {
    let schema = schema_at(whole, error);
    let branches = ["oneOf", "anyOf"].iter().find_map(|key| schema.get(key)?.as_array().cloned());
    let branches = branches.or_else(|| schema.as_array().cloned()).unwrap_or_default();
    branches
        .iter()
        .flat_map(|branch| match branch.get("const") {
            Some(Value::String(word)) => vec![word.clone()],
            _ => texts(branch.get("enum").unwrap_or(&Value::Null)),
        })
        .collect()
}

/// The part of the schema that an error came from, references followed.
fn schema_at(whole: &Value, error: &ValidationError<'_>) -> Value {
    let mut at = whole.clone();
    for step in error.schema_path().as_str().split('/').skip(1) {
        at = follow(whole, &at);
        if step == "$ref" {
            continue;
        }
        let next = match &at {
            Value::Array(items) => step.parse::<usize>().ok().and_then(|i| items.get(i)).cloned(),
            other => other.get(step).cloned(),
        };
        at = next.unwrap_or(Value::Null);
    }
    follow(whole, &at)
}

fn follow(whole: &Value, schema: &Value) -> Value {
    match schema.get("$ref").and_then(Value::as_str) {
        Some(reference) => {
            whole.pointer(reference.trim_start_matches('#')).cloned().unwrap_or(Value::Null)
        }
        None => schema.clone(),
    }
}

/// The keys that the object at `pointer` may have.
fn known_keys(whole: &Value, pointer: &str) -> Vec<String> {
    let mut at = follow(whole, whole);
    for step in pointer.split('/').skip(1) {
        let property = at.get("properties").and_then(|all| all.get(step));
        let any = || at.get("items").or_else(|| at.get("additionalProperties"));
        let next = property.or_else(any).cloned();
        let next = next.map(|schema| inside_choice(whole, &schema));
        let Some(next) = next else { break };
        at = next;
    }
    let properties = at.get("properties").and_then(Value::as_object);
    properties.map(|all| all.keys().cloned().collect()).unwrap_or_default()
}

/// The object branch of an optional or a choice, references followed.
fn inside_choice(whole: &Value, schema: &Value) -> Value {
    let schema = follow(whole, schema);
    let branches = ["anyOf", "oneOf"].iter().find_map(|key| schema.get(key)?.as_array());
    let inner = branches.and_then(|all| {
        all.iter().map(|branch| follow(whole, branch)).find(|b| b.get("properties").is_some())
    });
    inner.unwrap_or(schema)
}

fn unknown_key(at: &Tree, key: &str, known: &[String]) -> Problem {
    let hint = match closest(key, known.iter().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known here: {}", known.join(", ")),
    };
    Problem {
        severity: Severity::Error,
        place: at.entry(key).map_or(at.place, |entry| entry.key_place),
        length: key.chars().count(),
        message: format!("unknown field `{key}`"),
        hint: Some(hint),
    }
}

/// A JSON Schema type in words.
fn type_word(kind: &str) -> &str {
    match kind {
        "string" => "a text",
        "integer" => "a whole number",
        "number" => "a number",
        "boolean" => "`true` or `false`",
        "array" => "a list",
        "object" => "a mapping",
        other => other,
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}
