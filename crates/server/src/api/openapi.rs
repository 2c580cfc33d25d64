//! The table of routes as an OpenAPI 3.1 document.

use std::collections::BTreeMap;

use schemars::schema_for;
use serde_json::{Map, Value, json};

use het_wire::API_VERSION;
use het_wire::api::Refusal;

use super::PAGE_MAX;
use super::metrics::OPEN_METRICS;
use super::route::{Answer, Kind, Query, Route};

/// Where the schemas of all bodies and answers stand.
const SCHEMAS: &str = "#/components/schemas/";

/// The document.
pub fn openapi(routes: &[Route]) -> Value {
    let mut schemas = Map::new();
    add(&mut schemas, schema_for!(Refusal).to_value());
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for route in routes {
        let operation = operation(route, &mut schemas);
        paths.entry(route.path).or_default().insert(route.method.to_owned(), operation);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Heterosis",
            "version": API_VERSION,
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn operation(route: &Route, schemas: &mut Map<String, Value>) -> Value {
    let (kind, schema) = match route.answer {
        Answer::Text => ("text/plain", json!({ "type": "string" })),
        Answer::Figures => (OPEN_METRICS, json!({ "type": "string" })),
        Answer::Object => ("application/json", json!({ "type": "object" })),
        Answer::Json(schema) | Answer::Created(schema) => {
            ("application/json", add(schemas, schema().to_value()))
        }
        Answer::Stream(schema) => ("text/event-stream", add(schemas, schema().to_value())),
    };
    let refused = json!({ "$ref": format!("{SCHEMAS}Refusal") });
    let mut operation = json!({
        "summary": route.about,
        "parameters": parameters(route),
        "responses": {
            "200": { "description": "done", "content": { kind: { "schema": schema } } },
            "default": {
                "description": "refused",
                "content": { "application/json": { "schema": refused } },
            },
        },
    });
    if let Answer::Created(_) = route.answer {
        operation["responses"]["201"] =
            json!({ "description": "made", "content": { kind: { "schema": schema } } });
    }
    if let Some(body) = route.body {
        let schema = add(schemas, body().to_value());
        let content = json!({ "application/json": { "schema": schema } });
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    if route.verb.is_some() {
        operation["security"] = json!([{ "token": [] }]);
    }
    operation
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path = route.path.split('/').filter_map(|part| {
        let name = part.strip_prefix('{')?.strip_suffix('}')?;
        let schema = match name {
            "operation" => json!({ "type": "string", "enum": route.operations }),
            _ => json!({ "type": "string", "minLength": 1 }),
        };
        Some(json!({ "name": name, "in": "path", "required": true, "schema": schema }))
    });
    let in_query = route.query.iter().map(|Query(name, kind, about)| {
        let schema = match kind {
            Kind::Text => json!({ "type": "string" }),
            Kind::Number => json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX }),
            Kind::PageLength => json!({ "type": "integer", "minimum": 1, "maximum": PAGE_MAX }),
            Kind::Flag => json!({ "type": "boolean" }),
        };
        json!({ "name": name, "in": "query", "description": about, "schema": schema })
    });
    in_path.chain(in_query).collect()
}

/// Files a schema and those inside it under their names; gives the reference to it.
fn add(schemas: &mut Map<String, Value>, mut schema: Value) -> Value {
    let inner = schema.as_object_mut().and_then(|object| {
        object.remove("$schema");
        object.remove("$defs")
    });
    for (name, schema) in inner.and_then(|inner| inner.as_object().cloned()).unwrap_or_default() {
        schemas.insert(name, moved(schema));
    }
    let name = schema["title"].as_str().unwrap_or("Object").to_owned();
    schemas.insert(name.clone(), moved(schema));
    json!({ "$ref": format!("{SCHEMAS}{name}") })
}

/// The same schema, with references to where it stands now.
fn moved(schema: Value) -> Value {
    match schema {
        Value::String(text) => match text.strip_prefix("#/$defs/") {
            Some(name) => Value::String(format!("{SCHEMAS}{name}")),
            None => Value::String(text),
        },
        Value::Array(items) => Value::Array(items.into_iter().map(moved).collect()),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (name, moved(value))).collect())
        }
        other => other,
    }
}
