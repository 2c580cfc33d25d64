//! What links carry, in bytes per second and direction.

use het_core::Bytes;

use crate::catalogue::Sheet;

/// One cable of a switched network and the hop behind it (SimAI's topology templates: 0.5 µs).
pub(crate) const NETWORK_NS: u64 = 500;
/// Through an NVSwitch (SimAI's topology templates: 0.025 µs).
pub(crate) const PEER_SWITCH_NS: u64 = 25;

/// GT/s a lane of PCIe 1 to 6 (PCI-SIG base specifications).
const PCIE_GTPS: [f64; 6] = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0];

/// MB/s a direction of one link by the first letters of [`Sheet::peer_link`]: NVIDIA prints 25 GB/s
/// for NVLink 2 to 4 (600 GB/s of 12 links and 900 GB/s of 18, both directions) and 50 GB/s for
/// NVLink 5; Huawei 56 GB/s both directions for HCCS of the 910B (392 GB/s of 7) and the same for
/// UB of the 910C (392 GB/s a direction of the 14 of a package, arXiv 2506.12708).
const PEER_MBPS: [(&str, u64); 7] = [
    ("NVLink1", 20_000),
    ("NVLink2", 25_000),
    ("NVLink3", 25_000),
    ("NVLink4", 25_000),
    ("NVLink5", 50_000),
    ("HCCS", 28_000),
    ("UB", 28_000),
];

/// A network port of so many Gbit/s.
pub(crate) const fn gbit(speed: u64) -> Bytes {
    Bytes(speed * 1_000_000_000 / 8)
}

/// GB/s of a decimal figure.
pub(crate) fn gigabytes(gbps: f64) -> Bytes {
    Bytes((gbps * 1e9).round() as u64)
}

/// Raw rate after line coding, as the kernel's speed and width give it for a real machine; 81 % of
/// it is what programs see (SimAI: 25.6 of 31.5 GB/s).
pub(crate) fn pcie(generation: u32, lanes: u32) -> Option<Bytes> {
    let speed = PCIE_GTPS.get((generation as usize).checked_sub(1)?)?;
    // 8b/10b up to generation 2, 128b/130b up to 5; 6 has no line code but FLIT overhead (236/256).
    let code = match generation {
        1 | 2 => 0.8,
        3..=5 => 128.0 / 130.0,
        _ => 236.0 / 256.0,
    };
    Some(gigabytes(speed * code * f64::from(lanes) / 8.0))
}

/// Kind and rate of the link to the host that a sheet names: `PCIe5 x16`, `NVLink-C2C 900`.
pub(crate) fn host(sheet: &Sheet) -> (&'static str, Option<Bytes>) {
    if let Some(rate) = sheet.host_link.strip_prefix("NVLink-C2C ") {
        // Printed for both directions.
        return ("c2c", rate.parse().ok().map(|both: f64| gigabytes(both / 2.0)));
    }
    let known = || {
        let rest = sheet.host_link.strip_prefix("PCIe")?;
        let (generation, lanes) = rest.split_once(" x")?;
        // `PCIe5/6`: what both ends can do for sure.
        let generation = generation.split('/').next()?.parse().ok()?;
        pcie(generation, lanes.parse().ok()?)
    };
    ("pcie", known())
}

/// Number of links to peers and the rate of one, where the sheet tells both.
pub(crate) fn peers(sheet: &Sheet) -> Option<(u32, Bytes)> {
    let (_, mbps) = PEER_MBPS.iter().find(|(word, _)| sheet.peer_link.starts_with(word))?;
    let links = sheet.peer_gbps.value()? * 1_000.0 / 2.0 / *mbps as f64;
    Some((links.round() as u32, Bytes(mbps * 1_000_000)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

    #[test]
    fn link_counts_follow_from_the_published_sums() {
        let check = |class: &str, links: u32, gbps: u64| {
            let sheet = catalogue::sheet(class).expect("in the catalogue");
            assert_eq!(peers(sheet), Some((links, Bytes(gbps * 1_000_000_000))), "{class}");
        };
        check("a100-sxm4-80", 12, 25);
        check("a800-sxm4-80", 8, 25);
        check("h100-sxm5-80", 18, 25);
        check("gb200-per-gpu", 18, 50);
        check("ascend-910b", 7, 28);
        check("ascend-910c-die", 7, 28);
    }

    #[test]
    fn host_links_read_as_the_kernel_would_print_them() {
        let check = |class: &str, kind: &str, mbps: u64| {
            let sheet = catalogue::sheet(class).expect("in the catalogue");
            let (found, rate) = host(sheet);
            assert_eq!((found, rate.map(|rate| rate.0 / 1_000_000)), (kind, Some(mbps)), "{class}");
        };
        check("a100-sxm4-80", "pcie", 31_507);
        check("h100-sxm5-80", "pcie", 63_015);
        check("gb200-per-gpu", "c2c", 450_000);
    }
}
