//! Microbatches of a step over replicas of unlike speed: the exact integer optimum.

/// Replicas that are alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Runner {
    pub replicas: u32,
    /// Seconds that one more microbatch takes.
    pub microbatch_s: f64,
    /// Seconds beside them: filling and draining the pipeline.
    pub fill_s: f64,
}

/// What replicas that are alike take: each so many microbatches, and some of them a granule more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub microbatches: u32,
    pub more: u32,
}

/// Halvings of the interval in which the step's end lies: to the last bits of a double.
const HALVINGS: u32 = 64;

/// Shares out `total` microbatches in granules so that the last replica ends as early as it can,
/// every replica with a granule at least; `None` where there are too few, or no whole granules.
///
/// Where every unit of work is the same, handing each to whoever would end it first is optimal; all
/// that end before some instant are handed out at once.
pub(crate) fn share(total: u32, granule: u32, runners: &[Runner]) -> Option<Vec<Share>> {
    let granule = granule.max(1);
    let units = total / granule;
    let replicas: u32 = runners.iter().map(|runner| runner.replicas).sum();
    if !total.is_multiple_of(granule) || replicas == 0 || units < replicas {
        return None;
    }
    let unit_s = |runner: &Runner| runner.microbatch_s * f64::from(granule);
    let by = |runner: &Runner, end: f64| {
        let count = ((end - runner.fill_s) / unit_s(runner)).floor().max(1.0);
        count.min(f64::from(units)) as u32
    };
    let handed = |end: f64| -> u64 {
        runners.iter().map(|one| u64::from(one.replicas) * u64::from(by(one, end))).sum()
    };
    let ends = |runner: &Runner| runner.fill_s + f64::from(units) * unit_s(runner);
    let (mut low, mut high) = (0.0, runners.iter().map(ends).fold(0.0, f64::max));
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if handed(middle) <= u64::from(units) {
            low = middle;
        } else {
            high = middle;
        }
    }
    let mut shares: Vec<Share> =
        runners.iter().map(|one| Share { microbatches: by(one, low), more: 0 }).collect();
    let mut left = u64::from(units).saturating_sub(handed(low));
    while left > 0 {
        let next = (0..runners.len()).min_by(|a, b| {
            let end = |at: usize| {
                runners[at].fill_s + f64::from(shares[at].microbatches + 1) * unit_s(&runners[at])
            };
            end(*a).total_cmp(&end(*b))
        })?;
        let taken = left.min(u64::from(runners[next].replicas)) as u32;
        left -= u64::from(taken);
        if taken == runners[next].replicas {
            shares[next].microbatches += 1;
        } else {
            shares[next].more = taken;
        }
    }
    for share in &mut shares {
        share.microbatches *= granule;
    }
    Some(shares)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn end(runners: &[Runner], shares: &[Share], granule: u32) -> f64 {
        let one = |(runner, share): (&Runner, &Share)| {
            let most = share.microbatches + if share.more > 0 { granule } else { 0 };
            runner.fill_s + f64::from(most) * runner.microbatch_s
        };
        runners.iter().zip(shares).map(one).fold(0.0, f64::max)
    }

    /// Every way to give each single replica its number.
    fn brute(speeds: &[(f64, f64)], units: u32, end: f64) -> Option<f64> {
        let Some(((unit_s, fill_s), rest)) = speeds.split_first() else {
            return (units == 0).then_some(end);
        };
        (1..=units)
            .filter_map(|own| brute(rest, units - own, end.max(fill_s + f64::from(own) * unit_s)))
            .min_by(f64::total_cmp)
    }

    #[test]
    fn shares_follow_speed() {
        let runner = |replicas, microbatch_s| Runner { replicas, microbatch_s, fill_s: 0.0 };
        let check = |runners: &[Runner], total, expected: Option<Vec<(u32, u32)>>| {
            let found = share(total, 1, runners);
            let found: Option<Vec<(u32, u32)>> =
                found.map(|shares| shares.iter().map(|one| (one.microbatches, one.more)).collect());
            assert_eq!(found, expected);
        };
        check(&[runner(4, 1.0)], 32, Some(vec![(8, 0)]));
        check(&[runner(4, 1.0)], 34, Some(vec![(8, 2)]));
        check(&[runner(2, 1.0), runner(2, 3.0)], 32, Some(vec![(12, 0), (4, 0)]));
        check(&[runner(8, 1.0), runner(1, 3.0)], 25, Some(vec![(3, 0), (1, 0)]));
        check(&[runner(4, 1.0)], 3, None);
        check(&[], 3, None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn no_other_shares_end_earlier(
            kinds in proptest::collection::vec((1_u32..3, 1_u32..6, 0_u32..4), 1..4),
            units in 1_u32..11,
            granule in 1_u32..4,
        ) {
            let runners: Vec<Runner> = kinds
                .iter()
                .map(|(replicas, speed, fill)| Runner {
                    replicas: *replicas,
                    microbatch_s: f64::from(*speed) * 0.43,
                    fill_s: f64::from(*fill) * 0.77,
                })
                .collect();
            let single: Vec<(f64, f64)> = runners
                .iter()
                .flat_map(|one| {
                    let unit = (one.microbatch_s * f64::from(granule), one.fill_s);
                    std::iter::repeat_n(unit, one.replicas as usize)
                })
                .collect();
            let best = brute(&single, units, 0.0);
            let found = share(units * granule, granule, &runners);
            prop_assert_eq!(best.is_some(), found.is_some());
            if let (Some(best), Some(found)) = (best, found) {
                let count = |(runner, share): (&Runner, &Share)| {
                    runner.replicas * share.microbatches + share.more * granule
                };
                let given: u32 = runners.iter().zip(&found).map(count).sum();
                prop_assert_eq!(given, units * granule);
                prop_assert!((end(&runners, &found, granule) / best - 1.0).abs() < 1e-9);
            }
        }
    }
}
