//! Room in a memory: what was used longest ago goes first, and never what a committed task uses.

use crate::{Access, Action, HandleId, MemoryId, Nanos};

use super::{Coherence, NONE, bit};

/// Whether dropping a copy loses its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listed {
    /// There are others, at least one of which nobody overwrites.
    Redundant,
    /// It has to be written back first.
    Sole,
}

/// Places by last use; ends are their indices.
#[derive(Debug, Clone, Copy)]
struct List {
    oldest: u32,
    newest: u32,
}

/// A memory: what of it is taken, and its places that may be evicted.
#[derive(Debug, Clone)]
pub(super) struct Room {
    pub capacity: u64,
    pub used: u64,
    is_lost: bool,
    lists: [List; 2],
}

impl Room {
    pub fn new(capacity: u64) -> Self {
        let list = List { oldest: NONE, newest: NONE };
        Self { capacity, used: 0, is_lost: false, lists: [list; 2] }
    }

    /// One that holds nothing any more, not even what has no bytes.
    pub fn lost() -> Self {
        Self { is_lost: true, ..Self::new(0) }
    }

    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    fn list(&mut self, which: Listed) -> &mut List {
        &mut self.lists[which as usize]
    }

    fn fits(&self, bytes: u64) -> bool {
        !self.is_lost && self.used.checked_add(bytes).is_some_and(|all| all <= self.capacity)
    }

    /// Nothing is ever evicted from it, so that nothing has to be listed.
    fn is_unlimited(&self) -> bool {
        self.capacity == u64::MAX
    }
}

impl Coherence {
    /// Whether so many bytes fit, after dropping copies of which there are others.
    pub(super) fn drop_redundant(
        &mut self,
        memory: MemoryId,
        bytes: u64,
        spared: &[Access],
        actions: &mut Vec<Action>,
    ) -> bool {
        let mut place = self.rooms[memory.row()].list(Listed::Redundant).oldest;
        while !self.rooms[memory.row()].fits(bytes) && place != NONE {
            let handle = self.handle_at(place);
            place = self.places[place as usize].next;
            if !uses(spared, handle) {
                self.evict(handle, memory, actions);
            }
        }
        self.rooms[memory.row()].fits(bytes)
    }

    /// Whether so many bytes fit now. Where they don't, copies that nobody has elsewhere begin to
    /// be written back; handles of `own` are never evicted, those of `next` only as the last.
    pub(super) fn make_room(
        &mut self,
        (bytes, memory): (u64, MemoryId),
        (own, next): (&[Access], &[Access]),
        now: Nanos,
        actions: &mut Vec<Action>,
    ) -> bool {
        for spared in [next, &[]] {
            if self.evict_until((bytes, memory), (own, spared), now, actions) {
                break;
            }
        }
        self.rooms[memory.row()].fits(bytes)
    }

    /// Whether so many bytes fit, now or once what is being written back has left.
    fn evict_until(
        &mut self,
        (bytes, memory): (u64, MemoryId),
        (own, spared): (&[Access], &[Access]),
        now: Nanos,
        actions: &mut Vec<Action>,
    ) -> bool {
        let row = memory.row();
        let mut leaving = self.leaving_bytes(memory);
        for which in [Listed::Redundant, Listed::Sole] {
            let mut place = self.rooms[row].list(which).oldest;
            while place != NONE && !self.rooms[row].fits(bytes.saturating_sub(leaving)) {
                let handle = self.handle_at(place);
                place = self.places[place as usize].next;
                if uses(own, handle) || uses(spared, handle) {
                    continue;
                }
                if which == Listed::Redundant {
                    self.evict(handle, memory, actions);
                } else if !self.data[handle.index()].is_stuck
                    && let Some(to) = self
                        .refuge(handle, memory, now)
                        .or_else(|| self.cleared_refuge(handle, memory, actions))
                {
                    self.traffic.evictions += 1;
                    leaving += self.bytes(handle);
                    self.write_back(handle, (memory, to), now, actions);
                }
            }
        }
        self.rooms[row].fits(bytes.saturating_sub(leaving))
    }

    /// There is another copy, and it is not being overwritten.
    fn is_redundant(&self, handle: HandleId, memory: MemoryId) -> bool {
        if self.data[handle.index()].valid & !bit(memory) == 0 {
            return false;
        }
        let mut others = self.copies(handle).filter(|other| *other != memory);
        others.any(|other| self.place(handle, other).writers == 0)
    }

    fn evict(&mut self, handle: HandleId, memory: MemoryId, actions: &mut Vec<Action>) {
        self.traffic.evictions += 1;
        self.data[handle.index()].valid &= !bit(memory);
        self.settle(handle, memory, actions);
        self.relist(handle);
    }

    /// Bytes of places that nobody uses and that are free once they are written back.
    fn leaving_bytes(&self, memory: MemoryId) -> u64 {
        let leaving = self.transfers.leaving(memory);
        let alone = leaving.filter(|handle| {
            let place = self.place(*handle, memory);
            // The transfer itself has one pin.
            place.leaving && place.pins == 1
        });
        alone.map(|handle| self.bytes(handle)).sum()
    }

    /// The memory with room to which a copy is written back fastest.
    fn refuge(&self, handle: HandleId, memory: MemoryId, now: Nanos) -> Option<MemoryId> {
        let bytes = self.bytes(handle);
        let others = self.machine.memory_ids().filter(|other| {
            *other != memory
                && !self.place(handle, *other).allocated
                && self.rooms[other.row()].fits(bytes)
        });
        let offers = others.filter_map(|to| {
            let offer = self.reservations.offer(&self.machine, (memory, to), bytes, now)?;
            Some((offer.end, to))
        });
        offers.min().map(|(_, to)| to)
    }

    /// A memory that has room once copies are dropped of which there are others.
    fn cleared_refuge(
        &mut self,
        handle: HandleId,
        memory: MemoryId,
        actions: &mut Vec<Action>,
    ) -> Option<MemoryId> {
        let bytes = self.bytes(handle);
        let is_open = |other: &MemoryId| {
            *other != memory
                && !self.place(handle, *other).allocated
                && self.rooms[other.row()].capacity >= bytes
        };
        let open: Vec<MemoryId> = self.machine.memory_ids().filter(is_open).collect();
        open.into_iter().find(|other| self.drop_redundant(*other, bytes, &[], actions))
    }

    fn handle_at(&self, place: u32) -> HandleId {
        let row = place / self.rooms.len() as u32;
        HandleId { row, generation: self.data[row as usize].generation }
    }

    /// Makes it the one that was used last among those that may be evicted.
    pub(super) fn list(&mut self, handle: HandleId, memory: MemoryId) {
        if self.rooms[memory.row()].is_unlimited() || self.place(handle, memory).listed.is_some() {
            return;
        }
        let which = match self.is_redundant(handle, memory) {
            true => Listed::Redundant,
            false => Listed::Sole,
        };
        let index = self.index(handle, memory) as u32;
        let list = self.rooms[memory.row()].list(which);
        let before = std::mem::replace(&mut list.newest, index);
        match before {
            NONE => list.oldest = index,
            before => self.places[before as usize].next = index,
        }
        let place = &mut self.places[index as usize];
        (place.listed, place.previous, place.next) = (Some(which), before, NONE);
    }

    pub(super) fn unlist(&mut self, handle: HandleId, memory: MemoryId) {
        let place = self.place_mut(handle, memory);
        let Some(which) = place.listed.take() else { return };
        let (before, after) = (place.previous, place.next);
        match before {
            NONE => self.rooms[memory.row()].list(which).oldest = after,
            before => self.places[before as usize].next = after,
        }
        match after {
            NONE => self.rooms[memory.row()].list(which).newest = before,
            after => self.places[after as usize].previous = before,
        }
    }

    /// Its copies may have become redundant, or no longer be so: whatever changes which of them are
    /// valid or written ends with this.
    pub(super) fn relist(&mut self, handle: HandleId) {
        for memory in self.machine.memory_ids() {
            let Some(listed) = self.place(handle, memory).listed else { continue };
            if (listed == Listed::Redundant) != self.is_redundant(handle, memory) {
                self.unlist(handle, memory);
                self.list(handle, memory);
            }
        }
    }

    /// Breaks where a list has what another should have.
    pub(super) fn check_lists(&self) {
        let mut listed = 0;
        for (row, room) in self.rooms.iter().enumerate() {
            let memory = MemoryId(row as u16);
            for which in [Listed::Redundant, Listed::Sole] {
                let mut place = room.lists[which as usize].oldest;
                while place != NONE {
                    let handle = self.handle_at(place);
                    let is_redundant = self.is_redundant(handle, memory);
                    assert_eq!(self.places[place as usize].listed, Some(which));
                    assert_eq!(which == Listed::Redundant, is_redundant, "{handle:?} {memory:?}");
                    place = self.places[place as usize].next;
                    listed += 1;
                }
            }
        }
        let all = self.places.iter().filter(|place| place.listed.is_some()).count();
        assert_eq!(all, listed, "what is listed is in a list");
    }
}

fn uses(accesses: &[Access], handle: HandleId) -> bool {
    accesses.iter().any(|access| access.handle == handle)
}
