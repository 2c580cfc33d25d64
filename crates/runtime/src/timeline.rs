//! What every stream did and when, and why it did nothing in between.

use std::fmt::Write as _;

use crate::machine::Interval;
use crate::{CopyOrder, DeviceId, HandleId, KernelId, KernelInfo, Machine, MemoryId, Nanos};

/// Most tasks and copies that are kept; of more is said how many there were, and what is recorded
/// ends where the first of them begins.
const SPANS_MAX: usize = 1 << 20;

/// Why a stream does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Idle {
    /// All that there is, is done or under way elsewhere.
    Nothing,
    /// Tasks that it could run wait for others, or are meant for other devices.
    Data,
    /// A task that has its place in the stream waits for copies.
    Transfer,
    /// The next task finds no room.
    Memory,
    /// What it is to do is handed to it, or what it did is being reported.
    Handover,
}

impl Idle {
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing to do",
            Self::Data => "waits for data",
            Self::Transfer => "waits for a transfer",
            Self::Memory => "waits for memory",
            Self::Handover => "is handed over",
        }
    }
}

/// What a stream does for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    Task { kernel: KernelId, sequence: u64, has_failed: bool },
    Copy { handle: HandleId, bytes: u64, from: MemoryId, to: MemoryId },
    Idle(Idle),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub span: Interval,
    pub work: Work,
}

/// A stream, or one of several copies that a memory sends or gets at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamId {
    Compute(DeviceId),
    CopyIn(MemoryId, u16),
    CopyOut(MemoryId, u16),
}

/// What a stream did without a gap from the begin of the recording to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Track {
    pub stream: StreamId,
    pub pieces: Vec<Piece>,
}

impl Track {
    /// Nanoseconds in which it did something.
    pub fn busy(&self) -> Nanos {
        let busy = self.pieces.iter().filter(|piece| !matches!(piece.work, Work::Idle(_)));
        busy.map(|piece| piece.span.length()).sum()
    }

    /// Nanoseconds in which it did nothing, by cause.
    pub fn idle(&self, cause: Idle) -> Nanos {
        let idle = self.pieces.iter().filter(|piece| piece.work == Work::Idle(cause));
        idle.map(|piece| piece.span.length()).sum()
    }
}

/// What is recorded while a program runs.
#[derive(Debug, Clone)]
pub struct Timeline {
    began: Nanos,
    /// Of each device, in the order in which they ended.
    tasks: Vec<Vec<Piece>>,
    copies: Vec<Piece>,
    /// Of each device, since when it would do nothing for what cause.
    causes: Vec<Vec<(Nanos, Idle)>>,
    left_out: u64,
    /// Until when all is known.
    ends: Nanos,
}

impl Timeline {
    pub(crate) fn new(machine: &Machine, now: Nanos) -> Self {
        let devices = machine.devices().len();
        Self {
            began: now,
            tasks: vec![Vec::new(); devices],
            copies: Vec::new(),
            causes: vec![Vec::new(); devices],
            left_out: 0,
            ends: Nanos::MAX,
        }
    }

    fn has_room(&mut self, span: Interval) -> bool {
        let kept = self.tasks.iter().map(Vec::len).sum::<usize>() + self.copies.len();
        if kept < SPANS_MAX {
            return true;
        }
        self.left_out += 1;
        self.ends = self.ends.min(span.start);
        false
    }

    pub(crate) fn task(&mut self, device: DeviceId, span: Interval, work: Work) {
        if self.has_room(span) {
            self.tasks[device.row()].push(Piece { span, work });
        }
    }

    pub(crate) fn copy(&mut self, copy: &CopyOrder, span: Interval) {
        if self.has_room(span) {
            let CopyOrder { handle, bytes, from, to, .. } = *copy;
            self.copies.push(Piece { span, work: Work::Copy { handle, bytes, from, to } });
        }
    }

    /// What a device waits for from now on while it runs nothing.
    pub(crate) fn waits(&mut self, device: DeviceId, now: Nanos, cause: Idle) {
        let causes = &mut self.causes[device.row()];
        if causes.last().is_some_and(|(_, last)| *last == cause) {
            return;
        }
        match causes.len() < SPANS_MAX {
            true => causes.push((now, cause)),
            false => self.ends = self.ends.min(now),
        }
    }

    /// Tasks and copies that were too many to be kept.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Every stream from when recording began until then, or until something was left out: pieces
    /// follow each other without a gap.
    pub fn tracks(&self, until: Nanos) -> Vec<Track> {
        let whole = Interval { start: self.began, end: until.min(self.ends).max(self.began) };
        let devices = self.tasks.iter().zip(&self.causes).enumerate();
        let mut tracks: Vec<Track> = devices
            .map(|(row, (tasks, causes))| Track {
                stream: StreamId::Compute(DeviceId(row as u16)),
                pieces: filled(whole, tasks, causes),
            })
            .collect();
        let directions: [(End, Named); 2] = [(to, StreamId::CopyIn), (from, StreamId::CopyOut)];
        for (of, named) in directions {
            let mut memories: Vec<MemoryId> = self.copies.iter().filter_map(of).collect();
            memories.sort_unstable();
            memories.dedup();
            for memory in memories {
                let own = self.copies.iter().filter(|piece| of(piece) == Some(memory)).copied();
                let lanes = apart(own.collect());
                tracks.extend(lanes.into_iter().enumerate().map(|(lane, pieces)| Track {
                    stream: named(memory, lane as u16),
                    pieces: filled(whole, &pieces, &[]),
                }));
            }
        }
        tracks
    }

    /// The same as a trace that Perfetto and `chrome://tracing` open (Google's "Trace Event
    /// Format", complete events, times in microseconds).
    pub fn to_trace(&self, machine: &Machine, kernels: &[KernelInfo], until: Nanos) -> String {
        let mut trace = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n".to_owned();
        trace.push_str(
            "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"tid\":0,\
             \"args\":{\"name\":\"Heterosis\"}}",
        );
        for (row, track) in self.tracks(until).iter().enumerate() {
            let id = row + 1;
            let name = escaped(&name(machine, track.stream));
            // Writing to a string does not fail.
            let _ = write!(
                trace,
                ",\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":{id},\
                 \"args\":{{\"name\":\"{name}\"}}}}"
            );
            for Piece { span, work } in &track.pieces {
                let (start, length) = (micros(span.start), micros(span.length()));
                let (category, name, told) = event(machine, kernels, *work);
                let _ = write!(
                    trace,
                    ",\n{{\"name\":\"{}\",\"cat\":\"{category}\",\"ph\":\"X\",\"ts\":{start},\
                     \"dur\":{length},\"pid\":1,\"tid\":{id},\"args\":{{{told}}}}}",
                    escaped(&name)
                );
            }
        }
        let left_out = self.left_out;
        let _ = write!(trace, "\n],\"otherData\":{{\"left_out\":{left_out}}}}}\n");
        trace
    }
}

/// One end of a copy.
type End = fn(&Piece) -> Option<MemoryId>;

/// The track of a memory's copies by number.
type Named = fn(MemoryId, u16) -> StreamId;

fn from(piece: &Piece) -> Option<MemoryId> {
    match piece.work {
        Work::Copy { from, .. } => Some(from),
        _ => None,
    }
}

fn to(piece: &Piece) -> Option<MemoryId> {
    match piece.work {
        Work::Copy { to, .. } => Some(to),
        _ => None,
    }
}

/// Pieces that overlap in lanes of their own, each to the first that is free.
fn apart(mut pieces: Vec<Piece>) -> Vec<Vec<Piece>> {
    pieces.sort_by_key(|piece| (piece.span.start, piece.span.end));
    let mut lanes: Vec<Vec<Piece>> = Vec::new();
    for piece in pieces {
        let is_free = |lane: &&mut Vec<Piece>| {
            lane.last().is_none_or(|last| last.span.end <= piece.span.start)
        };
        match lanes.iter_mut().find(is_free) {
            Some(lane) => lane.push(piece),
            None => lanes.push(vec![piece]),
        }
    }
    lanes
}

/// The pieces and what is idle between them, from the begin of the whole to its end. What is
/// outside of it, or was reported within what is before it, is cut off.
fn filled(whole: Interval, busy: &[Piece], causes: &[(Nanos, Idle)]) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(2 * busy.len() + 1);
    let mut at = whole.start;
    for Piece { span, work } in busy {
        let start = span.start.clamp(at, whole.end);
        let end = span.end.clamp(start, whole.end);
        idle(Interval { start: at, end: start }, causes, &mut pieces);
        if end > start {
            pieces.push(Piece { span: Interval { start, end }, work: *work });
        }
        at = end;
    }
    idle(Interval { start: at, end: whole.end }, causes, &mut pieces);
    pieces
}

/// Splits what is idle by its causes.
fn idle(gap: Interval, causes: &[(Nanos, Idle)], pieces: &mut Vec<Piece>) {
    let next = causes.partition_point(|(since, _)| *since <= gap.start);
    let before = next.checked_sub(1).and_then(|row| causes.get(row));
    let mut cause = before.map_or(Idle::Nothing, |(_, cause)| *cause);
    let mut start = gap.start;
    let changes = causes[next..].iter().take_while(|(since, _)| *since < gap.end);
    for (end, then) in changes.copied().chain([(gap.end, Idle::Nothing)]) {
        if end > start {
            pieces.push(Piece { span: Interval { start, end }, work: Work::Idle(cause) });
        }
        (start, cause) = (end, then);
    }
}

fn name(machine: &Machine, stream: StreamId) -> String {
    let memory = |memory: MemoryId| &machine.memories()[memory.row()].name;
    let lane = |lane: u16| match lane {
        0 => String::new(),
        other => format!(" {}", other + 1),
    };
    match stream {
        StreamId::Compute(device) => format!("{}: compute", machine.devices()[device.row()].name),
        StreamId::CopyIn(into, row) => format!("{}: copy in{}", memory(into), lane(row)),
        StreamId::CopyOut(from, row) => format!("{}: copy out{}", memory(from), lane(row)),
    }
}

/// Category, name and arguments of an event.
fn event(machine: &Machine, kernels: &[KernelInfo], work: Work) -> (&'static str, String, String) {
    match work {
        Work::Task { kernel, sequence, has_failed } => {
            let name = kernels.get(kernel.row()).map_or("?", |kernel| &kernel.name);
            let told = format!("\"sequence\":{sequence},\"failed\":{has_failed}");
            ("task", name.to_owned(), told)
        }
        Work::Copy { handle, bytes, from, to } => {
            let name = |memory: MemoryId| &machine.memories()[memory.row()].name;
            let told = format!("\"handle\":{},\"bytes\":{bytes}", handle.row());
            ("copy", format!("{} to {}", name(from), name(to)), told)
        }
        Work::Idle(cause) => ("idle", cause.name().to_owned(), String::new()),
    }
}

fn micros(nanos: Nanos) -> String {
    format!("{}.{:03}", nanos / 1_000, nanos % 1_000)
}

/// As JSON has it within quotes.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '"' | '\\' => escaped.extend(['\\', letter]),
            control if control.is_control() => {
                let _ = write!(escaped, "\\u{:04x}", u32::from(control));
            }
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: Nanos, end: Nanos) -> Interval {
        Interval { start, end }
    }

    #[test]
    fn what_is_idle_is_split_by_its_causes() {
        let work = Work::Task { kernel: KernelId(0), sequence: 0, has_failed: false };
        let busy = [span(10, 20), span(50, 60)].map(|span| Piece { span, work });
        let causes =
            [(0, Idle::Transfer), (8, Idle::Handover), (20, Idle::Data), (30, Idle::Memory)];
        let found = filled(span(0, 70), &busy, &causes);
        let idle = |cause, start, end| Piece { span: span(start, end), work: Work::Idle(cause) };
        let expected = [
            idle(Idle::Transfer, 0, 8),
            idle(Idle::Handover, 8, 10),
            busy[0],
            idle(Idle::Data, 20, 30),
            idle(Idle::Memory, 30, 50),
            busy[1],
            idle(Idle::Memory, 60, 70),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_recorded_ends_where_something_is_left_out() {
        let device = |row| crate::Device {
            name: format!("device{row}"),
            class: "any".to_owned(),
            memory: MemoryId(0),
            wake: 0,
        };
        let capacity = het_core::Bytes(u64::MAX);
        let memories = vec![crate::Memory { name: "host".to_owned(), capacity }];
        let devices = vec![device(0), device(1)];
        let machine = Machine::new(devices, memories, 0, Vec::new()).expect("a machine");
        let mut timeline = Timeline::new(&machine, 0);
        let work = Work::Task { kernel: KernelId(0), sequence: 0, has_failed: false };
        let kept = SPANS_MAX as Nanos;
        for at in 0..kept {
            timeline.task(DeviceId(0), span(at, at + 1), work);
        }
        assert_eq!(timeline.tracks(kept + 9)[0].idle(Idle::Nothing), 9);
        timeline.task(DeviceId(0), span(kept, kept + 5), work);
        // It ended later and began before.
        timeline.task(DeviceId(1), span(kept - 3, kept + 9), work);
        assert_eq!(timeline.left_out(), 2);
        let tracks = timeline.tracks(kept + 9);
        assert_eq!((tracks[0].busy(), tracks[0].idle(Idle::Nothing)), (kept - 3, 0));
        assert_eq!(tracks[1].idle(Idle::Nothing), kept - 3, "it is not said to be idle since");
    }

    #[test]
    fn copies_at_the_same_time_have_lanes_of_their_own() {
        let copy = |start, end| Piece { span: span(start, end), work: Work::Idle(Idle::Data) };
        let lanes = apart(vec![copy(5, 9), copy(0, 5), copy(3, 4), copy(4, 6)]);
        assert_eq!(lanes, [vec![copy(0, 5), copy(5, 9)], vec![copy(3, 4), copy(4, 6)]]);
    }

    #[test]
    fn names_are_text_of_json() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\u000ad");
        assert_eq!(micros(1_234_567), "1234.567");
    }
}
