//! `het describe`: all there is about a job of the server.

use clap::Args;
use het_wire::report::RunReport;

use crate::client::client;
use crate::fail::{Fail, code};
use crate::output::{self, Form};
use crate::selection::one;
use crate::summary::{self, Keeper};

#[derive(Debug, Args)]
pub struct DescribeArgs {
    /// Job id, `last`, or a job's name.
    #[arg(default_value = "last")]
    pub job: String,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

pub fn describe(args: &DescribeArgs) -> Result<u8, Fail> {
    let mut client = client()?;
    let id = one(&mut client, &args.job)?;
    let report: RunReport = client.get(&format!("/api/v1/jobs/{id}/report"))?;
    let value = serde_json::to_value(&report).unwrap_or_default();
    output::object(&value, args.output, || summary::print(&report, Keeper::Server));
    Ok(code::OK)
}
