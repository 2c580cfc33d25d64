//! The engine against an API server of our own, in this process, that does whatever an API server
//! may do to it: loses answers, breaks watches, carries writes out late. Random gangs start, stop
//! and end; pods and nodes go away; leaders follow each other. Whatever happens, every law holds.
//!
//! `HET_SEED=N cargo test -p het-kubernetes --test it loopback` plays one run alone, `HET_RUNS=N`
//! so many. Threads come in another order each time, so a run may need to be played again.

mod ask;
pub mod body;
mod draw;
mod faults;
mod kubelet;
mod pods;
mod run;
mod scene;
mod server;
mod store;
mod virtual_time;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use faults::Tally;

const RUNS: u64 = 1_000;
/// Runs at once: most of each is spent waiting.
const THREADS: usize = 4;
/// Failures that are shown in full.
const SHOWN: usize = 3;

/// What has to have happened in a thousand runs, or they show nothing.
const SEEN: [&str; 15] = [
    "answers lost",
    "changes of nodes",
    "changes of the leader",
    "deleted by somebody",
    "evicted",
    "objects of jobs deleted",
    "pods refused by a quota",
    "requests refused for a while",
    "stale lists",
    "swaps of a status that another had changed",
    "watches that are too old",
    "watches that break",
    "watches that end",
    "writes of a stale epoch",
    "writes that arrive late",
];

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// A run that panics has failed, too.
fn play(seed: u64) -> Result<Tally, String> {
    let played = catch_unwind(AssertUnwindSafe(|| run::play(seed)));
    played.unwrap_or_else(|_| Err(format!("seed {seed}: it panicked; replay: HET_SEED={seed}")))
}

#[test]
fn whatever_the_server_does_every_law_holds() {
    let (next, last) = match number("HET_SEED") {
        Some(seed) => (AtomicU64::new(seed), seed),
        None => (AtomicU64::new(1), number("HET_RUNS").unwrap_or(RUNS)),
    };
    let played = Mutex::new((Tally::new(), Vec::new()));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed > last {
                        return;
                    }
                    let result = play(seed);
                    let mut played = played.lock().expect("nobody panics with it");
                    match result {
                        Ok(tally) => tally
                            .into_iter()
                            .for_each(|(what, count)| *played.0.entry(what).or_default() += count),
                        Err(why) => played.1.push(why),
                    }
                }
            });
        }
    });
    let (tally, failed) = played.into_inner().expect("nobody panics with it");
    let shown = failed[..failed.len().min(SHOWN)].join("\n\n");
    let all: Vec<&str> = failed.iter().filter_map(|why| why.lines().next()).collect();
    assert!(all.is_empty(), "{} runs failed\n{}\n\n{shown}", all.len(), all.join("\n"));
    let unseen: Vec<_> = SEEN.iter().filter(|what| !tally.contains_key(*what)).collect();
    assert!(last < RUNS || number("HET_SEED").is_some() || unseen.is_empty(), "{unseen:?}");
}
