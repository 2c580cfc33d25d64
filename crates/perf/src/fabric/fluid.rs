//! DCQCN at one bottleneck as flows of a fluid: rates and queue over time, and where they come to
//! rest (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, section
//! 5, here without byte counter, with hyper increase, and with a queue that feeds back after a
//! delay).

use std::collections::VecDeque;

use super::{Dcqcn, Marking};

/// Equal flows through one link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bottleneck {
    pub link_bytes_per_s: f64,
    /// From a mark to the rate that it changes, without queueing.
    pub base_rtt_s: f64,
    /// With headers.
    pub packet_bytes: f64,
    pub rules: Dcqcn,
    pub marking: Marking,
}

/// Rates and queue at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct FluidPoint {
    pub at_s: f64,
    /// Of every flow, bytes per second.
    pub rates: Vec<f64>,
    pub queue_bytes: f64,
}

/// Where equal flows come to rest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SteadyState {
    /// Of each flow, bytes per second: its fair part of the link.
    pub rate: f64,
    /// Part of the packets that are marked.
    pub marked: f64,
    pub queue_bytes: f64,
}

/// Seconds of one step; well below every timer.
const STEP_S: f64 = 1e-6;

/// Steps of one simulation, at most.
pub const FLUID_STEPS_MAX: usize = 5_000_000;

/// How far above its rest a flow is pushed.
const PUSHED: f64 = 1.2;

/// Halvings of the interval that the marked part is looked for in.
const HALVINGS: u32 = 200;

impl Bottleneck {
    /// Lets flows begin at some rates, bytes per second, and follows them for so long; a point for
    /// every `every`-th microsecond.
    ///
    /// # Panics
    /// Beyond [`FLUID_STEPS_MAX`] steps.
    pub fn follow(&self, initial: &[f64], seconds: f64, every: usize) -> Vec<FluidPoint> {
        let flows = initial.iter().map(|rate| FluidFlow::new(*rate)).collect();
        self.follow_each(flows, 1.0, seconds, every)
    }

    /// The same of so many equal flows, computed as one, from somewhat above where they
    /// rest: they come back to it or they swing.
    pub fn follow_equal(&self, flows: u32, seconds: f64, every: usize) -> Vec<FluidPoint> {
        let steady = self.steady_state(flows);
        let alpha = Terms::new(self, steady.rate, steady.marked).seen_by_alpha;
        let rate = (steady.rate * PUSHED).min(self.link_bytes_per_s);
        let flow = FluidFlow { rate, target: rate, alpha };
        self.follow_each(vec![flow], f64::from(flows), seconds, every)
    }

    /// Each of the flows stands for `times` that are like it.
    fn follow_each(
        &self,
        mut flows: Vec<FluidFlow>,
        times: f64,
        seconds: f64,
        every: usize,
    ) -> Vec<FluidPoint> {
        let steps = (seconds / STEP_S).ceil() as usize;
        assert!(steps <= FLUID_STEPS_MAX, "it can be followed to the end");
        let mut queue_bytes = 0.0;
        let delay = (self.base_rtt_s / STEP_S).round().max(1.0) as usize;
        let mut under_way: VecDeque<f64> = VecDeque::from(vec![0.0; delay]);
        let mut points = Vec::with_capacity(steps / every.max(1) + 1);
        for step in 0..steps {
            if step % every.max(1) == 0 {
                let rates = flows.iter().map(|flow| flow.rate).collect();
                points.push(FluidPoint { at_s: step as f64 * STEP_S, rates, queue_bytes });
            }
            under_way.push_back(self.marking.probability(queue_bytes));
            let marked = under_way.pop_front().unwrap_or(0.0);
            for flow in &mut flows {
                flow.step(self, marked);
            }
            let arriving = times * flows.iter().map(|flow| flow.rate).sum::<f64>();
            queue_bytes = (queue_bytes + (arriving - self.link_bytes_per_s) * STEP_S).max(0.0);
        }
        points
    }

    /// The fixed point of so many flows: the marked part at which increases and cuts balance at the
    /// fair rate, and the queue that marks so many.
    pub fn steady_state(&self, flows: u32) -> SteadyState {
        let rate = self.link_bytes_per_s / f64::from(flows.max(1));
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            if self.pressure(rate, middle) > 0.0 { low = middle } else { high = middle }
        }
        let marked = f64::midpoint(low, high);
        let marking = &self.marking;
        let part = (marked / marking.probability_max).min(1.0);
        let queue_bytes = marking.min_bytes + part * (marking.max_bytes - marking.min_bytes);
        SteadyState { rate, marked, queue_bytes }
    }

    /// By how much the target would grow at this rate when this part is marked and rate and `alpha`
    /// are at rest; it falls as more is marked.
    fn pressure(&self, rate: f64, marked: f64) -> f64 {
        let terms = Terms::new(self, rate, marked);
        let alpha = terms.seen_by_alpha;
        let gap = rate * alpha / self.rules.decrease_interval_s * terms.seen_by_decrease
            / terms.expirations.max(f64::MIN_POSITIVE);
        terms.increase(&self.rules) - gap / self.rules.decrease_interval_s * terms.seen_by_decrease
    }
}

/// One flow of the fluid.
#[derive(Debug, Clone, Copy)]
struct FluidFlow {
    rate: f64,
    target: f64,
    alpha: f64,
}

impl FluidFlow {
    fn new(rate: f64) -> Self {
        Self { rate, target: rate, alpha: 1.0 }
    }

    fn step(&mut self, at: &Bottleneck, marked: f64) {
        let rules = &at.rules;
        let terms = Terms::new(at, self.rate, marked);
        let cuts = terms.seen_by_decrease / rules.decrease_interval_s;
        let alpha = rules.gain / rules.alpha_interval_s * (terms.seen_by_alpha - self.alpha);
        let gap = self.target - self.rate;
        let rate = gap / 2.0 * terms.expirations - self.rate * self.alpha / 2.0 * cuts;
        let target = terms.increase(rules) - gap * cuts;
        self.alpha = (self.alpha + alpha * STEP_S).clamp(0.0, 1.0);
        let lines = rules.rate_min_bytes_per_s.min(at.link_bytes_per_s)..=at.link_bytes_per_s;
        let within = |rate: f64| rate.clamp(*lines.start(), *lines.end());
        self.rate = within(self.rate + rate * STEP_S);
        self.target = within(self.target + target * STEP_S).max(self.rate);
    }
}

/// What a marked part means to a flow of some rate.
struct Terms {
    /// Probabilities of a mark within an interval.
    seen_by_alpha: f64,
    seen_by_decrease: f64,
    /// Increase timers that run out per second, and the probabilities of as many in a row as fast
    /// recovery takes, and of one more.
    expirations: f64,
    beyond_recovery: f64,
    beyond_additive: f64,
}

impl Terms {
    fn new(at: &Bottleneck, rate: f64, marked: f64) -> Self {
        let rules = &at.rules;
        let packets_per_s = rate / at.packet_bytes;
        // The logarithm of no mark in so many seconds.
        let unmarked = |seconds: f64| packets_per_s * seconds * (-marked.min(1.0 - 1e-12)).ln_1p();
        let timer = unmarked(rules.increase_timer_s);
        let expirations = match marked > 1e-12 {
            true => packets_per_s * marked / (-timer).exp_m1(),
            false => 1.0 / rules.increase_timer_s,
        };
        let recovery = f64::from(rules.fast_recovery_steps);
        Self {
            seen_by_alpha: -unmarked(rules.alpha_interval_s).exp_m1(),
            seen_by_decrease: -unmarked(rules.decrease_interval_s).exp_m1(),
            expirations,
            beyond_recovery: (recovery * timer).exp(),
            beyond_additive: ((recovery + 1.0) * timer).exp(),
        }
    }

    /// Bytes per second and second that the target gains.
    fn increase(&self, rules: &Dcqcn) -> f64 {
        let additive = (self.beyond_recovery - self.beyond_additive) * rules.additive_bytes_per_s;
        self.expirations * (additive + self.beyond_additive * rules.hyper_bytes_per_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's 40 Gb/s set-up: marks from 5 to 200 kB up to 1 %, 40 Mb/s of increase, 1 kB.
    fn paper() -> Bottleneck {
        let link_bytes_per_s = 5e9;
        let rules = Dcqcn {
            fast_recovery_steps: 5,
            additive_bytes_per_s: 5e6,
            hyper_bytes_per_s: 5e6,
            rate_min_bytes_per_s: 5e6,
            ..Dcqcn::paper(link_bytes_per_s)
        };
        Bottleneck {
            link_bytes_per_s,
            base_rtt_s: 4e-6,
            packet_bytes: 1_000.0,
            rules,
            marking: Marking { min_bytes: 5e3, max_bytes: 200e3, probability_max: 0.01 },
        }
    }

    /// Means over the last quarter of 200 ms: rates and queue.
    fn settled(at: &Bottleneck, initial: &[f64]) -> (Vec<f64>, f64) {
        let points = at.follow(initial, 0.2, 100);
        let last = &points[points.len() * 3 / 4..];
        let mean =
            |of: &dyn Fn(&FluidPoint) -> f64| last.iter().map(of).sum::<f64>() / last.len() as f64;
        let rates = (0..initial.len()).map(|flow| mean(&|point| point.rates[flow])).collect();
        (rates, mean(&|point| point.queue_bytes))
    }

    #[test]
    fn flows_that_begin_unequal_come_to_fair_shares() {
        let at = paper();
        for flows in [2_usize, 4, 8] {
            let fair = at.link_bytes_per_s / flows as f64;
            let initial: Vec<f64> =
                (0..flows).map(|flow| fair * (0.4 + 0.2 * flow as f64)).collect();
            let (rates, queue) = settled(&at, &initial);
            for rate in &rates {
                assert!((rate / fair - 1.0).abs() < 0.05, "{flows}: {rates:?}");
            }
            let all = rates.iter().sum::<f64>() / at.link_bytes_per_s;
            assert!((all - 1.0).abs() < 0.01, "{flows}: {all}");
            assert!(queue > at.marking.min_bytes && queue < at.marking.max_bytes, "{queue}");
            let steady = at.steady_state(flows as u32);
            assert!((queue / steady.queue_bytes - 1.0).abs() < 0.10, "{queue} and {steady:?}");
        }
    }

    #[test]
    fn more_flows_rest_at_a_longer_queue() {
        let at = paper();
        let queue = |flows| at.steady_state(flows).queue_bytes;
        for flows in 1..64 {
            assert!(queue(flows) <= queue(flows + 1), "{flows}");
        }
        assert!(queue(2) > at.marking.min_bytes && queue(2) < queue(10));
        assert!(queue(64) <= at.marking.max_bytes);
    }
}
