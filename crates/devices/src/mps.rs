//! Shares of an NVIDIA device under the Multi-Process Service (MPS): each share is a device of its
//! own, and the service limits the threads and memory of its programs.
//!
//! Sources: NVIDIA's MPS manual, "Environment Variables"; limits go by index because the service
//! does not take them by UUID (NVIDIA/k8s-device-plugin pull request 572).

use std::path::{Path, PathBuf};

use het_core::{Bytes, Device, DeviceClass, DeviceId, Link, Name, Vertex};
use thiserror::Error;

use crate::Discovery;

/// Most clients of a device of Volta or later (MPS manual, "Volta MPS").
pub const SHARES_MAX: u32 = 48;

/// Stands in a class between the whole device and the number of shares: `h100-sxm5-80-mps-4`.
const CLASS_INFIX: &str = "-mps-";

/// Stands in a visible id between UUID, number of shares and the MiB of one: `GPU-1/4/20390`.
const SEPARATOR: char = '/';

/// The control daemon's pipe directory unless [`PIPE_VARIABLE`] says another.
const PIPE_DIRECTORY: &str = "/tmp/nvidia-mps";
const PIPE_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// Why a device cannot be shared.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ShareError {
    #[error("there is no device `{device}`")]
    NoDevice { device: String },
    #[error("`{device}` cannot be shared: {why}")]
    NotShareable { device: String, why: &'static str },
    #[error("a device has 2 to {SHARES_MAX} shares, not {ways}")]
    Ways { ways: u32 },
}

impl Discovery {
    /// Replaces a device by `ways` equal shares: the first in its row, the others behind all rows.
    ///
    /// # Errors
    /// When there is no such device, or its driver shares none.
    pub fn share(&mut self, name: &str, ways: u32) -> Result<(), ShareError> {
        if !(2..=SHARES_MAX).contains(&ways) {
            return Err(ShareError::Ways { ways });
        }
        let device = name.to_owned();
        let topology = &mut self.topology;
        let Some(id) = topology.device_ids().find(|&id| topology.device(id).name == name) else {
            return Err(ShareError::NoDevice { device });
        };
        let (whole, class) = (topology.device(id).clone(), topology.class_of(id).clone());
        let why = match () {
            () if !whole.drivers.iter().any(|driver| driver == "cuda") => "only CUDA's driver can",
            () if class.id.as_str().contains("-mig-") => "it is an instance already",
            () if class.id.as_str().contains(CLASS_INFIX) => "it is a share already",
            () if whole.memory == Bytes::ZERO => "its memory is not known",
            () => {
                self.replace_by_shares(id, &whole, &class, ways);
                return Ok(());
            }
        };
        Err(ShareError::NotShareable { device, why })
    }

    fn replace_by_shares(&mut self, id: DeviceId, whole: &Device, class: &DeviceClass, ways: u32) {
        let topology = &mut self.topology;
        let share = DeviceClass {
            id: format!("{}{CLASS_INFIX}{ways}", class.id).into(),
            title: format!("{}, one of {ways} shares", class.title).into(),
            ..class.clone()
        };
        let known = topology.classes.iter().position(|known| known.id == share.id);
        let class = known.unwrap_or_else(|| {
            topology.classes.push(share);
            topology.classes.len() - 1
        });
        let memory = Bytes(whole.memory.0 / u64::from(ways));
        let links: Vec<Link> =
            topology.links.iter().filter(|link| touches(link, id)).cloned().collect();
        for number in 0..ways {
            let device = Device {
                name: format!("{}-{number}", whole.name).into(),
                class,
                memory,
                visible_id: share_id(&whole.visible_id, ways, memory),
                // Other drivers know nothing of shares.
                drivers: vec!["cuda".into()],
                ..whole.clone()
            };
            if number == 0 {
                topology.devices[id.index()] = device;
                continue;
            }
            let own = DeviceId(topology.devices.len() as u32);
            topology.devices.push(device);
            topology.links.extend(links.iter().map(|link| moved(link, id, own)));
            if let Some(place) = self.places.get(&id).cloned() {
                self.places.insert(own, place);
            }
        }
    }
}

fn touches(link: &Link, id: DeviceId) -> bool {
    [&link.from, &link.to].contains(&&Vertex::Device(id))
}

fn moved(link: &Link, from: DeviceId, to: DeviceId) -> Link {
    let end = |vertex: &Vertex| match vertex {
        Vertex::Device(id) if *id == from => Vertex::Device(to),
        other => other.clone(),
    };
    Link { from: end(&link.from), to: end(&link.to), ..link.clone() }
}

fn share_id(uuid: &Name, ways: u32, memory: Bytes) -> Name {
    format!("{uuid}{SEPARATOR}{ways}{SEPARATOR}{}", memory.0 >> 20).into()
}

/// The device that a visible id is or is a share of.
pub(crate) fn whole_id(visible_id: &str) -> &str {
    visible_id.split_once(SEPARATOR).map_or(visible_id, |(whole, _)| whole)
}

/// Arguments that give a container access to the service: its pipe, and memory shared with it.
pub(crate) fn container_arguments(visible_ids: &[&str]) -> Vec<String> {
    match visible_ids.iter().any(|id| id.contains(SEPARATOR)) {
        true => vec!["--ipc=host".into(), format!("--volume={PIPE_DIRECTORY}:{PIPE_DIRECTORY}")],
        false => Vec::new(),
    }
}

/// Variables that limit a program with these devices to its shares; empty where none is a share.
/// The percentage of threads is one figure for all devices: that of the first.
pub(crate) fn limits(visible_ids: &[&str]) -> Vec<(&'static str, String)> {
    let mut devices: Vec<HeldShares<'_>> = Vec::new();
    for share in visible_ids.iter().filter_map(|id| HeldShares::read(id)) {
        match devices.iter_mut().find(|held| held.whole == share.whole) {
            Some(held) => *held = held.and(share),
            None => devices.push(share),
        }
    }
    let Some(first) = devices.first() else { return Vec::new() };
    let threads = (100 / first.ways * first.shares).clamp(1, 100);
    let memory = devices.iter().enumerate();
    let memory = memory.map(|(index, held)| format!("{index}={}M", held.mebibytes));
    vec![
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", threads.to_string()),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", memory.collect::<Vec<_>>().join(",")),
    ]
}

/// A program's shares of one device.
#[derive(Debug, Clone, Copy)]
struct HeldShares<'a> {
    whole: &'a str,
    ways: u32,
    shares: u32,
    mebibytes: u64,
}

impl<'a> HeldShares<'a> {
    fn read(visible_id: &'a str) -> Option<Self> {
        let (whole, rest) = visible_id.split_once(SEPARATOR)?;
        let (ways, mebibytes) = rest.split_once(SEPARATOR)?;
        let (ways, mebibytes) = (ways.parse().ok()?, mebibytes.parse().ok()?);
        Some(Self { whole, ways, shares: 1, mebibytes })
    }

    fn and(self, other: Self) -> Self {
        let mebibytes = self.mebibytes + other.mebibytes;
        Self { shares: self.shares + other.shares, mebibytes, ..self }
    }
}

/// Directory of the pipe to the service's control daemon.
pub fn mps_pipe(lookup: impl Fn(&str) -> Option<String>) -> PathBuf {
    lookup(PIPE_VARIABLE).map_or_else(|| PIPE_DIRECTORY.into(), PathBuf::from)
}

/// Whether a daemon has run: it leaves its pipe named `control`.
pub fn mps_answers(pipe: &Path) -> bool {
    pipe.join("control").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ids: &[&str], expected: [&str; 2]) {
        let found = limits(ids);
        let found: Vec<&str> = found.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(found, expected, "{ids:?}");
    }

    #[test]
    fn a_program_is_held_to_its_shares() {
        check(&["GPU-1/4/20000"], ["25", "0=20000M"]);
        check(&["GPU-1/4/20000", "GPU-1/4/20000"], ["50", "0=40000M"]);
        check(&["GPU-1/3/100", "GPU-2/3/100"], ["33", "0=100M,1=100M"]);
        assert_eq!(limits(&["GPU-1", "MIG-2"]), []);
    }
}
