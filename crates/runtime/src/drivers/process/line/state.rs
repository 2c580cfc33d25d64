//! What a worker was given and has not answered yet, and how long it may take.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use super::super::Limits;
use super::super::protocol::{Assembly, ChannelId, Chunk};
use crate::machine::Interval;
use crate::{CopyOrder, HandleId, Nanos, TaskId, TransferId};

/// A copy that has not ended. From one worker to another both lines have it, and what becomes of it
/// is reported by that of the second, or for it; over a channel only the second has it.
#[derive(Debug)]
pub(super) struct Copying {
    pub(super) order: CopyOrder,
    pub(super) began: Option<Nanos>,
    pub(super) stage: CopyStage,
}

#[derive(Debug)]
pub(super) enum CopyStage {
    /// Another worker has not sent all of it.
    Awaited,
    /// It comes over a channel.
    Direct {
        channel: ChannelId,
        is_closing: bool,
    },
    /// It is here, and nothing of it is sent.
    Queued,
    Sending,
    /// All of it is sent, and the worker has to say that it is there.
    Sent,
    Fetching(Assembly),
    /// All of it is here and is made a buffer.
    Fetched,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) is_lost: bool,
    /// In the order in which they run, and when they were handed over.
    pub(super) tasks: VecDeque<(TaskId, Nanos)>,
    pub(super) copies: BTreeMap<TransferId, Copying>,
    /// Copies over channels that nobody waits for any more, and that may have been made.
    pub(super) forgotten: BTreeMap<TransferId, ChannelId>,
    /// When something came last over a channel over which something is to come, or was to begin to.
    pub(super) brought: BTreeMap<ChannelId, Instant>,
    /// When the first task became the first.
    pub(super) first_since: Instant,
    /// When a copy went on last.
    pub(super) copied: Instant,
    pub(super) heard: Instant,
    /// When the limits were looked at last.
    pub(super) looked: Instant,
    pub(super) clock: Clock,
    /// Of the last task.
    pub(super) end: Nanos,
}

/// Clocks drift apart: what was seen longer ago than twice this does not count.
const CLOCK_KEPT: Nanos = 10_000_000_000;

/// From the worker's time to the driver's: the least difference that was seen of late is the
/// nearest.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// The least of the time before `since`, and of the time after it.
    pub(super) least: [Option<i64>; 2],
    pub(super) since: Nanos,
}

impl Clock {
    /// Takes in a difference seen now. Returns the one that counts.
    pub(super) fn see(&mut self, difference: i64, now: Nanos) -> i64 {
        let age = now.saturating_sub(self.since);
        if age >= CLOCK_KEPT {
            let before = self.least[1].filter(|_| age < 2 * CLOCK_KEPT);
            *self = Self { least: [before, None], since: now };
        }
        let recent = self.least[1].map_or(difference, |least| least.min(difference));
        self.least[1] = Some(recent);
        self.least[0].map_or(recent, |before| before.min(recent))
    }
}

impl Copying {
    /// Whether it goes on by what this worker does.
    pub(super) fn is_its_own(&self) -> bool {
        !matches!(self.stage, CopyStage::Awaited | CopyStage::Direct { is_closing: false, .. })
    }
}

impl State {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            is_lost: false,
            tasks: VecDeque::new(),
            copies: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            brought: BTreeMap::new(),
            first_since: now,
            copied: now,
            heard: now,
            looked: now,
            clock: Clock::default(),
            end: 0,
        }
    }

    /// After so many bytes came, or none in a while.
    ///
    /// # Errors
    /// In words, the limit that the worker is beyond.
    pub(super) fn look(
        &mut self,
        limits: &Limits,
        bytes: usize,
        now: Instant,
    ) -> Result<(), String> {
        let gap = now - std::mem::replace(&mut self.looked, now);
        if limits.is_late(gap, limits.tick()) {
            // This program stood still, and that is not the worker's time.
            let own = [&mut self.first_since, &mut self.copied, &mut self.heard];
            for since in own.into_iter().chain(self.brought.values_mut()) {
                *since = (*since + gap).min(now);
            }
        }
        if bytes > 0 {
            self.heard = now;
        }
        let Limits { silence, task, copy, .. } = *limits;
        if now - self.heard > silence {
            return Err(format!("it gave no sign of life for {silence:?}"));
        }
        if !self.tasks.is_empty() && now - self.first_since > task {
            return Err(format!("it has had the same task for {task:?}"));
        }
        if self.copies.values().any(Copying::is_its_own) && now - self.copied > copy {
            return Err(format!("no copy went on for {copy:?}"));
        }
        Ok(())
    }

    /// Something came over a channel, of which more is to come.
    pub(super) fn went_on(&mut self, id: ChannelId) {
        if let Some(brought) = self.brought.get_mut(&id) {
            *brought = Instant::now();
        }
    }

    /// Channels over which nothing came for too long. It is not known at which end that is, so that
    /// neither is cut off.
    pub(super) fn stalled(&mut self, limits: &Limits, now: Instant) -> Vec<ChannelId> {
        if self.brought.is_empty() {
            return Vec::new();
        }
        let mut awaited = BTreeSet::new();
        for Copying { stage, .. } in self.copies.values() {
            if let CopyStage::Direct { channel, is_closing: false } = stage {
                awaited.insert(*channel);
            }
        }
        self.brought.retain(|channel, _| awaited.contains(channel));
        let late = self.brought.iter().filter(|(_, brought)| now - **brought > limits.copy);
        late.map(|(channel, _)| *channel).collect()
    }

    /// From now on the worker has to say that a channel is closed, and in time.
    pub(super) fn begin_close(&mut self, id: ChannelId) {
        self.copied = Instant::now();
        for Copying { stage, .. } in self.copies.values_mut() {
            if let CopyStage::Direct { channel, is_closing } = stage
                && *channel == id
            {
                *is_closing = true;
            }
        }
    }

    /// A channel is closed: what was to come over it has to come another way.
    pub(super) fn end_close(&mut self, id: ChannelId) -> Vec<CopyOrder> {
        self.forgotten.retain(|_, channel| *channel != id);
        let of_it = self.copies.values_mut().filter(|copying| match copying.stage {
            CopyStage::Direct { channel, .. } => channel == id,
            _ => false,
        });
        let again = of_it.map(|copying| {
            copying.stage = CopyStage::Awaited;
            copying.order
        });
        again.collect()
    }

    /// The buffer of a handle is dropped: what was to come into it does not come. Of what is half
    /// sent the rest is, before the buffer is dropped. Returns how many there were.
    pub(super) fn forget(&mut self, handle: HandleId) -> usize {
        let before = self.copies.len();
        let Self { copies, forgotten, .. } = self;
        copies.retain(|transfer, Copying { order, stage, .. }| {
            if order.handle != handle {
                return true;
            }
            match stage {
                CopyStage::Direct { channel, .. } => {
                    forgotten.insert(*transfer, *channel);
                    false
                }
                stage => !matches!(stage, CopyStage::Awaited | CopyStage::Queued),
            }
        });
        before - self.copies.len()
    }

    /// Whether somebody still waits for what is stored.
    ///
    /// # Errors
    /// In words, a copy that a worker can't have.
    pub(super) fn is_stored(&mut self, transfer: TransferId) -> Result<bool, String> {
        if self.forgotten.remove(&transfer).is_some() {
            return Ok(false);
        }
        match self.copies.get(&transfer).map(|copying| &copying.stage) {
            Some(CopyStage::Sent | CopyStage::Direct { .. }) => Ok(true),
            _ => Err("it has a content that it was not sent".to_owned()),
        }
    }

    /// What failed, where somebody still waits for it.
    ///
    /// # Errors
    /// In words, a copy at which a worker can't fail.
    pub(super) fn fail(&mut self, transfer: TransferId) -> Result<Option<CopyOrder>, String> {
        if self.forgotten.remove(&transfer).is_some() {
            return Ok(None);
        }
        let copying = self.copies.get(&transfer);
        let order = match copying.map(|copying| (&copying.stage, copying.order)) {
            Some((CopyStage::Sent | CopyStage::Fetching(_) | CopyStage::Direct { .. }, order)) => {
                order
            }
            _ => return Err("it failed at a copy that it was not asked for".to_owned()),
        };
        self.copies.remove(&transfer);
        self.copied = Instant::now();
        Ok(Some(order))
    }

    pub(super) fn begin(&mut self, order: CopyOrder, began: Option<Nanos>, stage: CopyStage) {
        if !self.copies.values().any(Copying::is_its_own) {
            self.copied = Instant::now();
        }
        if let CopyStage::Direct { channel, .. } = stage {
            self.brought.entry(channel).or_insert_with(Instant::now);
        }
        self.copies.insert(order.transfer, Copying { order, began, stage });
    }

    /// When it ran, in the driver's time.
    ///
    /// # Errors
    /// In words, a task that is not the first of those that it has.
    pub(super) fn task_ended(
        &mut self,
        task: TaskId,
        ran: Interval,
        now: Nanos,
    ) -> Result<Interval, String> {
        let Some((_, handed_over)) = self.tasks.pop_front_if(|(first, _)| *first == task) else {
            return Err("it ended a task that is not the next of those that it was given".into());
        };
        self.first_since = Instant::now();
        let difference = (now as i64).saturating_sub_unsigned(ran.end);
        let offset = self.clock.see(difference, now);
        // Not before the end of the one before it, nor before the worker had it.
        let least = self.end.max(handed_over);
        let moved = |at: Nanos| at.saturating_add_signed(offset).clamp(least, now.max(least));
        let ran = Interval { start: moved(ran.start), end: moved(ran.end) };
        self.end = ran.end;
        Ok(ran)
    }

    /// Takes a part of a content. Where it is the last, the order and the content; the copy stays
    /// until the content is where it has to be.
    pub(super) fn add(
        &mut self,
        chunk: &Chunk<'_>,
    ) -> Result<Option<(CopyOrder, Vec<u8>)>, String> {
        self.copied = Instant::now();
        let copying = self.copies.get_mut(&chunk.transfer);
        let Some(Copying { order, stage, .. }) = copying else {
            return Err("it sent a content that it was not asked for".to_owned());
        };
        let CopyStage::Fetching(assembly) = stage else {
            return Err("it sent more of a content than there is".to_owned());
        };
        let whole = assembly.add(chunk).map_err(|error| format!("it sent {error}"))?;
        Ok(whole.map(|content| {
            *stage = CopyStage::Fetched;
            (*order, content)
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TASK: TaskId = TaskId { row: 0, generation: 0 };

    #[test]
    fn what_this_program_stands_still_is_not_the_time_of_a_worker() {
        let limits = Limits::default();
        let mut now = Instant::now();
        let mut state = State::new(now);
        state.tasks.push_back((TASK, 0));
        now += Duration::from_secs(3_600);
        assert_eq!(state.look(&limits, 0, now), Ok(()), "it was stopped");
        let mut looks = 0;
        while state.look(&limits, 0, now).is_ok() {
            now += limits.tick();
            looks += 1;
        }
        // The limit is four ticks.
        assert_eq!(looks, 5, "a worker that says nothing is cut off all the same");
    }

    #[test]
    fn intervals_do_not_drift_and_begin_where_the_worker_had_the_task() {
        let mut state = State::new(Instant::now());
        let hour = 3_600_000_000_000;
        for round in 1..=24 {
            // The worker's clock loses a millisecond an hour, and its first report was fast.
            let now = round * hour;
            let theirs = now - round * 1_000_000;
            state.tasks.push_back((TASK, now - 500));
            let ran = Interval { start: theirs - 1_000, end: theirs };
            let ran = state.task_ended(TASK, ran, now).expect("it is the next");
            assert_eq!((ran.start, ran.end), (now - 500, now), "round {round}");
        }
    }

    #[test]
    fn the_fastest_report_of_late_tells_the_difference() {
        let mut clock = Clock::default();
        let second = 1_000_000_000;
        assert_eq!(clock.see(70, second), 70);
        assert_eq!(clock.see(90, 2 * second), 70);
        assert_eq!(clock.see(80, CLOCK_KEPT + second), 70, "it is kept for as long again");
        assert_eq!(clock.see(85, 2 * CLOCK_KEPT + second), 80);
        assert_eq!(clock.see(95, 9 * CLOCK_KEPT), 95);
    }
}
