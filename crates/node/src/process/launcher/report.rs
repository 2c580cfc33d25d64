//! What a shim tells the engine that it belongs to.

use het_core::Millis;
use nix::sys::signal::Signal;

use crate::process::exit::Exit;
use crate::process::slots::EndNote;

/// What a shim tells, each in one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    /// The program of a rank cannot begin, for the reason with this error number. Later ranks are
    /// not started.
    Failed { rank: u32, errno: i32 },
    /// A rank ended. Its process stays a zombie, so that its id is not another's.
    Ended { rank: u32, pid: i32, end: EndNote, others: Others },
}

/// Whether a shim has children beside its ranks: what these left when they ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    None,
    Perhaps,
}

pub(super) const REPORT_BYTES: usize = 25;

impl Report {
    pub(super) fn encode(self) -> [u8; REPORT_BYTES] {
        let mut bytes = [0; REPORT_BYTES];
        let (kind, numbers, cpu) = match self {
            Self::Failed { rank, errno } => (0, [rank as i32, 0, errno, 0], 0),
            Self::Ended { rank, pid, end, others } => {
                let (kind, number) = match end.exit {
                    Exit::Code(code) => (1, code),
                    Exit::Signal(signal) => (2, signal as i32),
                    Exit::Unknown => (3, 0),
                };
                let others = i32::from(others == Others::Perhaps);
                (kind, [rank as i32, pid, number, others], end.cpu.0)
            }
        };
        bytes[0] = kind;
        for (place, number) in bytes[1..17].chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes[17..].copy_from_slice(&cpu.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REPORT_BYTES] = bytes.try_into().ok()?;
        let number = |at: usize| bytes[at..].first_chunk().map(|chunk| i32::from_le_bytes(*chunk));
        let (rank, pid, value, others) = (number(1)? as u32, number(5)?, number(9)?, number(13)?);
        let exit = match bytes[0] {
            0 => return Some(Self::Failed { rank, errno: value }),
            1 => Exit::Code(value),
            2 => Signal::try_from(value).map_or(Exit::Unknown, Exit::Signal),
            _ => Exit::Unknown,
        };
        let cpu = Millis(u64::from_le_bytes(*bytes[17..].first_chunk()?));
        let others = if others == 0 { Others::None } else { Others::Perhaps };
        Some(Self::Ended { rank, pid, end: EndNote { exit, cpu }, others })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_arrives_as_it_was_sent() {
        let exits = [Exit::Code(-1), Exit::Code(3), Exit::Signal(Signal::SIGTERM), Exit::Unknown];
        let ended = exits.map(|exit| Report::Ended {
            rank: 70_000,
            pid: 4_194_304,
            end: EndNote { exit, cpu: Millis(u64::MAX) },
            others: Others::Perhaps,
        });
        for report in ended.into_iter().chain([Report::Failed { rank: 1, errno: 2 }]) {
            assert_eq!(Report::decode(&report.encode()), Some(report));
        }
        assert_eq!(Report::decode(b"short"), None);
    }
}
