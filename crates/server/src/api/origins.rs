//! How many connections each origin has: whoever opens many takes no places from others.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use nix::unistd::geteuid;
use tokio::net::unix;

use super::peer::Peer;

/// Bits of an IPv6 address that say whose it is; a subscriber has all addresses below them
/// (RFC 6177).
const IPV6_PREFIX_BITS: u32 = 64;

/// Whose connections and requests are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Origin {
    /// What one subscriber of the network has.
    Address(IpAddr),
    /// A user of this machine.
    User(u32),
}

/// Connections by origin.
#[derive(Debug, Clone)]
pub(super) struct Origins {
    held: Arc<Mutex<BTreeMap<Origin, usize>>>,
    max: usize,
}

/// The place of one connection among those of its origin, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    held: Arc<Mutex<BTreeMap<Origin, usize>>>,
    origin: Origin,
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

impl From<IpAddr> for Origin {
    fn from(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => {
                let mask = u128::MAX << (Ipv6Addr::BITS - IPV6_PREFIX_BITS);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
            }
        })
    }
}

impl Origin {
    /// `None` where nothing is counted: root and the server's own user can do it worse than ask
    /// much.
    pub(super) fn of(peer: Peer) -> Option<Self> {
        match peer {
            Peer::Remote(address) => Some(address.into()),
            Peer::Local(Some(uid)) if uid != 0 && uid != geteuid().as_raw() => {
                Some(Self::User(uid))
            }
            Peer::Local(_) => None,
        }
    }
}

impl Origins {
    /// So many connections for each.
    pub(super) fn new(max: usize) -> Self {
        Self { held: Arc::default(), max }
    }

    /// `None` where the origin has all it may have.
    pub(super) fn place(&self, origin: Origin) -> Option<Place> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.entry(origin).or_default();
        if *count >= self.max {
            return None;
        }
        *count += 1;
        Some(Place { held: Arc::clone(&self.held), origin })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = held.get_mut(&self.origin) else { return };
        *count -= 1;
        if *count == 0 {
            held.remove(&self.origin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Origin {
        text.parse::<IpAddr>().expect("an address").into()
    }

    #[test]
    fn an_origin_has_its_places_and_no_others() {
        let origins = Origins::new(2);
        let first = origins.place(address("10.0.0.1"));
        let _second = origins.place(address("10.0.0.1"));
        assert!(origins.place(address("10.0.0.1")).is_none());
        assert!(origins.place(address("::ffff:10.0.0.1")).is_none(), "it is the same");
        assert!(origins.place(address("10.0.0.2")).is_some());
        drop(first);
        assert!(origins.place(address("10.0.0.1")).is_some());
    }

    #[test]
    fn addresses_of_one_subscriber_share_their_places() {
        let origins = Origins::new(1);
        let _first = origins.place(address("2001:db8:1:2::1"));
        assert!(origins.place(address("2001:db8:1:2:ffff::2")).is_none());
        assert!(origins.place(address("2001:db8:1:3::1")).is_some());
    }

    #[test]
    fn users_are_counted_who_could_not_do_worse() {
        let own = geteuid().as_raw();
        assert_eq!(Origin::of(Peer::Local(Some(own))), None);
        assert_eq!(Origin::of(Peer::Local(Some(0))), None);
        assert_eq!(Origin::of(Peer::Local(None)), None);
        assert_eq!(Origin::of(Peer::Local(Some(own + 1))), Some(Origin::User(own + 1)));
    }
}
