//! Pure parsing of what the kernel writes. `None` is "not in the expected form".

use std::collections::BTreeMap;

use het_core::Bytes;

/// Linux's largest `NR_CPUS` is 8,192; a larger id is garbage, not a machine.
const CORE_ID_MAX: u32 = 65_535;
/// Cgroup v1 writes "no limit" as 2^63 rounded down to a page; no machine has 2^62 bytes.
const MEMORY_LIMIT_MAX: u64 = 1 << 62;

/// A kernel list: `0-3,8,10-11` → 0, 1, 2, 3, 8, 10, 11. Sorted, without repeats.
pub(crate) fn core_list(text: &str) -> Option<Vec<u32>> {
    let mut cores = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.trim().is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last > CORE_ID_MAX {
            return None;
        }
        cores.extend(first..=last);
    }
    cores.sort_unstable();
    cores.dedup();
    Some(cores)
}

/// `MemTotal` of `/proc/meminfo` or of a NUMA node's `meminfo`; the kernel's `kB` is 1,024 bytes.
pub(crate) fn memory_total(meminfo: &str) -> Option<Bytes> {
    let line = meminfo.lines().find(|line| line.contains("MemTotal:"))?;
    let kib: u64 = line.split("MemTotal:").nth(1)?.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024).map(Bytes)
}

/// A cgroup memory limit; `None` where there is none.
pub(crate) fn memory_limit(text: &str) -> Option<Bytes> {
    text.trim().parse().ok().filter(|&limit| limit < MEMORY_LIMIT_MAX).map(Bytes)
}

/// Cgroup v2 `cpu.max` (`200000 100000`) in thousandths of a core; `None` where there is no limit.
pub(crate) fn cpu_max(text: &str) -> Option<u64> {
    let (quota, period) = text.trim().split_once(' ')?;
    quota_millicores(quota, period)
}

/// Microseconds of processor time in a period, in thousandths of a core; a v1 quota of −1 is none.
pub(crate) fn quota_millicores(quota: &str, period: &str) -> Option<u64> {
    let (quota, period): (u64, u64) = (quota.trim().parse().ok()?, period.trim().parse().ok()?);
    quota.checked_mul(1000)?.checked_div(period)
}

/// Ticks of each core in `/proc/stat`, busy and in all, by core id. Waiting for a disk is idle; a
/// core that its host gave to somebody else (`steal`) is busy.
pub(crate) fn core_ticks(stat: &str) -> BTreeMap<u32, (u64, u64)> {
    let of_line = |line: &str| {
        let (name, rest) = line.split_once(' ')?;
        let core = name.strip_prefix("cpu")?.parse().ok()?;
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user already.
        let ticks: Vec<u64> =
            rest.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
        let all: u64 = ticks.iter().sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some((core, (all - idle, all)))
    };
    stat.lines().filter_map(of_line).collect()
}

/// Part of the last ten seconds in `/proc/pressure/RESOURCE`, for `some` or `full`.
pub(crate) fn pressure(text: &str, who: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(who)?.strip_prefix(' '))?;
    let percent = line.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?;
    percent
        .parse::<f64>()
        .ok()
        .filter(|percent| (0.0..=100.0).contains(percent))
        .map(|it| it / 100.0)
}

/// The present and the highest clock of amdgpu's `pp_dpm_sclk` (`1: 1700Mhz *`), in MHz.
pub(crate) fn clock_levels(text: &str) -> Option<(u32, u32)> {
    let of_line = |line: &str| -> Option<(u32, bool)> {
        let (_, level) = line.split_once(": ")?;
        let (mhz, rest) = level.split_once("Mhz")?;
        Some((mhz.trim().parse().ok()?, rest.contains('*')))
    };
    let levels: Vec<(u32, bool)> = text.lines().filter_map(of_line).collect();
    let now = levels.iter().find(|(_, is_present)| *is_present)?.0;
    Some((now, levels.iter().map(|(mhz, _)| *mhz).max()?))
}

/// The value of a `key: value` or `key\t: value` line.
pub(crate) fn field<'text>(text: &'text str, key: &str) -> Option<&'text str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

/// Bytes per second of `400 Gb/sec (4X NDR)`; a port that is down still says what it could do.
pub(crate) fn port_rate(text: &str) -> Option<Bytes> {
    let gigabits: f64 = text.split_once(" Gb/sec")?.0.trim().parse().ok()?;
    (gigabits > 0.0 && gigabits < 1e5).then_some(Bytes((gigabits * 1e9 / 8.0) as u64))
}

/// Megatransfers per second of `16.0 GT/s PCIe` and `2.5 GT/s`; `None` for `Unknown`.
pub(crate) fn link_speed(text: &str) -> Option<u64> {
    let number = text.split_whitespace().next()?;
    if !text.contains("GT/s") {
        return None;
    }
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let (whole, tenths): (u64, u64) = (whole.parse().ok()?, tenths.parse().ok()?);
    (whole > 0 && whole < 1000 && tenths < 10).then(|| whole * 1000 + tenths * 100)
}

/// Bytes per second in one direction of a PCIe link. Encoding overhead by the PCI Express base
/// specifications: 8b/10b to 5 GT/s, 128b/130b to 32 GT/s, 242 of the 256 bytes of a flit above.
/// What packets cost on top depends on their size and is not taken off.
pub(crate) fn link_bandwidth(megatransfers: u64, lanes: u64) -> Option<Bytes> {
    if megatransfers == 0 || lanes == 0 || lanes > 32 {
        return None;
    }
    let (payload, sent) = match megatransfers {
        0..=5_000 => (8, 10),
        5_001..=32_000 => (128, 130),
        _ => (242, 256),
    };
    Some(Bytes(megatransfers * 1_000_000 / 8 * lanes * payload / sent))
}

/// Lower-case words joined by `-`: `RTX A6000` → `rtx-a6000`.
pub(crate) fn slug<'text>(words: impl IntoIterator<Item = &'text str>) -> String {
    let mut out = String::new();
    for word in words {
        for letter in word.chars() {
            if letter.is_ascii_alphanumeric() {
                out.push(letter.to_ascii_lowercase());
            } else if !out.ends_with('-') {
                out.push('-');
            }
        }
        if !out.ends_with('-') {
            out.push('-');
        }
    }
    out.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_lists() {
        let check = |text: &str, cores: Option<&[u32]>| {
            assert_eq!(core_list(text).as_deref(), cores, "{text:?}");
        };
        check("0-3,8,10-11\n", Some(&[0, 1, 2, 3, 8, 10, 11]));
        check("", Some(&[]));
        check("3,1,1", Some(&[1, 3]));
        check("3-1", None);
        check("0-4294967295", None);
        check("all", None);
        check("-1", None);
    }

    #[test]
    fn pcie_bandwidth_is_per_direction_after_encoding() {
        let check = |speed: &str, lanes: u64, gigabytes: Option<f64>| {
            let found = link_speed(speed).and_then(|speed| link_bandwidth(speed, lanes));
            let found = found.map(|bytes| (bytes.0 as f64 / 1e7).round() / 100.0);
            assert_eq!(found, gigabytes, "{speed} x{lanes}");
        };
        // PCI-SIG's figures: 3.0 x16 15.75, 4.0 x16 31.51, 5.0 x16 63.02 GB/s a direction.
        check("2.5 GT/s PCIe", 1, Some(0.25));
        check("8.0 GT/s PCIe", 16, Some(15.75));
        check("16.0 GT/s PCIe", 16, Some(31.51));
        check("32.0 GT/s PCIe", 16, Some(63.02));
        check("64.0 GT/s PCIe", 16, Some(121.0));
        check("Unknown", 16, None);
        check("16.0 GT/s PCIe", 0, None);
        check("16.0 GT/s PCIe", 255, None);
    }

    #[test]
    fn ticks_pressure_and_clocks() {
        let stat = "cpu  9 9 9 9\ncpu0 5 1 2 80 10 1 1 0 3 0\ncpu1 1 2\nintr 7";
        assert_eq!(core_ticks(stat), BTreeMap::from([(0, (10, 100))]));
        let text = "some avg10=12.50 avg60=0.57 total=8\nfull avg10=0.00 avg60=0.00 total=0";
        assert_eq!([pressure(text, "some"), pressure(text, "full")], [Some(0.125), Some(0.0)]);
        assert_eq!(pressure("some avg10=NaN", "some"), None);
        assert_eq!(clock_levels("0: 500Mhz\n1: 1700Mhz *\n2: 2500Mhz"), Some((1_700, 2_500)));
        assert_eq!(clock_levels("0: 500Mhz"), None);
    }

    #[test]
    fn quotas_and_limits() {
        assert_eq!(cpu_max("150000 100000"), Some(1500));
        assert_eq!(cpu_max("max 100000"), None);
        assert_eq!(quota_millicores("-1", "100000"), None);
        assert_eq!(quota_millicores("100000", "0"), None);
        assert_eq!(memory_limit("9223372036854771712"), None);
        assert_eq!(memory_limit("max"), None);
        assert_eq!(memory_limit("1073741824"), Some(Bytes::gib(1)));
        assert_eq!(memory_total("Node 0 MemTotal:   1024 kB"), Some(Bytes(1 << 20)));
        assert_eq!(memory_total("MemTotal: lots"), None);
        assert_eq!(memory_total("MemTotal: 18446744073709551615 kB"), None);
    }
}
