//! How a gang ended, from the ends of its processes. No I/O.

use std::path::Path;

use het_core::{Bytes, Failure, FailureCause, Millis, Outcome};
use nix::sys::signal::Signal;

use super::reporting::{Prospect, Saved};
use crate::logs::cause;
use crate::process::{EXIT_NOT_FOUND, EXIT_SAVED, Exit};

/// Signals that come from outside: a program that breaks by itself ends by others.
const OUTSIDE: [Signal; 4] = [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

/// What drivers say of broken hardware, as programs repeat it: CUDA's errors 214 and 714, NVML's
/// and the kernel's of a card that is gone, and Vulkan's.
const DEVICE_ERRORS: [&str; 5] = [
    "uncorrectable ECC error",
    "hardware stack error",
    "fallen off the bus",
    "GPU is lost",
    "ERROR_DEVICE_LOST",
];

/// What happens to the other ranks when one has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Consequence {
    /// They go on.
    None,
    /// It saved in order to resume later: they get time to do the same.
    LetOthersSave,
    /// It failed: they are terminated.
    EndOthers,
}

/// Whether the kernel killed a process for lack of memory while a gang ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemoryRanOut {
    /// The rank reached its own limit.
    OfRank(Bytes),
    Yes,
    No,
    Unknown,
}

impl MemoryRanOut {
    /// From the kernel's counts of OOM kills before and after.
    pub(super) fn between(before: Option<u64>, after: Option<u64>) -> Self {
        match (before, after) {
            (Some(before), Some(after)) if after > before => Self::Yes,
            (Some(_), Some(_)) => Self::No,
            _ => Self::Unknown,
        }
    }

    /// Why a process ended this way.
    fn cause_of(self, exit: Exit) -> FailureCause {
        let signal = match exit {
            Exit::Signal(signal) => Some(signal),
            // A shell reports the signal that ended its child as an exit code of its own.
            Exit::Code(code) => OUTSIDE.into_iter().find(|signal| 128 + *signal as i32 == code),
            Exit::Unknown => return FailureCause::Unseen,
        };
        match (self, signal, exit) {
            // With any exit: a process that lost a child may end in its own way.
            (Self::OfRank(_), _, _) => FailureCause::MemoryLimit,
            (Self::Yes, Some(Signal::SIGKILL), _) => FailureCause::MachineMemory,
            (_, Some(signal), _) if OUTSIDE.contains(&signal) => FailureCause::Killed,
            (_, _, Exit::Code(Failure::CANNOT_RUN | EXIT_NOT_FOUND)) => FailureCause::CannotRun,
            _ => FailureCause::Program,
        }
    }

    /// A hint for the message about a process that ended this way.
    fn hint(self, exit: Exit) -> String {
        let killed = exit == Exit::Signal(Signal::SIGKILL);
        match self {
            // With any exit: a shell reports the kill of its child as an exit code of its own.
            Self::OfRank(limit) => format!(
                ", it used all of its {} of memory, hint: ask for more `memory`, or use a smaller \
                 batch",
                limit
            ),
            Self::Yes if killed => {
                ", while the kernel ran out of memory, hint: a smaller batch, or more `memory`"
                    .to_owned()
            }
            Self::No if killed => {
                ", hint: the kernel killed nobody for want of memory meanwhile".to_owned()
            }
            Self::Unknown if killed => {
                ", hint: the kernel does this when memory runs out, see `dmesg`".to_owned()
            }
            _ => String::new(),
        }
    }
}

/// What is known so far about how a gang ends.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// The first rank that did not exit with 0, unless a stop was requested before.
    culprit: Option<(u32, Exit)>,
    is_stop_requested: bool,
    /// Some rank did not exit with 0.
    left_work: bool,
    is_done: bool,
    /// It hung, or took up too much space, and was ended for that.
    ended_for: Option<Failure>,
}

impl Verdict {
    /// The gang was asked to stop. Without effect on a rank that has failed before.
    pub(super) fn stop_requested(&mut self) {
        self.is_stop_requested = true;
    }

    /// The program reported that its work is complete.
    pub(super) fn done(&mut self) {
        self.is_done = true;
    }

    /// Nobody has ended or failed it yet.
    pub(super) fn is_open(&self) -> bool {
        !self.is_stop_requested && self.culprit.is_none() && self.ended_for.is_none()
    }

    /// It reported nothing for so long; the stacks of its processes may lie in a file.
    pub(super) fn stalled(&mut self, silent: Millis, stacks: Option<&Path>) {
        let mut message = format!("it reported nothing for {} s", silent.0.div_ceil(1_000));
        if let Some(path) = stacks {
            message.push_str(&format!(", what its processes did is in `{}`", path.display()));
        }
        let (exit_code, cause) = (Exit::Signal(Signal::SIGKILL).code(), FailureCause::Stalled);
        self.ended_for = Some(Failure { rank: 0, exit_code, message, cause });
    }

    /// Its files take up more than they may.
    pub(super) fn took_too_much_space(&mut self, used: Bytes, limit: Bytes) {
        let message = format!(
            "its output, checkpoints and logs take up {used}, more than the {limit} of `scratch` \
             that it may have, hint: keep fewer checkpoints, or ask for more `scratch`"
        );
        let (exit_code, cause) = (Exit::Signal(Signal::SIGKILL).code(), FailureCause::ScratchLimit);
        self.ended_for = Some(Failure { rank: 0, exit_code, message, cause });
    }

    pub(super) fn culprit(&self) -> Option<u32> {
        self.culprit.map(|(rank, _)| rank)
    }

    /// Whether there may be another attempt.
    pub(super) fn prospect(&self) -> Prospect {
        match self.left_work || self.is_stop_requested || self.ended_for.is_some() {
            true => Prospect::Resume,
            false => Prospect::Nothing,
        }
    }

    pub(super) fn exited(&mut self, rank: u32, exit: Exit) -> Consequence {
        if exit == Exit::Code(0) {
            return Consequence::None;
        }
        self.left_work = true;
        if self.is_stop_requested || self.culprit.is_some() {
            return Consequence::None;
        }
        self.culprit = Some((rank, exit));
        match exit {
            Exit::Code(EXIT_SAVED) => Consequence::LetOthersSave,
            _ => Consequence::EndOthers,
        }
    }

    /// `log` is the end of the culprit's log. A program that nobody asked to stop wants to go on
    /// later only if it `saved` something new: otherwise it would do the same for ever.
    pub(super) fn outcome(&self, log: &str, memory: MemoryRanOut, saved: Saved) -> Outcome {
        if let Some(failure) = &self.ended_for {
            return Outcome::Failed(failure.clone());
        }
        match self.culprit {
            // Its exit is unknown: it is restarted from its newest checkpoint, unless it reported
            // that its work was complete.
            Some((_, Exit::Unknown)) if self.is_done => Outcome::Finished,
            Some((rank, Exit::Unknown)) => Outcome::Failed(Failure { rank, ..Failure::unseen() }),
            Some((_, Exit::Code(EXIT_SAVED)))
                if self.is_stop_requested || saved == Saved::Newer =>
            {
                Outcome::Stopped
            }
            Some((rank, exit)) => Outcome::Failed(Failure {
                rank,
                exit_code: exit.code(),
                message: message(rank, exit, log, memory),
                cause: match memory.cause_of(exit) {
                    FailureCause::Program if tells_of_device(log) => FailureCause::Device,
                    cause => cause,
                },
            }),
            None if self.is_stop_requested && (self.left_work || !self.is_done) => Outcome::Stopped,
            None => Outcome::Finished,
        }
    }
}

/// Whether the error that ended a program is one of its device's hardware.
fn tells_of_device(log: &str) -> bool {
    let cause = cause(log);
    DEVICE_ERRORS.iter().any(|error| cause.contains(error))
}

fn message(rank: u32, exit: Exit, log: &str, memory: MemoryRanOut) -> String {
    let mut text = format!("rank {rank} {exit}");
    if exit == Exit::Code(EXIT_SAVED) {
        text.push_str(" to go on later, without a newer checkpoint");
    }
    let cause = cause(log);
    if !cause.is_empty() {
        text.push_str(": ");
        text.push_str(&cause);
    }
    text.push_str(&memory.hint(exit));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Exit = Exit::Signal(Signal::SIGTERM);

    /// The outcome after `s` stop, `d` done, `n` a newer checkpoint, and exits by rank.
    fn end(stop: &str, exits: &[(u32, Exit)]) -> Outcome {
        let mut verdict = Verdict::default();
        if stop.contains('d') {
            verdict.done();
        }
        if stop.contains('s') {
            verdict.stop_requested();
        }
        for &(rank, exit) in exits {
            verdict.exited(rank, exit);
        }
        let saved = if stop.contains('n') { Saved::Newer } else { Saved::Nothing };
        verdict.outcome("", MemoryRanOut::Unknown, saved)
    }

    fn failed(outcome: Outcome) -> (u32, i32) {
        match outcome {
            Outcome::Failed(failure) => (failure.rank, failure.exit_code),
            other => panic!("expected a failure, got {other:?}"),
        }
    }

    fn cause(outcome: Outcome) -> FailureCause {
        match outcome {
            Outcome::Failed(failure) => failure.cause,
            other => panic!("expected a failure, got {other:?}"),
        }
    }

    #[test]
    fn evidence_gives_the_cause() {
        let of = |exit| cause(end("", &[(0, exit)]));
        assert_eq!(of(Exit::Code(1)), FailureCause::Program);
        assert_eq!(of(Exit::Code(75)), FailureCause::Program);
        assert_eq!(of(Exit::Signal(Signal::SIGSEGV)), FailureCause::Program);
        assert_eq!(of(Exit::Signal(Signal::SIGABRT)), FailureCause::Program);
        assert_eq!(of(Exit::Code(127)), FailureCause::CannotRun);
        assert_eq!(of(Exit::Signal(Signal::SIGKILL)), FailureCause::Killed);
        assert_eq!(of(Exit::Code(137)), FailureCause::Killed, "a shell tells of its child");
        assert_eq!(of(TERM), FailureCause::Killed);
        let mut verdict = Verdict::default();
        verdict.exited(0, Exit::Code(1));
        let log = "RuntimeError: CUDA error: uncorrectable ECC error encountered";
        let told = verdict.outcome(log, MemoryRanOut::Unknown, Saved::Nothing);
        assert_eq!(cause(told), FailureCause::Device);
        let kill = Exit::Signal(Signal::SIGKILL);
        assert_eq!(MemoryRanOut::Yes.cause_of(kill), FailureCause::MachineMemory);
        assert_eq!(MemoryRanOut::Yes.cause_of(Exit::Code(1)), FailureCause::Program);
        let limit = MemoryRanOut::OfRank(Bytes::gib(1));
        assert_eq!(limit.cause_of(kill), FailureCause::MemoryLimit);
        assert_eq!(limit.cause_of(Exit::Code(1)), FailureCause::MemoryLimit);
    }

    #[test]
    fn without_a_stop_the_exit_codes_decide() {
        assert_eq!(end("", &[(0, Exit::Code(0)), (1, Exit::Code(0))]), Outcome::Finished);
        assert_eq!(end("n", &[(0, Exit::Code(75)), (1, Exit::Code(1))]), Outcome::Stopped);
        assert_eq!(end("n", &[(0, Exit::Code(0)), (1, Exit::Code(75))]), Outcome::Stopped);
        assert_eq!(failed(end("", &[(0, Exit::Code(75))])), (0, 75), "it saved nothing new");
    }

    #[test]
    fn the_first_rank_to_fail_is_the_culprit() {
        assert_eq!(failed(end("", &[(1, Exit::Code(7)), (0, TERM)])), (1, 7));
        assert_eq!(failed(end("", &[(0, TERM), (1, Exit::Code(7))])), (0, 143));
        assert_eq!(cause(end("", &[(0, Exit::Code(0)), (1, Exit::Unknown)])), FailureCause::Unseen);
        assert_eq!(end("d", &[(0, Exit::Unknown)]), Outcome::Finished);
    }

    #[test]
    fn while_stopping_everything_but_done_is_a_stop() {
        assert_eq!(end("s", &[(0, Exit::Code(0))]), Outcome::Stopped);
        assert_eq!(end("s", &[(0, Exit::Code(75))]), Outcome::Stopped);
        assert_eq!(end("s", &[(0, Exit::Code(1))]), Outcome::Stopped);
        assert_eq!(end("s", &[(0, TERM)]), Outcome::Stopped);
        assert_eq!(end("sd", &[(0, Exit::Code(0))]), Outcome::Finished);
        assert_eq!(end("sd", &[(0, TERM)]), Outcome::Stopped);
    }

    #[test]
    fn a_stop_after_a_failure_changes_nothing() {
        let mut verdict = Verdict::default();
        assert_eq!(verdict.exited(0, Exit::Code(7)), Consequence::EndOthers);
        verdict.stop_requested();
        assert_eq!(verdict.exited(1, TERM), Consequence::None);
        assert_eq!(failed(verdict.outcome("", MemoryRanOut::Unknown, Saved::Nothing)), (0, 7));
    }

    #[test]
    fn the_message_quotes_the_cause_in_the_log() {
        let log = "step 1\nCUDA out of memory\n\n  \n";
        assert_eq!(
            message(2, Exit::Code(1), log, MemoryRanOut::Unknown),
            "rank 2 exited with code 1: CUDA out of memory"
        );
        assert_eq!(message(0, TERM, "", MemoryRanOut::Unknown), "rank 0 was killed by SIGTERM");
        let killed = |by| message(0, Exit::Signal(Signal::SIGKILL), "", by);
        assert!(killed(MemoryRanOut::Yes).contains("the kernel ran out of memory"));
        assert!(killed(MemoryRanOut::No).contains("killed nobody for want of memory"));
        assert_eq!(MemoryRanOut::between(Some(3), Some(4)), MemoryRanOut::Yes);
        assert_eq!(MemoryRanOut::between(None, Some(4)), MemoryRanOut::Unknown);
    }
}
