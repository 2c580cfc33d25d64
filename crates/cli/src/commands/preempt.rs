//! `het preempt`: room for more urgent jobs, or what it would cost.

use anstream::eprintln;
use clap::Args;
use het_wire::api::PreemptionList;
use serde_json::Value;

use crate::fail::Fail;
use crate::output::{Column, Shown};
use crate::selection::{SelectArgs, each};

#[derive(Debug, Args)]
pub struct PreemptArgs {
    #[command(flatten)]
    pub select: SelectArgs,
    /// Only say what it would cost, and for whom.
    #[arg(long)]
    pub dry_run: bool,
}

const COLUMNS: &[Column] = &[
    Column("ID", "id", Shown::Always),
    Column("STAGE", "stage", Shown::Always),
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
];

/// Room for more urgent jobs, or what it would cost.
pub fn preempt(args: &PreemptArgs) -> Result<u8, Fail> {
    each(&args.select, ("PreemptionList", COLUMNS), |client, id| {
        let path = format!("/api/v1/jobs/{id}/preemption");
        let list: PreemptionList = match args.dry_run {
            true => client.get(&path)?,
            false => client.post(&path, &Value::Null)?,
        };
        if list.items.is_empty() {
            eprintln!("job {id}: nobody of higher priority waits for what it holds");
        }
        Ok(list.items)
    })
}
