//! Which devices claims have: kept by who hears of claims, asked by who allocates them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use het_core::Name;
use tokio::sync::Notify;

use super::objects::DeviceId;
use super::{Claimable, Place};

/// Shared by all who hold a copy.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceBook(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    book: Mutex<Book>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Book {
    offered: BTreeMap<Place, Vec<DeviceId>>,
    /// By uid of the claim.
    allocated: BTreeMap<String, Vec<DeviceId>>,
    /// By uid of the claim: chosen, and not heard of yet.
    chosen: BTreeMap<String, Vec<DeviceId>>,
}

impl DeviceBook {
    /// Takes over what a node has.
    pub fn offer<'a>(&self, node: &Name, devices: impl Iterator<Item = &'a Claimable>) {
        let mut book = self.book();
        book.offered.retain(|place, _| place.node != *node);
        for device in devices {
            let place = Place { node: node.clone(), resource: device.resource.clone() };
            book.offered.entry(place).or_default().push(device.row.id.clone());
        }
        drop(book);
        self.0.changed.notify_waiters();
    }

    /// A claim has these devices; none any more where there is none.
    pub fn allocated(&self, claim: &str, devices: &[DeviceId]) {
        let mut book = self.book();
        match devices.is_empty() {
            true => drop(book.allocated.remove(claim)),
            false => {
                book.allocated.insert(claim.to_owned(), devices.to_vec());
                book.chosen.remove(claim);
            }
        }
        drop(book);
        self.0.changed.notify_waiters();
    }

    /// Chooses devices for a claim, once so many are free.
    pub async fn choose(&self, claim: &str, wanted: &[(Place, u32)]) -> Vec<Vec<DeviceId>> {
        let changed = self.0.changed.notified();
        tokio::pin!(changed);
        loop {
            changed.as_mut().enable();
            if let Some(devices) = self.book().choose(claim, wanted) {
                return devices;
            }
            changed.as_mut().await;
            changed.set(self.0.changed.notified());
        }
    }

    /// What was chosen for a claim was not allocated.
    pub fn forget(&self, claim: &str) {
        self.book().chosen.remove(claim);
        self.0.changed.notify_waiters();
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// By what is wanted; `None` where less is free.
    fn choose(&mut self, claim: &str, wanted: &[(Place, u32)]) -> Option<Vec<Vec<DeviceId>>> {
        let of_others = |of: &BTreeMap<String, Vec<DeviceId>>| -> BTreeSet<DeviceId> {
            let others = of.iter().filter(|(other, _)| *other != claim);
            others.flat_map(|(_, devices)| devices).cloned().collect()
        };
        let mut taken = of_others(&self.allocated);
        taken.append(&mut of_others(&self.chosen));
        let mut chosen = Vec::new();
        for (place, count) in wanted {
            let offered = self.offered.get(place)?;
            let free = offered.iter().filter(|device| !taken.contains(device));
            let devices: Vec<DeviceId> = free.take(*count as usize).cloned().collect();
            if devices.len() < *count as usize {
                return None;
            }
            taken.extend(devices.iter().cloned());
            chosen.push(devices);
        }
        self.chosen.insert(claim.to_owned(), chosen.concat());
        Some(chosen)
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::dra::objects::DeviceRow;
    use crate::dra::tests::{claimable, gpu};

    const RESOURCE: &str = "gpu.example.com:example-gpu";

    fn place() -> Place {
        Place { node: "node-1".into(), resource: RESOURCE.into() }
    }

    fn book(count: usize) -> DeviceBook {
        let book = DeviceBook::default();
        let devices: Vec<Claimable> =
            (0..count).map(|at| claimable(gpu(&format!("gpu-{at}")), RESOURCE)).collect();
        book.offer(&"node-1".into(), devices.iter());
        book
    }

    fn names(chosen: Poll<Vec<Vec<DeviceId>>>) -> Vec<String> {
        let Poll::Ready(chosen) = chosen else { return vec!["waits".to_owned()] };
        chosen.concat().into_iter().map(|id| id.device.to_string()).collect()
    }

    fn choose(book: &DeviceBook, claim: &str, count: u32) -> Vec<String> {
        let wanted = [(place(), count)];
        let choice = pin!(book.choose(claim, &wanted));
        names(choice.poll(&mut Context::from_waker(Waker::noop())))
    }

    #[test]
    fn no_device_is_chosen_twice() {
        let book = book(3);
        assert_eq!(choose(&book, "a", 2), ["gpu-0", "gpu-1"]);
        assert_eq!(choose(&book, "b", 2), ["waits"]);
        assert_eq!(choose(&book, "b", 1), ["gpu-2"]);
        book.forget("a");
        let DeviceRow { id, .. } = gpu("gpu-0");
        book.allocated("somebody's", &[id]);
        assert_eq!(choose(&book, "a", 2), ["waits"]);
        assert_eq!(choose(&book, "a", 1), ["gpu-1"]);
    }

    #[test]
    fn who_waits_gets_what_is_given_back() {
        let book = book(1);
        book.allocated("a", &[gpu("gpu-0").id]);
        let wanted = [(place(), 1)];
        let mut choice = pin!(book.choose("b", &wanted));
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(names(choice.as_mut().poll(&mut context)), ["waits"]);
        book.allocated("a", &[]);
        assert_eq!(names(choice.as_mut().poll(&mut context)), ["gpu-0"]);
    }
}
