//! `het set`: another priority or time limit.

use clap::Args;
use het_wire::api::{JobChanges, JobRow};
use hyper::Method;

use crate::fail::Fail;
use crate::selection::{JOB_COLUMNS, SelectArgs, each};

#[derive(Debug, Args)]
pub struct SetArgs {
    #[command(flatten)]
    pub select: SelectArgs,
    /// `urgent`, `high`, `normal` or `low`.
    #[arg(long, required_unless_present = "time_limit")]
    pub priority: Option<String>,
    /// Longest time from the first start to the end, for example `6h`.
    #[arg(long)]
    pub time_limit: Option<String>,
}

/// Another priority or time limit.
pub fn set(args: &SetArgs) -> Result<u8, Fail> {
    let changes =
        JobChanges { priority: args.priority.clone(), time_limit: args.time_limit.clone() };
    each(&args.select, ("JobList", JOB_COLUMNS), |client, id| {
        let row: JobRow = client.send(Method::PATCH, &format!("/api/v1/jobs/{id}"), &changes)?;
        Ok(vec![row])
    })
}
