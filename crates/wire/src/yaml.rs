//! Writing YAML.

use serde_json::Value;

/// The value as a YAML document.
pub fn to_text(value: &Value) -> String {
    serde_saphyr::to_string(value).expect("JSON values have text keys and finite numbers")
}
