//! How devices are kept from others of this machine.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;

use het_core::Name;

/// Keeps devices from other control loops of the machine for as long as jobs use them, which may
/// outlive their own.
pub trait HoldDevices: Debug + Send + Sync {
    /// They are held while anybody has a copy of this descriptor.
    ///
    /// # Errors
    /// When they cannot be held.
    fn hold(&self, devices: &BTreeSet<Name>, cores: &[u32]) -> io::Result<OwnedFd>;
}
