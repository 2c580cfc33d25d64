//! Device words: `h100:8 | ascend-910b:16 | gpu:2:24GiB`.

use het_core::{Bytes, DeviceClass, Drivers, Isolation, Match, Name, Selector, VNPU};
use thiserror::Error;

use crate::{catalogue, quantity};

/// Driver words that a request may name.
pub const DRIVERS: &[&str] =
    &["cuda", "vulkan", "rocm", "level-zero", "cann", VNPU, "npu-ort", "neuron", "habana", "musa"];

/// Drivers that no request names its devices by: a kind or a class says the same.
const FURTHER_DRIVERS: &[&str] = &["corex", "cpu", "maca", "mlu", "ppu", "tops", "tpu", "xpu"];

/// All drivers that a program is known to compute with. A file that declares devices may name
/// others.
pub fn drivers() -> impl Iterator<Item = &'static str> {
    DRIVERS.iter().chain(FURTHER_DRIVERS).copied().filter(|word| *word != VNPU)
}

/// Kinds that are always known; a catalogue or a cluster may add others.
pub const KINDS: &[&str] = &["cpu", "gpu", "npu"];

/// Why a device word is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WordError {
    #[error("an alternative is empty")]
    Empty,
    #[error("`{text}` is not a whole number of devices from 1 to {max}", max = COUNT_MAX)]
    BadCount { text: String },
    #[error("`{text}` is not a memory size")]
    BadMemory { text: String },
    #[error("`{text}` has too many parts")]
    TooManyParts { text: String },
    #[error("`{word}` is no device kind, driver or class")]
    Unknown { word: String, similar: Option<String> },
}

impl WordError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { similar: Some(similar), .. } => format!("did you mean `{similar}`?"),
            Self::Unknown { .. } => {
                "say `cpu`, `gpu`, `npu`, `any`, or a model such as `h100` or `ascend-910b`".into()
            }
            Self::BadMemory { .. } => "write a size such as `24GiB`".into(),
            Self::Empty | Self::BadCount { .. } | Self::TooManyParts { .. } => {
                "write `WORD:COUNT` or `WORD:COUNT:MEMORY`, with ` | ` between alternatives".into()
            }
        }
    }
}

/// Devices one stage may ask for.
pub const COUNT_MAX: u32 = 4_096;

/// Reads all alternatives of a request, for a program without a container whose drivers nobody
/// knows. `own` are the classes of the cluster at hand, which take part beside the catalogue's.
///
/// # Errors
/// The first word that cannot be read, with its byte offset in `text`.
pub fn alternatives(
    text: &str,
    own: &[DeviceClass],
) -> Result<Vec<(Selector, u32)>, (usize, WordError)> {
    let mut offset = 0;
    let mut found = Vec::new();
    for part in text.split('|') {
        let trimmed = part.trim();
        let at = offset + (part.len() - part.trim_start().len());
        found.push(alternative(trimmed, own).map_err(|error| (at, error))?);
        offset += part.len() + 1;
    }
    Ok(found)
}

fn alternative(text: &str, own: &[DeviceClass]) -> Result<(Selector, u32), WordError> {
    let parts: Vec<&str> = text.split(':').collect();
    let (word, count, memory) = match parts.as_slice() {
        [""] => return Err(WordError::Empty),
        [word] => (*word, 1, Bytes::ZERO),
        [word, last] if last.ends_with('B') => (*word, 1, read_memory(last)?),
        [word, number] => (*word, read_count(number)?, Bytes::ZERO),
        [word, number, memory] => (*word, read_count(number)?, read_memory(memory)?),
        _ => return Err(WordError::TooManyParts { text: text.to_owned() }),
    };
    let matches = resolve(word, own)?;
    let (isolation, drivers) = (Isolation::Process, Drivers::Unknown);
    Ok((Selector { word: word.into(), matches, memory_min: memory, isolation, drivers }, count))
}

fn read_count(text: &str) -> Result<u32, WordError> {
    let count = text.parse().ok().filter(|count| (1..=COUNT_MAX).contains(count));
    count.ok_or_else(|| WordError::BadCount { text: text.to_owned() })
}

fn read_memory(text: &str) -> Result<Bytes, WordError> {
    quantity::size(text).ok_or_else(|| WordError::BadMemory { text: text.to_owned() })
}

/// Driver, then kind, then class id, then prefix of an id or of what follows a dash in one.
fn resolve(word: &str, own: &[DeviceClass]) -> Result<Match, WordError> {
    let lower = word.to_ascii_lowercase();
    let known = || own.iter().chain(catalogue::classes());
    if lower == "any" {
        return Ok(Match::Any);
    }
    if DRIVERS.contains(&lower.as_str()) {
        return Ok(Match::Driver(lower.into()));
    }
    if KINDS.contains(&lower.as_str()) || known().any(|class| class.kind == *lower) {
        return Ok(Match::Kind(lower.into()));
    }
    let exact: Vec<Name> = ids(known().filter(|class| class.id == *lower));
    if !exact.is_empty() {
        return Ok(Match::Classes(exact));
    }
    let named = lower.chars().any(|c| c.is_ascii_alphabetic());
    let begins = |class: &&DeviceClass| named && begins_a_part(class.id.as_str(), &lower);
    match ids(known().filter(begins)) {
        none if none.is_empty() && catalogue::is_part(&lower) => {
            Ok(Match::Classes(vec![lower.into()]))
        }
        none if none.is_empty() => Err(unknown(word, known())),
        some => Ok(Match::Classes(some)),
    }
}

fn begins_a_part(id: &str, word: &str) -> bool {
    id.starts_with(word) || id.match_indices('-').any(|(dash, _)| id[dash + 1..].starts_with(word))
}

fn ids<'a>(classes: impl Iterator<Item = &'a DeviceClass>) -> Vec<Name> {
    let mut ids: Vec<Name> = classes.map(|class| class.id.clone()).collect();
    ids.sort();
    ids.dedup();
    ids
}

fn unknown<'a>(word: &str, known: impl Iterator<Item = &'a DeviceClass>) -> WordError {
    let lower = word.to_ascii_lowercase();
    let candidates = known
        .flat_map(|class| {
            class.id.as_str().split('-').next().into_iter().chain([class.id.as_str()])
        })
        .chain(KINDS.iter().copied())
        .chain(DRIVERS.iter().copied());
    let similar = crate::words::closest(&lower, candidates);
    WordError::Unknown { word: word.to_owned(), similar }
}

/// The candidate most like `word`, if it is like it at all.
pub fn closest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<String> {
    let scored = candidates.map(|candidate| (strsim::jaro_winkler(word, candidate), candidate));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(score, _)| *score > 0.75).map(|(_, candidate)| candidate.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Vec<String> {
        let found = alternatives(text, &[]).expect("the words are known");
        let line = |(selector, count): &(Selector, u32)| {
            format!("{count} {:?} {}", selector.matches, selector.memory_min.0 >> 30)
        };
        found.iter().map(line).collect()
    }

    #[test]
    fn alternatives_read_in_order() {
        assert_eq!(
            check("cuda:8 | 910B:16|cpu:2 | gpu:2:24GiB | gpu:24GiB | any"),
            [
                r#"8 Driver("cuda") 0"#,
                r#"16 Classes(["ascend-910b"]) 0"#,
                r#"2 Kind("cpu") 0"#,
                r#"2 Kind("gpu") 24"#,
                r#"1 Kind("gpu") 24"#,
                "1 Any 0",
            ]
        );
    }

    #[test]
    fn a_family_word_takes_all_its_models() {
        assert_eq!(check("h100"), [r#"1 Classes(["h100-pcie-80", "h100-sxm5-80"]) 0"#]);
    }

    #[test]
    fn a_part_of_a_device_can_be_named_where_nobody_knows_the_machine() {
        for word in ["h100-sxm5-80-mig-1g.10gb", "a30-mps-4", "ascend-310p-vir02_1c"] {
            assert_eq!(check(word), [format!(r#"1 Classes([{word:?}]) 0"#)]);
        }
        for word in ["mig", "h100-mig-", "-vir02", "ascend-910b-virtual"] {
            assert!(alternatives(word, &[]).is_err(), "{word}");
        }
    }

    #[test]
    fn an_unknown_word_names_its_place_and_the_nearest_one() {
        let (offset, error) = alternatives("cpu:2 | h10:8x", &[]).expect_err("bad count");
        assert_eq!((offset, error), (8, WordError::BadCount { text: "8x".into() }));
        let (_, error) = alternatives("asend-910b:8", &[]).expect_err("no such class");
        assert_eq!(error.hint(), "did you mean `ascend-910b`?");
    }
}
