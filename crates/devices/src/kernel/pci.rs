//! The functions on the PCI bus, as sysfs shows them.

use het_core::Bytes;

use crate::kernel::files::SystemFiles;
use crate::kernel::parse;
use crate::pci_address::PciAddress;

const DEVICES: &str = "sys/bus/pci/devices";

/// One PCI function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) address: PciAddress,
    pub(crate) vendor: u16,
    pub(crate) device: u16,
    /// Base class and subclass: `0x1200` is a processing accelerator.
    pub(crate) class: u16,
    pub(crate) numa: Option<u32>,
    pub(crate) kernel_driver: Option<String>,
    /// Host bridge, then bridges, then the function itself: `pci0000:c0`, `0000:c0:01.1`, ….
    pub(crate) path: Vec<String>,
    /// Names of its nodes below `/dev`: `dri/renderD128`, `dri/card0`, `accel/accel0`.
    pub(crate) nodes: Vec<String>,
    /// Part of another function (SR-IOV) that is listed itself.
    pub(crate) is_virtual: bool,
    /// Own memory, where its kernel driver publishes it.
    pub(crate) memory: Option<Bytes>,
    /// Habana's number of the module on its board.
    pub(crate) module: Option<u32>,
}

/// Every readable function in the order of addresses; `None` if there is no PCI bus to look at.
pub(crate) fn scan(files: &SystemFiles) -> Option<Vec<Function>> {
    if !files.exists(DEVICES) {
        return None;
    }
    let addresses = files.names(DEVICES).into_iter().filter_map(|name| name.parse().ok());
    let mut functions: Vec<Function> = addresses.filter_map(|at| function(files, at)).collect();
    functions.sort_by_key(|function| function.address);
    Some(functions)
}

fn function(files: &SystemFiles, address: PciAddress) -> Option<Function> {
    let directory = format!("{DEVICES}/{address}");
    let at = |file: &str| format!("{directory}/{file}");
    let numa = files.number::<i64>(&at("numa_node")).and_then(|node| u32::try_from(node).ok());
    let listed = |folder: &str, prefix: &str, below: &str| -> Vec<String> {
        let names = files.names(&at(folder)).into_iter();
        names
            .filter(|name| name.starts_with(prefix))
            .map(|name| format!("{below}/{name}"))
            .collect()
    };
    let mut nodes = listed("drm", "renderD", "dri");
    nodes.extend(listed("drm", "card", "dri"));
    nodes.extend(listed("accel", "accel", "accel"));
    Some(Function {
        address,
        vendor: u16::try_from(files.hex(&at("vendor"))?).ok()?,
        device: u16::try_from(files.hex(&at("device"))?).ok()?,
        class: u16::try_from(files.hex(&at("class"))? >> 8).ok()?,
        numa,
        kernel_driver: files.link_name(&at("driver")),
        path: bus_path(&files.link(&directory).unwrap_or_default()),
        nodes,
        is_virtual: files.link(&at("physfn")).is_some(),
        memory: files.number(&at("mem_info_vram_total")).map(Bytes),
        module: files.number(&at("module_id")),
    })
}

impl Function {
    /// An Ethernet or InfiniBand controller (PCI class code 0x0200 or 0x0207).
    pub(crate) fn is_network_card(&self) -> bool {
        matches!(self.class, 0x0200 | 0x0207) && !self.is_virtual
    }
}

/// What the fastest port of a network card runs at: the kernel's `speed` of its interface (Mbit/s,
/// −1 while the port is down), or the `rate` of its RDMA port (`400 Gb/sec (4X NDR)`).
pub(crate) fn port_speed(files: &SystemFiles, address: PciAddress) -> Option<Bytes> {
    let directory = format!("{DEVICES}/{address}");
    let interfaces = files.names(&format!("{directory}/net")).into_iter();
    let megabits = interfaces
        .filter_map(|name| files.number::<i64>(&format!("{directory}/net/{name}/speed")))
        .filter_map(|speed| u64::try_from(speed).ok().filter(|speed| *speed > 0))
        .max();
    let bytes = megabits.map(|megabits| Bytes(megabits * 1_000_000 / 8));
    let rdma = files.names(&format!("{directory}/infiniband")).into_iter();
    let rate = |name: String| {
        let ports = format!("{directory}/infiniband/{name}/ports");
        let rates = files
            .names(&ports)
            .into_iter()
            .filter_map(|port| parse::port_rate(&files.text(&format!("{ports}/{port}/rate"))?));
        rates.max()
    };
    bytes.max(rdma.filter_map(rate).max())
}

/// `../../../devices/pci0000:c0/0000:c0:01.1/0000:c1:00.0` from `pci0000:c0` on.
fn bus_path(target: &str) -> Vec<String> {
    let mut parts = target.split('/').skip_while(|part| !part.starts_with("pci"));
    let Some(root) = parts.next() else { return Vec::new() };
    // A hidden domain (Intel VMD) puts a second `pci10000:e0` inside: it is the root that counts.
    let mut path = vec![root.to_owned()];
    for part in parts {
        if part.starts_with("pci") {
            path.clear();
            path.push(part.to_owned());
        } else if part.parse::<PciAddress>().is_ok() {
            path.push(part.to_owned());
        }
    }
    path
}

/// Speed and width of the link above a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkState {
    pub(crate) bandwidth: Option<Bytes>,
    /// Lanes in use and lanes that both ends have, where the former are fewer.
    pub(crate) narrowed: Option<(u64, u64)>,
}

/// The link between the function `lower` and the port `upper` above it.
///
/// Width is the present one, for it is fixed when the link trains. Speed is the highest that both
/// ends can do, for an idle GPU lowers it (2.5 GT/s) and raises it under load; the present speed
/// counts only where no maximum is known.
pub(crate) fn link_state(files: &SystemFiles, lower: &str, upper: Option<&str>) -> LinkState {
    let at = |end: &str, file: &str| format!("{DEVICES}/{end}/{file}");
    let speed =
        |end: &str, file| files.text(&at(end, file)).and_then(|text| parse::link_speed(&text));
    // A port that has no link reads as width 0 or 255.
    let width = |end: &str, file| {
        files.number::<u64>(&at(end, file)).filter(|lanes| (1..=32).contains(lanes))
    };
    let both = |lower: Option<u64>, upper: Option<u64>| match (lower, upper) {
        (Some(lower), Some(upper)) => Some(lower.min(upper)),
        (lower, _) => lower,
    };
    let fastest = both(
        speed(lower, "max_link_speed"),
        upper.and_then(|upper| speed(upper, "max_link_speed")),
    );
    let lanes = width(lower, "current_link_width");
    let lanes_max = both(
        width(lower, "max_link_width"),
        upper.and_then(|upper| width(upper, "max_link_width")),
    );
    let speed = fastest.or_else(|| speed(lower, "current_link_speed"));
    LinkState {
        bandwidth: speed.zip(lanes).and_then(|(speed, lanes)| parse::link_bandwidth(speed, lanes)),
        narrowed: lanes.zip(lanes_max).filter(|(lanes, most)| lanes < most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_paths_begin_at_the_innermost_host_bridge() {
        let check = |target: &str, path: &[&str]| assert_eq!(bus_path(target), path);
        check(
            "../../../devices/pci0000:c0/0000:c0:01.1/0000:c1:00.0",
            &["pci0000:c0", "0000:c0:01.1", "0000:c1:00.0"],
        );
        check(
            "../../../devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0",
            &["pci10000:e0", "10000:e0:06.0"],
        );
        check("garbage", &[]);
    }
}
