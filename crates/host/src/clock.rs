//! The time of a server's state, across its restarts: durations go by the time since boot, also
//! while no server runs, whatever the machine's clock is set to meanwhile.

use std::fs;
use std::path::Path;

use het_core::{Millis, Time};
use het_files::replace_private;
use het_node::{boot_id, since_boot, wall_time};
use serde::{Deserialize, Serialize};

/// Clocks that differ by less show the same time.
const STEP_MIN: Millis = Millis(60_000);

/// Whether durations are being measured: a wait, a run, a time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// There are jobs that have not ended.
    Live,
    Idle,
}

/// The time at which a server begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartTime {
    pub time: Time,
    /// That it is not what the machine's clock shows: one sentence for people.
    pub news: Option<String>,
}

/// How the state's time follows from the time since boot; it holds as long as the boot does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Anchor {
    boot_id: String,
    /// Milliseconds that the time since boot is behind the state's.
    offset: i64,
}

/// What the machine's clocks show.
#[derive(Debug, Clone)]
struct Reading {
    boot_id: String,
    since_boot: Millis,
    wall: Time,
}

/// The time at which a server goes on whose newest event is of `last`, and which keeps its anchor
/// in `file`.
pub fn start_time(file: &Path, last: Time, activity: Activity) -> StartTime {
    let now = Reading { boot_id: boot_id(), since_boot: since_boot(), wall: wall_time() };
    let anchor = fs::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let start = start(anchor.as_ref(), &now, last, activity);
    let anchor =
        Anchor { offset: start.time.0 as i64 - now.since_boot.0 as i64, boot_id: now.boot_id };
    let text = serde_json::to_vec(&anchor).unwrap_or_default();
    // Without it the next server begins by the machine's clock, as after a reboot.
    let _ = replace_private(file, &text);
    start
}

fn start(anchor: Option<&Anchor>, now: &Reading, last: Time, activity: Activity) -> StartTime {
    let of_boot = anchor.filter(|anchor| anchor.boot_id == now.boot_id);
    let carried = of_boot.map(|anchor| now.since_boot.0.saturating_add_signed(anchor.offset));
    let time = match carried {
        Some(carried) if activity == Activity::Live => Time(carried),
        _ => now.wall,
    };
    let time = time.max(last);
    let (ahead, behind) = (time.since(now.wall), now.wall.since(time));
    let news = (ahead.max(behind) >= STEP_MIN).then(|| {
        let word = if ahead > behind { "behind" } else { "ahead of" };
        let step = ahead.max(behind).0 / 1_000;
        format!("the machine's clock was set: it is {step} s {word} the times of jobs, which go on")
    });
    StartTime { time, news }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;
    const DAY: u64 = 24 * HOUR;

    /// Hours of the state's time at a start at which the machine's clock shows `wall` and the
    /// machine has run since hour 100 of the state's time.
    #[track_caller]
    fn check(boot: &str, wall: u64, last: u64, activity: Activity, expected: u64) {
        let anchor = Anchor { boot_id: "b".to_owned(), offset: (100 * HOUR) as i64 };
        let now = Reading {
            boot_id: boot.to_owned(),
            since_boot: Millis(10 * HOUR),
            wall: Time(wall * HOUR),
        };
        let start = start(Some(&anchor), &now, Time(last * HOUR), activity);
        assert_eq!(start.time, Time(expected * HOUR));
        assert_eq!(start.news.is_some(), wall != expected);
    }

    #[test]
    fn a_clock_that_was_set_changes_no_duration() {
        check("b", 110, 109, Activity::Live, 110);
        check("b", 105, 109, Activity::Live, 110);
        check("b", 115, 109, Activity::Live, 110);
    }

    #[test]
    fn who_measures_nothing_takes_the_machines_time() {
        check("b", 115, 109, Activity::Idle, 115);
        check("b", 105, 109, Activity::Idle, 109);
    }

    #[test]
    fn after_a_reboot_nothing_else_is_known() {
        check("c", 130, 109, Activity::Live, 130);
        check("c", 30, 109, Activity::Live, 109);
    }

    #[test]
    fn an_anchor_is_kept_for_the_next_start() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let file = dir.path().join("clock");
        let ahead = wall_time() + Millis(DAY);
        let first = start_time(&file, ahead, Activity::Live);
        assert_eq!(first.time, ahead);
        assert!(first.news.is_some_and(|text| text.contains("behind the times of jobs")));
        let second = start_time(&file, Time::ZERO, Activity::Live);
        assert!(second.time >= ahead, "time does not go back though the log does not say so");
    }
}
