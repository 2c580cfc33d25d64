//! `het ps`: the server's jobs.

use clap::Args;
use serde_json::Value;

use crate::client::client;
use crate::fail::{Fail, code};
use crate::output::{self, Form};
use crate::selection::{JOB_COLUMNS, list};

#[derive(Debug, Args)]
pub struct PsArgs {
    /// Ended jobs too.
    #[arg(short, long)]
    pub all: bool,
    /// Only jobs in this state.
    #[arg(long)]
    pub state: Option<String>,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

pub fn ps(args: &PsArgs) -> Result<u8, Fail> {
    let mut client = client()?;
    let mut rows = list(&mut client, if args.all { "all=true" } else { "all=false" })?;
    if let Some(state) = &args.state {
        rows.retain(|row| row.state == *state);
    }
    let items: Vec<Value> = rows.iter().filter_map(|row| serde_json::to_value(row).ok()).collect();
    output::list("JobList", &items, JOB_COLUMNS, args.output);
    Ok(code::OK)
}
