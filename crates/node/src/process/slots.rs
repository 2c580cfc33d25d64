//! What the processes of a gang note in the file of its record, so that whoever comes later finds
//! them and how they ended. Every slot is one line of the same length; blank ones are not written
//! yet.
//!
//! ```text
//! shim PID           the shim of the gang, noted by itself before it does anything else
//! begun | failed RANK ERRNO
//!                    all programs have begun, or one cannot
//! RANK PID           for each rank: noted by its process before its program begins
//! code 3 CPU_MS      and how it ended, noted by the shim: `code`, `signal` or `unknown`
//! ```

use std::collections::BTreeMap;
use std::fmt;

use het_core::Millis;
use nix::sys::signal::Signal;

use super::exit::Exit;

/// Length of a slot, with its end of line.
pub(crate) const SLOT_BYTES: usize = 24;
/// Slots before those of ranks, and slots of each rank.
const HEAD: usize = 2;
const EACH: usize = 2;

/// Bytes of the slots of so many ranks.
pub(crate) const fn slots_bytes(ranks: usize) -> usize {
    (HEAD + EACH * ranks) * SLOT_BYTES
}

/// Where the shim notes its id, from the beginning of the slots.
pub(super) const SHIM_AT: u64 = 0;
/// Where it notes how the start went.
pub(super) const STARTUP_AT: u64 = SLOT_BYTES as u64;

/// Where a rank notes its id.
pub(super) const fn note_at(rank: u32) -> u64 {
    (HEAD as u64 + EACH as u64 * rank as u64) * SLOT_BYTES as u64
}

/// Where the shim notes how a rank ended.
pub(super) const fn end_at(rank: u32) -> u64 {
    note_at(rank) + SLOT_BYTES as u64
}

/// How the start of a gang went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartupNote {
    /// All programs have begun.
    Begun,
    /// That of a rank cannot, for the reason with this error number; later ranks were not started.
    Failed { rank: u32, errno: i32 },
}

/// How a rank ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndNote {
    pub(crate) exit: Exit,
    /// Processor time of it and of the children that it collected.
    pub(crate) cpu: Millis,
}

/// What is noted so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    pub(crate) shim: Option<i32>,
    pub(crate) startup: Option<StartupNote>,
    /// Process ids by rank. That of one that ended may be reused.
    pub(crate) ranks: BTreeMap<u32, i32>,
    pub(crate) ends: BTreeMap<u32, EndNote>,
}

impl Slots {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let mut lines = bytes.chunks(SLOT_BYTES).map(line);
        let shim = lines.next().flatten().and_then(|line| line.strip_prefix("shim ")?.parse().ok());
        let startup = lines.next().flatten().and_then(startup);
        let mut slots = Self { shim, startup, ..Self::default() };
        for rank in 0u32.. {
            let (Some(note), end) = (lines.next(), lines.next().flatten()) else { break };
            let noted = note.and_then(|line| line.split_once(' ')?.1.parse().ok());
            slots.ranks.extend(noted.map(|pid| (rank, pid)));
            slots.ends.extend(end.and_then(ended).map(|end| (rank, end)));
        }
        slots
    }
}

/// A truncated line was not finished: what it would tell had not happened.
fn line(slot: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(slot).ok().filter(|text| text.len() == SLOT_BYTES)?;
    text.strip_suffix('\n').map(str::trim_end)
}

fn startup(line: &str) -> Option<StartupNote> {
    if line == "begun" {
        return Some(StartupNote::Begun);
    }
    let (rank, errno) = line.strip_prefix("failed ")?.split_once(' ')?;
    Some(StartupNote::Failed { rank: rank.parse().ok()?, errno: errno.parse().ok()? })
}

fn ended(line: &str) -> Option<EndNote> {
    let words: Vec<&str> = line.split(' ').collect();
    let [kind, number, cpu] = words[..] else { return None };
    let number: i32 = number.parse().ok()?;
    let exit = match kind {
        "code" => Exit::Code(number),
        "signal" => Signal::try_from(number).map_or(Exit::Unknown, Exit::Signal),
        "unknown" => Exit::Unknown,
        _ => return None,
    };
    Some(EndNote { exit, cpu: Millis(cpu.parse().ok()?) })
}

/// The line of a slot.
pub(super) fn slot(text: impl fmt::Display) -> String {
    let mut line = text.to_string();
    // Anything longer would reach into the next slot: processor time of 30,000 years.
    line.truncate(SLOT_BYTES - 1);
    format!("{line:<width$}\n", width = SLOT_BYTES - 1)
}

impl fmt::Display for StartupNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begun => f.write_str("begun"),
            Self::Failed { rank, errno } => write!(f, "failed {rank} {errno}"),
        }
    }
}

impl fmt::Display for EndNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, number) = match self.exit {
            Exit::Code(code) => ("code", code),
            Exit::Signal(signal) => ("signal", signal as i32),
            Exit::Unknown => ("unknown", 0),
        };
        write!(f, "{kind} {number} {}", self.cpu.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read() {
        let end = |exit| EndNote { exit, cpu: Millis(4_000_000_000) };
        let texts = [
            "shim 7".to_owned(),
            StartupNote::Failed { rank: 65_535, errno: 133 }.to_string(),
            "0 4194304".to_owned(),
            end(Exit::Signal(Signal::SIGKILL)).to_string(),
            String::new(),
            String::new(),
            "2 9".to_owned(),
            end(Exit::Code(255)).to_string(),
        ];
        let bytes: String = texts.iter().map(slot).collect();
        assert_eq!(bytes.len(), slots_bytes(3));
        let slots = Slots::parse(bytes.as_bytes());
        let expected = Slots {
            shim: Some(7),
            startup: Some(StartupNote::Failed { rank: 65_535, errno: 133 }),
            ranks: [(0, 4_194_304), (2, 9)].into(),
            ends: [(0, end(Exit::Signal(Signal::SIGKILL))), (2, end(Exit::Code(255)))].into(),
        };
        assert_eq!(slots, expected);
        assert_eq!(Slots::parse(&[b' '; slots_bytes(2)]), Slots::default());
    }

    #[test]
    fn a_truncated_line_is_ignored() {
        let whole = slot("shim 17");
        assert_eq!(Slots::parse(whole.as_bytes()).shim, Some(17));
        assert_eq!(Slots::parse(&whole.as_bytes()[..6]).shim, None);
    }
}
