//! Exceptions that Python printed into a log.

use super::{Line, OF_LAUNCHERS};

/// How Python begins a stack.
const STACK: &str = "Traceback (most recent call last):";
/// The same for several exceptions at once, drawn in a box.
const GROUP: &str = "Exception Group Traceback (most recent call last):";
/// What Python says before a stack of an exception that changes nothing.
const IGNORED: &str = "Exception ignored in";

/// An exception with a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Exception {
    pub(super) worker: Option<u32>,
    /// `TYPE: MESSAGE`.
    pub(super) text: String,
    /// Of the line that follows it.
    pub(super) end: usize,
    is_ignored: bool,
}

impl Exception {
    /// It ended its program, as far as the log tells, and says itself what was wrong.
    pub(super) fn is_own(&self) -> bool {
        let (class, message) = self.text.split_once(':').unwrap_or((&self.text, ""));
        let name = class.rsplit('.').next().unwrap_or(class);
        // Those of several processes quote the exception of the one that failed, which follows.
        let quotes = name == "ProcessRaisedException" && message.trim().is_empty();
        !self.is_ignored && !quotes && !OF_LAUNCHERS.contains(&name)
    }
}

/// The exceptions in a log, in its order.
pub(super) fn exceptions(lines: &[Line]) -> Vec<Exception> {
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let text = line.text.trim_start();
        let is_group = text.trim_start_matches(['|', '+', ' ']) == GROUP;
        if text != STACK && !is_group {
            continue;
        }
        let before = at.checked_sub(1).map_or("", |before| lines[before].text.as_str());
        let is_ignored = before.contains(IGNORED);
        let read = if is_group { group(lines, at) } else { stacked(lines, at) };
        let exception = |(text, end)| Exception { worker: line.worker, text, end, is_ignored };
        found.extend(read.map(exception));
    }
    found
}

/// The exception under the stack that begins at a line: the next line of the same worker that is
/// indented no further. Workers write between each other's lines.
fn stacked(lines: &[Line], at: usize) -> Option<(String, usize)> {
    let (worker, indent) = (lines[at].worker, indent(&lines[at].text));
    let mut own = (at + 1..lines.len()).filter(|&other| lines[other].worker == worker);
    let is_exception = |other: &usize| {
        let text = &lines[*other].text;
        !text.trim().is_empty() && self::indent(text) <= indent
    };
    let end = own.find(is_exception)?;
    let mut text = lines[end].text.trim().to_owned();
    // The message goes on in the next line.
    if text.ends_with(':')
        && let Some(next) = own.next().map(|next| lines[next].text.trim())
        && !next.is_empty()
        && !next.starts_with(['=', '-'])
    {
        text.push(' ');
        text.push_str(next);
    }
    Some((text, end + 1))
}

/// The exception that holds several, with the first of them.
fn group(lines: &[Line], at: usize) -> Option<(String, usize)> {
    let in_box = |line: &Line| line.text.trim_start().strip_prefix("| ").map(str::to_owned);
    let boxed = lines[at + 1..].iter().map_while(in_box);
    let own: Vec<String> = boxed.collect();
    let text = own.iter().rfind(|text| !text.starts_with(' ')).cloned()?;
    let inner = lines[at + 1 + own.len()..].iter();
    let in_inner = inner.filter_map(in_box).find(|text| !text.starts_with(' ') && text != STACK);
    let text = match in_inner {
        Some(first) => format!("{text}: {first}"),
        None => text,
    };
    let is_boxed = |line: &Line| line.text.trim_start().starts_with(['|', '+']);
    let length = lines[at + 1..].iter().take_while(|line| is_boxed(line)).count();
    Some((text, at + 1 + length))
}

fn indent(text: &str) -> usize {
    text.len() - text.trim_start().len()
}
