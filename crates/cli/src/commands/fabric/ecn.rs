//! `het fabric ecn`: thresholds of marking and pausing for a mix of traffic.

use std::path::{Path, PathBuf};

use anstream::{eprintln, println};
use clap::Args;
use het_lab::report::{queue_plot, rate_plot};
use het_perf::fabric::{Bottleneck, Dcqcn, EcnProposal, EcnReason, TrafficMix, propose_marking};
use het_wire::sonic::{PortThresholds, config_db};
use serde_json::json;

use super::write;
use crate::fail::{Fail, code};
use crate::output::{Form, object};

/// Points of a plot over time.
const PLOT_EVERY: usize = 50;
const PLOT_SECONDS: f64 = 40e-3;

/// A port of more long flows than this marks everything, whatever its thresholds.
const FLOWS_MAX: f64 = 10_000.0;

#[derive(Debug, Args)]
pub struct EcnArgs {
    /// Long flows that share a port at the same time.
    #[arg(long, default_value_t = 8)]
    pub flows: u32,
    /// Gb/s of the port.
    #[arg(long, default_value_t = 400.0)]
    pub link: f64,
    /// Round trip without queues, in microseconds.
    #[arg(long, default_value_t = 8.0)]
    pub rtt_us: f64,
    /// Bytes of a packet with its headers.
    #[arg(long, default_value_t = 4_200.0)]
    pub packet_bytes: f64,
    /// MB of the switch's buffer that the port may use.
    #[arg(long, default_value_t = 16.0)]
    pub buffer_mb: f64,
    /// Part of the flows that end within one round trip.
    #[arg(long, default_value_t = 0.5)]
    pub short_share: f64,
    /// Draw queue and rates over time.
    #[arg(long, value_name = "SVG")]
    pub plot: Option<PathBuf>,
    /// Write the thresholds as SONiC's `config_db.json`.
    #[arg(long, value_name = "JSON")]
    pub sonic: Option<PathBuf>,
    /// Ports of the switch, for `--sonic`; may be given several times.
    #[arg(long, default_value = "Ethernet0")]
    pub port: Vec<String>,
    /// Queue and priority of the lossless traffic.
    #[arg(long, default_value_t = 3)]
    pub queue: u8,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

/// Proposes thresholds for a mix of traffic.
pub fn ecn(args: &EcnArgs) -> Result<u8, Fail> {
    check(args)?;
    let link_bytes_per_s = args.link * 1e9 / 8.0;
    let mix = TrafficMix {
        flows: args.flows,
        link_bytes_per_s,
        base_rtt_s: args.rtt_us * 1e-6,
        packet_bytes: args.packet_bytes,
        buffer_bytes: args.buffer_mb * 1e6,
        short_share: args.short_share,
        rules: Dcqcn::vendor(link_bytes_per_s),
    };
    let proposal = propose_marking(&mix);
    if let Some(path) = &args.plot {
        plot(path, &mix, &proposal)?;
    }
    let thresholds = thresholds(&proposal);
    if let Some(path) = &args.sonic {
        let config = config_db(&thresholds, &args.port, args.queue);
        write(path, &format!("{config:#}\n"))?;
    }
    let reasons: Vec<String> = proposal.reasons.iter().map(sentence).collect();
    let value = json!({
        "kmin_bytes": thresholds.mark_min,
        "kmax_bytes": thresholds.mark_max,
        "pmax": proposal.marking.probability_max,
        "pause_bytes": thresholds.pause,
        "resume_bytes": thresholds.resume,
        "headroom_bytes": thresholds.headroom,
        "queue_bytes_mean": proposal.queue_bytes_mean.round(),
        "queue_delay_us": (proposal.queue_delay_s * 1e9).round() / 1e3,
        "throughput": (proposal.throughput * 1e4).round() / 1e4,
        "slowdown": (proposal.slowdown * 1e4).round() / 1e4,
        "compared": proposal.compared,
        "reasons": reasons,
    });
    object(&value, args.output, || {
        println!(
            "Kmin {} kB · Kmax {} kB · Pmax {:.2}",
            thresholds.mark_min / 1000,
            thresholds.mark_max / 1000,
            proposal.marking.probability_max
        );
        println!(
            "queue {:.0} kB in the mean ({:.1} µs), {:.1} % of the link used",
            proposal.queue_bytes_mean / 1e3,
            proposal.queue_delay_s * 1e6,
            proposal.throughput * 100.0
        );
        reasons.iter().for_each(|reason| println!("  · {reason}"));
    });
    Ok(code::OK)
}

fn thresholds(proposal: &EcnProposal) -> PortThresholds {
    let whole = |bytes: f64| bytes.round().max(0.0) as u64;
    PortThresholds {
        mark_min: whole(proposal.marking.min_bytes),
        mark_max: whole(proposal.marking.max_bytes),
        mark_percent: (proposal.marking.probability_max * 100.0).round() as u32,
        pause: whole(proposal.pause.pause_bytes),
        resume: whole(proposal.pause.resume_bytes),
        headroom: whole(proposal.pause.headroom_bytes),
    }
}

fn sentence(reason: &EcnReason) -> String {
    match reason {
        EcnReason::MarksFromRoundTrip { least_bytes, min_bytes } => format!(
            "marks from {:.0} kB: marked from less than {:.0} kB, the cut of one flow leaves the \
             link idle",
            min_bytes / 1e3,
            least_bytes / 1e3
        ),
        EcnReason::MarksBeforePause { max_bytes, pause_bytes } => format!(
            "marks everything above {:.0} kB, before senders are paused at {:.0} kB",
            max_bytes / 1e3,
            pause_bytes / 1e3
        ),
        EcnReason::RestsWithin { marked, probability_max, queue_bytes } => format!(
            "where rates neither rise nor fall the queue is {:.0} kB, {:.2} % of packets marked, \
             within Pmax {:.0} %; flows that are cut together empty it in between",
            queue_bytes / 1e3,
            marked * 100.0,
            probability_max * 100.0
        ),
        EcnReason::RestsAtMax { marked, queue_bytes } => format!(
            "so many flows need {:.2} % of packets marked and rest at Kmax, {:.0} kB",
            marked * 100.0,
            queue_bytes / 1e3
        ),
        EcnReason::ShortFlowsWait { delay_s, base_rtt_s } => format!(
            "short flows wait {:.1} µs in the queue, beside a round trip of {:.1} µs",
            delay_s * 1e6,
            base_rtt_s * 1e6
        ),
    }
}

/// Queue and rates over time under the proposal, in two files: `NAME.svg` and `NAME-rates.svg`.
fn plot(path: &Path, mix: &TrafficMix, proposal: &EcnProposal) -> Result<(), Fail> {
    let bottleneck = Bottleneck {
        link_bytes_per_s: mix.link_bytes_per_s,
        base_rtt_s: mix.base_rtt_s,
        packet_bytes: mix.packet_bytes,
        rules: mix.rules,
        marking: proposal.marking,
    };
    // Between half of its share and half more than that: they come together or they do not.
    let share = mix.link_bytes_per_s / f64::from(mix.flows);
    let part = |flow: u32| 0.5 + f64::from(flow) / f64::from(mix.flows.saturating_sub(1).max(1));
    let initial: Vec<f64> = (0..mix.flows).map(|flow| share * part(flow)).collect();
    let points = bottleneck.follow(&initial, PLOT_SECONDS, PLOT_EVERY);
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let rates = path.with_file_name(format!("{stem}-rates.svg"));
    write(path, &queue_plot(&points))?;
    write(&rates, &rate_plot(&points))?;
    eprintln!("drawn in `{}` and `{}`", path.display(), rates.display());
    Ok(())
}

/// Refuses what no port, packet or buffer is like.
fn check(args: &EcnArgs) -> Result<(), Fail> {
    let within = |name: &str, value: f64, least: f64, most: f64| {
        let text = format!("`{name} {value}` is none that a port could have");
        let hint = format!("from {least} to {most}");
        let fits = (least..=most).contains(&value);
        fits.then_some(()).ok_or_else(|| Fail::new(code::USAGE, text).hint(hint))
    };
    within("--flows", f64::from(args.flows), 1.0, FLOWS_MAX)?;
    within("--link", args.link, 0.1, 10_000.0)?;
    within("--rtt-us", args.rtt_us, 0.1, 100_000.0)?;
    within("--packet-bytes", args.packet_bytes, 64.0, 16_384.0)?;
    within("--buffer-mb", args.buffer_mb, 0.01, 100_000.0)?;
    within("--short-share", args.short_share, 0.0, 1.0)?;
    within("--queue", f64::from(args.queue), 0.0, 7.0)?;
    let headroom = args.link * 1e9 / 8.0 * args.rtt_us * 1e-6;
    if args.buffer_mb * 1e6 <= headroom {
        let text = format!(
            "a buffer of {} MB is less than the {:.1} MB under way until a pause is understood",
            args.buffer_mb,
            headroom / 1e6
        );
        return Err(Fail::new(code::USAGE, text)
            .hint("name the switch's buffer with `--buffer-mb`, or a shorter `--rtt-us`"));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    match args.port.iter().find(|port| port.is_empty() || !port.chars().all(plain)) {
        Some(port) => Err(Fail::new(code::USAGE, format!("`{port}` is no name of a port"))
            .hint("write for example `--port Ethernet0 --port Ethernet8`")),
        None => Ok(()),
    }
}
