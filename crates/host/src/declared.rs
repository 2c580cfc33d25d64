//! Devices that a file declares, beside those that discovery finds.

use het_core::{Device, DeviceClass, Name, NodeId, Share};
use het_devices::{Discovery, declared_id};
use het_wire::declared::DeclaredDevices;

/// Stands before the name of a device that is not there, so that it is told apart wherever devices
/// are named.
const PRETENDED: &str = "pretended-";

/// Adds declared devices to the machine's node. They have no links: nothing is known of them.
pub(crate) fn add(discovery: &mut Discovery, declared: &[DeclaredDevices]) {
    for devices in declared {
        let class = class_row(discovery, devices);
        for id in &devices.ids {
            let name = free_name(discovery, devices);
            let topology = &mut discovery.topology;
            topology.devices.push(Device {
                node: NodeId(0),
                name,
                class,
                drivers: vec![devices.driver.clone()],
                capacity: Share::WHOLE,
                memory: devices.memory,
                visible_id: declared_id(devices.variable.as_deref(), id).into(),
            });
        }
    }
}

fn class_row(discovery: &mut Discovery, devices: &DeclaredDevices) -> usize {
    let classes = &mut discovery.topology.classes;
    let known = classes.iter().position(|class| class.id == devices.class);
    known.unwrap_or_else(|| {
        let title = match devices.pretended {
            true => format!("{} (pretended)", devices.model),
            false => devices.model.clone(),
        };
        classes.push(DeviceClass {
            id: devices.class.clone(),
            kind: devices.kind.clone(),
            vendor: devices.vendor.as_str().into(),
            title: title.into(),
            peak_gflops: None,
            software: false,
        });
        classes.len() - 1
    })
}

/// The next of its kind.
fn free_name(discovery: &Discovery, devices: &DeclaredDevices) -> Name {
    let prefix = if devices.pretended { PRETENDED } else { "" };
    let taken = |name: &str| discovery.topology.devices.iter().any(|known| known.name == name);
    let mut names = (0..).map(|number: u32| format!("{prefix}{}{number}", devices.kind));
    let name = names.find(|name| !taken(name));
    name.expect("there are fewer devices than numbers").into()
}

#[cfg(test)]
mod tests {
    use het_core::Bytes;

    use super::*;

    #[test]
    fn pretended_devices_are_named_as_such() {
        let npu = |pretended| DeclaredDevices {
            kind: "npu".into(),
            class: "photon-p1".into(),
            model: "Photon P1".to_owned(),
            vendor: String::new(),
            driver: "photon".into(),
            memory: Bytes::gib(32),
            variable: Some("PHOTON_VISIBLE_DEVICES".to_owned()),
            ids: vec!["a".to_owned(), "b".to_owned()],
            pretended,
        };
        let mut discovery = Discovery::default();
        add(&mut discovery, &[npu(false), npu(true)]);
        let names: Vec<&str> =
            discovery.topology.devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["npu0", "npu1", "pretended-npu0", "pretended-npu1"]);
        assert_eq!(discovery.topology.devices[1].visible_id, "PHOTON_VISIBLE_DEVICES=b");
    }
}
