//! Numbers of devices among all of the machine, for launchers that know them by nothing else.

use std::fs;
use std::path::Path;

/// Where NVIDIA's driver tells of its devices.
pub(super) const NVIDIA: &str = "/proc/driver/nvidia/gpus";

/// The numbers of devices with these values of a variable: the values themselves, or the places of
/// NVIDIA's UUIDs in the order of bus addresses, which `CUDA_DEVICE_ORDER=PCI_BUS_ID` counts by.
/// `None` where a device has no number: a part of one, or a directory of another driver.
pub(super) fn device_numbers(visible: &[&str], nvidia: &Path) -> Option<Vec<u32>> {
    let mut uuids = None;
    let number = |value: &&str| {
        if let Ok(number) = value.parse() {
            return Some(number);
        }
        let uuids = uuids.get_or_insert_with(|| uuids_by_address(nvidia));
        let place = uuids.iter().position(|uuid| uuid.as_deref() == Some(value))?;
        u32::try_from(place).ok()
    };
    visible.iter().map(number).collect()
}

fn uuids_by_address(nvidia: &Path) -> Vec<Option<String>> {
    let entries = fs::read_dir(nvidia).into_iter().flatten().flatten();
    let mut dirs: Vec<_> = entries.map(|entry| entry.path()).collect();
    dirs.sort();
    let uuid = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("GPU UUID:"));
        line.map(|uuid| uuid.trim().to_owned())
    };
    let read = |dir: &Path| fs::read_to_string(dir.join("information")).ok().and_then(uuid);
    dirs.iter().map(|dir| read(dir)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_the_place_of_its_bus_address() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        for (address, uuid) in [("0000:c1:00.0", "GPU-c"), ("0000:1b:00.0", "GPU-a")] {
            let gpu = dir.path().join(address);
            fs::create_dir(&gpu).expect("a directory can be made");
            let text = format!("Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\n");
            fs::write(gpu.join("information"), text).expect("a file can be written");
        }
        let check = |visible: &[&str], expected: Option<Vec<u32>>| {
            assert_eq!(device_numbers(visible, dir.path()), expected, "{visible:?}");
        };
        check(&["GPU-c", "GPU-a"], Some(vec![1, 0]));
        check(&["3", "5"], Some(vec![3, 5]));
        check(&["GPU-a", "MIG-b"], None);
        check(&[], Some(vec![]));
    }
}
