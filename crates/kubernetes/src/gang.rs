//! How far a gang is, by what was seen of its pods. No I/O.

use std::collections::BTreeMap;

use het_core::{Failure, FailureCause, Millis, Outcome, Phase};

use crate::objects::{PodFailure, PodPhase, PodRow};

/// What the kubelet says when its node gives a pod up.
const LOSSES: [&str; 6] =
    ["Evicted", "Preempting", "NodeShutdown", "Terminated", "NodeLost", "Shutdown"];
/// What it says when it ends a pod that has had its time.
const DEADLINE: &str = "DeadlineExceeded";
/// A container that used up the memory that it had asked for.
const OUT_OF_MEMORY: &str = "OOMKilled";
/// Exit code of a program that `SIGKILL` ended.
const KILLED: i32 = 128 + 9;

/// The pods of a lease.
#[derive(Debug)]
pub(crate) struct Gang {
    ranks: Vec<Seen>,
    begin: Beginning,
    is_stopping: bool,
    is_started: bool,
    /// Nothing is left to do for those that remain.
    is_broken: bool,
    /// The first rank that failed on its own.
    failed: Option<(u32, PodFailure)>,
    /// It hung, and is ended for that.
    hung: Option<Failure>,
    /// By rank: why it does not begin.
    troubles: BTreeMap<u32, String>,
}

/// Whether all pods were made and have nodes.
#[derive(Debug, PartialEq, Eq)]
enum Beginning {
    UnderWay,
    Done,
    /// One sentence why not.
    Refused(String),
}

/// What was seen of a rank's pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It was not made yet, or nobody has heard of it.
    Nothing,
    Pending,
    Running,
    /// Its program ended with 0 before anybody asked it to stop.
    Succeeded,
    /// It ended in another way.
    Ended,
    Gone,
}

impl Seen {
    fn is_over(self) -> bool {
        matches!(self, Self::Succeeded | Self::Ended | Self::Gone)
    }
}

/// What follows from what was seen.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    Started,
    /// A rank is lost to the gang: the others are to be deleted.
    Broken,
    Ended(Outcome),
}

impl Gang {
    /// Whose pods are being made.
    pub fn new(ranks: usize) -> Self {
        Self {
            ranks: vec![Seen::Nothing; ranks],
            begin: Beginning::UnderWay,
            is_stopping: false,
            is_started: false,
            is_broken: false,
            failed: None,
            hung: None,
            troubles: BTreeMap::new(),
        }
    }

    /// Whose pods were all made before: those that are not seen now are gone.
    pub fn adopted(ranks: usize, phase: Phase) -> Self {
        Self {
            begin: Beginning::Done,
            ranks: vec![Seen::Gone; ranks],
            is_started: phase != Phase::Starting,
            is_stopping: phase.is_stopping(),
            ..Self::new(ranks)
        }
    }

    /// Its pods have nodes, or will not have any for a reason; those that were not made never will.
    pub fn begun(&mut self, made: &[bool], refused: Option<String>) {
        for (seen, made) in self.ranks.iter_mut().zip(made) {
            match (made, &seen) {
                (false, _) => *seen = Seen::Gone,
                // Another one of its name was gone.
                (true, Seen::Gone) => *seen = Seen::Nothing,
                _ => {}
            }
        }
        self.begin = refused.map_or(Beginning::Done, Beginning::Refused);
    }

    /// Somebody asked for its end.
    pub fn stop(&mut self) {
        self.is_stopping = true;
    }

    pub fn see(&mut self, rank: u32, pod: &PodRow) {
        let Some(seen) = self.ranks.get_mut(rank as usize) else { return };
        if seen.is_over() && *seen != Seen::Gone {
            return;
        }
        match &pod.trouble {
            Some(trouble) => drop(self.troubles.insert(rank, trouble.clone())),
            None => drop(self.troubles.remove(&rank)),
        }
        *seen = match &pod.phase {
            PodPhase::Pending => Seen::Pending,
            PodPhase::Running => Seen::Running,
            PodPhase::Succeeded if pod.is_deleting => Seen::Ended,
            PodPhase::Succeeded => Seen::Succeeded,
            PodPhase::Failed(failure) => {
                // What follows from a stop or a deletion is nobody's failure.
                let is_own = !pod.is_deleting && !self.is_stopping && !self.is_broken;
                if self.failed.is_none() && is_own {
                    self.failed = Some((rank, failure.clone()));
                }
                Seen::Ended
            }
        };
    }

    /// A rank gave no sign of life for so long. Without effect on one that ends anyway.
    pub fn hung(&mut self, rank: u32, silent: Millis) {
        if self.is_stopping || self.is_broken || self.failed.is_some() {
            return;
        }
        let message = format!("it reported nothing for {} s", silent.0.div_ceil(1_000));
        let cause = FailureCause::Stalled;
        self.hung = Some(Failure { rank, exit_code: KILLED, message, cause });
    }

    /// The pod of a rank is not there any more.
    pub fn see_gone(&mut self, rank: u32) {
        let seen = self.ranks.get_mut(rank as usize);
        if let Some(seen) = seen.filter(|seen| !seen.is_over()) {
            *seen = Seen::Gone;
        }
    }

    /// Its pods are being made.
    pub fn is_beginning(&self) -> bool {
        self.begin == Beginning::UnderWay
    }

    pub fn is_unheard(&self, rank: u32) -> bool {
        self.unheard().any(|unheard| unheard == rank)
    }

    /// Ranks that were made and of which nobody has heard.
    pub fn unheard(&self) -> impl Iterator<Item = u32> + '_ {
        let is_begun = self.begin != Beginning::UnderWay;
        let ranks = (0u32..).zip(&self.ranks).filter(move |_| is_begun);
        ranks.filter(|(_, seen)| **seen == Seen::Nothing).map(|(rank, _)| rank)
    }

    /// All of its ranks ran once.
    pub fn has_started(&self) -> bool {
        self.is_started
    }

    /// It has its nodes and not all of its ranks run.
    pub fn is_starting(&self) -> bool {
        self.begin == Beginning::Done && !self.is_started && !self.is_stopping && !self.is_broken
    }

    /// Why a rank does not begin.
    pub fn trouble(&self) -> Option<(u32, &str)> {
        let (rank, trouble) = self.troubles.first_key_value()?;
        Some((*rank, trouble))
    }

    /// Ranks that did not begin never will.
    pub fn give_up(&mut self, reason: String) {
        self.begin = Beginning::Refused(reason);
    }

    /// The next fact, each once; called until there is none.
    pub fn next(&mut self) -> Option<Fact> {
        if self.begin == Beginning::UnderWay {
            return None;
        }
        let is_up = |seen: &Seen| matches!(seen, Seen::Running | Seen::Succeeded | Seen::Ended);
        let starts = self.begin == Beginning::Done && !self.is_stopping;
        if starts && !self.is_started && self.failed.is_none() && self.ranks.iter().all(is_up) {
            self.is_started = true;
            return Some(Fact::Started);
        }
        if self.ranks.iter().all(|seen| seen.is_over()) {
            return Some(Fact::Ended(self.outcome()));
        }
        let is_lost = |seen: &Seen| matches!(seen, Seen::Ended | Seen::Gone);
        let is_over = self.begin != Beginning::Done || self.hung.is_some();
        if !self.is_broken && (is_over || self.ranks.iter().any(is_lost)) {
            self.is_broken = true;
            return Some(Fact::Broken);
        }
        None
    }

    fn outcome(&self) -> Outcome {
        if let Beginning::Refused(reason) = &self.begin
            && !self.is_stopping
        {
            return Outcome::Refused { reason: reason.clone() };
        }
        if self.ranks.iter().all(|seen| *seen == Seen::Succeeded) {
            return Outcome::Finished;
        }
        if let Some(failure) = &self.hung {
            return Outcome::Failed(failure.clone());
        }
        match &self.failed {
            Some((rank, failure)) => outcome_of(*rank, failure),
            None if self.is_stopping => Outcome::Stopped,
            None => Outcome::Lost,
        }
    }
}

fn outcome_of(rank: u32, pod: &PodFailure) -> Outcome {
    let says = |words: &[&str]| words.iter().any(|word| pod.reason.starts_with(word));
    if says(&LOSSES) {
        return Outcome::Lost;
    }
    // It has a reason of the pod and none of a container where it does not take a pod: `OutOfcpu`,
    // `TaintToleration`, `UnexpectedAdmissionError`, …
    if !pod.reason.is_empty() && pod.exit_code.is_none() && pod.reason != DEADLINE {
        let reason = format!("the node refused the pod of rank {rank}: {}", described(pod));
        return Outcome::Refused { reason };
    }
    let exit_code = pod.exit_code.unwrap_or(Failure::unseen().exit_code);
    let cause = match (pod.container_reason.as_str(), pod.exit_code) {
        (OUT_OF_MEMORY, _) => FailureCause::MemoryLimit,
        ("ContainerCannotRun" | "StartError", _) => FailureCause::CannotRun,
        (_, Some(KILLED)) => FailureCause::Killed,
        (_, Some(_)) => FailureCause::Program,
        (_, None) => FailureCause::Unseen,
    };
    Outcome::Failed(Failure { rank, exit_code, message: described(pod), cause })
}

/// One line for people.
fn described(pod: &PodFailure) -> String {
    let reason = match pod.reason.as_str() {
        "" => pod.container_reason.as_str(),
        reason => reason,
    };
    let message = pod.message.lines().next().unwrap_or_default();
    match (reason, message, pod.exit_code) {
        ("", "", Some(code)) => format!("exit code {code}"),
        ("", "", None) => "nobody saw how it ended".to_owned(),
        (reason, "", Some(code)) => format!("{reason}, exit code {code}"),
        ("", message, _) => message.to_owned(),
        (reason, "", None) => reason.to_owned(),
        (reason, message, _) => format!("{reason}: {message}"),
    }
}

#[cfg(test)]
mod tests;
