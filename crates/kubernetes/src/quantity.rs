//! Amounts as Kubernetes writes them: `8`, `1500m`, `16Gi`, `1e3`.
//! Format: apimachinery `pkg/api/resource/quantity.go`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Number;

/// A suffix and what it stands for, in thousandths.
const SUFFIXES: [(&str, u128); 16] = [
    ("m", 1),
    ("", 1_000),
    ("k", 1_000_000),
    ("M", 1_000_000_000),
    ("G", 1_000_000_000_000),
    ("T", 1_000_000_000_000_000),
    ("P", 1_000_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000_000),
    ("Ki", 1_000 << 10),
    ("Mi", 1_000 << 20),
    ("Gi", 1_000 << 30),
    ("Ti", 1_000 << 40),
    ("Pi", 1_000 << 50),
    ("Ei", 1_000 << 60),
    // Smaller than anything that is counted here.
    ("u", 0),
    ("n", 0),
];

/// Largest power of ten that is read.
const EXPONENT_MAX: u32 = 18;

/// An amount in thousandths, at most `u64::MAX`; `None` where the text is none. What is finer than
/// that is cut off.
fn milli(text: &str) -> Option<u64> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && part.is_empty() {
        return None;
    }
    let unit = unit(suffix)?;
    let digits = |text: &str| match text {
        "" => Some(0),
        text => text.parse::<u128>().ok(),
    };
    let part = part.get(..part.len().min(EXPONENT_MAX as usize))?;
    let scale = 10u128.pow(part.len() as u32);
    let amount = digits(whole)?.checked_mul(unit)?;
    let amount = amount.checked_add(digits(part)?.checked_mul(unit)? / scale)?;
    Some(u64::try_from(amount).unwrap_or(u64::MAX))
}

/// In thousandths.
fn unit(suffix: &str) -> Option<u128> {
    if let Some((_, unit)) = SUFFIXES.iter().find(|(of, _)| *of == suffix) {
        return Some(*unit);
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let exponent: u32 = exponent.strip_prefix('+').unwrap_or(exponent).parse().ok()?;
    (exponent <= EXPONENT_MAX).then(|| 1_000 * 10u128.pow(exponent))
}

/// An amount of an object. The API server writes those of its own kinds as text; those of other
/// kinds stay as somebody wrote them.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Amount {
    Text(String),
    Number(Number),
}

impl Amount {
    /// In thousandths; `None` where it is none.
    pub fn milli(&self) -> Option<u64> {
        match self {
            Self::Text(text) => milli(text),
            Self::Number(number) => milli(&number.to_string()),
        }
    }
}

/// Amounts by resource, in thousandths. What cannot be read is left out.
pub(crate) fn amounts(of: &BTreeMap<String, Amount>) -> BTreeMap<String, u64> {
    of.iter().filter_map(|(name, amount)| Some((name.clone(), amount.milli()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<u64>) {
        assert_eq!(milli(text), expected, "{text}");
    }

    #[test]
    fn amounts_are_read() {
        check("8", Some(8_000));
        check("1500m", Some(1_500));
        check("0.5", Some(500));
        check(".5", Some(500));
        check("1.5Gi", Some(1_610_612_736_000));
        check("16Ki", Some(16_384_000));
        check("2k", Some(2_000_000));
        check("1e3", Some(1_000_000));
        check("1E+3", Some(1_000_000));
        check("100n", Some(0));
        check("999Ei", Some(u64::MAX));
    }

    #[test]
    fn what_is_no_amount_is_none() {
        for text in ["", "Gi", "-1", "1x", "1.2.3", "1e99", "1 Gi"] {
            check(text, None);
        }
    }
}
