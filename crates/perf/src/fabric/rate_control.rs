//! How a sender sets its rate from what comes back: DCQCN (Zhu et al., SIGCOMM 2015, with the
//! timers of the vendor's NIC), DCTCP (Alizadeh et al., SIGCOMM 2010), TIMELY (Mittal et al.,
//! SIGCOMM 2015) and HPCC (Li et al., SIGCOMM 2019), as rules on bytes per second. Senders start at
//! line rate.

/// When a queue marks packets: never up to `min_bytes`, always above `max_bytes`, in between with a
/// probability that rises to `probability_max`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Marking {
    pub min_bytes: f64,
    pub max_bytes: f64,
    pub probability_max: f64,
}

impl Marking {
    pub fn probability(&self, queue_bytes: f64) -> f64 {
        if queue_bytes > self.max_bytes {
            1.0
        } else if queue_bytes > self.min_bytes {
            let part = (queue_bytes - self.min_bytes) / (self.max_bytes - self.min_bytes);
            self.probability_max * part
        } else {
            0.0
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Control {
    /// Only the window holds it back.
    LineRate,
    Dcqcn(Dcqcn),
    Dctcp(Dctcp),
    Timely(Timely),
    Hpcc(Hpcc),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dcqcn {
    pub alpha_interval_s: f64,
    pub decrease_interval_s: f64,
    pub increase_timer_s: f64,
    /// Weight of the newest interval in `alpha`, the estimate of how congested it is.
    pub gain: f64,
    pub fast_recovery_steps: u32,
    pub additive_bytes_per_s: f64,
    pub hyper_bytes_per_s: f64,
    pub rate_min_bytes_per_s: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dctcp {
    pub gain: f64,
    pub additive_bytes_per_s: f64,
    pub rate_min_bytes_per_s: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timely {
    pub rtt_low_s: f64,
    pub rtt_high_s: f64,
    /// What a gradient of one round trip is measured against.
    pub rtt_min_s: f64,
    /// Weight of the newest difference of round trips.
    pub gain: f64,
    pub beta: f64,
    pub additive_bytes_per_s: f64,
    pub hyper_bytes_per_s: f64,
    pub rate_min_bytes_per_s: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hpcc {
    /// Part of a link that it aims to use.
    pub utilisation: f64,
    pub additive_bytes_per_s: f64,
    pub rate_min_bytes_per_s: f64,
    pub base_rtt_s: f64,
}

/// 100 Mb/s, the least rate of the same simulator.
const RATE_MIN_BYTES_PER_S: f64 = 12.5e6;

impl Dcqcn {
    /// DCQCN's published timers (50, 50 and 55 µs) with increments in proportion to the line, as in
    /// the simulator of the HPCC paper.
    pub fn paper(line_bytes_per_s: f64) -> Self {
        Self {
            alpha_interval_s: 50e-6,
            decrease_interval_s: 50e-6,
            increase_timer_s: 55e-6,
            gain: 1.0 / 256.0,
            fast_recovery_steps: 1,
            additive_bytes_per_s: line_bytes_per_s * 2e-4,
            hyper_bytes_per_s: line_bytes_per_s * 2e-3,
            rate_min_bytes_per_s: RATE_MIN_BYTES_PER_S,
        }
    }

    /// A recent vendor NIC's timers (1, 4 and 300 µs), from the same source.
    pub fn vendor(line_bytes_per_s: f64) -> Self {
        Self {
            alpha_interval_s: 1e-6,
            decrease_interval_s: 4e-6,
            increase_timer_s: 300e-6,
            ..Self::paper(line_bytes_per_s)
        }
    }
}

/// What an acknowledgement tells.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ack<'a> {
    pub now_s: f64,
    pub sent_s: f64,
    pub acknowledged_bytes: u64,
    /// Sent by now.
    pub sent_bytes: u64,
    pub marked: bool,
    pub hops: &'a [Hop],
}

/// A link as a packet saw it when it left for it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Hop {
    pub at_s: f64,
    pub sent_bytes: f64,
    pub queue_bytes: f64,
    pub bytes_per_s: f64,
}

/// The sender's side of one flow.
#[derive(Debug, Clone)]
pub(super) struct Sender {
    pub rate: f64,
    line: f64,
    window_bytes: f64,
    /// Acknowledging more than this ends a round trip.
    round_ends: u64,
    memory: Memory,
}

#[derive(Debug, Clone)]
enum Memory {
    LineRate,
    Dcqcn(DcqcnMemory),
    Dctcp(DctcpMemory),
    Timely(TimelyMemory),
    Hpcc(HpccMemory),
}

#[derive(Debug, Clone)]
struct DcqcnMemory {
    target: f64,
    alpha: f64,
    marked_for_alpha: bool,
    marked_for_decrease: bool,
    stage: u32,
    /// Times of the three timers; never until the first mark.
    alpha_at: f64,
    decrease_at: f64,
    increase_at: f64,
}

impl Sender {
    pub fn new(control: &Control, line: f64, window_bytes: f64) -> Self {
        let memory = match control {
            Control::LineRate => Memory::LineRate,
            Control::Dcqcn(_) => Memory::Dcqcn(DcqcnMemory {
                target: line,
                alpha: 1.0,
                marked_for_alpha: false,
                marked_for_decrease: false,
                stage: 0,
                alpha_at: f64::INFINITY,
                decrease_at: f64::INFINITY,
                increase_at: f64::INFINITY,
            }),
            Control::Dctcp(_) => {
                Memory::Dctcp(DctcpMemory { alpha: 1.0, marks: 0, batch: 1, reduced_until: None })
            }
            Control::Timely(_) => Memory::Timely(TimelyMemory {
                rate: line,
                rtt_s: 0.0,
                difference_s: 0.0,
                increases: 0,
            }),
            Control::Hpcc(_) => {
                Memory::Hpcc(HpccMemory { rate: line, utilisation: 1.0, hops: Vec::new() })
            }
        };
        Self { rate: line, line, window_bytes, round_ends: 0, memory }
    }

    /// Bytes it may have under way.
    pub fn window(&self) -> f64 {
        self.window_bytes * self.rate / self.line
    }

    /// Lets its timers run up to now.
    pub fn advance(&mut self, control: &Control, now_s: f64) {
        let (Control::Dcqcn(rules), Memory::Dcqcn(memory)) = (control, &mut self.memory) else {
            return;
        };
        memory.advance(rules, now_s, &mut self.rate, self.line);
    }

    pub fn acknowledged(&mut self, control: &Control, ack: &Ack<'_>, packet_bytes: u64) {
        self.advance(control, ack.now_s);
        let round = Round {
            ends: ack.acknowledged_bytes > self.round_ends,
            is_first: self.round_ends == 0,
        };
        let line = self.line;
        match (control, &mut self.memory) {
            (Control::Dcqcn(rules), Memory::Dcqcn(memory)) if ack.marked => {
                memory.marked(rules, ack.now_s);
            }
            (Control::Dctcp(rules), Memory::Dctcp(memory)) => {
                self.rate = memory.acknowledged(rules, ack, round, self.rate, line, packet_bytes);
            }
            (Control::Timely(rules), Memory::Timely(memory)) if round.ends => {
                self.rate = memory.round_ended(rules, ack, round, line);
            }
            (Control::Hpcc(rules), Memory::Hpcc(memory)) => {
                self.rate = memory.acknowledged(rules, ack, round, self.window_bytes, line);
            }
            _ => {}
        }
        if round.ends {
            self.round_ends = ack.sent_bytes;
        }
    }
}

/// Where an acknowledgement stands: rounds end with the first for what was sent after the last one.
#[derive(Debug, Clone, Copy)]
struct Round {
    ends: bool,
    is_first: bool,
}

#[derive(Debug, Clone)]
struct DctcpMemory {
    /// The part of packets that is marked, smoothed.
    alpha: f64,
    marks: u32,
    /// Packets of the round.
    batch: u64,
    /// Until these bytes are acknowledged the rate is not cut again.
    reduced_until: Option<u64>,
}

impl DctcpMemory {
    fn acknowledged(
        &mut self,
        rules: &Dctcp,
        ack: &Ack<'_>,
        round: Round,
        rate: f64,
        line: f64,
        packet_bytes: u64,
    ) -> f64 {
        self.marks += u32::from(ack.marked);
        if round.ends {
            if !round.is_first {
                let part = (f64::from(self.marks) / self.batch as f64).min(1.0);
                self.alpha = (1.0 - rules.gain) * self.alpha + rules.gain * part;
                self.marks = 0;
            }
            self.batch = (ack.sent_bytes - ack.acknowledged_bytes) / packet_bytes + 1;
        }
        if self.reduced_until.is_some_and(|until| ack.acknowledged_bytes > until) {
            self.reduced_until = None;
        }
        let mut rate = rate;
        if ack.marked && self.reduced_until.is_none() {
            rate = (rate * (1.0 - self.alpha / 2.0)).max(rules.rate_min_bytes_per_s);
            self.reduced_until = Some(ack.sent_bytes);
        }
        if self.reduced_until.is_none() && round.ends {
            rate = (rate + rules.additive_bytes_per_s).min(line);
        }
        rate
    }
}

#[derive(Debug, Clone)]
struct TimelyMemory {
    rate: f64,
    rtt_s: f64,
    /// Between round trips, smoothed.
    difference_s: f64,
    increases: u32,
}

impl TimelyMemory {
    fn round_ended(&mut self, rules: &Timely, ack: &Ack<'_>, round: Round, line: f64) -> f64 {
        let rtt_s = ack.now_s - ack.sent_s;
        if !round.is_first {
            let newest = rules.gain * (rtt_s - self.rtt_s);
            self.difference_s = (1.0 - rules.gain) * self.difference_s + newest;
            if let Some(cut) = self.cut(rules, rtt_s) {
                self.rate = (self.rate * cut).max(rules.rate_min_bytes_per_s);
                self.increases = 0;
            } else {
                let added = match self.increases >= TIMELY_HYPER_AFTER {
                    true => rules.hyper_bytes_per_s,
                    false => rules.additive_bytes_per_s,
                };
                self.rate = (self.rate + added).min(line);
                self.increases += 1;
            }
        }
        self.rtt_s = rtt_s;
        self.rate
    }

    /// What the rate is multiplied by, if it is not to grow.
    fn cut(&self, rules: &Timely, rtt_s: f64) -> Option<f64> {
        let gradient = self.difference_s / rules.rtt_min_s;
        if rtt_s < rules.rtt_low_s {
            None
        } else if rtt_s > rules.rtt_high_s {
            Some(1.0 - rules.beta * (1.0 - rules.rtt_high_s / rtt_s))
        } else {
            (gradient > 0.0).then(|| (1.0 - rules.beta * gradient).max(0.0))
        }
    }
}

#[derive(Debug, Clone)]
struct HpccMemory {
    /// At the end of the last round.
    rate: f64,
    /// Of the busiest link, smoothed over a round trip.
    utilisation: f64,
    hops: Vec<Hop>,
}

impl HpccMemory {
    fn acknowledged(
        &mut self,
        rules: &Hpcc,
        ack: &Ack<'_>,
        round: Round,
        window_bytes: f64,
        line: f64,
    ) -> f64 {
        let mut rate = self.rate;
        if !round.is_first {
            let (busiest, spent) = busiest(&self.hops, ack.hops, window_bytes, line);
            let spent = spent.min(rules.base_rtt_s) / rules.base_rtt_s;
            self.utilisation = self.utilisation * (1.0 - spent) + busiest * spent;
            let aim = self.rate * rules.utilisation / self.utilisation.max(f64::MIN_POSITIVE);
            let next = aim + rules.additive_bytes_per_s;
            rate = next.max(rules.rate_min_bytes_per_s).min(line);
            if round.ends {
                self.rate = rate;
            }
        }
        self.hops.clear();
        self.hops.extend_from_slice(ack.hops);
        rate
    }
}

/// Increases in a row before TIMELY makes larger ones.
const TIMELY_HYPER_AFTER: u32 = 5;

/// How busy the busiest link was between two reports, 1 being all of it with an empty queue, and
/// the seconds between them.
fn busiest(before: &[Hop], after: &[Hop], window_bytes: f64, line: f64) -> (f64, f64) {
    if after.is_empty() {
        return (0.0, f64::INFINITY);
    }
    let pairs = before.iter().zip(after).map(|(before, after)| {
        let spent = after.at_s - before.at_s;
        let sent = (after.sent_bytes - before.sent_bytes) / spent.max(1e-12);
        let queue = before.queue_bytes.min(after.queue_bytes) * line / window_bytes;
        ((sent + queue) / after.bytes_per_s, spent)
    });
    pairs.fold((0.0, 0.0), |most, next| if next.0 > most.0 { next } else { most })
}

impl DcqcnMemory {
    fn marked(&mut self, rules: &Dcqcn, now_s: f64) {
        self.marked_for_decrease = true;
        if self.decrease_at == f64::INFINITY {
            self.alpha_at = now_s + rules.alpha_interval_s;
            self.decrease_at = now_s + rules.decrease_interval_s;
        } else {
            self.marked_for_alpha = true;
        }
    }

    fn advance(&mut self, rules: &Dcqcn, now_s: f64, rate: &mut f64, line: f64) {
        loop {
            let next = self.alpha_at.min(self.decrease_at).min(self.increase_at);
            if next > now_s {
                return;
            }
            if self.alpha_at == next {
                let seen = f64::from(u8::from(std::mem::take(&mut self.marked_for_alpha)));
                self.alpha = (1.0 - rules.gain) * self.alpha + rules.gain * seen;
                self.alpha_at += rules.alpha_interval_s;
            } else if self.decrease_at == next {
                self.decrease_at += rules.decrease_interval_s;
                if std::mem::take(&mut self.marked_for_decrease) {
                    if self.stage > 0 {
                        self.target = *rate;
                    }
                    *rate = (*rate * (1.0 - self.alpha / 2.0)).max(rules.rate_min_bytes_per_s);
                    self.stage = 0;
                    self.increase_at = next + rules.increase_timer_s;
                }
            } else {
                let added = match self.stage.cmp(&rules.fast_recovery_steps) {
                    std::cmp::Ordering::Less => 0.0,
                    std::cmp::Ordering::Equal => rules.additive_bytes_per_s,
                    std::cmp::Ordering::Greater => rules.hyper_bytes_per_s,
                };
                self.target = (self.target + added).min(line);
                *rate = f64::midpoint(*rate, self.target);
                self.stage += 1;
                self.increase_at += rules.increase_timer_s;
            }
        }
    }
}
