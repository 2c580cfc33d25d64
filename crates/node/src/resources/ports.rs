//! Ports on which the first ranks of gangs listen.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, TcpListener};

use het_core::{Millis, Time};

/// Most attempts to find a free port that no live gang has.
const TRIES_MAX: usize = 16;
/// How long a port that was found free is reused without another check: less than any program takes
/// before it listens.
const FRESH_FOR: Millis = Millis(1_000);

/// Ports, with the time at which each was found free.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    /// Of live gangs.
    held: BTreeMap<u16, Time>,
    /// Of gangs that ended.
    free: Vec<(u16, Time)>,
}

impl Ports {
    /// # Errors
    /// When none is free.
    pub(crate) fn take(&mut self, now: Time) -> io::Result<u16> {
        self.free.retain(|&(_, found_at)| now < found_at + FRESH_FOR);
        let (port, found_at) = match self.free.pop() {
            Some(found) => found,
            None => (self.find()?, now),
        };
        self.held.insert(port, found_at);
        Ok(port)
    }

    /// Takes a port that another engine assigned to a gang.
    pub(crate) fn take_again(&mut self, port: u16) {
        self.held.insert(port, Time::ZERO);
    }

    pub(crate) fn put_back(&mut self, port: u16) {
        self.free.extend(self.held.remove(&port).map(|found_at| (port, found_at)));
    }

    fn find(&self) -> io::Result<u16> {
        for _ in 0..TRIES_MAX {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            if !self.held.contains_key(&port) {
                return Ok(port);
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_one_gangs_at_a_time() {
        let mut ports = Ports::default();
        let first = ports.take(Time(0)).expect("a port is free");
        assert_ne!(ports.take(Time(0)).expect("another port is free"), first);
        ports.put_back(first);
        assert_eq!(ports.take(Time(999)).expect("it was free just now"), first);
    }

    #[test]
    fn a_port_that_was_found_long_ago_is_checked_again() {
        let mut ports = Ports::default();
        let first = ports.take(Time(0)).expect("a port is free");
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, first)).expect("nobody has it");
        ports.put_back(first);
        assert_ne!(ports.take(Time(1_000)).expect("another port is free"), first);
        drop(taken);
    }
}
