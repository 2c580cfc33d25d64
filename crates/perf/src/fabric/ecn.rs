//! Thresholds of marking for a mix of traffic: proposals are followed as a fluid and the one is
//! taken that slows flows down the least, short ones by waiting in the queue, long ones by what the
//! link does not carry.

use super::{Bottleneck, Dcqcn, Marking};

/// What crosses a port.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrafficMix {
    /// Long flows at the same time.
    pub flows: u32,
    pub link_bytes_per_s: f64,
    pub base_rtt_s: f64,
    /// With headers.
    pub packet_bytes: f64,
    /// Of the switch that the port may use.
    pub buffer_bytes: f64,
    /// Part of the flows that end within one round trip, and so wait but are not throttled.
    pub short_share: f64,
    pub rules: Dcqcn,
}

/// Thresholds, and what comes of them.
#[derive(Debug, Clone, PartialEq)]
pub struct EcnProposal {
    pub marking: Marking,
    pub pause: PauseThresholds,
    pub queue_bytes_mean: f64,
    pub queue_delay_s: f64,
    /// Part of the link that is used once flows have settled.
    pub throughput: f64,
    /// By which part flows are slowed down in the mean: what is least here.
    pub slowdown: f64,
    /// Proposals that were compared.
    pub compared: usize,
    pub reasons: Vec<EcnReason>,
}

/// Why thresholds are where they are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EcnReason {
    /// A queue that is marked from less would run empty after a cut.
    MarksFromRoundTrip { least_bytes: f64, min_bytes: f64 },
    /// All is marked before senders are paused.
    MarksBeforePause { max_bytes: f64, pause_bytes: f64 },
    /// So many flows rest within the thresholds: their marked part is within the greatest.
    RestsWithin { marked: f64, probability_max: f64, queue_bytes: f64 },
    /// No greatest probability within 1 marks as many as these flows need: they rest at the upper
    /// threshold.
    RestsAtMax { marked: f64, queue_bytes: f64 },
    /// What short flows wait, against their round trip.
    ShortFlowsWait { delay_s: f64, base_rtt_s: f64 },
}

/// When a port tells its neighbour to pause, and room for what still comes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PauseThresholds {
    pub pause_bytes: f64,
    pub resume_bytes: f64,
    pub headroom_bytes: f64,
}

/// Least of a round trip's bytes that keeps a link busy (DCTCP, SIGCOMM 2010, section 3.3), and
/// packets that come in a burst.
const ROUND_TRIP_PART: f64 = 1.0 / 7.0;
const BURST_PACKETS: f64 = 4.0;

/// Lower thresholds in terms of the least one, upper ones of the lower, and greatest probabilities.
const MIN_TIMES: [f64; 6] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
const MAX_TIMES: [f64; 3] = [2.0, 4.0, 8.0];
const PROBABILITIES: [f64; 6] = [0.01, 0.05, 0.1, 0.2, 0.5, 1.0];

/// Seconds that a proposal is followed; flows have settled in the second half.
const FOLLOWED_S: f64 = 40e-3;
const POINT_EVERY: usize = 10;

/// Bytes that a neighbour sends before it has understood a pause (IEEE 802.1Qbb, annex O: 3,840
/// bytes of response).
const PAUSE_RESPONSE_BYTES: f64 = 3_840.0;

/// Of the free buffer that a dynamic threshold leaves to one congested port with alpha 1.
const DYNAMIC_PART: f64 = 0.5;

/// The thresholds that slow this mix down the least; ties go to the lowest.
pub fn propose_marking(mix: &TrafficMix) -> EcnProposal {
    let least_bytes = (mix.link_bytes_per_s * mix.base_rtt_s * ROUND_TRIP_PART)
        .max(BURST_PACKETS * mix.packet_bytes);
    let pause = pause_thresholds(mix);
    let fits = |marking: &Marking| marking.max_bytes <= pause.pause_bytes;
    let all = MIN_TIMES.iter().flat_map(|min| {
        MAX_TIMES.iter().flat_map(move |max| {
            let min_bytes = least_bytes * min;
            PROBABILITIES.iter().map(move |probability| Marking {
                min_bytes,
                max_bytes: min_bytes * max,
                probability_max: *probability,
            })
        })
    });
    let mut markings: Vec<Marking> = all.filter(fits).collect();
    if markings.is_empty() {
        // A buffer of less than a round trip: all that can be done is to mark before the pause.
        let max_bytes = pause.pause_bytes;
        markings.push(Marking { min_bytes: max_bytes / 2.0, max_bytes, probability_max: 1.0 });
    }
    let compared = markings.len();
    let proposals = markings.into_iter().map(|marking| proposal(mix, marking, pause, compared));
    let best = proposals.min_by(|a, b| a.slowdown.total_cmp(&b.slowdown));
    let mut best = best.expect("there is at least one");
    best.reasons = reasons(mix, &best, least_bytes);
    best
}

/// A pause in time: twice the way to the neighbour at line rate, a packet under way at each end,
/// and the neighbour's response.
pub fn pause_thresholds(mix: &TrafficMix) -> PauseThresholds {
    let way = mix.link_bytes_per_s * mix.base_rtt_s;
    let headroom_bytes = way + 2.0 * mix.packet_bytes + PAUSE_RESPONSE_BYTES;
    let shared = (mix.buffer_bytes - headroom_bytes).max(mix.packet_bytes);
    let pause_bytes = shared * DYNAMIC_PART;
    let resume_bytes = (pause_bytes - 2.0 * mix.packet_bytes).max(0.0);
    PauseThresholds { pause_bytes, resume_bytes, headroom_bytes }
}

fn bottleneck(mix: &TrafficMix, marking: Marking) -> Bottleneck {
    Bottleneck {
        link_bytes_per_s: mix.link_bytes_per_s,
        base_rtt_s: mix.base_rtt_s,
        packet_bytes: mix.packet_bytes,
        rules: mix.rules,
        marking,
    }
}

fn proposal(
    mix: &TrafficMix,
    marking: Marking,
    pause: PauseThresholds,
    compared: usize,
) -> EcnProposal {
    let flows = mix.flows.max(1);
    let points = bottleneck(mix, marking).follow_equal(flows, FOLLOWED_S, POINT_EVERY);
    let settled = &points[points.len() / 2..];
    let count = settled.len() as f64;
    let carried = settled.iter().map(|point| match point.queue_bytes > 0.0 {
        true => 1.0,
        false => point.rates[0] * f64::from(flows) / mix.link_bytes_per_s,
    });
    let throughput = (carried.sum::<f64>() / count).min(1.0);
    let queue_bytes_mean = settled.iter().map(|point| point.queue_bytes).sum::<f64>() / count;
    let queue_delay_s = queue_bytes_mean / mix.link_bytes_per_s;
    let long = 1.0 / throughput - 1.0;
    let short = queue_delay_s / mix.base_rtt_s;
    let slowdown = (1.0 - mix.short_share) * long + mix.short_share * short;
    let reasons = Vec::new();
    EcnProposal {
        marking,
        pause,
        queue_bytes_mean,
        queue_delay_s,
        throughput,
        slowdown,
        compared,
        reasons,
    }
}

fn reasons(mix: &TrafficMix, best: &EcnProposal, least_bytes: f64) -> Vec<EcnReason> {
    let Marking { min_bytes, max_bytes, probability_max } = best.marking;
    let steady = bottleneck(mix, best.marking).steady_state(mix.flows);
    let (marked, queue_bytes) = (steady.marked, steady.queue_bytes);
    let rests = if marked <= probability_max {
        EcnReason::RestsWithin { marked, probability_max, queue_bytes }
    } else {
        EcnReason::RestsAtMax { marked, queue_bytes }
    };
    vec![
        EcnReason::MarksFromRoundTrip { least_bytes, min_bytes },
        EcnReason::MarksBeforePause { max_bytes, pause_bytes: best.pause.pause_bytes },
        rests,
        EcnReason::ShortFlowsWait { delay_s: best.queue_delay_s, base_rtt_s: mix.base_rtt_s },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mix() -> TrafficMix {
        let link_bytes_per_s = 12.5e9;
        TrafficMix {
            flows: 8,
            link_bytes_per_s,
            base_rtt_s: 8e-6,
            packet_bytes: 4_162.0,
            buffer_bytes: 8e6,
            short_share: 0.5,
            rules: Dcqcn::vendor(link_bytes_per_s),
        }
    }

    #[test]
    fn thresholds_are_in_order_and_below_the_pause() {
        for flows in [2, 8, 32] {
            let proposal = propose_marking(&TrafficMix { flows, ..mix() });
            let Marking { min_bytes, max_bytes, probability_max } = proposal.marking;
            assert!(
                min_bytes < max_bytes && max_bytes <= proposal.pause.pause_bytes,
                "{proposal:?}"
            );
            assert!(probability_max > 0.0 && probability_max <= 1.0);
            assert!(proposal.pause.resume_bytes < proposal.pause.pause_bytes);
            assert!(proposal.throughput > 0.8 && proposal.throughput <= 1.0, "{proposal:?}");
            assert_eq!(proposal.reasons.len(), 4);
        }
    }

    #[test]
    fn more_short_flows_ask_for_shorter_queues() {
        let delay =
            |short_share| propose_marking(&TrafficMix { short_share, ..mix() }).queue_delay_s;
        assert!(delay(0.9) <= delay(0.1));
        let kept = |short_share| propose_marking(&TrafficMix { short_share, ..mix() }).throughput;
        assert!(kept(0.1) >= kept(0.9));
    }

    #[test]
    fn a_small_buffer_is_marked_before_it_pauses() {
        let proposal = propose_marking(&TrafficMix { buffer_bytes: 120e3, ..mix() });
        assert!(proposal.marking.max_bytes <= proposal.pause.pause_bytes);
    }
}
