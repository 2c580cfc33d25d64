//! The program's view of its workers together: their lines, and the channels between them.
//!
//! A channel is opened when there is a first content for it, which itself passes through the
//! program, and used once its first end has said that it is open. One that is given up is not
//! opened again as long as both workers are there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::super::Portable;
use super::super::protocol::ChannelId;
use super::Line;
use crate::MemoryId;

/// Where a channel is between being asked for and being given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Opening,
    Open,
    /// Given up, and its second end has not said so: some of what was sent over it may be stored
    /// yet.
    Closing,
    Closed,
}

#[derive(Debug, Clone, Copy)]
pub struct Channel {
    pub from: MemoryId,
    pub to: MemoryId,
    pub stage: Stage,
    /// Of workers of which one is not there any more.
    is_past: bool,
}

pub struct Network<B> {
    state: Mutex<State<B>>,
}

struct State<B> {
    /// By memory.
    lines: Vec<Option<Weak<Line<B>>>>,
    channels: BTreeMap<ChannelId, Channel>,
    next: u32,
}

impl<B> Default for Network<B> {
    fn default() -> Self {
        let state = State { lines: Vec::new(), channels: BTreeMap::new(), next: 0 };
        Self { state: Mutex::new(state) }
    }
}

impl<B: Portable> Network<B> {
    /// No line is locked with it but before it.
    fn state(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lines there are from now on.
    pub fn set_lines(&self, lines: Vec<Option<Weak<Line<B>>>>) {
        self.state().lines = lines;
    }

    /// A worker's line, as long as it is there.
    pub fn line(&self, memory: MemoryId) -> Option<Arc<Line<B>>> {
        self.state().lines.get(memory.row())?.as_ref()?.upgrade()
    }

    /// Whether a memory is that of a worker, there or not.
    pub fn is_workers(&self, memory: MemoryId) -> bool {
        self.state().lines.get(memory.row()).is_some_and(Option::is_some)
    }

    /// The channel from one worker to another, if one was ever opened between the two.
    pub fn between(&self, from: MemoryId, to: MemoryId) -> Option<(ChannelId, Stage)> {
        let state = self.state();
        let mut of_both = state.channels.iter().filter(|(_, own)| !own.is_past);
        let found = of_both.find(|(_, own)| own.from == from && own.to == to);
        found.map(|(id, own)| (*id, own.stage))
    }

    /// From where to where a channel was given up between workers that are there.
    pub fn given_up(&self) -> Vec<(MemoryId, MemoryId)> {
        let state = self.state();
        let given_up = state
            .channels
            .values()
            .filter(|own| !own.is_past && matches!(own.stage, Stage::Closing | Stage::Closed));
        given_up.map(|own| (own.from, own.to)).collect()
    }

    pub fn open(&self, from: MemoryId, to: MemoryId) -> ChannelId {
        let mut state = self.state();
        let id = ChannelId(state.next);
        state.next += 1;
        let channel = Channel { from, to, stage: Stage::Opening, is_past: false };
        state.channels.insert(id, channel);
        id
    }

    /// # Errors
    /// One that never was.
    pub fn channel(&self, id: ChannelId) -> Result<Option<Channel>, String> {
        let state = self.state();
        match state.channels.get(&id) {
            None if id.0 >= state.next => Err("it said something of a channel that is none".into()),
            found => Ok(found.copied()),
        }
    }

    pub fn stage(&self, id: ChannelId) -> Stage {
        self.state().channels.get(&id).map_or(Stage::Closed, |own| own.stage)
    }

    /// Its first end says so.
    pub fn opened(&self, id: ChannelId) {
        let mut state = self.state();
        let found = state.channels.get_mut(&id);
        if let Some(own) = found.filter(|own| own.stage == Stage::Opening) {
            own.stage = Stage::Open;
        }
    }

    /// It is given up, and both ends are told: false where it was before.
    pub fn close(&self, id: ChannelId) -> bool {
        let mut state = self.state();
        let State { lines, channels, .. } = &mut *state;
        let found = channels.get_mut(&id);
        let Some(own) = found.filter(|own| matches!(own.stage, Stage::Opening | Stage::Open))
        else {
            return false;
        };
        own.stage = Stage::Closing;
        // With the lock: whoever sees that it is closing has the order to close behind it.
        for end in [own.to, own.from] {
            let line = lines.get(end.row()).and_then(Option::as_ref).and_then(Weak::upgrade);
            line.iter().for_each(|line| line.hand_over_close(id));
        }
        true
    }

    /// Its second end says so, or is gone.
    pub fn closed(&self, id: ChannelId) {
        let mut state = self.state();
        let Some(own) = state.channels.get_mut(&id) else { return };
        own.stage = Stage::Closed;
        if own.is_past {
            state.channels.remove(&id);
        }
    }

    /// Another worker is in the place of one that is gone, and has none of its channels.
    pub fn forget(&self, memory: MemoryId) {
        self.state().channels.retain(|_, own| own.from != memory && own.to != memory);
    }

    /// A worker is gone: its channels, which another one in its place does not have.
    pub fn leave(&self, memory: MemoryId) -> Vec<(ChannelId, Channel)> {
        let mut state = self.state();
        let own =
            state.channels.iter_mut().filter(|(_, own)| own.from == memory || own.to == memory);
        let own = own.map(|(id, own)| {
            own.is_past = true;
            (*id, *own)
        });
        let own = own.collect();
        state.channels.retain(|_, own| !own.is_past || own.stage != Stage::Closed);
        own
    }
}
