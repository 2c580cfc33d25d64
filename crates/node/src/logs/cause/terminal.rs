//! The lines of a log as a terminal shows them.

use super::Line;

/// How a line begins that a launcher marked with the worker that wrote it: PyTorch's own handler of
/// exceptions, and `torchrun --tee`.
const MARKS: [&str; 2] = ["[rank", "[default"];

/// The lines without control sequences, without text that a carriage return has overwritten, and
/// without marks of workers.
pub(super) fn shown_lines(log: &str) -> Vec<Line> {
    log.lines().map(|line| unmarked(&shown(line))).collect()
}

/// What remains of a line: what follows the last carriage return that something follows.
fn shown(line: &str) -> String {
    let parts = line.rsplit('\r').map(without_sequences);
    parts.into_iter().find(|part| !part.trim().is_empty()).unwrap_or_default()
}

/// Without control characters and the sequences of ECMA-48 that begin with an escape.
fn without_sequences(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\u{1b}' => skip_sequence(&mut characters),
            '\t' => shown.push(character),
            character if character.is_control() => {}
            character => shown.push(character),
        }
    }
    shown
}

/// Skips what an escape begins.
fn skip_sequence(characters: &mut std::str::Chars<'_>) {
    const BELL: char = '\u{7}';
    match characters.next() {
        // A control sequence ends with a letter or a sign from `@` to `~`.
        Some('[') => drop(characters.find(|c| ('@'..='~').contains(c))),
        // A command for the system, such as a title or a link, ends with a bell or an `ESC \`.
        Some(']') => {
            let end = characters.find(|&c| c == BELL || c == '\u{1b}');
            if end != Some(BELL) {
                characters.next();
            }
        }
        _ => {}
    }
}

/// `[rank1]: TEXT` is of worker 1.
fn unmarked(line: &str) -> Line {
    let mut worker = None;
    let mut text = line;
    while let Some((number, rest)) = mark(text) {
        worker = Some(number);
        text = rest;
    }
    Line { worker, text: text.to_owned() }
}

fn mark(text: &str) -> Option<(u32, &str)> {
    let rest = MARKS.iter().find_map(|mark| text.strip_prefix(mark))?;
    let (number, rest) = rest.split_once("]:")?;
    Some((number.parse().ok()?, rest.strip_prefix(' ').unwrap_or(rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_what_a_terminal_shows_of_it() {
        let check = |line: &str, worker: Option<u32>, text: &str| {
            assert_eq!(unmarked(&shown(line)), Line { worker, text: text.to_owned() }, "{line:?}");
        };
        check("plain", None, "plain");
        check("1%\r 50%\r100%", None, "100%");
        check("done\r", None, "done");
        check("\u{1b}[31mred\u{1b}[0m", None, "red");
        check("\u{1b}]0;title\u{7}a\u{1b}]8;;x\u{1b}\\link", None, "alink");
        check("cut \u{1b}[3", None, "cut ");
        check("[rank1]:   File", Some(1), "  File");
        check("[default0]:[rank3]: x", Some(3), "x");
        check("[rank1] x", None, "[rank1] x");
        check("[rankone]: x", None, "[rankone]: x");
    }
}
