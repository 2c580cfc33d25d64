//! How many connections each address has: whoever opens many takes no places from others.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::unix;

use super::peer::Peer;

/// Bits of an IPv6 address that say whose it is; a subscriber has all addresses below them
/// (RFC 6177).
const IPV6_PREFIX_BITS: u32 = 64;

/// Connections by address.
#[derive(Debug, Clone)]
pub(super) struct Addresses {
    held: Arc<Mutex<BTreeMap<IpAddr, usize>>>,
    max: usize,
}

/// The place of one connection among those of its address, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    held: Arc<Mutex<BTreeMap<IpAddr, usize>>>,
    address: IpAddr,
}

/// Where a connection comes from.
pub(super) trait Remote {
    fn peer(&self) -> Peer;
}

impl Remote for SocketAddr {
    fn peer(&self) -> Peer {
        Peer::Remote(self.ip())
    }
}

impl Remote for unix::SocketAddr {
    fn peer(&self) -> Peer {
        Peer::Local(None)
    }
}

impl Remote for Peer {
    fn peer(&self) -> Peer {
        *self
    }
}

impl Addresses {
    /// So many connections for each.
    pub(super) fn new(max: usize) -> Self {
        Self { held: Arc::default(), max }
    }

    /// `None` where the address has all it may have.
    pub(super) fn place(&self, address: IpAddr) -> Option<Place> {
        let address = prefix(address);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.entry(address).or_default();
        if *count >= self.max {
            return None;
        }
        *count += 1;
        Some(Place { held: Arc::clone(&self.held), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = held.get_mut(&self.address) else { return };
        *count -= 1;
        if *count == 0 {
            held.remove(&self.address);
        }
    }
}

/// What one subscriber has.
pub(super) fn prefix(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let mask = u128::MAX << (Ipv6Addr::BITS - IPV6_PREFIX_BITS);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn an_address_has_its_places_and_no_others() {
        let addresses = Addresses::new(2);
        let first = addresses.place(address("10.0.0.1"));
        let _second = addresses.place(address("10.0.0.1"));
        assert!(addresses.place(address("10.0.0.1")).is_none());
        assert!(addresses.place(address("::ffff:10.0.0.1")).is_none(), "it is the same");
        assert!(addresses.place(address("10.0.0.2")).is_some());
        drop(first);
        assert!(addresses.place(address("10.0.0.1")).is_some());
    }

    #[test]
    fn addresses_of_one_subscriber_share_their_places() {
        let addresses = Addresses::new(1);
        let _first = addresses.place(address("2001:db8:1:2::1"));
        assert!(addresses.place(address("2001:db8:1:2:ffff::2")).is_none());
        assert!(addresses.place(address("2001:db8:1:3::1")).is_some());
    }
}
