//! `het wait`: until jobs have ended.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::Args;
use het_wire::api::{Change, JobRow};

use crate::client::{self, Client, Next, WATCH, client_again};
use crate::fail::{Fail, code};
use crate::selection::select;

#[derive(Debug, Args)]
pub struct WaitArgs {
    /// `42`, `40-45`, `last`, `all`, the name of a job or an array, `42[]` for all of an array.
    #[arg(required = true)]
    pub jobs: Vec<String>,
    /// Give up after this long, with 124.
    #[arg(long)]
    pub timeout: Option<String>,
}

pub fn wait(args: &WaitArgs) -> Result<u8, Fail> {
    let mut client = client::client()?;
    let ids = select(&mut client, &args.jobs)?;
    let limit = args.timeout.as_deref().map(seconds).transpose()?;
    wait_for(&mut client, &ids, limit)
}

fn seconds(text: &str) -> Result<Duration, Fail> {
    let millis = het_wire::quantity::duration(text).ok_or_else(|| {
        Fail::new(code::USAGE, format!("`{text}` is no duration")).hint("write `90s` or `1h30m`")
    })?;
    Ok(Duration::from_millis(millis.0))
}

/// Waits until all of these have ended; the code of the first, in their order, that did not end
/// with 0.
pub fn wait_for(client: &mut Client, ids: &[u64], limit: Option<Duration>) -> Result<u8, Fail> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    // Opened before the look: nothing falls between the two.
    let mut changes = client::client()?.open(WATCH)?;
    let mut codes = BTreeMap::new();
    look(client, ids, &mut codes)?;
    while codes.len() < ids.len() {
        match changes.next(deadline) {
            Next::Told(told) => match serde_json::from_str::<Change>(&told.data) {
                Ok(Change { job, .. }) if job.ended_at.is_some() && ids.contains(&job.id) => {
                    codes.insert(job.id, job.exit_code);
                }
                Ok(_) => {}
                // Too slow: something was missed.
                Err(_) => look(client, ids, &mut codes)?,
            },
            Next::Ended => {
                *client = client_again()?;
                changes = client_again()?.open(WATCH)?;
                look(client, ids, &mut codes)?;
            }
            Next::Deadline => {
                let left = ids.len() - codes.len();
                let text = format!("{left} of {} jobs have not ended", ids.len());
                let hint = "they go on: wait again, or cancel them";
                return Err(Fail::new(code::TIMEOUT, text).hint(hint));
            }
        }
    }
    let failed = ids.iter().filter_map(|id| codes[id]).find(|code| *code != 0);
    Ok(failed.map_or(code::OK, |code| u8::try_from(code).unwrap_or(code::FAILED)))
}

/// Finds out which of these have ended already, and how.
fn look(
    client: &mut Client,
    ids: &[u64],
    codes: &mut BTreeMap<u64, Option<i32>>,
) -> Result<(), Fail> {
    for id in ids {
        let row: JobRow = client.get(&format!("/api/v1/jobs/{id}"))?;
        if row.ended_at.is_some() {
            codes.insert(*id, row.exit_code);
        }
    }
    Ok(())
}
