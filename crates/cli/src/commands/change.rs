//! `het cancel`, `hold`, `release` and `requeue`.

use het_wire::api::{JobRow, Submitted};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::Client;
use crate::fail::Fail;
use crate::selection::{JOB_COLUMNS, SUBMITTED_COLUMNS, SelectArgs, each};

/// `cancel`, `hold` and `release`.
pub fn change(args: &SelectArgs, operation: &str) -> Result<u8, Fail> {
    each(args, ("JobList", JOB_COLUMNS), |client, id| {
        Ok(vec![operate::<JobRow>(client, id, operation)?])
    })
}

/// New jobs for ended ones.
pub fn requeue(args: &SelectArgs) -> Result<u8, Fail> {
    each(args, ("SubmittedList", SUBMITTED_COLUMNS), |client, id| {
        Ok(vec![operate::<Submitted>(client, id, "requeue")?])
    })
}

fn operate<T: DeserializeOwned>(client: &mut Client, id: u64, operation: &str) -> Result<T, Fail> {
    client.post(&format!("/api/v1/jobs/{id}/{operation}"), &Value::Null)
}
