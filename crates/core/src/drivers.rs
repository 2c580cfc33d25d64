//! The drivers of a program, which decide what devices it can use.

use std::sync::Arc;

use crate::{Device, Name};

/// Drivers that a program has, by the words of [`Device::drivers`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Drivers {
    /// Nobody said which: it may be given any device.
    #[default]
    Unknown,
    /// These and no others, the one it prefers first; none where not one of them works.
    Named(Arc<[Name]>),
}

impl Drivers {
    /// Whether a program with them can use a device.
    pub fn reach(&self, device: &Device) -> bool {
        match self {
            Self::Unknown => true,
            Self::Named(drivers) => drivers.iter().any(|driver| device.drivers.contains(driver)),
        }
    }

    /// By which driver a program with them uses a device: the device's best one where nothing is
    /// known of the program.
    pub fn used_on<'a>(&'a self, device: &'a Device) -> Option<&'a Name> {
        match self {
            Self::Unknown => device.drivers.first(),
            Self::Named(drivers) => drivers.iter().find(|driver| device.drivers.contains(driver)),
        }
    }

    /// The words, where they are known.
    pub fn named(&self) -> Option<&[Name]> {
        match self {
            Self::Unknown => None,
            Self::Named(drivers) => Some(drivers),
        }
    }
}

impl<N: Into<Name>> FromIterator<N> for Drivers {
    fn from_iter<I: IntoIterator<Item = N>>(words: I) -> Self {
        Self::Named(words.into_iter().map(Into::into).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bytes, NodeId, Share};

    fn device(drivers: &[&str]) -> Device {
        Device {
            node: NodeId(0),
            name: "one".into(),
            class: 0,
            drivers: drivers.iter().map(|&driver| driver.into()).collect(),
            capacity: Share::WHOLE,
            memory: Bytes::ZERO,
            visible_id: "0".into(),
        }
    }

    #[test]
    fn a_program_uses_a_device_by_the_driver_that_it_prefers() {
        let check = |program: Option<&[&str]>, of_device: &[&str], used: Option<&str>| {
            let device = device(of_device);
            let drivers = program.map_or(Drivers::Unknown, |words| words.iter().copied().collect());
            assert_eq!(drivers.used_on(&device).map(Name::as_str), used, "{program:?}");
            let reaches = drivers.reach(&device);
            assert_eq!(reaches, used.is_some() || program.is_none(), "{program:?}");
        };
        check(None, &["cuda", "vulkan"], Some("cuda"));
        check(None, &[], None);
        check(Some(&["vulkan", "cuda"]), &["cuda", "vulkan"], Some("vulkan"));
        check(Some(&["vulkan", "cpu"]), &["cuda", "vulkan"], Some("vulkan"));
        check(Some(&["cpu"]), &["cann", "npu-ort"], None);
        check(Some(&[]), &["cpu"], None);
    }
}
