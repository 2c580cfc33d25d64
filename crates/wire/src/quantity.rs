//! Sizes like `24GiB` and durations like `1h30m`.

use het_core::{Bytes, Millis};

/// Reads a size: a number with `B`, `KiB`, `MiB`, `GiB`, `TiB` or `kB`, `MB`, `GB`, `TB`.
pub fn size(text: &str) -> Option<Bytes> {
    let split = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(split);
    let factor: f64 = match unit {
        "B" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        "TiB" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        _ => return None,
    };
    let value: f64 = number.parse().ok().filter(|value: &f64| *value >= 0.0)?;
    Some(Bytes((value * factor) as u64))
}

/// Reads a rate in one direction: `25GB/s`, or bits of a network port, `400G`.
pub fn rate(text: &str) -> Option<Bytes> {
    match text.strip_suffix("/s") {
        Some(bytes) => size(bytes),
        None => {
            let gigabits: f64 = text.strip_suffix('G')?.parse().ok()?;
            (gigabits >= 0.0).then_some(Bytes((gigabits * 1e9 / 8.0) as u64))
        }
    }
}

/// Writes a rate in decimal units, as vendors print them.
pub fn rate_text(rate: Bytes) -> String {
    let (value, unit) = match rate.0 {
        0..1_000_000_000 => (rate.0 as f64 / 1e6, "MB/s"),
        1_000_000_000..1_000_000_000_000 => (rate.0 as f64 / 1e9, "GB/s"),
        _ => (rate.0 as f64 / 1e12, "TB/s"),
    };
    format!("{} {unit}", short(value))
}

/// Writes the rate of a network port in bits: `400G`.
pub fn port_text(rate: Bytes) -> String {
    format!("{}G", short(rate.0 as f64 * 8.0 / 1e9))
}

/// With one digit after the point where there is something to say.
fn short(value: f64) -> String {
    let rounded = (value * 10.0).round() / 10.0;
    format!("{rounded}")
}

/// Reads a duration: numbers with `ms`, `s`, `m`, `h`, `d`, largest first, as in `1h30m`.
pub fn duration(text: &str) -> Option<Millis> {
    let mut rest = text;
    let mut total: u64 = 0;
    let mut last_unit = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let value: u64 = rest[..digits].parse().ok()?;
        let after = &rest[digits..];
        let unit_len = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let unit = match &after[..unit_len] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        if unit >= last_unit {
            return None;
        }
        last_unit = unit;
        total = total.checked_add(value.checked_mul(unit)?)?;
        rest = &after[unit_len..];
    }
    (last_unit != u64::MAX).then_some(Millis(total))
}

/// Writes a duration for people: the two largest units that are not zero.
pub fn duration_text(span: Millis) -> String {
    let seconds = span.0 / 1_000;
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) if span.0 < 10_000 => format!("{:.1}s", span.as_seconds()),
        (0, 0, 0) => format!("{rest}s"),
        (0, 0, _) => format!("{minutes}m{rest:02}s"),
        (0, _, _) => format!("{hours}h{minutes:02}m"),
        _ => format!("{days}d{hours:02}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_with_binary_and_decimal_units() {
        for (text, bytes) in [("24GiB", 24 << 30), ("1.5KiB", 1536), ("2GB", 2_000_000_000)] {
            assert_eq!(size(text), Some(Bytes(bytes)), "{text}");
        }
        for text in ["24", "24gib", "GiB", "-1GiB", "24 GiB"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn rates_read_and_are_written_as_vendors_do() {
        for (text, bytes) in [("25GB/s", 25_000_000_000), ("400G", 50_000_000_000)] {
            assert_eq!(rate(text), Some(Bytes(bytes)), "{text}");
        }
        for text in ["25", "25GB", "400Gb", "-1G", "fast"] {
            assert_eq!(rate(text), None, "{text}");
        }
        assert_eq!(rate_text(Bytes(31_507_692_308)), "31.5 GB/s");
        assert_eq!(rate_text(Bytes(3_350_000_000_000)), "3.4 TB/s");
        assert_eq!(port_text(Bytes(50_000_000_000)), "400G");
    }

    #[test]
    fn durations_read_units_in_falling_order() {
        for (text, ms) in [("90s", 90_000), ("1h30m", 5_400_000), ("250ms", 250)] {
            assert_eq!(duration(text), Some(Millis(ms)), "{text}");
        }
        for text in ["", "90", "30m1h", "1h1h", "s", "1w", "-1s"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_written_short() {
        let rows =
            [(1_500, "1.5s"), (61_000, "1m01s"), (5_400_000, "1h30m"), (90_000_000, "1d01h")];
        for (ms, text) in rows {
            assert_eq!(duration_text(Millis(ms)), text);
        }
    }
}
