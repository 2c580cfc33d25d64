//! The output of a gang that other stages follow: its first shard, and its end.

use std::os::fd::AsFd;

use het_core::{Event, Failure, FailureCause, Outcome, OutputRule};

use crate::context::Context;
use crate::launch::GangSpec;
use crate::output::{self, OutputWatch};
use crate::poller::{Source, Trigger};

/// Watches for the first output of a gang whose output is streamed, or reports it if it exists.
pub(super) fn watch_output(spec: &GangSpec, context: &mut Context) -> Option<OutputWatch> {
    if spec.launch.output != OutputRule::Streamed {
        return None;
    }
    let opened = OutputWatch::open(spec.output_dir()).ok();
    let watch = opened.filter(|watch| !watch.has_shard()).filter(|watch| {
        let source = Source::Output(spec.lease);
        context.poller.add(watch.as_fd(), source, Trigger::Level).is_ok()
    });
    if watch.is_none() {
        // Without inotify readers begin at once, and wait for the first shard themselves.
        context.emit(Event::StagePublished { lease: spec.lease });
    }
    watch
}

/// Marks streamed output as complete if the gang has finished. Without the marker its readers would
/// wait forever, so the gang fails if it cannot be written.
pub(super) fn complete_output(spec: &GangSpec, outcome: Outcome) -> Outcome {
    let is_streamed = spec.launch.output == OutputRule::Streamed;
    if !is_streamed || outcome != Outcome::Finished {
        return outcome;
    }
    match output::mark_complete(&spec.output_dir()) {
        Ok(()) => outcome,
        Err(error) => {
            let message = format!("the end of its output cannot be written down: {error}");
            let cause = FailureCause::CannotRun;
            Outcome::Failed(Failure { rank: 0, exit_code: 1, message, cause })
        }
    }
}
