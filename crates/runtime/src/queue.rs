//! A queue in which the more urgent stand first, and equals in the order in which they came.

use std::collections::VecDeque;

#[derive(Debug, Clone)]
pub(crate) struct PriorityQueue<T> {
    /// Priorities fall from the front on.
    entries: VecDeque<(i32, T)>,
}

impl<T> Default for PriorityQueue<T> {
    fn default() -> Self {
        Self { entries: VecDeque::new() }
    }
}

impl<T> PriorityQueue<T> {
    pub fn add(&mut self, priority: i32, item: T) {
        match self.entries.back() {
            Some((last, _)) if *last < priority => {
                let place = self.entries.partition_point(|(other, _)| *other >= priority);
                self.entries.insert(place, (priority, item));
            }
            _ => self.entries.push_back((priority, item)),
        }
    }

    /// Puts the first, which was taken, back to its place.
    pub fn put_back(&mut self, priority: i32, item: T) {
        self.entries.push_front((priority, item));
    }

    pub fn pop(&mut self) -> Option<T> {
        self.entries.pop_front().map(|(_, item)| item)
    }

    pub fn remove(&mut self, place: usize) -> Option<T> {
        self.entries.remove(place).map(|(_, item)| item)
    }

    /// The priority of the first.
    pub fn priority(&self) -> Option<i32> {
        self.entries.front().map(|(priority, _)| *priority)
    }

    /// How many have the priority of the first.
    pub fn most_urgent(&self) -> usize {
        match (self.entries.front(), self.entries.back()) {
            (Some((first, _)), Some((last, _))) if first != last => {
                self.entries.partition_point(|(other, _)| other >= first)
            }
            _ => self.entries.len(),
        }
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (i32, &T)> + ExactSizeIterator {
        self.entries.iter().map(|(priority, item)| (*priority, item))
    }

    pub fn get(&self, place: usize) -> Option<&T> {
        self.entries.get(place).map(|(_, item)| item)
    }

    pub fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.entries.drain(..).map(|(_, item)| item)
    }

    pub fn clear(&mut self) {
        self.entries.clear();
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_urgent_stand_first_and_equals_as_they_came() {
        let mut queue = PriorityQueue::default();
        for (priority, item) in [(0, 'a'), (1, 'b'), (0, 'c'), (1, 'd'), (-1, 'e'), (2, 'f')] {
            queue.add(priority, item);
        }
        assert_eq!((queue.priority(), queue.most_urgent()), (Some(2), 1));
        assert_eq!(queue.pop(), Some('f'));
        assert_eq!(queue.pop(), Some('b'));
        queue.put_back(1, 'b');
        assert_eq!(queue.most_urgent(), 2);
        assert_eq!(queue.drain().collect::<String>(), "bdace");
    }
}
