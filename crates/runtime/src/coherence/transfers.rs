//! Copies under way, and the tasks that wait for them.

use smallvec::SmallVec;

use crate::machine::Interval;
use crate::{Action, CopyOrder, HandleId, MemoryId, Nanos, TaskId, TransferId};

use super::{Coherence, NONE, bit};

#[derive(Debug, Clone)]
struct Waiter {
    task: TaskId,
    /// Whether it reads what arrives, or waits only until nothing does.
    reads: bool,
}

#[derive(Debug, Clone)]
struct Transfer {
    handle: HandleId,
    from: MemoryId,
    to: MemoryId,
    /// Of the content that is copied.
    epoch: u32,
    /// When it will be there by the reservations.
    end: Nanos,
    waiters: SmallVec<[Waiter; 2]>,
    /// Whether the driver was asked for it. Otherwise its source is still to get the content, from
    /// a transfer that this one follows.
    has_begun: bool,
    /// Those that follow it.
    followers: SmallVec<[TransferId; 2]>,
}

/// Where a copy comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Valid(MemoryId),
    /// The memory that a transfer, by its row, brings it to, from where it goes on at that time.
    Arriving {
        at: MemoryId,
        by: u32,
        start: Nanos,
    },
}

/// A copy from another memory than the first one's is preferred where it is at most this part
/// later, of the time that it takes: it leaves the first one's links to others.
const LATER_PARTS: u64 = 8;

/// A copy that was not made, and the tasks that were to read it.
#[derive(Debug)]
pub(crate) struct FailedCopy {
    pub handle: HandleId,
    pub from: MemoryId,
    pub to: MemoryId,
    pub starved: Vec<TaskId>,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    generation: u32,
    transfer: Option<Transfer>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Transfers {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Transfers {
    pub fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn add(&mut self, transfer: Transfer) -> TransferId {
        let row = self.free.pop().unwrap_or(self.slots.len() as u32);
        if row as usize == self.slots.len() {
            self.slots.push(Slot::default());
        }
        let slot = &mut self.slots[row as usize];
        slot.transfer = Some(transfer);
        TransferId { row, generation: slot.generation }
    }

    fn remove(&mut self, id: TransferId) -> Option<Transfer> {
        let slot = self.slots.get_mut(id.index())?;
        let transfer = slot.transfer.take_if(|_| slot.generation == id.generation)?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.row);
        Some(transfer)
    }

    fn rows(&self, is_meant: impl Fn(&Transfer) -> bool) -> Vec<TransferId> {
        let slots = self.slots.iter().enumerate();
        let meant = slots.filter(|(_, slot)| slot.transfer.as_ref().is_some_and(&is_meant));
        meant
            .map(|(row, slot)| TransferId { row: row as u32, generation: slot.generation })
            .collect()
    }

    pub fn wait(&mut self, row: u32, task: TaskId, reads: bool) {
        if let Some(transfer) = self.slots[row as usize].transfer.as_mut() {
            transfer.waiters.push(Waiter { task, reads });
        }
    }

    /// Handles of which a copy is being made from this memory.
    pub fn leaving(&self, from: MemoryId) -> impl Iterator<Item = HandleId> + '_ {
        let transfers = self.slots.iter().filter_map(|slot| slot.transfer.as_ref());
        let begun = transfers.filter(move |transfer| transfer.from == from && transfer.has_begun);
        begun.map(|transfer| transfer.handle)
    }

    /// From where to where something is being copied.
    pub fn under_way(&self) -> impl Iterator<Item = (MemoryId, MemoryId)> + '_ {
        let transfers = self.slots.iter().filter_map(|slot| slot.transfer.as_ref());
        transfers.filter(|transfer| transfer.has_begun).map(|transfer| (transfer.from, transfer.to))
    }

    pub fn order(&self, id: TransferId) -> Option<CopyOrder> {
        let slot = self.slots.get(id.index()).filter(|slot| slot.generation == id.generation);
        let Transfer { handle, from, to, .. } = *slot?.transfer.as_ref()?;
        Some(CopyOrder { transfer: id, handle, from, to, bytes: 0 })
    }

    pub fn expected_end(&self, row: u32) -> Option<Nanos> {
        Some(self.slots.get(row as usize)?.transfer.as_ref()?.end)
    }
}

impl Coherence {
    /// The memory from which a copy arrives first, and when.
    pub(super) fn source(
        &self,
        handle: HandleId,
        to: MemoryId,
        now: Nanos,
    ) -> Option<(MemoryId, Interval)> {
        let bytes = self.bytes(handle);
        let offers = self.copies(handle).filter_map(|from| {
            let offer = self.reservations.offer(&self.machine, (from, to), bytes, now)?;
            Some((from, offer))
        });
        offers.min_by_key(|(from, offer)| (offer.end, *from))
    }

    /// As [`Coherence::source`], and with memories that a copy is on its way to: what several
    /// memories need goes on from one to the next where it would wait for a link of the first.
    fn source_or_arriving(&self, handle: HandleId, to: MemoryId, now: Nanos) -> Option<Source> {
        let (from, direct) = self.source(handle, to, now)?;
        if direct.start <= now {
            return Some(Source::Valid(from));
        }
        let bytes = self.bytes(handle);
        let epoch = self.data[handle.index()].epoch;
        let arriving = self.machine.memory_ids().filter_map(|at| {
            let by = self.place(handle, at).incoming;
            let first = self.transfers.slots.get(by as usize)?.transfer.as_ref()?;
            // Of one that is late it is not known when it comes.
            if first.epoch != epoch || first.end <= now || !self.machine.is_direct(at, to) {
                return None;
            }
            let offer = self.reservations.offer(&self.machine, (at, to), bytes, first.end)?;
            Some((offer.end, at, Source::Arriving { at, by, start: offer.start }))
        });
        let latest = direct.end + (direct.end - now) / LATER_PARTS;
        let soonest = arriving.filter(|own| own.0 <= latest).min_by_key(|own| (own.0, own.1));
        Some(soonest.map_or(Source::Valid(from), |(_, _, source)| source))
    }

    /// Begins a copy into a place that is allocated, or has it follow one that is under way. Where
    /// there is no source nothing begins: who asks has seen to it that there is one.
    pub(super) fn fetch(
        &mut self,
        handle: HandleId,
        to: MemoryId,
        task: Option<TaskId>,
        now: Nanos,
        actions: &mut Vec<Action>,
    ) {
        let waiters = task.into_iter().map(|task| Waiter { task, reads: true }).collect();
        match self.source_or_arriving(handle, to, now) {
            Some(Source::Valid(from)) => self.begin(handle, (from, to), waiters, now, actions),
            Some(Source::Arriving { at, by, start }) => {
                let transfer = self.reserved(handle, (at, to), waiters, start);
                let id = self.transfers.add(transfer);
                self.place_mut(handle, to).incoming = id.row;
                let first = self.transfers.slots[by as usize].transfer.as_mut();
                first.into_iter().for_each(|own| own.followers.push(id));
            }
            None => {}
        }
    }

    pub(super) fn write_back(
        &mut self,
        handle: HandleId,
        (from, to): (MemoryId, MemoryId),
        now: Nanos,
        actions: &mut Vec<Action>,
    ) {
        self.place_mut(handle, from).leaving = true;
        self.allocate(handle, to);
        self.traffic.written_back_bytes += self.bytes(handle);
        self.begin(handle, (from, to), SmallVec::new(), now, actions);
    }

    fn begin(
        &mut self,
        handle: HandleId,
        (from, to): (MemoryId, MemoryId),
        waiters: SmallVec<[Waiter; 2]>,
        now: Nanos,
        actions: &mut Vec<Action>,
    ) {
        let transfer = self.reserved(handle, (from, to), waiters, now);
        self.start(transfer, now, actions);
    }

    /// A transfer for which the links are reserved.
    fn reserved(
        &mut self,
        handle: HandleId,
        (from, to): (MemoryId, MemoryId),
        waiters: SmallVec<[Waiter; 2]>,
        earliest: Nanos,
    ) -> Transfer {
        let bytes = self.bytes(handle);
        let reserved = self.reservations.reserve(&self.machine, (from, to), bytes, earliest);
        let end = reserved.map_or(earliest, |interval| interval.end);
        let epoch = self.data[handle.index()].epoch;
        let followers = SmallVec::new();
        Transfer { handle, from, to, epoch, end, waiters, has_begun: false, followers }
    }

    /// Has the driver make a copy whose source is valid.
    fn start(&mut self, transfer: Transfer, now: Nanos, actions: &mut Vec<Action>) {
        let Transfer { handle, from, to, .. } = transfer;
        let bytes = self.bytes(handle);
        let epoch = self.data[handle.index()].epoch;
        let transfer = self.transfers.add(Transfer { epoch, has_begun: true, ..transfer });
        self.place_mut(handle, to).incoming = transfer.row;
        self.unlist(handle, from);
        self.place_mut(handle, from).pins += 1;
        self.traffic.transfers += 1;
        self.traffic.bytes += bytes;
        self.rates.began(self.machine.links_between(from, to), now);
        actions.push(Action::Copy(CopyOrder { transfer, handle, from, to, bytes }));
    }

    /// A copy is there: tasks that waited for it are added to `ready`, once for each such copy.
    pub(crate) fn arrived(
        &mut self,
        id: TransferId,
        now: Nanos,
        (ready, actions): (&mut Vec<TaskId>, &mut Vec<Action>),
    ) {
        let Some(transfer) = self.transfers.remove(id) else { return };
        let Transfer { handle, from, to, .. } = transfer;
        let bytes = self.bytes(handle);
        self.rates.ended(self.machine.links_between(from, to), bytes, now);
        let is_current = self.let_go(&transfer);
        if is_current {
            self.data[handle.index()].valid |= bit(to);
            self.leave(handle, from);
            self.relist(handle);
        }
        self.go_on(transfer, is_current, now, (ready, actions));
    }

    /// A copy could not be made. What waited until nothing arrives any more is added to `ready`.
    pub(crate) fn copy_failed(
        &mut self,
        id: TransferId,
        now: Nanos,
        (ready, actions): (&mut Vec<TaskId>, &mut Vec<Action>),
    ) -> Option<FailedCopy> {
        let mut transfer = self.transfers.remove(id)?;
        let Transfer { handle, from, to, .. } = transfer;
        self.rates.ended(self.machine.links_between(from, to), 0, now);
        let is_current = self.let_go(&transfer);
        let mut starved = Vec::new();
        if is_current {
            self.data[handle.index()].is_stuck = true;
            let readers = transfer.waiters.iter().filter(|waiter| waiter.reads);
            starved.extend(readers.map(|waiter| waiter.task));
            transfer.waiters.retain(|waiter| !waiter.reads);
        }
        self.go_on(transfer, is_current, now, (ready, actions));
        Some(FailedCopy { handle, from, to, starved })
    }

    /// Neither end is used by the transfer any more. Whether it had the content that there is: a
    /// writer may have begun at the source meanwhile. Nobody who needs the old content can have
    /// waited for it then.
    fn let_go(&mut self, transfer: &Transfer) -> bool {
        let Transfer { handle, from, to, epoch, .. } = *transfer;
        self.place_mut(handle, from).pins -= 1;
        self.place_mut(handle, to).incoming = NONE;
        self.data[handle.index()].epoch == epoch && self.place(handle, from).writers == 0
    }

    fn go_on(
        &mut self,
        transfer: Transfer,
        is_current: bool,
        now: Nanos,
        (ready, actions): (&mut Vec<TaskId>, &mut Vec<Action>),
    ) {
        let Transfer { handle, from, to, mut waiters, followers, .. } = transfer;
        self.place_mut(handle, from).leaving = false;
        self.settle(handle, from, actions);
        let reads = waiters.iter().any(|waiter| waiter.reads);
        if !is_current && reads && self.has_content(handle) {
            let writers = waiters.iter().filter(|waiter| !waiter.reads);
            ready.extend(writers.map(|waiter| waiter.task));
            waiters.retain(|waiter| waiter.reads);
            if let Some((from, _)) = self.source(handle, to, now) {
                let again = self.reserved(handle, (from, to), waiters, now);
                self.start(Transfer { followers, ..again }, now, actions);
            }
            return;
        }
        ready.extend(waiters.into_iter().map(|waiter| waiter.task));
        self.settle(handle, to, actions);
        for id in followers {
            let Some(follower) = self.transfers.remove(id) else { continue };
            self.place_mut(handle, follower.to).incoming = NONE;
            match self.is_valid(handle, follower.from) {
                true => self.start(follower, now, actions),
                false => self.go_on(follower, false, now, (ready, actions)),
            }
        }
    }

    /// The copy that was written back goes, unless a task has come for it.
    fn leave(&mut self, handle: HandleId, from: MemoryId) {
        let place = self.place(handle, from);
        if place.leaving && place.pins == 0 {
            self.data[handle.index()].valid &= !bit(from);
        }
    }

    /// Ends all that reads or fills a memory that is gone.
    pub(super) fn cancel_transfers_with(
        &mut self,
        memory: MemoryId,
        now: Nanos,
        interrupted: &mut Vec<TaskId>,
        actions: &mut Vec<Action>,
    ) {
        let is_of_it = |transfer: &Transfer| transfer.from == memory || transfer.to == memory;
        let mut gone = self.transfers.rows(is_of_it);
        while let Some(id) = gone.pop() {
            let Some(transfer) = self.transfers.remove(id) else { continue };
            let Transfer { handle, from, to, waiters, has_begun, followers, .. } = transfer;
            if has_begun {
                self.rates.ended(self.machine.links_between(from, to), 0, now);
                self.place_mut(handle, from).pins -= 1;
                self.place_mut(handle, from).leaving = false;
            }
            self.place_mut(handle, to).incoming = NONE;
            interrupted.extend(waiters.into_iter().map(|waiter| waiter.task));
            // What follows it is asked for anew by those who wait for it.
            gone.extend(followers);
            for other in [from, to].into_iter().filter(|end| *end != memory) {
                self.settle(handle, other, actions);
            }
        }
    }

    /// A task that gives back its memory waits for no copy any more.
    pub(crate) fn stop_waiting(&mut self, task: TaskId) {
        for transfer in self.transfers.slots.iter_mut().filter_map(|slot| slot.transfer.as_mut()) {
            transfer.waiters.retain(|waiter| waiter.task != task);
        }
    }

    /// Whether a copy of it is under way.
    pub(crate) fn is_copied(&self, handle: HandleId) -> bool {
        let memories = self.machine.memory_ids();
        memories.into_iter().any(|memory| self.place(handle, memory).incoming != NONE)
    }
}
