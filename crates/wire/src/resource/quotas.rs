//! Quotas as an object of Kubernetes: a quota file with a name.

use het_core::{Quotas, Topology};
use schemars::{JsonSchema, schema_for};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::definition::{Condition, column};
use super::structural::structural;
use super::{GROUP, VERSION};
use crate::file::Problems;
use crate::quotas::{self, QuotasFile};

pub const QUOTAS_KIND: &str = "Quotas";
pub const QUOTAS_PLURAL: &str = "quotas";

/// What is said in an object where a file says it.
const FIELDS: [&str; 3] = ["tenants", "priority_max", "scratch_max"];

/// Whether they hold, as the scheduler last wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotasStatus {
    /// `accepted`: they hold, as far as the cluster has what they name. Or `refused`: then those
    /// before still hold.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// Why they are refused, or what the cluster does not have, in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The generation of the object that this is about.
    #[serde(default)]
    pub observed_generation: i64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// The CustomResourceDefinition.
pub fn quotas_definition() -> Value {
    let mut file = structural(schema_for!(QuotasFile));
    let mut fields = file["properties"].take();
    let fields = FIELDS.iter().map(|field| ((*field).to_owned(), fields[*field].take()));
    let mut fields: Map<String, Value> = fields.collect();
    let mut status = structural(schema_for!(QuotasStatus));
    status["properties"]["conditions"]["x-kubernetes-list-type"] = json!("map");
    status["properties"]["conditions"]["x-kubernetes-list-map-keys"] = json!(["type"]);
    fields.insert("status".to_owned(), status);
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{QUOTAS_PLURAL}.{GROUP}") },
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": { "kind": QUOTAS_KIND, "plural": QUOTAS_PLURAL, "singular": "quotas" },
            "versions": [{
                "name": VERSION, "served": true, "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object", "description": file["description"],
                    "required": ["tenants"], "properties": fields,
                } },
                "subresources": { "status": {} },
                "additionalPrinterColumns": [
                    column("State", ".status.state", "string"),
                    column("Reason", ".status.reason", "string"),
                    column("Age", ".metadata.creationTimestamp", "date"),
                ],
            }],
        },
    })
}

/// Reads an object for a cluster, and what of it the cluster does not have now.
///
/// # Errors
/// Everything that is wrong with it.
pub fn read_quotas(
    object: &Value,
    topology: &Topology,
) -> Result<(Quotas, Option<Problems>), Problems> {
    let mut file = json!({ "apiVersion": format!("{GROUP}/{VERSION}"), "kind": QUOTAS_KIND });
    for field in FIELDS.iter().filter(|field| !object[**field].is_null()) {
        file[*field] = object[*field].clone();
    }
    let text = serde_json::to_string_pretty(&file).expect("it is JSON");
    quotas::parse_for_now(&text, "the object", topology)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_has_the_fields_of_a_file() {
        let definition = quotas_definition();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let tenant = &schema["properties"]["tenants"]["additionalProperties"]["properties"];
        assert_eq!(tenant["quota"]["additionalProperties"]["type"], "integer");
        assert_eq!(schema["properties"]["priority_max"]["type"], "string");
        assert!(schema["properties"]["kind"].is_null());
    }

    #[test]
    fn an_object_is_read_as_the_file_of_the_same_words() {
        let object = json!({
            "apiVersion": "heterosis.dev/v1alpha1", "kind": "Quotas",
            "metadata": { "name": "heterosis", "generation": 3 },
            "tenants": { "research": { "weight": 2 } }, "priority_max": "high",
            "status": { "state": "refused" },
        });
        let read = |object: &Value| read_quotas(object, &Topology::default());
        let (quotas, warnings) = read(&object).expect("it is right");
        assert_eq!((quotas.tenants["research"].weight, warnings.is_none()), (2, true));
        // Its nodes may join later.
        let early = json!({ "tenants": { "research": { "limit": { "h100": 2 } } } });
        let (quotas, warnings) = read(&early).expect("it may be right");
        assert!(quotas.tenants["research"].classes.contains_key("h100"));
        let warnings = warnings.expect("there is no h100").to_string();
        assert!(warnings.contains("`h100` is no device class"), "{warnings}");
        let wrong = json!({ "tenants": { "research": { "weight": 0 } } });
        assert!(read(&wrong).is_err());
    }
}
