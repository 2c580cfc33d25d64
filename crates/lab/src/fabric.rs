//! Published completion times of flows: packets followed one by one by ns-3 along a path of hosts,
//! and what our models of the fabric say of the same flows (data of m3, Li et al., SIGCOMM 2024).
//!
//! The simulated path: host 0 and the last host have links of 10 Gb/s to the switch beside them,
//! the hosts between have links that limit nothing; every link takes 1 µs. What was drawn at random
//! for each scenario and is not in the file (window, thresholds) is taken at the middle of its
//! published range, so that nothing here is fitted to the completion times.

use std::collections::BTreeMap;
use std::path::Path;

use het_perf::fabric::{
    Control, Dcqcn, Dctcp, Flow, Hpcc, Link, LinkId, Marking, Message, Network, PacketModel,
    Timely, completion_times, deliver,
};

use crate::workload::{CsvTable, Fields, TraceError, WorkloadError};

/// The flows of one simulation, in the order of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowScenario {
    pub shard: u32,
    pub control: ControlName,
    /// Hosts of the path, those without flows included.
    pub hosts: u32,
    pub flows: Vec<PublishedFlow>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PublishedFlow {
    pub source: u32,
    pub destination: u32,
    pub bytes: u64,
    pub arrival_ns: f64,
    /// Alone on the path.
    pub ideal_ns: f64,
    pub packets_ns: f64,
    pub max_min_ns: f64,
    /// What `max_min_ns` may be off by for the digits that it was printed with.
    pub max_min_rounding_ns: f64,
}

/// A congestion control by the name that the file gives it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ControlName {
    /// `dcqcn_paper_vwin`
    DcqcnPaper,
    /// `dcqcn_vwin`
    DcqcnVendor,
    /// `dctcp`
    Dctcp,
    /// `timely_vwin`
    Timely,
    /// `hp95ai616`: 616 Mb/s of additive increase. The 95 is not the target that was simulated.
    Hpcc { additive_mbit_per_s: f64 },
}

/// How far models are from the published times of one scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowScore {
    pub shard: u32,
    pub control: ControlName,
    /// Of every flow, in order.
    pub flows: Vec<FlowError>,
}

/// Times of one flow, and how far they are from what was published.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlowError {
    pub max_min_ns: f64,
    /// Difference from the published max-min time beyond its rounding, as a part of it.
    pub max_min_difference: f64,
    /// What the packet model says.
    pub predicted_ns: f64,
    /// Of the packet model, as a part of the time in ns-3.
    pub predicted_error: f64,
    /// Of the max-min time with the flow's own delay added, likewise.
    pub max_min_error: f64,
}

/// Median and mean of errors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ErrorSummary {
    pub flows: usize,
    pub median: f64,
    pub mean: f64,
}

/// Hosts of a path, at most.
pub const PATH_HOSTS_MAX: u32 = 64;

/// The path of the published simulations: payload of a packet, its headers, bytes per second and
/// seconds of a link.
const PAYLOAD_BYTES: u32 = 1_000;
const HEADER_BYTES: u32 = 48;
const LINE_BYTES_PER_S: f64 = 1.25e9;
const LINK_LATENCY_S: f64 = 1e-6;
const HOSTS_MIN: u32 = 3;

/// Headers that TIMELY (a time stamp) and HPCC (what five hops report) add.
const TIMELY_HEADER_BYTES: u32 = 8;
const HPCC_HEADER_BYTES: u32 = 42;

/// The middle of what each scenario drew its value from: windows of 5 to 30 kB; DCQCN marks from
/// 8–20 kB to 20–40 kB; DCTCP at 5–20 kB; TIMELY between 40–60 µs and 100–150 µs; HPCC aims at
/// 70–95 % (parameters of the generator that was published with the data).
const WINDOW_BYTES: f64 = 17_500.0;
const MARKING: Marking = Marking { min_bytes: 14e3, max_bytes: 30e3, probability_max: 0.2 };
const DCTCP_MARK_BYTES: f64 = 12_500.0;
const TIMELY_LOW_S: f64 = 50e-6;
const TIMELY_HIGH_S: f64 = 125e-6;
const HPCC_UTILISATION: f64 = 0.825;

/// Rates never fall below 1 Gb/s there; the increments and the base round trip of its set-up.
const RATE_MIN_BYTES_PER_S: f64 = 0.125e9;
const DCTCP_ADDITIVE_BYTES_PER_S: f64 = 615e6 / 8.0;
const TIMELY_ADDITIVE_BYTES_PER_S: f64 = 10e6 / 8.0;
const TIMELY_HYPER_BYTES_PER_S: f64 = 50e6 / 8.0;
const HPCC_BASE_RTT_S: f64 = 14.4e-6;

/// The largest flow and the latest arrival that are read: beyond, time is no longer exact.
const FLOW_BYTES_MAX: u64 = 1_000_000_000_000;
const ARRIVAL_NS_MAX: f64 = 1e15;

/// Packets of a scenario, at most; if it has more, that many are followed as one.
const PACKETS_MAX: u64 = 10_000_000;

/// Times of the packet model are medians over so many choices of the packets that are marked.
const MARKING_SEEDS: u64 = 5;

/// Reads a file of published flows, `shard,cc,flow,src,dst,size_bytes,arrival_ns,ideal_fct_ns,
/// ns3_fct_ns,maxmin_fct_ns`, as scenarios in the order of their numbers.
///
/// # Errors
/// When the file cannot be read, or with file, line, column and reason of the first row that makes
/// no sense.
pub fn read_flows(path: &Path) -> Result<Vec<FlowScenario>, WorkloadError> {
    flows_of(&CsvTable::read(path)?)
}

/// The same of a text; `path` is what errors call it.
///
/// # Errors
/// With file, line, column and reason of the first row that makes no sense.
pub fn parse_flows(path: &Path, text: &str) -> Result<Vec<FlowScenario>, WorkloadError> {
    flows_of(&CsvTable::of(path, text))
}

/// Every flow by both models, beside what was published.
pub fn score_flows(scenarios: &[FlowScenario]) -> Vec<FlowScore> {
    scenarios.iter().map(score).collect()
}

/// Median and mean of some errors; nothing of none.
pub fn summarise(errors: impl Iterator<Item = f64>) -> Option<ErrorSummary> {
    let mut errors: Vec<f64> = errors.collect();
    errors.sort_by(f64::total_cmp);
    let median = median(&errors)?;
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    Some(ErrorSummary { flows: errors.len(), median, mean })
}

impl ControlName {
    /// The family's name, as it is reported.
    pub fn family(self) -> &'static str {
        match self {
            Self::DcqcnPaper | Self::DcqcnVendor => "dcqcn",
            Self::Dctcp => "dctcp",
            Self::Timely => "timely",
            Self::Hpcc { .. } => "hpcc",
        }
    }

    fn of(word: &str) -> Option<Self> {
        match word {
            "dcqcn_paper_vwin" => Some(Self::DcqcnPaper),
            "dcqcn_vwin" => Some(Self::DcqcnVendor),
            "dctcp" => Some(Self::Dctcp),
            "timely_vwin" => Some(Self::Timely),
            _ => {
                let (target, increase) = word.strip_prefix("hp")?.split_once("ai")?;
                let _: u32 = target.parse().ok()?;
                let additive: f64 = increase.parse().ok()?;
                let sensible = additive.is_finite() && additive > 0.0;
                sensible.then_some(Self::Hpcc { additive_mbit_per_s: additive })
            }
        }
    }

    fn model(self, seed: u64) -> PacketModel {
        let rate_min_bytes_per_s = RATE_MIN_BYTES_PER_S;
        let dcqcn = |rules| Control::Dcqcn(Dcqcn { rate_min_bytes_per_s, ..rules });
        let (control, more_header_bytes) = match self {
            Self::DcqcnPaper => (dcqcn(Dcqcn::paper(LINE_BYTES_PER_S)), 0),
            Self::DcqcnVendor => (dcqcn(Dcqcn::vendor(LINE_BYTES_PER_S)), 0),
            Self::Dctcp => {
                let additive_bytes_per_s = DCTCP_ADDITIVE_BYTES_PER_S;
                let gain = 1.0 / 16.0;
                (Control::Dctcp(Dctcp { gain, additive_bytes_per_s, rate_min_bytes_per_s }), 0)
            }
            Self::Timely => {
                let rules = Timely {
                    rtt_low_s: TIMELY_LOW_S,
                    rtt_high_s: TIMELY_HIGH_S,
                    rtt_min_s: 20e-6,
                    gain: 0.875,
                    beta: 0.8,
                    additive_bytes_per_s: TIMELY_ADDITIVE_BYTES_PER_S,
                    hyper_bytes_per_s: TIMELY_HYPER_BYTES_PER_S,
                    rate_min_bytes_per_s,
                };
                (Control::Timely(rules), TIMELY_HEADER_BYTES)
            }
            Self::Hpcc { additive_mbit_per_s } => {
                let rules = Hpcc {
                    utilisation: HPCC_UTILISATION,
                    additive_bytes_per_s: additive_mbit_per_s * 1e6 / 8.0,
                    rate_min_bytes_per_s,
                    base_rtt_s: HPCC_BASE_RTT_S,
                };
                (Control::Hpcc(rules), HPCC_HEADER_BYTES)
            }
        };
        let step = DCTCP_MARK_BYTES;
        let marking = match self {
            Self::Dctcp => Marking { min_bytes: step, max_bytes: step, probability_max: 1.0 },
            _ => MARKING,
        };
        PacketModel {
            payload_bytes_max: PAYLOAD_BYTES,
            header_bytes: HEADER_BYTES + more_header_bytes,
            window_bytes: WINDOW_BYTES,
            marking,
            control,
            seed,
        }
    }

    /// Whether chance has a part in which packets are marked.
    fn seeds(self) -> u64 {
        match self {
            Self::DcqcnPaper | Self::DcqcnVendor => MARKING_SEEDS,
            _ => 1,
        }
    }
}

fn flows_of(table: &CsvTable) -> Result<Vec<FlowScenario>, WorkloadError> {
    let columns = table.columns([
        "shard",
        "cc",
        "src",
        "dst",
        "size_bytes",
        "arrival_ns",
        "ideal_fct_ns",
        "ns3_fct_ns",
        "maxmin_fct_ns",
    ])?;
    let rows = table.rows(|fields| {
        let (shard, control, flow) = row(&fields, columns)?;
        Ok((shard, control, flow, fields.wrong(columns[1], "two controls in one shard".into())))
    })?;
    let hosts = rows.iter().map(|(_, _, flow, _)| flow.source.max(flow.destination) + 1);
    let hosts = hosts.max().unwrap_or(0).max(HOSTS_MIN);
    let mut scenarios: BTreeMap<u32, FlowScenario> = BTreeMap::new();
    for (shard, control, flow, two_controls) in rows {
        let empty = || FlowScenario { shard, control, hosts, flows: Vec::new() };
        let scenario = scenarios.entry(shard).or_insert_with(empty);
        if scenario.control != control {
            return Err(two_controls.into());
        }
        scenario.flows.push(flow);
    }
    Ok(scenarios.into_values().collect())
}

fn row(
    fields: &Fields<'_>,
    columns: [usize; 9],
) -> Result<(u32, ControlName, PublishedFlow), TraceError> {
    let [shard, cc, src, dst, size, arrival, ideal, packets, max_min] = columns;
    let word = fields.text(cc, "cc")?;
    let unknown = || fields.wrong(cc, format!("there is no congestion control `{word}`"));
    let control = ControlName::of(word).ok_or_else(unknown)?;
    let host = |index, name: &str| {
        let host: u32 = fields.number(index, name)?;
        let far = || format!("host {host} is beyond the {PATH_HOSTS_MAX} of the longest path");
        if host < PATH_HOSTS_MAX { Ok(host) } else { Err(fields.wrong(index, far())) }
    };
    let (source, destination) = (host(src, "src")?, host(dst, "dst")?);
    if source == destination {
        return Err(fields.wrong(dst, format!("the flow goes from host {source} to itself")));
    }
    let bytes: u64 = fields.number(size, "size_bytes")?;
    if bytes == 0 {
        return Err(fields.wrong(size, "the flow has no bytes".into()));
    }
    if bytes > FLOW_BYTES_MAX {
        return Err(fields.wrong(size, format!("the flow has more than {FLOW_BYTES_MAX} bytes")));
    }
    let time = |index, name: &str, least: f64| {
        let time: f64 = fields.number(index, name)?;
        let wrong = || fields.wrong(index, format!("`{name}` is `{time}`, no such time"));
        if time.is_finite() && time >= least { Ok(time) } else { Err(wrong()) }
    };
    let arrival_ns = time(arrival, "arrival_ns", 0.0)?;
    if arrival_ns > ARRIVAL_NS_MAX {
        return Err(fields.wrong(arrival, format!("the flow comes after {ARRIVAL_NS_MAX} ns")));
    }
    let decimals = fields.text(max_min, "maxmin_fct_ns")?.trim().split_once('.');
    let decimals = decimals.map_or(0, |(_, decimals)| decimals.len() as i32);
    let flow = PublishedFlow {
        source,
        destination,
        bytes,
        arrival_ns,
        ideal_ns: time(ideal, "ideal_fct_ns", 0.0)?,
        packets_ns: time(packets, "ns3_fct_ns", f64::MIN_POSITIVE)?,
        max_min_ns: time(max_min, "maxmin_fct_ns", f64::MIN_POSITIVE)?,
        max_min_rounding_ns: 0.5 * 10_f64.powi(-decimals),
    };
    Ok((fields.number(shard, "shard")?, control, flow))
}

fn score(scenario: &FlowScenario) -> FlowScore {
    let shared = max_min_ns(scenario);
    let predicted = predicted_ns(scenario);
    let errors = scenario.flows.iter().zip(shared.into_iter().zip(predicted));
    let errors = errors.map(|(flow, (max_min_ns, predicted_ns))| {
        let beyond = (max_min_ns - flow.max_min_ns).abs() - flow.max_min_rounding_ns;
        let wire_ns = wire_bytes(flow.bytes) / LINE_BYTES_PER_S * 1e9;
        let own_delay_ns = flow.ideal_ns - wire_ns;
        FlowError {
            max_min_ns,
            max_min_difference: beyond.max(0.0) / flow.max_min_ns,
            predicted_ns,
            predicted_error: (predicted_ns / flow.packets_ns - 1.0).abs(),
            max_min_error: ((max_min_ns + own_delay_ns) / flow.packets_ns - 1.0).abs(),
        }
    });
    FlowScore { shard: scenario.shard, control: scenario.control, flows: errors.collect() }
}

fn max_min_ns(scenario: &FlowScenario) -> Vec<f64> {
    let path = SimulatedPath::new(scenario.hosts);
    let flows = scenario.flows.iter().map(|flow| Flow {
        arrival_s: flow.arrival_ns * 1e-9,
        wire_bytes: wire_bytes(flow.bytes),
        path: path.links(flow.source, flow.destination),
    });
    let times = completion_times(&path.network, &flows.collect::<Vec<_>>());
    times.into_iter().map(|seconds| seconds * 1e9).collect()
}

fn predicted_ns(scenario: &FlowScenario) -> Vec<f64> {
    let path = SimulatedPath::new(scenario.hosts);
    let messages = scenario.flows.iter().map(|flow| Message {
        arrival_s: flow.arrival_ns * 1e-9,
        bytes: flow.bytes,
        path: path.links(flow.source, flow.destination),
    });
    let messages: Vec<Message> = messages.collect();
    let seeds = 0..scenario.control.seeds();
    let packets: u64 =
        scenario.flows.iter().map(|flow| flow.bytes.div_ceil(u64::from(PAYLOAD_BYTES))).sum();
    let together = packets.div_ceil(PACKETS_MAX).clamp(1, 1_000_000) as u32;
    let model = |seed| {
        let mut model = scenario.control.model(seed);
        model.payload_bytes_max *= together;
        model.header_bytes *= together;
        deliver(&path.network, &messages, &model)
    };
    let runs: Vec<Vec<f64>> = seeds.map(model).collect();
    let times = (0..messages.len()).map(|flow| {
        let mut times: Vec<f64> = runs.iter().map(|run| run[flow] * 1e9).collect();
        times.sort_by(f64::total_cmp);
        median(&times).expect("there is at least one seed")
    });
    times.collect()
}

/// The upper of two in the middle; `sorted` upwards.
fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len() / 2).copied()
}

fn wire_bytes(bytes: u64) -> f64 {
    (bytes + u64::from(HEADER_BYTES) * bytes.div_ceil(u64::from(PAYLOAD_BYTES))) as f64
}

/// Hosts at both ends of a row of switches, and one beside each switch.
struct SimulatedPath {
    network: Network,
    hosts: u32,
    /// Both directions between place `i` and place `i + 1` of the row.
    row: Vec<[LinkId; 2]>,
    /// Of the hosts between: towards the switch, and back.
    access: Vec<[LinkId; 2]>,
}

impl SimulatedPath {
    fn new(hosts: u32) -> Self {
        let mut network = Network::default();
        let places: Vec<_> =
            (0..hosts).map(|place| network.add_vertex(format!("place {place}"))).collect();
        let mut cable = |from, to, bytes_per_s| {
            network.add_cable(Link { from, to, bytes_per_s, latency_s: LINK_LATENCY_S })
        };
        let row = places.windows(2).map(|pair| cable(pair[0], pair[1], LINE_BYTES_PER_S));
        let row = row.collect();
        let access = places.iter().enumerate().map(|(place, switch)| {
            let host = network.add_vertex(format!("host {place}"));
            let link = Link {
                from: host,
                to: *switch,
                bytes_per_s: f64::INFINITY,
                latency_s: LINK_LATENCY_S,
            };
            network.add_cable(link)
        });
        let access = access.collect();
        Self { network, hosts, row, access }
    }

    fn links(&self, source: u32, destination: u32) -> Vec<LinkId> {
        let between = |host: u32| host > 0 && host + 1 < self.hosts;
        let mut links = Vec::new();
        if between(source) {
            links.push(self.access[source as usize][0]);
        }
        let range = source.min(destination) as usize..source.max(destination) as usize;
        if source < destination {
            links.extend(self.row[range].iter().map(|[there, _]| *there));
        } else {
            links.extend(self.row[range].iter().rev().map(|[_, back]| *back));
        }
        if between(destination) {
            links.push(self.access[destination as usize][1]);
        }
        links
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "shard,cc,flow,src,dst,size_bytes,arrival_ns,ideal_fct_ns,ns3_fct_ns,\
        maxmin_fct_ns\n";

    fn check_error(row: &str, expected: &str) {
        let error = parse_flows(Path::new("flows.csv"), &format!("{HEADER}{row}\n"));
        assert_eq!(error.expect_err("it makes no sense").to_string(), expected);
    }

    #[test]
    fn rows_that_make_no_sense_are_told_with_their_place() {
        check_error(
            "1,reno,0,0,1,5,0,1,1,1",
            "flows.csv:2:3: there is no congestion control `reno`",
        );
        check_error(
            "1,dctcp,0,1,1,5,0,1,1,1",
            "flows.csv:2:13: the flow goes from host 1 to itself",
        );
        check_error("1,dctcp,0,0,1,0,0,1,1,1", "flows.csv:2:15: the flow has no bytes");
        check_error(
            "1,dctcp,0,0,1,9,1e16,1,1,1",
            "flows.csv:2:17: the flow comes after 1000000000000000 ns",
        );
        check_error(
            "1,dctcp,0,0,99,9,0,1,1,1",
            "flows.csv:2:13: host 99 is beyond the 64 of the longest path",
        );
        check_error(
            "1,dctcp,0,0,1,9,0,1,NaN,1",
            "flows.csv:2:21: `ns3_fct_ns` is `NaN`, no such time",
        );
        check_error(
            "1,dctcp,0,0,1,9,0,1,1,1\n1,timely_vwin,0,0,1,9,0,1,1,1",
            "flows.csv:3:3: two controls in one shard",
        );
    }

    #[test]
    fn a_flow_alone_takes_its_ideal_time() {
        let row = "7,dcqcn_paper_vwin,0,0,2,5568,100,7520,7520,4684.8";
        let text = format!("{HEADER}{row}\n");
        let scenarios = parse_flows(Path::new("flows.csv"), &text).expect("it is well formed");
        let scores = score_flows(&scenarios);
        let flow = scores[0].flows[0];
        assert!(flow.max_min_difference < 1e-9, "{flow:?}");
        // ns-3 cuts every packet's time to whole nanoseconds.
        assert!(flow.predicted_error < 1e-3, "{flow:?}");
    }

    #[test]
    fn flows_go_both_ways_along_longer_paths() {
        let path = SimulatedPath::new(5);
        for source in 0..5 {
            for destination in (0..5).filter(|destination| *destination != source) {
                let links = path.links(source, destination);
                assert!(path.network.is_path(&links), "{source} to {destination}");
            }
        }
    }
}
