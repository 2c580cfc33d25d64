//! Intervals that are taken: of a device, and of links.

use crate::Machine;

use super::Problem;

/// Intervals in order, none of them touching another.
#[derive(Debug, Clone)]
pub(super) struct Timeline {
    free_from: f64,
    taken: Vec<(f64, f64)>,
}

impl Timeline {
    /// Nothing fits before this time.
    pub fn new(free_from: f64) -> Self {
        Self { free_from, taken: Vec::new() }
    }

    /// The earliest start at which so much fits in between.
    pub fn first_gap(&self, earliest: f64, duration: f64) -> f64 {
        let mut at = earliest.max(self.free_from);
        let from = self.taken.partition_point(|(_, end)| *end <= at);
        for (start, end) in &self.taken[from..] {
            if at + duration <= *start {
                return at;
            }
            at = at.max(*end);
        }
        at
    }

    pub fn take(&mut self, start: f64, end: f64) {
        let place = self.taken.partition_point(|(other, _)| *other < start);
        let before = place.checked_sub(1).filter(|row| self.taken[*row].1 >= start);
        let after = self.taken.get(place).is_some_and(|(other, _)| *other <= end);
        match (before, after) {
            (Some(row), true) => {
                self.taken[row].1 = self.taken[place].1;
                self.taken.remove(place);
            }
            (Some(row), false) => self.taken[row].1 = end,
            (None, true) => self.taken[place].0 = start,
            (None, false) => self.taken.insert(place, (start, end)),
        }
    }
}

/// What a plan takes of the links: none of it where the plan is blind to what else is under way,
/// as HEFT is.
#[derive(Debug, Clone)]
pub(super) struct Links<'a> {
    machine: &'a Machine,
    taken: Vec<Timeline>,
}

impl<'a> Links<'a> {
    pub fn new(problem: &Problem<'a>) -> Self {
        let taken = problem.link_free_at.iter().map(|free| Timeline::new(*free)).collect();
        Self { machine: problem.machine, taken }
    }

    /// When a transfer would begin and end.
    pub fn offer(
        &self,
        (from, to): (usize, usize),
        bytes: u64,
        earliest: f64,
    ) -> Option<(f64, f64)> {
        if from == to {
            return Some((earliest, earliest));
        }
        let pair = (crate::MemoryId(from as u16), crate::MemoryId(to as u16));
        let whole = self.machine.transfer_time(pair.0, pair.1, bytes)? as f64;
        let mut start = earliest;
        if !self.taken.is_empty() {
            // Until all links of the route have the same gap.
            loop {
                let links = self.machine.links_between(pair.0, pair.1);
                let moved = links.fold(start, |at, link| {
                    let own = self.machine.link_time(link, bytes) as f64;
                    at.max(self.taken[link].first_gap(at, own))
                });
                if moved <= start {
                    break;
                }
                start = moved;
            }
        }
        Some((start, start + whole))
    }

    pub fn take(&mut self, (from, to): (usize, usize), bytes: u64, start: f64) {
        if self.taken.is_empty() {
            return;
        }
        let pair = (crate::MemoryId(from as u16), crate::MemoryId(to as u16));
        for link in self.machine.links_between(pair.0, pair.1) {
            let own = self.machine.link_time(link, bytes) as f64;
            self.taken[link].take(start, start + own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_gap_that_is_long_enough_is_found() {
        let mut timeline = Timeline::new(0.0);
        timeline.take(2.0, 4.0);
        timeline.take(5.0, 8.0);
        timeline.take(8.0, 9.0);
        let check = |earliest, duration, start: f64| {
            let found = timeline.first_gap(earliest, duration);
            assert!((found - start).abs() < 1e-9, "{earliest} {duration}: {found}");
        };
        check(0.0, 2.0, 0.0);
        check(0.0, 3.0, 9.0);
        check(1.0, 1.0, 1.0);
        check(3.0, 1.0, 4.0);
        check(3.0, 1.5, 9.0);
        assert_eq!(timeline.taken, [(2.0, 4.0), (5.0, 9.0)]);
    }
}
