//! What programs wrote, as it is shown: on a terminal line by line, elsewhere byte by byte.

use std::collections::BTreeMap;
use std::mem;

use super::job_logs::{Followed, Source};
use super::lines::{Line, TerminalLines};

/// Longest line of one source among several; what follows begins a new one.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Where output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Terminal(Colour),
    /// A file or a pipe, which gets what programs wrote as they wrote it.
    Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    Kept,
    Removed,
}

impl Colour {
    /// A line as text.
    pub fn text(self, line: &Line) -> String {
        match self {
            Self::Kept => line.coloured(),
            Self::Removed => line.plain(),
        }
    }
}

/// Something to be shown, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Of programs.
    Output(Vec<u8>),
    /// Of ours, a line without its end.
    Message(String),
}

/// The output of all that a job runs.
pub struct Output {
    target: Target,
    streams: BTreeMap<Source, Stream>,
}

/// What one source has written of lines that are not complete.
#[derive(Default)]
struct Stream {
    title: String,
    lines: TerminalLines,
    partial: Vec<u8>,
}

/// Lines that may still change, and what stands before each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenLines {
    pub lines: Vec<Line>,
    /// Where the next character goes: line and column.
    pub cursor: (usize, usize),
}

impl Output {
    pub fn new(target: Target) -> Self {
        Self { target, streams: BTreeMap::new() }
    }

    /// Turns what happened into what is shown of it.
    pub fn take(&mut self, followed: Followed, show: &mut impl FnMut(Item)) {
        match followed {
            Followed::Written { source, title, bytes } => match (self.target, title) {
                (Target::Bytes, None) => show(Item::Output(bytes)),
                (target, title) => {
                    let stream = self.streams.entry(source).or_default();
                    stream.title = title.map(|title| format!("[{title}] ")).unwrap_or_default();
                    let text = match target {
                        Target::Terminal(colour) => stream.terminal_lines(&bytes, colour),
                        Target::Bytes => stream.whole_lines(&bytes),
                    };
                    show(Item::Output(text));
                }
            },
            Followed::Ended { source } => {
                if let Some(stream) = self.streams.remove(&source) {
                    show(Item::Output(stream.end(self.target)));
                }
            }
            Followed::Cut { source: (stage, rank) } => show(Item::Message(format!(
                "… the log of `{stage}`, rank {rank}, grew too fast: its oldest lines were cut off \
                 before they could be shown"
            ))),
            Followed::Unreadable { what, why } => {
                show(Item::Message(format!("what {what} writes cannot be read: {why}")));
            }
            Followed::Restarted { stage, attempt } => {
                show(Item::Message(format!("stage `{stage}` starts again · attempt {attempt}")));
            }
        }
    }

    /// What is not complete, by source.
    pub fn open(&self) -> impl Iterator<Item = OpenLines> {
        self.streams.values().filter_map(Stream::open)
    }
}

impl Stream {
    fn terminal_lines(&mut self, bytes: &[u8], colour: Colour) -> Vec<u8> {
        titled(&self.title, &self.lines.feed(bytes), colour)
    }

    fn whole_lines(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.partial.len() > LINE_BYTES_MAX {
                text.extend(self.whole_line());
            }
        }
        text
    }

    /// The partial line with its title and an end.
    fn whole_line(&mut self) -> Vec<u8> {
        let mut line = mem::take(&mut self.partial);
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        [self.title.as_bytes(), &line].concat()
    }

    fn end(mut self, target: Target) -> Vec<u8> {
        match target {
            Target::Terminal(colour) => titled(&self.title, &self.lines.finish(), colour),
            Target::Bytes if self.partial.is_empty() => Vec::new(),
            Target::Bytes => self.whole_line(),
        }
    }

    fn open(&self) -> Option<OpenLines> {
        let count = self.lines.open().rposition(|line| line.columns() > 0)? + 1;
        let (row, column) = self.lines.cursor();
        let lines = self.lines.open().take(count).map(|line| line.after(&self.title));
        let columns = Line::of(&self.title).columns();
        Some(OpenLines { lines: lines.collect(), cursor: (row, columns + column) })
    }
}

fn titled(title: &str, lines: &[Line], colour: Colour) -> Vec<u8> {
    let text = lines.iter().map(|line| format!("{title}{}\n", colour.text(line)));
    text.collect::<String>().into_bytes()
}
