//! Addresses on the PCI bus.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Domain, bus, device, function: `0000:c1:00.0`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddress {
    pub domain: u32,
    pub bus: u8,
    pub device: u8,
    pub function: u8,
}

/// The text is not a PCI address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is not a PCI address such as `0000:c1:00.0`")]
pub struct BadPciAddress(String);

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl FromStr for PciAddress {
    type Err = BadPciAddress;

    fn from_str(text: &str) -> Result<Self, BadPciAddress> {
        let parse = || {
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (device, function) = rest.split_once('.')?;
            Some(Self {
                domain: u32::from_str_radix(domain, 16).ok()?,
                bus: u8::from_str_radix(bus, 16).ok()?,
                device: u8::from_str_radix(device, 16).ok().filter(|&device| device < 32)?,
                function: u8::from_str_radix(function, 16).ok().filter(|&number| number < 8)?,
            })
        };
        parse().ok_or_else(|| BadPciAddress(text.to_owned()))
    }
}

impl TryFrom<String> for PciAddress {
    type Error = BadPciAddress;
    fn try_from(text: String) -> Result<Self, BadPciAddress> {
        text.parse()
    }
}

impl From<PciAddress> for String {
    fn from(address: PciAddress) -> Self {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back() {
        let check = |text: &str, good: bool| {
            let found = text.parse::<PciAddress>();
            assert_eq!(found.is_ok(), good, "{text}");
            if let Ok(address) = found {
                assert_eq!(address.to_string(), text);
            }
        };
        check("0000:c1:00.0", true);
        check("10000:e1:1f.7", true);
        check("0000:c1:20.0", false);
        check("c1:00.0", false);
        check("", false);
    }
}
