//! What the kubelet calls what pods may request. No I/O.

use std::collections::BTreeMap;

use het_core::{Bytes, HostResources, Name};

/// The cores of a node.
pub(crate) const CPU: &str = "cpu";
pub(crate) const MEMORY: &str = "memory";
pub(crate) const SCRATCH: &str = "ephemeral-storage";
/// How many a node may have; each pod is one.
pub(crate) const PODS: &str = "pods";
/// What begins the names of resources that are no devices.
const NO_DEVICES: [&str; 2] = ["hugepages-", "attachable-volumes-"];
const PLAIN: [&str; 4] = [CPU, MEMORY, PODS, SCRATCH];

/// By resource, in thousandths.
pub(crate) type Requests = BTreeMap<String, u64>;

/// Whether so called resources are devices.
pub(crate) fn is_device(resource: &str) -> bool {
    !PLAIN.contains(&resource) && !NO_DEVICES.iter().any(|begin| resource.starts_with(begin))
}

/// Most devices, and most cores, of one pod; a node has fewer.
const COUNT_MAX: u64 = 4_096;

/// Devices of one resource, or cores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Devices {
    pub resource: Name,
    pub count: u32,
}

/// The devices that a pod requests, and the cores beside them; its cores alone where it requests no
/// device, and then at least one. `requests` are in thousandths.
///
/// # Errors
/// What of it is not considered: one phrase.
pub(crate) fn counted(requests: &Requests) -> Result<(Devices, u32), String> {
    let asked = || requests.iter().filter(|(_, amount)| **amount > 0);
    let mut devices = asked().filter(|(name, _)| is_device(name));
    let is_counted = |name: &str| name == CPU || is_device(name);
    let most = COUNT_MAX * 1_000;
    if let Some((name, _)) = asked().find(|(name, amount)| is_counted(name) && **amount > most) {
        return Err(format!("more than {COUNT_MAX} of `{name}`"));
    }
    let cores = requests.get(CPU).map_or(0, |amount| amount.div_ceil(1_000)) as u32;
    match (devices.next(), devices.next()) {
        (None, _) => Ok((Devices { resource: CPU.into(), count: cores.max(1) }, 0)),
        (Some((name, amount)), None) if amount.is_multiple_of(1_000) => {
            let resource = name.as_str().into();
            Ok((Devices { resource, count: (amount / 1_000) as u32 }, cores))
        }
        (Some((name, _)), None) => Err(format!("a part of a device (`{name}`)")),
        (Some((one, _)), Some((other, _))) => {
            Err(format!("two extended resources of one pod, `{one}` and `{other}`"))
        }
    }
}

/// What requests are of a node beside devices, rounded up.
pub(crate) fn host_of(requests: &Requests) -> HostResources {
    let of = |name: &str| requests.get(name).copied().unwrap_or_default().div_ceil(1_000);
    HostResources {
        memory: Bytes(of(MEMORY)),
        scratch: Bytes(of(SCRATCH)),
        read: Bytes::ZERO,
        tasks: of(PODS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_asks_for_devices_of_one_kind_or_for_cores() {
        let of = |amounts: &[(&str, u64)]| {
            let amounts = amounts.iter().map(|(name, amount)| ((*name).to_owned(), *amount));
            counted(&amounts.collect())
                .map(|(it, cores)| (it.resource.to_string(), it.count, cores))
        };
        let gpu = "nvidia.com/gpu";
        assert_eq!(of(&[(gpu, 2_000), (CPU, 1_500)]), Ok((gpu.to_owned(), 2, 2)));
        assert_eq!(of(&[(CPU, 1_500), ("memory", 9)]), Ok((CPU.to_owned(), 2, 0)));
        assert_eq!(of(&[]), Ok((CPU.to_owned(), 1, 0)));
        for (asked, why) in [
            (vec![(gpu, 500)], "a part"),
            (vec![(gpu, 1_000), ("a.b/c", 1_000)], "two"),
            (vec![(gpu, 5_000_000)], "more than 4096"),
        ] {
            assert!(of(&asked).is_err_and(|told| told.contains(why)), "{why}");
        }
    }
}
