//! What is recorded of streams where that was asked for.

use crate::timeline::{Idle, Timeline, Work};
use crate::{Completion, DeviceId, Stage};

use super::Coordinator;

impl Coordinator {
    /// Begins to record what streams do, anew if it did already.
    pub fn record(&mut self) {
        self.timeline = Some(Box::new(Timeline::new(&self.machine, self.now)));
        self.record_causes();
    }

    /// What was recorded so far, if anything is.
    pub fn timeline(&self) -> Option<&Timeline> {
        self.timeline.as_deref()
    }

    /// Ends the recording.
    pub fn take_timeline(&mut self) -> Option<Timeline> {
        self.timeline.take().map(|timeline| *timeline)
    }

    /// What is recorded as a trace that Perfetto opens; `None` where nothing is recorded.
    pub fn trace(&self) -> Option<String> {
        let timeline = self.timeline.as_deref()?;
        Some(timeline.to_trace(&self.machine, &self.kernels, self.now))
    }

    pub(super) fn record_completion(&mut self, completion: &Completion) {
        let Some(timeline) = self.timeline.as_deref_mut() else { return };
        match completion {
            Completion::Ended { task, ran } | Completion::Failed { task, ran, .. } => {
                let node = self.graph.get(*task);
                if let Some((node, device)) = node.and_then(|node| Some((node, node.device()?))) {
                    let has_failed = matches!(completion, Completion::Failed { .. });
                    let (kernel, sequence) = (node.kernel, node.sequence);
                    timeline.task(device, *ran, Work::Task { kernel, sequence, has_failed });
                }
            }
            Completion::Copied { transfer, ran } => {
                if let Some(copy) = self.data.transfer(*transfer) {
                    timeline.copy(&copy, *ran);
                }
            }
            Completion::CopyFailed { .. }
            | Completion::DeviceLost { .. }
            | Completion::MemoryLost { .. } => {}
        }
    }

    pub(super) fn record_causes(&mut self) {
        for device in self.machine.device_ids() {
            let (cause, now) = (self.cause(device), self.now);
            if let Some(timeline) = self.timeline.as_deref_mut() {
                timeline.waits(device, now, cause);
            }
        }
    }

    /// Why a device does nothing, should it be so.
    fn cause(&self, device: DeviceId) -> Idle {
        let stream = &self.streams[device.row()];
        let view = self.view();
        let waits = |stage| matches!(stage, Stage::Waiting | Stage::Ready | Stage::Blocked);
        if stream.is_lost {
            Idle::Nothing
        } else if stream.launched > 0 {
            Idle::Handover
        } else if !stream.committed.is_empty() {
            Idle::Transfer
        } else if stream.lacks_room {
            Idle::Memory
        } else if self.graph.unfinished() > self.streams.iter().map(|one| one.committed.len()).sum()
            && self.graph.tasks().any(|(_, node)| waits(node.stage) && view.can_run(node, device))
        {
            Idle::Data
        } else {
            Idle::Nothing
        }
    }
}
