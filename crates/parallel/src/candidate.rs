//! One way to run the job, with its predicted memory, time and cost.

use het_core::Bytes;
use het_perf::training::{Limit, StepTime};

use crate::Finish;
use crate::layout::Layout;
use crate::request::{Collectives, Request};

/// One way to cut the job, and what comes of it. Shares are fractions of the step.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    pub layout: Layout,
    pub devices: u32,
    /// Held by the device that is nearest to its limit, without the reserve, and that limit.
    pub memory: Bytes,
    pub capacity: Bytes,
    /// Of the replica that ends last, by what its slowest stage does. With unlike devices
    /// utilisation is over the sum of their peaks.
    pub step: StepTime,
    pub tokens_per_s: f64,
    pub bubble: f64,
    pub exposed_communication: f64,
    pub limit: Limit,
    /// Where the request says how many tokens.
    pub finish: Option<Finish>,
    pub launch: Launch,
    /// Seconds for each sample that is needed, those that a batch above the critical one adds
    /// included: what candidates are ranked by.
    pub sample_s: f64,
}

/// Whether a launcher can execute it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launch {
    /// All ranks exchange through one library.
    Common(Collectives),
    /// Nothing known carries exchange between these: programs for several vendors would have to
    /// stage it through their hosts.
    NoCommonLibrary(Vec<Collectives>),
}

impl Launch {
    pub(crate) fn of(request: &Request, pools: &[usize]) -> Self {
        let mut libraries: Vec<Collectives> =
            pools.iter().map(|pool| request.pools[*pool].collectives).collect();
        libraries.sort_unstable();
        libraries.dedup();
        match libraries[..] {
            [one] => Self::Common(one),
            _ => Self::NoCommonLibrary(libraries),
        }
    }
}
