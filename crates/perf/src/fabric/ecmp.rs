//! Flows that are hashed onto equal paths: how many share the most loaded one.

use super::hash;

/// Distribution of the greatest number of flows on one link.
#[derive(Debug, Clone, PartialEq)]
pub struct MaxLinkLoad {
    /// By greatest number of flows: its probability.
    pub probabilities: Vec<f64>,
}

/// More flows or links than this are not asked about: the sum has their product of terms.
pub const HASHED_MAX: u32 = 4_096;

/// The least probability that is worth another term.
const PROBABILITY_MIN: f64 = 1e-15;

/// The exact distribution of the greatest number of `flows` on one of `links` when each takes one
/// at random: links are filled one after the other, each with a binomial part of those left.
///
/// # Panics
/// Without links, or beyond [`HASHED_MAX`] of either.
pub fn max_link_load_distribution(flows: u32, links: u32) -> MaxLinkLoad {
    assert!((1..=HASHED_MAX).contains(&links) && flows <= HASHED_MAX, "it can be summed up");
    let logarithms = log_factorials(flows);
    let mut probabilities = vec![0.0; flows.div_ceil(links) as usize];
    let mut below = 0.0;
    for most in flows.div_ceil(links)..=flows {
        let up_to = at_most(most, flows, links, &logarithms);
        probabilities.push((up_to - below).max(0.0));
        below = up_to;
        if up_to > 1.0 - PROBABILITY_MIN {
            break;
        }
    }
    MaxLinkLoad { probabilities }
}

/// The path of a flow among `ways`, as a switch would choose by a hash of its header.
///
/// # Panics
/// Without a way.
pub fn ecmp_choice(seed: u64, flow: u64, ways: usize) -> usize {
    assert!(ways > 0, "there is a path");
    (hash(seed, flow) % ways as u64) as usize
}

impl MaxLinkLoad {
    /// The expected number on the most loaded link.
    pub fn mean(&self) -> f64 {
        self.expect(|load| load)
    }

    /// Expected share of its link that a flow on the most loaded link gets; alone it would fill the
    /// link.
    pub fn slowest_rate(&self) -> f64 {
        self.expect(|load| 1.0 / load.max(1.0))
    }

    /// Of no two flows on one link.
    pub fn without_collision(&self) -> f64 {
        self.probabilities.iter().take(2).sum()
    }

    fn expect(&self, of: impl Fn(f64) -> f64) -> f64 {
        let rows = self.probabilities.iter().enumerate();
        rows.map(|(load, probability)| of(load as f64) * probability).sum()
    }
}

/// The probability that no link has more than `most`.
fn at_most(most: u32, flows: u32, links: u32, logarithms: &[f64]) -> f64 {
    let flows = flows as usize;
    // By flows that are left: the probability of being there with no link above.
    let mut left = vec![0.0; flows + 1];
    left[flows] = 1.0;
    for unfilled in (2..=links).rev() {
        let here = (1.0 / f64::from(unfilled)).ln();
        let elsewhere = (-1.0 / f64::from(unfilled)).ln_1p();
        let mut next = vec![0.0; flows + 1];
        for (remaining, probability) in left.iter().enumerate() {
            if *probability == 0.0 {
                continue;
            }
            for taken in 0..=remaining.min(most as usize) {
                let kept = remaining - taken;
                let ways = logarithms[remaining] - logarithms[taken] - logarithms[kept];
                let chance = ways + taken as f64 * here + kept as f64 * elsewhere;
                next[kept] += probability * chance.exp();
            }
        }
        left = next;
    }
    left.iter().take(most as usize + 1).sum()
}

fn log_factorials(most: u32) -> Vec<f64> {
    let mut sum = 0.0;
    let logarithms = (1..=most).map(|number| {
        sum += f64::from(number).ln();
        sum
    });
    std::iter::once(0.0).chain(logarithms).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(flows: u32, links: u32, mean: f64) {
        let load = max_link_load_distribution(flows, links);
        assert!((load.mean() - mean).abs() < 0.005, "{flows} on {links}: {}", load.mean());
        assert!((load.probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn the_worst_link_has_as_many_as_expected() {
        check(8, 8, 2.60);
        check(16, 16, 3.08);
        check(64, 64, 3.96);
        check(7, 1, 7.0);
    }

    #[test]
    fn collisions_are_as_rare_as_birthdays_say() {
        // 8!/8^8, and 8 of 60 without one in common.
        assert!(
            (max_link_load_distribution(8, 8).without_collision() - 40_320.0 / 16_777_216.0).abs()
                < 1e-12
        );
        assert!((max_link_load_distribution(8, 60).without_collision() - 0.614).abs() < 1e-3);
        assert!((max_link_load_distribution(8, 8).slowest_rate() - 0.41).abs() < 0.005);
    }

    #[test]
    fn a_hash_spreads_as_chance_does() {
        let rounds = 4_000;
        let worst = (0..rounds).map(|seed| {
            let mut loads = [0_u32; 8];
            (0..8).for_each(|flow| loads[ecmp_choice(seed, flow, 8)] += 1);
            f64::from(loads.into_iter().max().unwrap_or(0))
        });
        let mean = worst.sum::<f64>() / rounds as f64;
        assert!((mean - 2.60).abs() < 0.04, "{mean}");
    }
}
