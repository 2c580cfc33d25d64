//! How fast links are: the most that each carried of late.
//!
//! What a link carries says little while something else is in the way: the other end of the route,
//! or nothing to carry. The greatest of the newest samples is near what it can, as congestion
//! control takes it (BBR's windowed maximum of the delivery rate, Cardwell et al. 2016).

use std::collections::VecDeque;

use crate::Nanos;

/// Bytes of a sample: enough that latency counts for little.
const SAMPLE: u64 = 4 << 20;

/// Samples of a link that are kept.
const SAMPLES: usize = 8;

#[derive(Debug, Clone, Default)]
struct Meter {
    under_way: u32,
    /// When it began to carry something.
    since: Nanos,
    /// Of the sample, before `since`.
    busy: Nanos,
    bytes: u64,
    /// Bytes a second, the newest last.
    samples: VecDeque<f64>,
}

/// Of each link, by its row.
#[derive(Debug, Clone)]
pub struct LinkRates {
    meters: Vec<Meter>,
}

impl LinkRates {
    pub fn new(links: usize) -> Self {
        Self { meters: vec![Meter::default(); links] }
    }

    /// A transfer over these links begins.
    pub fn began(&mut self, links: impl Iterator<Item = usize>, now: Nanos) {
        for link in links {
            let meter = &mut self.meters[link];
            if meter.under_way == 0 {
                meter.since = now;
            }
            meter.under_way += 1;
        }
    }

    /// It has ended, and brought so many bytes.
    ///
    /// A sample ends where nothing is under way: only then are the bytes those of its time.
    pub fn ended(&mut self, links: impl Iterator<Item = usize>, bytes: u64, now: Nanos) {
        for link in links {
            let meter = &mut self.meters[link];
            meter.under_way = meter.under_way.saturating_sub(1);
            meter.bytes += bytes;
            if meter.under_way > 0 {
                continue;
            }
            meter.busy += now.saturating_sub(meter.since);
            if meter.bytes < SAMPLE || meter.busy == 0 {
                continue;
            }
            meter.samples.push_back(meter.bytes as f64 / (meter.busy as f64 / 1e9));
            if meter.samples.len() > SAMPLES {
                meter.samples.pop_front();
            }
            (meter.busy, meter.bytes) = (0, 0);
        }
    }

    /// Routes have changed: what is under way begins now, over links of new ones.
    pub fn restart(&mut self, under_way: impl Iterator<Item = usize>, now: Nanos) {
        for meter in &mut self.meters {
            *meter = Meter { samples: std::mem::take(&mut meter.samples), ..Meter::default() };
        }
        self.began(under_way, now);
    }

    /// Bytes a second; `None` of a link that has carried too little.
    pub fn get(&self, link: usize) -> Option<f64> {
        self.meters[link].samples.iter().copied().reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    /// One transfer after another, of a sample's bytes each, and pauses between them.
    fn carry(rates: &mut LinkRates, seconds: &[u64]) {
        let mut now = 0;
        for took in seconds {
            rates.began([0].into_iter(), now);
            now += took * SECOND;
            rates.ended([0].into_iter(), SAMPLE, now);
            now += SECOND;
        }
    }

    #[test]
    fn the_most_of_late_counts_and_pauses_do_not() {
        let mut rates = LinkRates::new(1);
        assert_eq!(rates.get(0), None);
        carry(&mut rates, &[4, 2, 4]);
        assert_eq!(rates.get(0), Some(SAMPLE as f64 / 2.0));
        carry(&mut rates, &[4; SAMPLES]);
        assert_eq!(rates.get(0), Some(SAMPLE as f64 / 4.0), "it became slower");
    }

    #[test]
    fn transfers_that_share_a_link_are_its_rate_together() {
        let mut rates = LinkRates::new(1);
        rates.began([0, 0].into_iter(), 0);
        rates.ended([0].into_iter(), SAMPLE, SECOND);
        assert_eq!(rates.get(0), None, "the other one has been half of it");
        rates.ended([0].into_iter(), SAMPLE, SECOND + 1);
        let rate = rates.get(0).expect("all have ended");
        assert!((rate / (2 * SAMPLE) as f64 - 1.0).abs() < 1e-6, "{rate}");
        // And where the routes become others meanwhile.
        rates.began([0].into_iter(), 2 * SECOND);
        rates.restart([0].into_iter(), 3 * SECOND);
        rates.ended([0].into_iter(), 4 * SAMPLE, 4 * SECOND);
        assert_eq!(rates.get(0), Some(4.0 * SAMPLE as f64));
    }

    #[test]
    fn what_brings_nothing_took_its_time() {
        let mut rates = LinkRates::new(1);
        rates.began([0].into_iter(), 0);
        rates.ended([0].into_iter(), 0, SECOND);
        rates.began([0].into_iter(), SECOND);
        rates.ended([0].into_iter(), SAMPLE, 2 * SECOND);
        assert_eq!(rates.get(0), Some(SAMPLE as f64 / 2.0));
    }
}
