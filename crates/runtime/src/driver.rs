//! The thin layer below: what every kind of device is driven through.

use crate::Completion;
use crate::{CopyOrder, HandleId, Launch, MemoryId, Nanos};

/// Whether a driver waits for something to report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// What there is.
    No,
    /// At least one, unless nothing is under way.
    ForOne,
}

/// Devices, their compute and copy streams, buffers and kernels.
///
/// A device has one compute stream: tasks run in the order of their launches, and are reported in
/// it. Copies run beside, on streams of their own. A buffer is named by handle and memory; it is
/// there from the first launch or copy that fills it until it is dropped. An event is a
/// [`Completion`]. Nothing lands any more from or in what was reported as lost.
pub trait Driver {
    /// Time since the driver began.
    fn now(&self) -> Nanos;

    fn launch(&mut self, launch: Launch);

    fn copy(&mut self, copy: CopyOrder);

    /// Called when no launched task and no copy uses the buffer.
    fn drop_buffer(&mut self, handle: HandleId, memory: MemoryId);

    /// All that was asked for may begin.
    fn flush(&mut self);

    /// Adds what ended.
    fn completions(&mut self, wait: Wait, into: &mut Vec<Completion>);
}
