//! Watching a job of a server until it has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use het_wire::api::Change;
use het_wire::report::RunReport;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::client::{Client, Next, Stream, WATCH, client_again};
use crate::fail::{Fail, code};
use crate::live::Teller;

/// Of a terminal, of who ends processes, and of a terminal that is closed.
pub const STOP_SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// How long a change may wait until it is asked for, and an interrupt until it is seen.
pub const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Whether somebody wants this process to stop; it does not by itself any more.
#[derive(Debug, Clone)]
pub struct Interrupted(Arc<AtomicBool>);

impl Interrupted {
    pub fn catch() -> Result<Self, Fail> {
        let caught = Arc::new(AtomicBool::new(false));
        for signal in STOP_SIGNALS {
            flag::register(signal, Arc::clone(&caught)).map_err(|error| {
                Fail::new(code::FAILED, format!("signals cannot be caught: {error}"))
            })?;
        }
        Ok(Self(caught))
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Tells a view of every change of a job until it has ended; its last report, or none after an
/// interrupt.
pub fn watch(
    job: u64,
    (mut server, mut changes): (Client, Stream),
    view: &Teller,
    interrupted: &Interrupted,
) -> Result<Option<RunReport>, Fail> {
    let path = format!("/api/v1/jobs/{job}/report");
    let mut is_old = true;
    let mut look_at = Instant::now();
    while !interrupted.is_set() {
        if is_old && look_at <= Instant::now() {
            let report: RunReport = server.get(&path)?;
            if report.ended_at.is_some() {
                return Ok(Some(report));
            }
            view.report(&report);
            is_old = false;
            look_at = Instant::now() + LOOK_EVERY;
        }
        let deadline = if is_old { look_at } else { Instant::now() + LOOK_EVERY };
        match changes.next(Some(deadline)) {
            Next::Deadline => {}
            Next::Told(told) => {
                let change = serde_json::from_str::<Change>(&told.data);
                // What is no change says that some were missed.
                is_old |= change.map_or(true, |change| change.job.id == job);
            }
            Next::Ended => {
                changes = client_again()?.open(WATCH)?;
                server = client_again()?;
                is_old = true;
            }
        }
    }
    Ok(None)
}
