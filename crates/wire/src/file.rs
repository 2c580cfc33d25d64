//! Files that people write: YAML with places, held against the schema of its types, everything that
//! is wrong shown where it is wrong.

mod problem;
mod schema;
mod tree;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use problem::{Place, Problem, Problems, Severity};
pub(crate) use schema::Form;
pub(crate) use tree::{Entry, Node, Tree};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ApiVersion {
    #[serde(rename = "heterosis.dev/v1alpha1")]
    V1Alpha1,
}
