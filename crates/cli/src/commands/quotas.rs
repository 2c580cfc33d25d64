//! `het quotas`: what tenants of the server may have and have.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use het_wire::api::{QuotaList, QuotasText};
use hyper::Method;

use crate::client::client;
use crate::fail::{Fail, code};
use crate::output::{self, Column, Form, Shown};

const PATH: &str = "/api/v1/quotas";

const COLUMNS: &[Column] = &[
    Column("TENANT", "tenant", Shown::Always),
    Column("WEIGHT", "weight", Shown::Always),
    Column("CLASS", "class", Shown::Always),
    Column("QUOTA", "quota", Shown::Always),
    Column("LIMIT", "limit", Shown::Always),
    Column("HELD", "held", Shown::Always),
];

#[derive(Debug, Args)]
pub struct QuotasArgs {
    /// What holds from now on instead of all that was set before: see `het schema quotas`.
    #[arg(long, value_name = "FILE")]
    pub set: Option<PathBuf>,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

pub fn quotas(args: &QuotasArgs) -> Result<u8, Fail> {
    let list: QuotaList = match &args.set {
        None => client()?.get(PATH)?,
        Some(path) => {
            let file = fs::read_to_string(path).map_err(|error| Fail::file(path, error))?;
            let text = QuotasText { file, source: path.display().to_string() };
            client()?.send(Method::PUT, PATH, &text)?
        }
    };
    let items: Vec<_> =
        list.items.iter().filter_map(|row| serde_json::to_value(row).ok()).collect();
    output::list(&list.kind, &items, COLUMNS, args.output);
    Ok(code::OK)
}
