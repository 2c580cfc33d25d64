//! What must be so before a job may ask for devices: other jobs that have come so far, a time, its
//! turn in an array.

use crate::{JobId, Millis, Time};

/// Empty for a job that may start at once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StartConditions {
    pub dependencies: Dependencies,
    /// Not before this time.
    pub begin: Option<Time>,
    pub array: Option<ArrayMember>,
}

/// What a job waits for from others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dependencies {
    pub rule: DependencyRule,
    pub on: Vec<Dependency>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum DependencyRule {
    #[default]
    All,
    /// One of them is enough.
    Any,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dependency {
    pub job: JobId,
    pub condition: DependencyCondition,
    /// Time from when the condition is met until the job may start.
    pub delay: Millis,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DependencyCondition {
    /// It has started, or was cancelled.
    Started,
    Succeeded,
    /// It failed or was cancelled.
    Failed,
    Ended,
}

impl DependencyCondition {
    pub const ALL: [Self; 4] = [Self::Started, Self::Succeeded, Self::Failed, Self::Ended];

    /// As in `--after ID:WORD`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Started => "start",
            Self::Succeeded => "ok",
            Self::Failed => "fail",
            Self::Ended => "any",
        }
    }
}

/// One job of many that were submitted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArrayMember {
    /// The array's first job.
    pub array: JobId,
    pub index: u32,
    /// So many of the array may run at a time.
    pub parallel_max: Option<u32>,
}

/// Why a job may not ask for devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotEligible {
    /// Another job has not come so far yet.
    DependsOn { job: JobId, condition: DependencyCondition },
    /// Another job will never come so far.
    DependencyFailed { job: JobId, condition: DependencyCondition },
    /// It is to begin later.
    NotBefore { at: Time },
    /// As many of its array run as may.
    ArrayFull { parallel_max: u32 },
}

impl StartConditions {
    /// Whether the job may start as soon as there are devices for it.
    pub fn is_empty(&self) -> bool {
        let limit = self.array.and_then(|array| array.parallel_max);
        self.dependencies.on.is_empty() && self.begin.is_none() && limit.is_none()
    }
}
