//! What limits the steps of a run: where the time of its devices went, by the `timeline.json` that
//! `het-train` leaves.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::workload::{Spot, TraceError, WorkloadError};

/// What a device's time went to. Each moment counts once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    /// It ran a task.
    Compute,
    /// It waited for a copy, or for nothing but copies.
    Communication,
    /// Another device computed what it waited for, or what is left.
    Imbalance,
    /// The next task found no room.
    Memory,
    /// Tasks were handed to it, or their results taken in.
    Scheduling,
    /// No device had anything to do: the program had given nothing, since it read data, saved or
    /// prepared the next step.
    Input,
}

impl Use {
    pub const ALL: [Self; 6] = [
        Self::Compute,
        Self::Communication,
        Self::Imbalance,
        Self::Memory,
        Self::Scheduling,
        Self::Input,
    ];
}

/// Seconds of a device by use, in the order of [`Use::ALL`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceTime {
    pub device: String,
    pub seconds: [f64; Use::ALL.len()],
}

/// Seconds that all tasks of a kernel took on all devices.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KernelSum {
    pub kernel: String,
    pub tasks: u64,
    pub seconds: f64,
}

/// Copies between two memories. Those at the same time count both.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CopySum {
    /// `host to worker1`
    pub route: String,
    pub copies: u64,
    pub bytes: u64,
    pub seconds: f64,
    /// Of those seconds, the part in which the device that gets the copy ran a task, and so did
    /// not wait for it.
    pub hidden: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimelineProfile {
    pub seconds: f64,
    pub devices: Vec<DeviceTime>,
    /// The one that took most first.
    pub kernels: Vec<KernelSum>,
    pub copies: Vec<CopySum>,
    /// Tasks and copies that were too many to be recorded.
    pub left_out: u64,
}

impl TimelineProfile {
    /// The part of the time of all devices that went to a use.
    pub fn share(&self, of: Use) -> f64 {
        let row = of as usize;
        let own: f64 = self.devices.iter().map(|device| device.seconds[row]).sum();
        let all: f64 = self.devices.iter().flat_map(|device| device.seconds).sum();
        if all > 0.0 { own / all } else { 0.0 }
    }

    /// What most of the time went to: with less of it a step would be shorter.
    pub fn limit(&self) -> Use {
        self.most(&Use::ALL)
    }

    /// What most of the time went to that was not computed.
    pub fn largest_loss(&self) -> Use {
        self.most(&Use::ALL[1..])
    }

    fn most(&self, among: &[Use]) -> Use {
        let by_share = |a: &Use, b: &Use| self.share(*a).total_cmp(&self.share(*b));
        among.iter().copied().max_by(by_share).unwrap_or(Use::Compute)
    }
}

/// Reads a timeline.
///
/// # Errors
/// When it cannot be read, or is no timeline of a run.
pub fn read_timeline(path: &Path) -> Result<TimelineProfile, WorkloadError> {
    let unreadable = |source| WorkloadError::Unreadable { path: path.to_owned(), source };
    let file = BufReader::new(File::open(path).map_err(unreadable)?);
    let trace: Trace = serde_json::from_reader(file).map_err(|error| {
        wrong(path, (error.line(), error.column()), format!("this is no timeline: {error}"))
    })?;
    profile(trace).map_err(|reason| wrong(path, (1, 1), reason.to_owned()))
}

fn wrong(path: &Path, (line, column): (usize, usize), reason: String) -> WorkloadError {
    TraceError { spot: Spot { path: path.to_owned(), line, column }, reason }.into()
}

#[derive(Deserialize)]
struct Trace {
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
    #[serde(rename = "otherData", default)]
    other: Other,
}

#[derive(Deserialize, Default)]
struct Other {
    #[serde(default)]
    left_out: u64,
}

#[derive(Deserialize)]
struct Event {
    name: String,
    #[serde(default)]
    ph: String,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    tid: u64,
    /// Microseconds.
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: Arguments,
}

#[derive(Deserialize, Default)]
struct Arguments {
    name: Option<String>,
    #[serde(default)]
    bytes: u64,
}

/// From and until when, in nanoseconds.
type Span = (u64, u64);

/// Microseconds of a hundred days: sums of so long spans are still exact.
const LONGEST: f64 = 100.0 * 24.0 * 3600.0 * 1e6;

impl Event {
    fn is_of_a_run(&self) -> bool {
        (0.0..=LONGEST).contains(&self.ts) && (0.0..=LONGEST).contains(&self.dur)
    }

    fn span(&self) -> Span {
        let nanos = |micros: f64| (micros * 1e3).round() as u64;
        (nanos(self.ts), nanos(self.ts + self.dur))
    }
}

/// How the names of a device's track and of a memory's track end.
const COMPUTE: &str = ": compute";
const COPY_IN: &str = ": copy in";

fn profile(trace: Trace) -> Result<TimelineProfile, &'static str> {
    let named = trace.events.iter().filter(|event| event.name == "thread_name");
    let tracks: BTreeMap<u64, &str> =
        named.filter_map(|event| Some((event.tid, event.args.name.as_deref()?))).collect();
    let devices: Vec<(u64, &str)> =
        tracks.iter().filter_map(|(id, name)| Some((*id, name.strip_suffix(COMPUTE)?))).collect();
    if devices.is_empty() {
        return Err("it names no device's tasks: give the `timeline.json` of a run of `het-train`");
    }
    let whole: Vec<&Event> = trace.events.iter().filter(|event| event.ph == "X").collect();
    if whole.is_empty() {
        return Err("nothing of it ended: give the `timeline.json` of a run that made a step");
    }
    if !whole.iter().all(|event| event.is_of_a_run()) {
        return Err("a time in it is of no run: negative, or more than a hundred days");
    }
    let of = |category: &'static str| whole.iter().copied().filter(move |it| it.cat == category);
    let busy: Vec<Vec<Span>> = devices
        .iter()
        .map(|(id, _)| union(of("task").filter(|task| task.tid == *id).map(Event::span)))
        .collect();
    let arriving = |copy: &&Event| tracks.get(&copy.tid).is_some_and(|own| own.contains(COPY_IN));
    let copying = union(of("copy").map(Event::span));
    let times = devices.iter().enumerate().map(|(row, (id, name))| {
        let others = busy.iter().enumerate().filter(|(other, _)| *other != row);
        let others = union(others.flat_map(|(_, spans)| spans.iter().copied()));
        let idle = of("idle").filter(|idle| idle.tid == *id);
        let seconds = uses(&busy[row], idle, &others, &copying)?;
        Ok(DeviceTime { device: (*name).to_owned(), seconds })
    });
    let times = times.collect::<Result<Vec<_>, &str>>()?;
    let mut kernels: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for task in of("task") {
        let sum = kernels.entry(&task.name).or_default();
        *sum = (sum.0 + 1, sum.1.saturating_add(length(task.span())));
    }
    let mut kernels: Vec<KernelSum> = kernels
        .into_iter()
        .map(|(name, (tasks, nanos))| KernelSum {
            kernel: name.to_owned(),
            tasks,
            seconds: seconds(nanos),
        })
        .collect();
    kernels.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let mut copies: BTreeMap<&str, CopySum> = BTreeMap::new();
    for copy in of("copy").filter(arriving) {
        let sum = copies.entry(&copy.name).or_insert_with(|| CopySum {
            route: copy.name.clone(),
            copies: 0,
            bytes: 0,
            seconds: 0.0,
            hidden: 0.0,
        });
        sum.copies += 1;
        sum.bytes = sum.bytes.saturating_add(copy.args.bytes);
        sum.seconds += seconds(length(copy.span()));
        // Devices and memories have names of their own; where a memory has one device they agree,
        // and the first device is the host's.
        let into = copy.name.rsplit_once(" to ").map_or("", |(_, into)| into);
        let row = devices.iter().position(|(_, name)| *name == into).unwrap_or(0);
        sum.hidden += seconds(overlap(copy.span(), &busy[row]));
    }
    let spans = || whole.iter().map(|event| event.span());
    let from = spans().map(|(start, _)| start).min().unwrap_or(0);
    let until = spans().map(|(_, end)| end).max().unwrap_or(0);
    Ok(TimelineProfile {
        seconds: seconds(until - from),
        devices: times,
        kernels,
        copies: copies.into_values().collect(),
        left_out: trace.other.left_out,
    })
}

/// What a device's time went to, given what it did, when others computed and when copies ran.
fn uses<'a>(
    busy: &[Span],
    idle: impl Iterator<Item = &'a Event>,
    others: &[Span],
    copying: &[Span],
) -> Result<[f64; Use::ALL.len()], &'static str> {
    let mut nanos = [0; Use::ALL.len()];
    let mut add = |of: Use, more: u64| {
        let sum: &mut u64 = &mut nanos[of as usize];
        *sum = sum.saturating_add(more);
    };
    add(Use::Compute, busy.iter().copied().map(length).sum());
    for event in idle {
        let span = event.span();
        // As `het_runtime::Idle` names them.
        match event.name.as_str() {
            "waits for a transfer" => add(Use::Communication, length(span)),
            "waits for memory" => add(Use::Memory, length(span)),
            "is handed over" => add(Use::Scheduling, length(span)),
            cause @ ("waits for data" | "nothing to do") => {
                let meanwhile = overlap(span, others);
                add(Use::Imbalance, meanwhile);
                let copied = outside(span, others).map(|free| overlap(free, copying)).sum();
                add(Use::Communication, copied);
                let waits = cause == "waits for data";
                let rest = if waits { Use::Scheduling } else { Use::Input };
                add(rest, length(span) - meanwhile - copied);
            }
            _ => return Err("a device is idle for a cause that this version does not know"),
        }
    }
    Ok(nanos.map(seconds))
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

fn length((start, end): Span) -> u64 {
    end.saturating_sub(start)
}

/// Spans without overlap, in order, that cover the same.
fn union(spans: impl Iterator<Item = Span>) -> Vec<Span> {
    let mut spans: Vec<Span> = spans.collect();
    spans.sort_unstable();
    let mut united: Vec<Span> = Vec::with_capacity(spans.len());
    for (start, end) in spans {
        match united.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => united.push((start, end)),
        }
    }
    united
}

/// The parts of spans that lie in another one.
fn within((start, end): Span, spans: &[Span]) -> impl Iterator<Item = Span> + '_ {
    let first = spans.partition_point(|(_, until)| *until <= start);
    let near = spans[first..].iter().take_while(move |(from, _)| *from < end);
    near.map(move |(from, until)| (start.max(*from), end.min(*until)))
}

fn overlap(span: Span, spans: &[Span]) -> u64 {
    within(span, spans).map(length).sum()
}

/// The parts of a span that lie in none of others.
fn outside(span: Span, spans: &[Span]) -> impl Iterator<Item = Span> + '_ {
    let (start, end) = span;
    let ends = [start].into_iter().chain(within(span, spans).map(|(_, until)| until));
    let starts = within(span, spans).map(|(from, _)| from).chain([end]);
    ends.zip(starts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(tid: u32, category: &str, name: &str, (start, end): (u32, u32)) -> String {
        let length = end - start;
        format!(
            "{{\"ph\":\"X\",\"pid\":1,\"tid\":{tid},\"cat\":\"{category}\",\"name\":\"{name}\",\
             \"ts\":{start}.000,\"dur\":{length}.000,\"args\":{{\"bytes\":8}}}}"
        )
    }

    fn track(tid: u32, name: &str) -> String {
        format!(
            "{{\"ph\":\"M\",\"pid\":1,\"tid\":{tid},\"name\":\"thread_name\",\
             \"args\":{{\"name\":\"{name}\"}}}}"
        )
    }

    fn profiled(events: &[String]) -> Result<TimelineProfile, &'static str> {
        let text =
            format!("{{\"traceEvents\":[{}],\"otherData\":{{\"left_out\":3}}}}", events.join(","));
        profile(serde_json::from_str(&text).expect("a trace"))
    }

    #[test]
    fn every_moment_of_a_device_has_one_use() {
        let found = profiled(&[
            track(1, "cpu0: compute"),
            track(2, "worker1: compute"),
            track(3, "worker1: copy in"),
            track(4, "host: copy out"),
            event(1, "task", "head", (0, 40)),
            event(1, "idle", "waits for data", (40, 70)),
            event(1, "idle", "is handed over", (70, 75)),
            event(1, "task", "update", (75, 95)),
            event(1, "idle", "nothing to do", (95, 100)),
            event(2, "idle", "waits for a transfer", (0, 20)),
            event(2, "task", "layer", (20, 50)),
            event(2, "idle", "nothing to do", (50, 100)),
            event(3, "copy", "host to worker1", (0, 25)),
            event(4, "copy", "host to worker1", (0, 25)),
            event(3, "copy", "host to worker1", (50, 65)),
            event(4, "copy", "host to worker1", (50, 65)),
        ]);
        let found = found.expect("a timeline");
        let micros = |seconds: f64| (seconds * 1e6).round() as u32;
        let uses: Vec<_> = found.devices.iter().map(|own| own.seconds.map(micros)).collect();
        // Compute, communication, imbalance, memory, scheduling, input.
        assert_eq!(uses, [[60, 15, 10, 0, 10, 5], [30, 35, 20, 0, 0, 15]]);
        assert_eq!((found.limit(), found.largest_loss()), (Use::Compute, Use::Communication));
        assert_eq!(micros(found.seconds), 100);
        assert_eq!((found.kernels[0].kernel.as_str(), found.kernels.len()), ("head", 3));
        let copied = &found.copies[0];
        assert_eq!((copied.copies, copied.bytes, found.copies.len()), (2, 16, 1));
        assert_eq!((micros(copied.seconds), micros(copied.hidden)), (40, 5));
        assert_eq!(found.left_out, 3);
    }

    #[test]
    fn other_traces_are_refused() {
        let kineto = event(7, "kernel", "gemm", (0, 9));
        assert!(profiled(&[kineto]).expect_err("no device").contains("timeline.json"));
        let empty = profiled(&[track(1, "cpu0: compute")]).expect_err("no step");
        assert!(empty.contains("made a step"), "{empty}");
        for times in ["\"ts\":10,\"dur\":-5", "\"ts\":-1,\"dur\":5", "\"ts\":1,\"dur\":1e300"] {
            let event =
                format!("{{\"ph\":\"X\",\"tid\":1,\"cat\":\"task\",\"name\":\"n\",{times}}}");
            let error = profiled(&[track(1, "cpu0: compute"), event]).expect_err("no time");
            assert!(error.contains("of no run"), "{error}");
        }
        let newer = [track(1, "cpu0: compute"), event(1, "idle", "sleeps", (0, 9))];
        assert!(profiled(&newer).expect_err("a new cause").contains("does not know"));
    }

    #[test]
    fn what_is_outside_is_the_rest() {
        let spans = union([(10, 20), (15, 30), (50, 60)].into_iter());
        assert_eq!(spans, [(10, 30), (50, 60)]);
        assert_eq!(overlap((0, 55), &spans), 25);
        let rest: Vec<Span> = outside((0, 55), &spans).collect();
        assert_eq!(rest, [(0, 10), (30, 50)].into_iter().chain([(55, 55)]).collect::<Vec<_>>());
    }
}
