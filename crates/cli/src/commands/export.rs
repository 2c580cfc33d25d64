//! `het export`: a server's log, for archives and audits.

use std::io::{BufWriter, Write, stdout};
use std::path::Path;

use anstream::eprintln;
use clap::{Args, ValueEnum};
use het_wire::api::{ChainStart, EventPage, EventRow};
use serde_json::Value;

use crate::client::client;
use crate::fail::{Fail, code};

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The first event.
    #[arg(long, default_value_t = 0)]
    pub from: u64,
    #[arg(short, long, value_enum, default_value_t = ExportForm::Jsonl)]
    pub output: ExportForm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportForm {
    Jsonl,
    Csv,
}

pub fn export(args: &ExportArgs) -> Result<u8, Fail> {
    let mut client = client()?;
    let mut out = BufWriter::new(stdout().lock());
    let broken = |error| Fail::file(Path::new("standard output"), error);
    if args.output == ExportForm::Csv {
        csv_line(
            &mut out,
            &["sequence", "at_ms", "event", "job", "lease", "record", "hash", "before"],
        )
        .map_err(broken)?;
    }
    let mut from = args.from;
    let mut told = false;
    loop {
        let page: EventPage = client.get(&format!("/api/v1/events?from={from}"))?;
        if !told && from < page.chain.sequence {
            tell(&page.chain);
            told = true;
        }
        for row in &page.items {
            match args.output {
                ExportForm::Jsonl => jsonl(&mut out, row),
                ExportForm::Csv => csv_row(&mut out, row),
            }
            .map_err(broken)?;
        }
        match page.next {
            Some(next) => from = next,
            None => break,
        }
    }
    out.flush().map_err(broken)?;
    Ok(code::OK)
}

/// What whoever verifies the chain has to know.
fn tell(chain: &ChainStart) {
    let ChainStart { sequence, before } = chain;
    eprintln!("the chain begins at event {sequence}, after the hash {before}");
    eprintln!("of what was before it only events of jobs are left that the server keeps");
}

fn jsonl(out: &mut impl Write, row: &EventRow) -> std::io::Result<()> {
    serde_json::to_writer(&mut *out, row)?;
    out.write_all(b"\n")
}

fn csv_row(out: &mut impl Write, row: &EventRow) -> std::io::Result<()> {
    let field = |name: &str| match &row.record[name] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let (sequence, record) = (row.sequence.to_string(), row.record.to_string());
    let named = ["at_ms", "event", "job", "lease"].map(field);
    let [at, event, job, lease] = &named;
    let before = row.before.as_deref().unwrap_or_default();
    csv_line(out, &[&sequence, at, event, job, lease, &record, &row.hash, before])
}

fn csv_line(out: &mut impl Write, fields: &[&str]) -> std::io::Result<()> {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(out);
    writer.write_record(fields)?;
    writer.flush()
}
