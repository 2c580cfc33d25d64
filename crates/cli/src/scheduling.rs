//! Who decides, and when.

use clap::Args;
use het_core::Millis;
use het_lab::Cadence;
use het_policy::{POLICIES, Policy, by_name};
use het_wire::quantity;

use crate::fail::{Fail, code};

/// When decisions are made.
#[derive(Debug, Clone, Copy, Args)]
pub struct CadenceArgs {
    /// How long a running stage is left alone before it may be moved, resized or suspended for its
    /// equals: seconds, or as in `6m`; as long as its stops cost, from 1 to 30 minutes, where
    /// absent.
    #[arg(long, value_name = "TIME", value_parser = at_least_a_second, conflicts_with = "round")]
    pub quantum: Option<Millis>,
    /// Decide in rounds of so many seconds, or as in `6m`, as some published schedulers do; on
    /// every event where absent.
    #[arg(long, value_name = "TIME", value_parser = at_least_a_second)]
    pub round: Option<Millis>,
}

impl CadenceArgs {
    /// When decisions are made.
    pub fn cadence(self) -> Cadence {
        self.round.map_or(Cadence::EveryEvent { quantum: self.quantum }, Cadence::Rounds)
    }
}

pub fn at_least_a_second(text: &str) -> Result<Millis, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.0..1e9).contains(seconds));
    let millis = |seconds: f64| Millis((seconds * 1e3).round() as u64);
    let span = seconds.map(millis).or_else(|| quantity::duration(text));
    let long_enough = span.filter(|span| *span >= Millis::seconds(1));
    long_enough.ok_or_else(|| "give one second or more, as in `360` or `6m`".to_owned())
}

/// The policy of that name.
pub fn policy_named(name: &str) -> Result<&'static dyn Policy, Fail> {
    by_name(name).ok_or_else(|| {
        let known: Vec<&str> = POLICIES.iter().map(|policy| policy.name()).collect();
        Fail::new(code::USAGE, format!("there is no policy `{name}`"))
            .hint(format!("choose one of {}", known.join(", ")))
    })
}
