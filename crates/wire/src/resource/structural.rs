//! A JSON Schema as Kubernetes takes it: without references, null, and fields of several types.
//! Source: Kubernetes documentation, "Specifying a structural schema".

use serde_json::{Map, Value, json};

/// The schema of a type, of each choice the branch that says most: an object, else a list.
///
/// # Panics
/// Where a reference leads nowhere, which the schema of a type has none of.
pub(super) fn structural(schema: schemars::Schema) -> Value {
    let mut schema = schema.to_value();
    let definitions = schema.get_mut("$defs").map(Value::take).unwrap_or_default();
    plain(&schema, &definitions)
}

fn plain(schema: &Value, definitions: &Value) -> Value {
    let mut plain = match schema.get("$ref").and_then(Value::as_str) {
        Some(reference) => {
            let name = reference.rsplit('/').next().unwrap_or_default();
            let target = definitions.get(name).expect("references are to definitions");
            self::plain(target, definitions)
        }
        None => json!({}),
    };
    let object = plain.as_object_mut().expect("it is made as one");
    for choice in ["anyOf", "oneOf"] {
        if let Some(branches) = schema.get(choice).and_then(Value::as_array) {
            object.extend(chosen(branches, definitions));
        }
    }
    for (key, value) in schema.as_object().into_iter().flatten() {
        match key.as_str() {
            "type" => drop(object.insert(key.clone(), one_type(value))),
            "items" => drop(object.insert(key.clone(), self::plain(value, definitions))),
            "properties" => {
                let fields = value.as_object().into_iter().flatten();
                let fields = fields.map(|(name, of)| (name.clone(), self::plain(of, definitions)));
                object.insert(key.clone(), Value::Object(fields.collect()));
            }
            // Unknown fields are pruned or refused by the server itself.
            "additionalProperties" if value.is_object() => {
                object.insert(key.clone(), self::plain(value, definitions));
            }
            "description" => drop(object.insert(key.clone(), one_paragraph(value))),
            "default" if !value.is_null() => drop(object.insert(key.clone(), value.clone())),
            "enum" | "minimum" | "maximum" | "minLength" | "maxLength" | "minItems"
            | "maxItems" | "pattern" | "required" => {
                object.insert(key.clone(), value.clone());
            }
            _ => {}
        }
    }
    plain
}

/// Of several branches the one that says most; of words all of them.
fn chosen(branches: &[Value], definitions: &Value) -> Map<String, Value> {
    let words: Option<Vec<Value>> = branches.iter().map(words).collect();
    if let Some(words) = words {
        let words: Vec<Value> = words.into_iter().flat_map(as_list).collect();
        return [("type".to_owned(), json!("string")), ("enum".to_owned(), json!(words))]
            .into_iter()
            .collect();
    }
    let branches = branches.iter().map(|branch| plain(branch, definitions));
    let rank = |branch: &Value| match branch.get("type").and_then(Value::as_str) {
        Some("object") => 3,
        Some("array") => 2,
        Some("null") | None => 0,
        Some(_) => 1,
    };
    let best = branches.max_by_key(rank);
    best.and_then(|best| best.as_object().cloned()).unwrap_or_default()
}

/// The words of a branch that is nothing else.
fn words(branch: &Value) -> Option<Value> {
    match (branch.get("const"), branch.get("enum")) {
        (Some(word), _) => Some(json!([word])),
        (None, Some(words)) => Some(words.clone()),
        (None, None) => None,
    }
}

fn as_list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        one => vec![one],
    }
}

/// Optional fields are left out rather than null.
fn one_type(value: &Value) -> Value {
    let types = value.as_array().into_iter().flatten();
    types.into_iter().find(|it| **it != "null").unwrap_or(value).clone()
}

fn one_paragraph(value: &Value) -> Value {
    json!(value.as_str().unwrap_or_default().replace('\n', " "))
}
