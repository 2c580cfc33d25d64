//! Which memories hold a valid copy of each handle, and what has to move before a task may run.
//!
//! A copy is invalid, shared (there are others) or modified (there is no other), as in the MSI
//! protocol. A writer takes the other copies' validity when it ends and not when it begins: until
//! then a device that is lost has lost nothing that lies elsewhere.

mod eviction;
mod transfers;

use std::sync::Arc;

use thiserror::Error;

use crate::TransferId;
use crate::link_rates::LinkRates;
use crate::machine::Reservations;
use crate::{Access, Action, CopyOrder, HandleId, Machine, MemoryId, Nanos, TaskId};

use eviction::{Listed, Room};
use transfers::Transfers;

pub(crate) use transfers::FailedCopy;

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RegisterError {
    #[error("there is no memory {0}")]
    NoMemory(usize),
    #[error(
        "memory `{memory}` has {free} bytes free of {capacity}, and {bytes} are asked for\nhint: \
         release handles, or register it in another memory"
    )]
    NoRoom { memory: String, bytes: u64, free: u64, capacity: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ReleaseError {
    #[error("the handle does not exist (any more)")]
    Unknown,
    #[error("a task or a copy that has not ended uses the handle")]
    InUse,
}

#[derive(Debug, Clone, Default)]
struct Data {
    generation: u32,
    exists: bool,
    bytes: u64,
    /// Memories with a valid copy, as bits.
    valid: u64,
    /// Counts the contents that it had.
    epoch: u32,
    /// A copy of this content failed: it is made again for a task that reads it, not ahead of one
    /// nor to make room.
    is_stuck: bool,
}

impl Data {
    /// It has another content from now on.
    fn change(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.is_stuck = false;
    }
}

/// The place of a handle in a memory.
#[derive(Debug, Clone)]
struct Place {
    allocated: bool,
    /// It is being written back, to be dropped.
    leaving: bool,
    /// In which list of those that may be evicted it is.
    listed: Option<Listed>,
    /// Committed tasks that use it, and transfers that read it.
    pins: u32,
    /// Committed tasks that write it.
    writers: u32,
    /// Row of the transfer that fills it.
    incoming: u32,
    previous: u32,
    next: u32,
}

impl Default for Place {
    fn default() -> Self {
        Self {
            allocated: false,
            leaving: false,
            listed: None,
            pins: 0,
            writers: 0,
            incoming: NONE,
            previous: NONE,
            next: NONE,
        }
    }
}

/// What became of the data that a task was to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Written,
    /// The task never began.
    Untouched,
    /// It began and did not end.
    Undefined,
}

/// What a task that asks for memory gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// Memory for all its handles; so many copies have to arrive before it may run.
    Granted { arriving: u32 },
    /// Nothing: it has to ask again when something ended.
    Full,
}

/// What was moved since the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    pub transfers: u64,
    pub bytes: u64,
    /// Copies that were dropped or written back to make room.
    pub evictions: u64,
    pub written_back_bytes: u64,
}

#[derive(Debug, Clone)]
pub struct Coherence {
    machine: Arc<Machine>,
    data: Vec<Data>,
    free: Vec<u32>,
    /// Places of each handle, memory by memory.
    places: Vec<Place>,
    rooms: Vec<Room>,
    transfers: Transfers,
    reservations: Reservations,
    rates: LinkRates,
    traffic: Traffic,
}

impl Coherence {
    pub(crate) fn new(machine: Arc<Machine>) -> Self {
        Self {
            data: Vec::new(),
            free: Vec::new(),
            places: Vec::new(),
            rooms: machine.memories().iter().map(|memory| Room::new(memory.capacity.0)).collect(),
            transfers: Transfers::default(),
            reservations: Reservations::new(&machine),
            rates: LinkRates::new(machine.links().len()),
            traffic: Traffic::default(),
            machine,
        }
    }

    pub(crate) fn rates(&self) -> &LinkRates {
        &self.rates
    }

    /// The same one with links of other rates, or other routes.
    pub(crate) fn set_machine(&mut self, machine: Arc<Machine>, now: Nanos) {
        self.machine = machine;
        let ends = self.transfers.under_way();
        let links = ends.flat_map(|(from, to)| self.machine.links_between(from, to));
        self.rates.restart(links, now);
    }

    /// A handle of so many bytes. With a home its content lies there, without one a task has to
    /// write it first.
    pub(crate) fn register(
        &mut self,
        bytes: u64,
        home: Option<MemoryId>,
        actions: &mut Vec<Action>,
    ) -> Result<HandleId, RegisterError> {
        if let Some(memory) = home {
            self.room_for(memory, bytes, actions)?;
        }
        let row = self.free.pop().unwrap_or(self.data.len() as u32);
        if row as usize == self.data.len() {
            self.data.push(Data::default());
            self.places.resize(self.places.len() + self.rooms.len(), Place::default());
        }
        let data = &mut self.data[row as usize];
        let generation = data.generation;
        *data = Data { generation, exists: true, bytes, ..Data::default() };
        let handle = HandleId { row, generation };
        if let Some(memory) = home {
            self.provide(handle, memory);
        }
        Ok(handle)
    }

    fn room_for(
        &mut self,
        memory: MemoryId,
        bytes: u64,
        actions: &mut Vec<Action>,
    ) -> Result<(), RegisterError> {
        let Some(told) = self.machine.memories().get(memory.row()) else {
            return Err(RegisterError::NoMemory(memory.row()));
        };
        let name = told.name.clone();
        if !self.drop_redundant(memory, bytes, &[], actions) {
            let Room { capacity, used, .. } = self.rooms[memory.row()];
            let free = capacity.saturating_sub(used);
            return Err(RegisterError::NoRoom { memory: name, bytes, free, capacity });
        }
        Ok(())
    }

    /// The memory has been given the content of a handle that had none.
    fn provide(&mut self, handle: HandleId, memory: MemoryId) {
        self.allocate(handle, memory);
        self.data[handle.index()].valid = bit(memory);
        self.list(handle, memory);
        self.relist(handle);
    }

    /// Gives a handle that was lost its content again.
    pub(crate) fn restore(
        &mut self,
        handle: HandleId,
        memory: MemoryId,
        actions: &mut Vec<Action>,
    ) -> Result<(), RegisterError> {
        if memory.row() >= self.rooms.len() {
            return Err(RegisterError::NoMemory(memory.row()));
        }
        if !self.place(handle, memory).allocated {
            let bytes = self.data[handle.index()].bytes;
            self.room_for(memory, bytes, actions)?;
        }
        let data = &mut self.data[handle.index()];
        data.change();
        let old = data.valid & !bit(memory);
        self.provide(handle, memory);
        self.settle_all(handle, old, actions);
        Ok(())
    }

    /// Its content is what nobody wrote: no copy is valid any more.
    pub(crate) fn lose(&mut self, handle: HandleId, actions: &mut Vec<Action>) {
        let data = &mut self.data[handle.index()];
        data.change();
        let copies = std::mem::take(&mut data.valid);
        self.settle_all(handle, copies, actions);
    }

    /// Drops all copies of a handle that no task and no transfer uses.
    pub(crate) fn release_handle(&mut self, handle: HandleId, actions: &mut Vec<Action>) {
        let data = &mut self.data[handle.index()];
        data.valid = 0;
        data.exists = false;
        data.generation = data.generation.wrapping_add(1);
        for memory in self.machine.memory_ids() {
            self.settle(handle, memory, actions);
        }
        self.free.push(handle.row);
    }

    pub fn exists(&self, handle: HandleId) -> bool {
        let data = self.data.get(handle.index());
        data.is_some_and(|data| data.exists && data.generation == handle.generation)
    }

    /// Of a handle that exists.
    pub fn bytes(&self, handle: HandleId) -> u64 {
        self.data[handle.index()].bytes
    }

    /// Whether any memory has its content.
    pub fn has_content(&self, handle: HandleId) -> bool {
        self.data[handle.index()].valid != 0
    }

    pub fn is_valid(&self, handle: HandleId, memory: MemoryId) -> bool {
        self.data[handle.index()].valid & bit(memory) != 0
    }

    /// Memories with a valid copy.
    pub fn copies(&self, handle: HandleId) -> impl Iterator<Item = MemoryId> + '_ {
        self.machine.memory_ids().filter(move |memory| self.is_valid(handle, *memory))
    }

    /// Bytes taken in a memory, by valid copies and by those that tasks or transfers fill.
    pub fn used(&self, memory: MemoryId) -> u64 {
        self.rooms[memory.row()].used
    }

    pub fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// A copy that is under way.
    pub(crate) fn transfer(&self, id: TransferId) -> Option<CopyOrder> {
        let order = self.transfers.order(id)?;
        Some(CopyOrder { bytes: self.bytes(order.handle), ..order })
    }

    /// Whether a copy is under way or room is being made.
    pub(crate) fn is_moving(&self) -> bool {
        self.transfers.count() > 0
    }

    /// Whether a task in this memory has to wait for a copy of it.
    fn is_missing(&self, handle: HandleId, memory: MemoryId) -> bool {
        !self.is_valid(handle, memory) && self.place(handle, memory).writers == 0
    }

    /// Bytes that have to be copied before a task with these accesses may run in a memory.
    pub fn missing_bytes(&self, accesses: &[Access], memory: MemoryId) -> u64 {
        let read = accesses.iter().filter(|access| access.mode.reads());
        let missing = read.filter(|access| self.is_missing(access.handle, memory));
        missing.map(|access| self.bytes(access.handle)).sum()
    }

    /// When all that such a task reads is in a memory if copying begins now, one after the other.
    /// `None` where something can't get there.
    pub fn available_at(&self, accesses: &[Access], memory: MemoryId, now: Nanos) -> Option<Nanos> {
        let mut at = now;
        for Access { handle, mode } in accesses.iter().copied() {
            if !mode.reads() || !self.is_missing(handle, memory) {
                continue;
            }
            if let Some(end) = self.transfers.expected_end(self.place(handle, memory).incoming) {
                at = at.max(end);
                continue;
            }
            let (_, interval) = self.source(handle, memory, at)?;
            at = at.max(interval.end);
        }
        Some(at)
    }

    /// When a copy is valid in a memory: now, once it is there, or `None`.
    pub fn expected_at(&self, handle: HandleId, memory: MemoryId, now: Nanos) -> Option<Nanos> {
        match self.is_valid(handle, memory) {
            true => Some(now),
            false => self.transfers.expected_end(self.place(handle, memory).incoming),
        }
    }

    /// Takes memory for a task and begins the copies that it needs, or does neither. `next` are
    /// accesses of tasks that come soon: what they use is evicted last.
    pub(crate) fn acquire(
        &mut self,
        (task, accesses): (TaskId, &[Access]),
        memory: MemoryId,
        (now, next): (Nanos, &[Access]),
        actions: &mut Vec<Action>,
    ) -> Acquired {
        let absent = accesses.iter().filter(|access| !self.place(access.handle, memory).allocated);
        let needed: u64 = absent.map(|access| self.bytes(access.handle)).sum();
        if needed > 0 && !self.make_room((needed, memory), (accesses, next), now, actions) {
            return Acquired::Full;
        }
        let mut arriving = 0;
        for Access { handle, mode } in accesses.iter().copied() {
            self.allocate(handle, memory);
            self.unlist(handle, memory);
            let is_missing = mode.reads() && self.is_missing(handle, memory);
            let place = self.place_mut(handle, memory);
            place.pins += 1;
            place.writers += u32::from(mode.writes());
            let incoming = place.incoming;
            if mode.writes() {
                self.relist(handle);
            }
            if incoming != NONE && (is_missing || mode.writes()) {
                // What arrives late would cover what the task writes.
                self.transfers.wait(incoming, task, is_missing);
                arriving += 1;
            } else if is_missing {
                self.fetch(handle, memory, Some(task), now, actions);
                arriving += 1;
            }
        }
        Acquired::Granted { arriving }
    }

    /// Gives back what [`Coherence::acquire`] took.
    pub(crate) fn release(
        &mut self,
        accesses: &[Access],
        memory: MemoryId,
        outcome: Outcome,
        actions: &mut Vec<Action>,
    ) {
        for Access { handle, mode } in accesses.iter().copied() {
            let place = self.place_mut(handle, memory);
            place.pins -= 1;
            place.writers -= u32::from(mode.writes());
            if mode.writes() && outcome != Outcome::Untouched {
                let data = &mut self.data[handle.index()];
                data.change();
                let others = data.valid & !bit(memory);
                if outcome == Outcome::Written {
                    data.valid = bit(memory);
                    self.settle_all(handle, others, actions);
                } else {
                    data.valid = others;
                }
            }
            self.settle(handle, memory, actions);
            if mode.writes() {
                self.relist(handle);
            }
        }
    }

    fn settle_all(&mut self, handle: HandleId, memories: u64, actions: &mut Vec<Action>) {
        let mut left = memories;
        while left != 0 {
            self.settle(handle, MemoryId(left.trailing_zeros() as u16), actions);
            left &= left - 1;
        }
    }

    /// Begins to copy what tasks of a memory will read, by these accesses and in this order, as far
    /// as there is room to spare: none of it makes room for the rest.
    pub(crate) fn prefetch(
        &mut self,
        accesses: &[Access],
        memory: MemoryId,
        now: Nanos,
        actions: &mut Vec<Action>,
    ) {
        for Access { handle, .. } in accesses.iter().copied() {
            let place = self.place(handle, memory);
            let (incoming, allocated) = (place.incoming, place.allocated);
            if incoming != NONE
                || !self.is_missing(handle, memory)
                || !self.has_content(handle)
                || self.data[handle.index()].is_stuck
                || self.is_being_written(handle)
            {
                continue;
            }
            let bytes = if allocated { 0 } else { self.bytes(handle) };
            if !self.drop_redundant(memory, bytes, accesses, actions) {
                return;
            }
            self.allocate(handle, memory);
            self.unlist(handle, memory);
            self.fetch(handle, memory, None, now, actions);
        }
    }

    fn is_being_written(&self, handle: HandleId) -> bool {
        self.machine.memory_ids().any(|memory| self.place(handle, memory).writers > 0)
    }

    /// All that lay in a memory is gone. The tasks of its devices have given back what they had.
    /// Returns handles without a copy elsewhere; those whose copies were on their way to a task
    /// are added to `interrupted` with the task.
    pub(crate) fn lose_memory(
        &mut self,
        memory: MemoryId,
        now: Nanos,
        interrupted: &mut Vec<TaskId>,
        actions: &mut Vec<Action>,
    ) -> Vec<HandleId> {
        self.cancel_transfers_with(memory, now, interrupted, actions);
        self.rooms[memory.row()] = Room::lost();
        let mut lost = Vec::new();
        for row in 0..self.data.len() as u32 {
            let data = &mut self.data[row as usize];
            let had = data.valid & bit(memory) != 0;
            data.valid &= !bit(memory);
            let handle = HandleId { row, generation: data.generation };
            if had && data.valid == 0 {
                lost.push(handle);
            }
            *self.place_mut(handle, memory) = Place::default();
            self.relist(handle);
        }
        lost
    }

    /// A memory that was lost is there again, and empty; false of one that was not.
    pub(crate) fn restore_memory(&mut self, memory: MemoryId) -> bool {
        let room = &mut self.rooms[memory.row()];
        let was_lost = room.is_lost();
        if was_lost {
            *room = Room::new(self.machine.memories()[memory.row()].capacity.0);
        }
        was_lost
    }

    fn index(&self, handle: HandleId, memory: MemoryId) -> usize {
        handle.index() * self.rooms.len() + memory.row()
    }

    fn place(&self, handle: HandleId, memory: MemoryId) -> &Place {
        &self.places[self.index(handle, memory)]
    }

    fn place_mut(&mut self, handle: HandleId, memory: MemoryId) -> &mut Place {
        let index = self.index(handle, memory);
        &mut self.places[index]
    }

    fn allocate(&mut self, handle: HandleId, memory: MemoryId) {
        let bytes = self.data[handle.index()].bytes;
        let place = self.place_mut(handle, memory);
        if !place.allocated {
            place.allocated = true;
            self.rooms[memory.row()].used += bytes;
        }
    }

    /// Frees a place that nobody needs, or lists it as one that may be evicted.
    fn settle(&mut self, handle: HandleId, memory: MemoryId, actions: &mut Vec<Action>) {
        let place = self.place(handle, memory);
        if !place.allocated || place.pins > 0 || place.incoming != NONE {
            return;
        }
        if self.is_valid(handle, memory) {
            self.list(handle, memory);
            return;
        }
        self.unlist(handle, memory);
        let bytes = self.data[handle.index()].bytes;
        let place = self.place_mut(handle, memory);
        (place.allocated, place.leaving) = (false, false);
        self.rooms[memory.row()].used -= bytes;
        actions.push(Action::Drop { handle, memory });
    }

    /// Breaks where a law does: what a memory holds fits, and is what is accounted for.
    pub fn check(&self) {
        self.check_lists();
        for memory in self.machine.memory_ids() {
            let held = |row: usize| {
                let place = &self.places[row * self.rooms.len() + memory.row()];
                let data = &self.data[row];
                assert!(
                    place.allocated || data.valid & bit(memory) == 0,
                    "handle {row} is valid in {memory:?} and has no room there"
                );
                if place.allocated { data.bytes } else { 0 }
            };
            let held: u64 = (0..self.data.len()).map(held).sum();
            let room = &self.rooms[memory.row()];
            assert_eq!(held, room.used, "what {memory:?} holds is accounted for");
            assert!(held <= room.capacity, "{memory:?} holds {held} of {}", room.capacity);
        }
    }
}

fn bit(memory: MemoryId) -> u64 {
    1 << memory.row()
}
