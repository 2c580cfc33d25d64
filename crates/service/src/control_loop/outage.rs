//! A disk that cannot be written: questions are answered, what runs is watched, and nothing is
//! changed or decided until it can be written again.

use std::sync::mpsc::channel;

use het_control::{ControlError, LogError};
use het_core::{Millis, Time};
use het_engine::Engine;
use het_wire::text::with_causes;

use super::{ControlLoop, ServiceError};
use crate::Store;
use crate::handle::{Brought, Then};

/// From a failure until the store is tried again; twice as long each time, up to the longest.
const PAUSE_FIRST: Millis = Millis(100);
const PAUSE_MAX: Millis = Millis::seconds(5);

/// Since when nothing can be changed, and what is done meanwhile.
pub(super) struct Outage {
    retry_at: Time,
    pause: Millis,
    facts: Facts,
}

/// What becomes of what the engine reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Facts {
    /// There may be room for them: some was kept for that.
    Recorded,
    /// There is none until the store is tried again. The engine keeps them too, and tells the next
    /// server should this one die.
    Held,
}

impl<E: Engine, S: Store> ControlLoop<E, S> {
    /// A turn could not be made durable: it never was, and callers are told so.
    pub(super) fn begin_outage(&mut self, error: LogError) -> Result<(), ServiceError> {
        self.storage.send_replace(Some(with_causes(&error).into()));
        let (sender, past) = channel();
        // What the log adds up to is what the replica knows. The loop waits for it.
        self.publisher.look(move |past| drop(sender.send(past.clone())));
        let past = past.recv().map_err(|_| ServiceError::Control(error.into()))?;
        self.control.roll_back(past);
        self.wait_with_reserve();
        Ok(())
    }

    /// Where the store has no room at the start, only facts are recorded from the beginning.
    pub(super) fn look_at_store(&mut self) {
        if let Err(error) = self.control.log_mut().mend() {
            self.storage.send_replace(Some(with_causes(&error).into()));
            self.wait_with_reserve();
        }
    }

    fn wait_with_reserve(&mut self) {
        self.control.log_mut().release_reserve();
        let retry_at = self.control.now() + PAUSE_FIRST;
        self.outage = Some(Outage { retry_at, pause: PAUSE_FIRST, facts: Facts::Recorded });
    }

    /// One turn of an outage.
    pub(super) fn wait_for_store(&mut self, mut outage: Outage) -> Result<(), ServiceError> {
        self.refuse_requests();
        if self.then == Then::End {
            return Ok(());
        }
        self.control.listen(outage.retry_at);
        if outage.facts == Facts::Recorded && self.control.has_heard() {
            match self.control.record() {
                Ok(turn) => self.publish(turn),
                Err(ControlError::Log(_)) => outage.facts = Facts::Held,
                Err(error) => return Err(error.into()),
            }
        }
        if self.control.now() < outage.retry_at {
            self.outage = Some(outage);
            return Ok(());
        }
        match self.control.log_mut().mend() {
            // The next turn is an ordinary one, and takes in what was heard.
            Ok(()) => drop(self.storage.send_replace(None)),
            Err(error) => {
                // The try may have taken the room back that facts are recorded in.
                self.control.log_mut().release_reserve();
                self.storage.send_replace(Some(with_causes(&error).into()));
                outage.pause = (outage.pause + outage.pause).min(PAUSE_MAX);
                outage.retry_at = self.control.now() + outage.pause;
                outage.facts = Facts::Recorded;
                self.outage = Some(outage);
            }
        }
        Ok(())
    }

    /// Callers find out by the end of their channel; facts and the end of the loop are taken in.
    fn refuse_requests(&mut self) {
        while let Ok(request) = self.requests.try_recv() {
            let pending = request(self.control.state());
            match pending.brought {
                Brought::Facts(events) => {
                    events.into_iter().for_each(|event| self.control.accept(event));
                }
                Brought::Changes(_) if pending.then == Then::End => {
                    self.then = Then::End;
                    (pending.acknowledge)();
                }
                Brought::Changes(_) => {}
            }
        }
    }
}
