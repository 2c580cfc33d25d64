//! What a node has, and ranks hold of it, beside its devices.

use crate::Bytes;

/// Of a node: all there is. Of a rank: what it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HostResources {
    pub memory: Bytes,
    /// Disk space for what a stage writes: output, checkpoints, logs.
    pub scratch: Bytes,
    /// Bytes a second from its disk, or over the network from where data lie.
    pub read: Bytes,
    /// How many may run at once: each rank asks for one where there is a limit.
    pub tasks: u64,
}

impl HostResources {
    pub const NONE: Self = Self { memory: Bytes(0), scratch: Bytes(0), read: Bytes(0), tasks: 0 };

    /// What a node has of which nobody said how much: all that ranks could ask for together fits.
    pub const UNLIMITED: Bytes = Bytes(1 << 62);
    pub const TASKS_UNLIMITED: u64 = 1 << 62;

    /// So much memory, a disk of which nobody said more, and no limit of tasks.
    pub const fn with_memory(memory: Bytes) -> Self {
        Self {
            memory,
            scratch: Self::UNLIMITED,
            read: Self::UNLIMITED,
            tasks: Self::TASKS_UNLIMITED,
        }
    }

    fn each(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            memory: Bytes(of(self.memory.0, other.memory.0)),
            scratch: Bytes(of(self.scratch.0, other.scratch.0)),
            read: Bytes(of(self.read.0, other.read.0)),
            tasks: of(self.tasks, other.tasks),
        }
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    /// None of what is less than what is taken.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.each(other, u64::saturating_sub)
    }

    /// The larger of each.
    #[must_use]
    pub fn most(self, other: Self) -> Self {
        self.each(other, u64::max)
    }

    #[must_use]
    pub fn times(self, count: u32) -> Self {
        self.each(Self::NONE, |amount, _| amount.saturating_mul(u64::from(count)))
    }

    /// Whether there is enough of each.
    pub fn fits(self, free: Self) -> bool {
        self.memory <= free.memory
            && self.scratch <= free.scratch
            && self.read <= free.read
            && self.tasks <= free.tasks
    }
}
