//! `het preempt`: room for more urgent jobs, or what it would cost.

use std::env;

use clap::Args;
use het_wire::api::PreemptionList;
use het_wire::text::Lang;
use serde_json::Value;

use crate::fail::Fail;
use crate::output::{Column, Shown};
use crate::selection::{SelectArgs, each};

#[derive(Debug, Args)]
pub struct PreemptArgs {
    #[command(flatten)]
    pub select: SelectArgs,
    /// Only say who would be stopped for whom, and what that would cost: of a job that runs, what
    /// becomes of it; of one that waits, whom the next decision stops for it.
    #[arg(long)]
    pub dry_run: bool,
}

const COLUMNS: &[Column] = &[
    Column("ID", "id", Shown::Always),
    Column("STAGE", "stage", Shown::Always),
    Column("OUTLOOK", "outlook", Shown::Always),
    Column("STOPS", "victim", Shown::Always),
    Column("STAGE OF IT", "victim_stage", Shown::Wide),
    Column("FOR", "preemptor", Shown::Always),
    Column("ITS STAGE", "preemptor_stage", Shown::Wide),
    Column("SAVE_S", "save_s", Shown::Wide),
    Column("LOAD_S", "load_s", Shown::Wide),
    Column("LOST_S", "lost_s", Shown::Always),
    Column("COST_DEVICE_S", "cost_device_s", Shown::Always),
    Column("GAIN_DEVICE_S", "gain_device_s", Shown::Always),
    Column("PAYS", "pays", Shown::Always),
    Column("PREEMPTIONS", "preemptions", Shown::Always),
    Column("OF_AT_MOST", "preemptions_max", Shown::Wide),
    Column("CAUSE", "cause", Shown::Wide),
    Column("REASON", "reasons", Shown::Always),
];

/// Room for more urgent jobs, or what it would cost.
pub fn preempt(args: &PreemptArgs) -> Result<u8, Fail> {
    let lang = Lang::find(|name| env::var(name).ok());
    each(&args.select, ("PreemptionList", COLUMNS), |client, id| {
        let path = format!("/api/v1/jobs/{id}/preemption");
        let list: PreemptionList = match args.dry_run {
            true => client.get(&format!("{path}?lang={}", lang.tag()))?,
            false => client.post(&path, &Value::Null)?,
        };
        Ok(list.items)
    })
}
