//! The kubelets of all nodes, and the garbage collector: what becomes of pods. Time is turns, each
//! of which the run takes; how long a pod takes for each step of its life is drawn for it.
//!
//! Programs are what `tests/kubernetes/kwok/pods.yaml` knows, with turns for durations.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::draw::Draw;
use super::pods;
use super::server::Inner;
use super::store::{Key, Kind};

/// How likely a step is taken in a turn in which it may be.
const STEP_PERCENT: u64 = 60;
/// How likely a kubelet does not take a pod.
const REFUSED_PERCENT: u64 = 2;
/// How long a program runs after its notice that ignores it.
const DEAF_TURNS: u64 = 8;
/// Exit code of a program that `SIGTERM` ended.
const TERMINATED: u64 = 128 + 15;

/// The programs that run.
#[derive(Debug)]
pub struct Programs {
    seed: u64,
    /// By the uid of their pod: turns since they began, or were asked to end.
    turns: BTreeMap<(String, Asked), u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Asked {
    No,
    Yes,
}

impl Programs {
    pub fn of(seed: u64) -> Self {
        Self { seed, turns: BTreeMap::new() }
    }

    fn turn(&mut self, uid: &str, asked: Asked) -> u64 {
        let turns = self.turns.entry((uid.to_owned(), asked)).or_default();
        *turns += 1;
        *turns
    }
}

/// What a pod does next.
enum Step {
    Run,
    End {
        code: u64,
    },
    Refuse,
    /// Its node is not there any more.
    Collect,
    Remove,
}

impl Inner {
    pub fn turn(&mut self) {
        self.collect_orphans();
        for key in self.store.keys(Kind::Pod) {
            let pod = self.store.get(&key).cloned().expect("nobody else has removed it");
            if let Some(step) = self.next_step(&pod) {
                self.take_step(&key, &step);
            }
        }
    }

    /// What belongs to an object that is not there any more goes, too.
    fn collect_orphans(&mut self) {
        let jobs = self.store.of_kind(Kind::Job).map(|(_, job)| pods::uid_of(job));
        let jobs: BTreeSet<&str> = jobs.collect();
        let owned = self.store.of_kind(Kind::Pod).chain(self.store.of_kind(Kind::Service));
        let orphans = owned.filter(|(_, object)| {
            pods::owner_of(object).is_some_and(|owner| !jobs.contains(owner))
        });
        let orphans: Vec<Key> = orphans.map(|(key, _)| key.clone()).collect();
        orphans.iter().for_each(|key| drop(self.remove_within(key, 1)));
    }

    fn next_step(&mut self, pod: &Value) -> Option<Step> {
        let node = pods::node_of(pod)?;
        let is_there = self.store.get(&Key::new(Kind::Node, "", node)).is_some();
        let (uid, is_deleting) = (pods::uid_of(pod), pods::is_deleting(pod));
        let asked = if is_deleting { Asked::Yes } else { Asked::No };
        let turns = self.programs.turn(uid, asked);
        let mut draw = Draw::of(self.programs.seed, &format!("{uid} {asked:?} {turns}"));
        let mut of_pod = Draw::of(self.programs.seed, uid);
        if !draw.chance(STEP_PERCENT) {
            return None;
        }
        match pods::phase_of(pod) {
            _ if !is_there => Some(Step::Collect),
            "Succeeded" | "Failed" if is_deleting => Some(Step::Remove),
            "Succeeded" | "Failed" => None,
            "Pending" if is_deleting => Some(Step::Remove),
            "Pending" if of_pod.chance(REFUSED_PERCENT) => Some(Step::Refuse),
            "Pending" => Some(Step::Run),
            _ if is_deleting => end_of_deleted(pod, turns, &mut draw),
            _ => end_of_running(pod, turns),
        }
    }

    fn take_step(&mut self, key: &Key, step: &Step) {
        let status = match step {
            Step::Run => json!({ "phase": "Running" }),
            Step::End { code } => ended(*code),
            Step::Refuse => json!({ "phase": "Failed", "reason": "OutOfcpu", "message": "full" }),
            Step::Collect | Step::Remove => {
                return drop(self.store.remove(key));
            }
        };
        self.store.update(key, |pod| pod["status"] = status);
    }

    /// The kubelet of a pod ends it, because its node is short of something.
    pub fn evict(&mut self, key: &Key) {
        let status = json!({ "phase": "Failed", "reason": "Evicted", "message": "low on memory" });
        self.store.update(key, |pod| pod["status"] = status);
    }
}

/// Most kubelets are heard to say how a program ended before its pod is gone; not all.
fn end_of_deleted(pod: &Value, turns: u64, draw: &mut Draw) -> Option<Step> {
    if pods::command_of(pod).first() == Some(&"deaf") && turns < DEAF_TURNS {
        return None;
    }
    match draw.between(0, 3) {
        0 => Some(Step::Remove),
        1 => Some(Step::End { code: 0 }),
        _ => Some(Step::End { code: TERMINATED }),
    }
}

fn end_of_running(pod: &Value, turns: u64) -> Option<Step> {
    let number = |word: &str| word.parse().unwrap_or(0);
    match pods::command_of(pod).as_slice() {
        ["finish", after] if turns >= number(after) => Some(Step::End { code: 0 }),
        ["fail", rank, after, code]
            if pods::rank_of(pod) == Some(number(rank)) && turns >= number(after) =>
        {
            Some(Step::End { code: number(code) })
        }
        _ => None,
    }
}

/// The status of a pod whose program has ended.
pub fn ended(code: u64) -> Value {
    let (phase, reason) = if code == 0 { ("Succeeded", "Completed") } else { ("Failed", "Error") };
    let ended = json!({ "exitCode": code, "reason": reason });
    json!({
        "phase": phase,
        "containerStatuses": [{ "name": "stage", "state": { "terminated": ended } }],
    })
}
