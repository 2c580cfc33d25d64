//! Which devices claims have: kept by who hears of claims, asked by who allocates them.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
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
    freed: Notify,
}

#[derive(Debug, Default)]
struct Book {
    /// By node and resource.
    offered: BTreeMap<Name, BTreeMap<Name, Vec<DeviceId>>>,
    /// By uid of the claim.
    allocated: BTreeMap<String, Allocated>,
    chosen: BTreeMap<String, Vec<DeviceId>>,
    /// The claims that have a device, or are to have it.
    takers: BTreeMap<DeviceId, BTreeSet<String>>,
}

#[derive(Debug, Default)]
struct Allocated {
    devices: Vec<DeviceId>,
    /// Of the claim's object.
    version: u64,
}

/// So many devices of a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wish {
    pub place: Place,
    pub count: u32,
    /// Rather these.
    pub rather: Vec<DeviceId>,
}

/// Devices that were chosen for a claim, and are nobody else's until this is dropped.
#[derive(Debug)]
pub(crate) struct Choice {
    book: DeviceBook,
    claim: String,
    /// By wish.
    pub devices: Vec<Vec<DeviceId>>,
}

impl Drop for Choice {
    fn drop(&mut self) {
        let mut book = self.book.book();
        book.chosen.remove(&self.claim);
        let devices = std::mem::take(&mut self.devices);
        book.let_go(&self.claim, devices.iter().flatten());
        drop(book);
        self.book.0.freed.notify_waiters();
    }
}

/// A claim is being allocated for somebody else.
#[derive(Debug)]
pub(crate) struct UnderWay;

impl DeviceBook {
    /// Takes over what a node has.
    pub fn offer<'a>(&self, node: &Name, devices: impl Iterator<Item = &'a Claimable>) {
        let mut by_resource: BTreeMap<Name, Vec<DeviceId>> = BTreeMap::new();
        for device in devices {
            let of_resource = by_resource.entry(device.resource.clone()).or_default();
            of_resource.push(device.row.id.clone());
        }
        let mut book = self.book();
        match by_resource.is_empty() {
            true => drop(book.offered.remove(node)),
            false => drop(book.offered.insert(node.clone(), by_resource)),
        }
        drop(book);
        self.0.freed.notify_waiters();
    }

    /// A claim has these devices since a version of its object. What is older than what is known is
    /// heard late.
    pub fn allocated(&self, claim: &str, version: u64, devices: &[DeviceId]) {
        let mut book = self.book();
        let known = book.allocated.entry(claim.to_owned()).or_default();
        if version < known.version || version == known.version && known.devices == devices {
            return;
        }
        let allocated = Allocated { devices: devices.to_vec(), version };
        let before = std::mem::replace(known, allocated).devices;
        for device in devices {
            book.takers.entry(device.clone()).or_default().insert(claim.to_owned());
        }
        book.let_go(claim, before.iter());
        drop(book);
        if !before.is_empty() {
            self.0.freed.notify_waiters();
        }
    }

    /// A claim is not there any more.
    pub fn gone(&self, claim: &str) {
        let mut book = self.book();
        let before = book.allocated.remove(claim).unwrap_or_default().devices;
        book.let_go(claim, before.iter());
        drop(book);
        self.0.freed.notify_waiters();
    }

    /// Chooses devices for a claim, once so many are free.
    ///
    /// # Errors
    /// When that is under way for another pod.
    pub async fn choose(&self, claim: &str, wishes: &[Wish]) -> Result<Choice, UnderWay> {
        loop {
            let mut freed = pin!(self.0.freed.notified());
            freed.as_mut().enable();
            if let Some(devices) = self.book().choose(claim, wishes)? {
                return Ok(Choice { book: self.clone(), claim: claim.to_owned(), devices });
            }
            freed.await;
        }
    }

    /// Whether these are so many devices of a place.
    pub fn are_of(&self, devices: &[DeviceId], place: &Place, count: u32) -> bool {
        let book = self.book();
        let offered = book.offered.get(&place.node).and_then(|of| of.get(&place.resource));
        devices.len() == count as usize
            && offered.is_some_and(|offered| devices.iter().all(|one| offered.contains(one)))
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// By wish; `None` where less is free.
    fn choose(
        &mut self,
        claim: &str,
        wishes: &[Wish],
    ) -> Result<Option<Vec<Vec<DeviceId>>>, UnderWay> {
        if self.chosen.contains_key(claim) {
            return Err(UnderWay);
        }
        let mut chosen: Vec<Vec<DeviceId>> = Vec::new();
        for Wish { place, count, rather } in wishes {
            let offered = self.offered.get(&place.node).and_then(|of| of.get(&place.resource));
            let offered = offered.map(Vec::as_slice).unwrap_or_default();
            let is_free = |device: &&DeviceId| {
                let takers = self.takers.get(*device);
                takers.is_none_or(|takers| takers.iter().all(|taker| taker == claim))
                    && !chosen.iter().any(|of_wish| of_wish.contains(device))
            };
            let first = offered.iter().filter(|device| rather.contains(device));
            let then = offered.iter().filter(|device| !rather.contains(device));
            let free = first.chain(then).filter(is_free).take(*count as usize);
            let devices: Vec<DeviceId> = free.cloned().collect();
            if devices.len() < *count as usize {
                return Ok(None);
            }
            chosen.push(devices);
        }
        for device in chosen.iter().flatten() {
            self.takers.entry(device.clone()).or_default().insert(claim.to_owned());
        }
        self.chosen.insert(claim.to_owned(), chosen.concat());
        Ok(Some(chosen))
    }

    /// A claim has no more of these than it is known to have otherwise.
    fn let_go<'a>(&mut self, claim: &str, devices: impl Iterator<Item = &'a DeviceId>) {
        for device in devices {
            let allocated = self.allocated.get(claim);
            let has = allocated.is_some_and(|it| it.devices.contains(device))
                || self.chosen.get(claim).is_some_and(|chosen| chosen.contains(device));
            if !has && let Some(takers) = self.takers.get_mut(device) {
                takers.remove(claim);
                if takers.is_empty() {
                    self.takers.remove(device);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::dra::tests::{claimable, gpu};

    const RESOURCE: &str = "gpu.example.com:example-gpu";

    fn wish(count: u32, rather: &[&str]) -> [Wish; 1] {
        let place = Place { node: "node-1".into(), resource: RESOURCE.into() };
        [Wish { place, count, rather: rather.iter().map(|name| gpu(name).id).collect() }]
    }

    fn book(count: usize) -> DeviceBook {
        let book = DeviceBook::default();
        let devices: Vec<Claimable> =
            (0..count).map(|at| claimable(gpu(&format!("gpu-{at}")), RESOURCE)).collect();
        book.offer(&"node-1".into(), devices.iter());
        book
    }

    /// What is chosen at once.
    fn choose(book: &DeviceBook, claim: &str, wish: &[Wish]) -> Option<Choice> {
        let choice = pin!(book.choose(claim, wish));
        match choice.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(choice) => choice.ok(),
            Poll::Pending => None,
        }
    }

    #[track_caller]
    fn check(choice: Option<&Choice>, expected: &[&str]) {
        let devices = choice.map(|choice| choice.devices.concat()).unwrap_or_default();
        let names: Vec<&str> = devices.iter().map(|id| id.device.as_str()).collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn no_device_is_chosen_twice() {
        let book = book(3);
        let a = choose(&book, "a", &wish(2, &["gpu-2"]));
        check(a.as_ref(), &["gpu-2", "gpu-0"]);
        check(choose(&book, "b", &wish(2, &[])).as_ref(), &[]);
        let b = choose(&book, "b", &wish(1, &[]));
        check(b.as_ref(), &["gpu-1"]);
        assert!(choose(&book, "b", &wish(1, &[])).is_none(), "it is under way");
        // What is written is known from then on, whoever hears of it when.
        book.allocated("a", 7, &a.as_ref().expect("it was chosen").devices.concat());
        drop(a);
        book.allocated("a", 5, &[]);
        check(choose(&book, "c", &wish(1, &[])).as_ref(), &[]);
        book.allocated("a", 8, &[gpu("gpu-0").id]);
        check(choose(&book, "c", &wish(1, &[])).as_ref(), &["gpu-2"]);
        drop(b);
        check(choose(&book, "c", &wish(2, &[])).as_ref(), &["gpu-1", "gpu-2"]);
    }

    #[test]
    fn who_waits_gets_what_is_given_back() {
        let book = book(1);
        book.allocated("a", 1, &[gpu("gpu-0").id]);
        let wish = wish(1, &[]);
        let mut choice = pin!(book.choose("b", &wish));
        let mut context = Context::from_waker(Waker::noop());
        assert!(choice.as_mut().poll(&mut context).is_pending());
        book.gone("a");
        let Poll::Ready(choice) = choice.as_mut().poll(&mut context) else {
            panic!("it waits on");
        };
        check(choice.ok().as_ref(), &["gpu-0"]);
    }
}
