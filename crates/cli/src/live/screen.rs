//! A terminal whose last rows are drawn anew while lines scroll above them.

use std::io::{self, Write};

use super::lines::Line;
use super::output::{Colour, OpenLines};

/// Erases from the cursor to the end of the screen.
const ERASE_BELOW: &str = "\r\x1b[J";

/// Rows that are too long for a terminal that became narrower take one row all the same.
const WRAP_OFF: &str = "\x1b[?7l";
const WRAP_ON: &str = "\x1b[?7h";

/// The rows below all lines, and the column of the cursor in the first of them.
///
/// The cursor stands in the first row: whatever a terminal does to its rows when its size changes,
/// it takes the cursor along, and what is erased from there on is never a line of a program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Area {
    pub rows: Vec<Line>,
    pub column: usize,
}

impl Area {
    /// As many rows as fit: of lines that are open the last ones, of the status the first ones.
    pub fn fit(
        open: impl Iterator<Item = OpenLines>,
        status: &[Line],
        (columns, rows): (usize, usize),
    ) -> Self {
        let most = (rows / 2).max(1);
        let mut shown = Vec::new();
        for OpenLines { lines, cursor: (row, column) } in open {
            for (index, line) in lines.iter().enumerate() {
                let column = if index == row { column.min(columns - 1) } else { 0 };
                shown.extend(line.rows(columns).into_iter().map(|row| (row, column)));
            }
        }
        shown.drain(..shown.len().saturating_sub(most));
        // Where a program writes on a single line, what is typed for it follows that.
        let column = match shown.as_slice() {
            [(_, column)] => *column,
            _ => 0,
        };
        let room = rows.saturating_sub(shown.len() + 1).clamp(1, most);
        let count = if status.len() > room { room - 1 } else { status.len() };
        let (status, hidden) = status.split_at(count);
        let more = Line::of(&format!("  … and {} more", hidden.len()));
        let more = (!hidden.is_empty()).then_some(&more);
        let status = status.iter().chain(more).map(|line| line.clipped(columns));
        Self { rows: shown.into_iter().map(|(row, _)| row).chain(status).collect(), column }
    }

    fn text(&self, colour: Colour) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let rows: Vec<String> = self.rows.iter().map(|row| colour.text(row)).collect();
        let up = match self.rows.len() - 1 {
            0 => String::new(),
            count => format!("\x1b[{count}A"),
        };
        let right = match self.column {
            0 => String::new(),
            count => format!("\x1b[{count}C"),
        };
        format!("{WRAP_OFF}{}{up}\r{right}{WRAP_ON}", rows.join("\r\n"))
    }
}

/// A terminal, and what stands in its last rows.
pub struct Screen<W> {
    to: W,
    colour: Colour,
    drawn: String,
}

impl<W: Write> Screen<W> {
    pub fn new(to: W, colour: Colour) -> Self {
        Self { to, colour, drawn: String::new() }
    }

    /// Lets whole lines scroll above the area.
    ///
    /// # Errors
    /// When the terminal cannot be written to.
    pub fn show(&mut self, lines: &[u8], area: &Area) -> io::Result<()> {
        let area = area.text(self.colour);
        if lines.is_empty() && area == self.drawn {
            return Ok(());
        }
        let erase = if self.drawn.is_empty() { "" } else { ERASE_BELOW };
        // In one piece: nothing in between is ever seen.
        let text = [erase.as_bytes(), lines, area.as_bytes()].concat();
        self.drawn = area;
        self.to.write_all(&text)?;
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use proptest::prelude::*;

    use super::*;
    use crate::live::lines::TerminalLines;

    /// All rows of a terminal, those that scrolled away first, with rows of one line put together.
    fn lines(terminal: &mut vt100::Parser) -> Vec<String> {
        let (rows, columns) = terminal.screen().size();
        terminal.screen_mut().set_scrollback(usize::MAX);
        let mut above = terminal.screen().scrollback();
        let mut text = vec![String::new()];
        loop {
            terminal.screen_mut().set_scrollback(above);
            let count = if above > 0 { 1 } else { rows.get() };
            for (index, row) in
                terminal.screen().rows(0, columns.get()).take(count.into()).enumerate()
            {
                text.last_mut().expect("it has one").push_str(&row);
                if !terminal.screen().row_wrapped(index as u16) {
                    text.push(String::new());
                }
            }
            if above == 0 {
                break;
            }
            above -= 1;
        }
        while text.last().is_some_and(String::is_empty) {
            text.pop();
        }
        text
    }

    proptest! {
        /// Whatever the area looks like from one time to the next, every line is there once.
        #[test]
        fn an_area_never_costs_a_line(
            parts in prop::collection::vec(("[a-z ]{0,90}[a-z]\n?", 0_usize..4), 1..60),
            columns in 20_u16..70,
        ) {
            let size = |count| NonZero::new(count).expect("it is not 0");
            let mut terminal = vt100::Parser::new(size(12), size(columns), 1_000);
            let mut written = Vec::new();
            let mut screen = Screen::new(&mut written, Colour::Kept);
            let mut stream = TerminalLines::default();
            let mut show = |lines: &[Line], area: &Area| {
                let text: String = lines.iter().map(|line| line.plain() + "\n").collect();
                screen.show(text.as_bytes(), area).expect("memory can be written");
            };
            for (text, rows) in &parts {
                let whole = stream.feed(text.as_bytes());
                let open = stream.open().cloned().collect();
                let open = OpenLines { lines: open, cursor: stream.cursor() };
                let status = (0..*rows).map(|row| Line::of(&format!("status {row}")));
                let status: Vec<Line> = status.collect();
                show(&whole, &Area::fit([open].into_iter(), &status, (columns.into(), 12)));
            }
            show(&stream.finish(), &Area::default());
            let text: String = parts.iter().map(|(text, _)| text.as_str()).collect();
            let written = String::from_utf8(written).expect("it is text");
            terminal.process(written.replace('\n', "\r\n").as_bytes());
            let expected: Vec<&str> = text.lines().map(str::trim_end).collect();
            prop_assert_eq!(lines(&mut terminal), expected);
        }
    }
}
