//! What a program writes, as lines that a terminal would show: bytes in, lines out.
//!
//! Carriage returns, backspaces, tabs and moves within the last lines change lines that are still
//! open. Colours are kept. All else that a terminal would be told (clear, title, absolute position,
//! mode, question) is left out: the terminal belongs to whoever shows the lines.

use std::collections::VecDeque;
use std::mem;

use anstyle::Style;
use unicode_width::UnicodeWidthChar;
use vte::{Params, Parser, Perform};

use super::sgr::selected;

/// Lines above the last one that a program may go back to: bars of loops within loops.
const OPEN_ABOVE_MAX: usize = 15;

/// Longest line; what follows begins a new one.
const COLUMNS_MAX: usize = 1 << 16;

/// Longest sequence of marks on one character, in bytes.
const MARKS_BYTES_MAX: usize = 32;

const TAB_COLUMNS: usize = 8;

/// Ends whatever control sequence was begun (ECMA-48): a line is never part of one.
const CANCEL: u8 = 0x18;

/// Stands for bytes that are no text.
const REPLACEMENT: &str = "\u{fffd}";

/// The right half of a wide character.
const RIGHT_HALF: char = '\0';

/// A column of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cell {
    character: char,
    /// Accents and joiners, which take no column.
    marks: String,
    style: Style,
}

impl Cell {
    const BLANK: Self = Self { character: ' ', marks: String::new(), style: Style::new() };
}

/// One line, without its end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Line {
    cells: Vec<Cell>,
}

impl Line {
    /// The first line of a text.
    pub fn of(text: &str) -> Self {
        let mut lines = TerminalLines::default();
        let first = lines.feed(text.as_bytes()).into_iter().next();
        first.or_else(|| lines.finish().into_iter().next()).unwrap_or_default()
    }

    /// The same line after a text.
    pub fn after(&self, text: &str) -> Self {
        let Self { mut cells } = Self::of(text);
        cells.extend_from_slice(&self.cells);
        Self { cells }
    }

    pub fn columns(&self) -> usize {
        self.cells.len()
    }

    /// The text, without colours.
    pub fn plain(&self) -> String {
        self.cells.iter().filter(|cell| cell.character != RIGHT_HALF).fold(
            String::new(),
            |mut text, cell| {
                text.push(cell.character);
                text.push_str(&cell.marks);
                text
            },
        )
    }

    /// The text with its colours, which end with it.
    pub fn coloured(&self) -> String {
        let mut text = String::with_capacity(self.cells.len());
        let mut style = Style::new();
        for cell in self.cells.iter().filter(|cell| cell.character != RIGHT_HALF) {
            if cell.style != style {
                text.push_str(&format!("{style:#}{}", cell.style));
                style = cell.style;
            }
            text.push(cell.character);
            text.push_str(&cell.marks);
        }
        if style != Style::new() {
            text.push_str(&format!("{style:#}"));
        }
        text
    }

    /// The rows that it takes on a terminal of this width; one for an empty line.
    pub fn rows(&self, width: usize) -> Vec<Self> {
        let mut rest = self.cells.as_slice();
        let mut rows = Vec::new();
        while rest.len() > width {
            // A wide character is not cut in two, unless it is wider than the terminal.
            let splits = width > 1 && rest[width].character == RIGHT_HALF;
            let (row, next) = rest.split_at(width.max(1) - usize::from(splits));
            rows.push(Self { cells: row.to_vec() });
            rest = next;
        }
        rows.push(Self { cells: rest.to_vec() });
        rows
    }

    /// As much as fits into one row; `…` stands for the rest.
    pub fn clipped(&self, width: usize) -> Self {
        if self.columns() <= width {
            return self.clone();
        }
        let mut row = self.rows(width.saturating_sub(1)).swap_remove(0);
        row.cells.push(Cell { character: '…', ..Cell::BLANK });
        row
    }

    fn put(&mut self, column: usize, character: char, width: usize, style: Style) {
        if column == self.cells.len() && width == 1 {
            // Nearly all that is ever written.
            self.cells.push(Cell { character, marks: String::new(), style });
            return;
        }
        let end = column + width;
        if self.cells.len() < end {
            self.cells.resize(end, Cell::BLANK);
        }
        // What is left of a wide character that loses a half is a blank.
        if self.cells[column].character == RIGHT_HALF {
            self.cells[column - 1] = Cell::BLANK;
        }
        if let Some(next) = self.cells.get_mut(end)
            && next.character == RIGHT_HALF
        {
            *next = Cell::BLANK;
        }
        self.cells[column] = Cell { character, marks: String::new(), style };
        for cell in &mut self.cells[column + 1..end] {
            *cell = Cell { character: RIGHT_HALF, marks: String::new(), style };
        }
    }

    /// Adds a mark to what stands before a column.
    fn mark(&mut self, column: usize, mark: char) {
        if self.cells.len() < column {
            self.cells.resize(column, Cell::BLANK);
        }
        let before = self.cells[..column].iter_mut().rev();
        if let Some(cell) = before.into_iter().find(|cell| cell.character != RIGHT_HALF)
            && cell.marks.len() + mark.len_utf8() <= MARKS_BYTES_MAX
        {
            cell.marks.push(mark);
        }
    }

    fn blank(&mut self, from: usize, to: usize) {
        let end = to.min(self.cells.len());
        (from.min(end)..end).for_each(|column| self.put(column, ' ', 1, Style::new()));
    }

    fn truncate(&mut self, column: usize) {
        // The left half of a wide character that loses its right one.
        self.blank(column, column + 1);
        self.cells.truncate(column);
    }
}

/// The lines of one stream of bytes.
#[derive(Default)]
pub struct TerminalLines {
    /// The beginning of a character of which more has to come.
    partial: Vec<u8>,
    parser: Parser,
    page: Page,
}

impl TerminalLines {
    /// Takes more of the stream; returns the lines that nothing can change any more.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Line> {
        let mut stream = mem::take(&mut self.partial);
        stream.extend_from_slice(bytes);
        let mut chunks = stream.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.advance(chunk.valid());
            let invalid = chunk.invalid();
            let is_last = chunks.peek().is_none();
            match str::from_utf8(invalid) {
                Err(error) if is_last && error.error_len().is_none() => {
                    self.partial = invalid.to_vec();
                }
                Err(_) => self.advance(REPLACEMENT),
                Ok(_) => {}
            }
        }
        mem::take(&mut self.page.complete)
    }

    fn advance(&mut self, text: &str) {
        for piece in text.split_inclusive('\n') {
            let line = piece.strip_suffix('\n');
            self.parser.advance(&mut self.page, line.unwrap_or(piece).as_bytes());
            if line.is_some() {
                self.parser.advance(&mut self.page, &[CANCEL, b'\n']);
            }
        }
    }

    /// The lines that may still change, the last one without its end.
    pub fn open(&self) -> impl DoubleEndedIterator<Item = &Line> + ExactSizeIterator {
        self.page.open.iter()
    }

    /// Where the next character goes: how many open lines above, and the column.
    pub fn cursor(&self) -> (usize, usize) {
        (self.page.row, self.page.column)
    }

    /// The stream is over: what was open stays as it is. The next feed begins anew.
    pub fn finish(&mut self) -> Vec<Line> {
        if !self.partial.is_empty() {
            self.advance(REPLACEMENT);
        }
        let Page { mut complete, mut open, row, .. } = mem::take(self).page;
        // The end of a line begins no other one.
        while open.len() > row && open.back().is_some_and(|line| line.columns() == 0) {
            open.pop_back();
        }
        complete.extend(open);
        complete
    }
}

/// The lines that are open, and where on them the program writes.
struct Page {
    complete: Vec<Line>,
    /// Never empty.
    open: VecDeque<Line>,
    row: usize,
    column: usize,
    style: Style,
    /// How far above the last line the program went back so far.
    above: usize,
}

impl Default for Page {
    fn default() -> Self {
        let open = VecDeque::from([Line::default()]);
        Self { complete: Vec::new(), open, row: 0, column: 0, style: Style::new(), above: 0 }
    }
}

impl Page {
    fn line(&mut self) -> &mut Line {
        &mut self.open[self.row]
    }

    fn new_line(&mut self) {
        self.column = 0;
        self.row += 1;
        if self.row == self.open.len() {
            self.open.push_back(Line::default());
        }
        while self.open.len() > self.above + 1 {
            self.complete.extend(self.open.pop_front());
            self.row -= 1;
        }
    }

    /// What was above is complete: there is a new line in its place.
    fn up(&mut self, count: usize) {
        let room = OPEN_ABOVE_MAX + 1 - self.open.len();
        let missing = count.saturating_sub(self.row).min(room);
        (0..missing).for_each(|_| self.open.push_front(Line::default()));
        self.row = (self.row + missing).saturating_sub(count);
        self.above = self.above.max(self.open.len() - 1 - self.row);
    }

    fn down(&mut self, count: usize) {
        self.row = self.row.saturating_add(count).min(self.open.len() - 1);
    }

    fn move_to(&mut self, column: usize) {
        self.column = column.min(COLUMNS_MAX - 1);
    }

    /// Erases in the line of the cursor.
    fn erase_in_line(&mut self, part: u16) {
        let column = self.column;
        match part {
            0 => self.line().truncate(column),
            1 => self.line().blank(0, column + 1),
            2 => self.line().truncate(0),
            _ => {}
        }
    }

    /// Erases from the cursor on.
    fn erase_below(&mut self) {
        self.erase_in_line(0);
        let below = self.row + 1;
        self.open.iter_mut().skip(below).for_each(|line| line.truncate(0));
    }
}

impl Perform for Page {
    fn print(&mut self, character: char) {
        let (column, style) = (self.column, self.style);
        match character.width().unwrap_or(0) {
            0 => self.line().mark(column, character),
            width => {
                if column + width > COLUMNS_MAX {
                    self.new_line();
                }
                let column = self.column;
                self.line().put(column, character, width, style);
                self.column = column + width;
            }
        }
    }

    fn execute(&mut self, byte: u8) {
        match byte {
            b'\n' | 0x0b | 0x0c => self.new_line(),
            b'\r' => self.column = 0,
            0x08 => self.column = self.column.saturating_sub(1),
            b'\t' => self.move_to((self.column / TAB_COLUMNS + 1) * TAB_COLUMNS),
            _ => {}
        }
    }

    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], ignore: bool, action: char) {
        if ignore || !intermediates.is_empty() {
            return;
        }
        let first = params.iter().next().and_then(|parameter| parameter.first()).copied();
        let first = first.unwrap_or(0);
        let count = usize::from(first.max(1));
        match action {
            'm' => self.style = selected(self.style, params.iter()),
            'K' => self.erase_in_line(first),
            'J' if first == 0 => self.erase_below(),
            'A' => self.up(count),
            'B' => self.down(count),
            'C' => self.move_to(self.column + count),
            'D' => self.move_to(self.column.saturating_sub(count)),
            'E' => {
                self.down(count);
                self.column = 0;
            }
            'F' => {
                self.up(count);
                self.column = 0;
            }
            'G' => self.move_to(count - 1),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use proptest::prelude::*;

    use super::*;

    /// All lines of a stream, as text.
    fn check(stream: &str, expected: &[&str]) {
        let lines = all(stream.as_bytes());
        assert_eq!(lines.iter().map(Line::plain).collect::<Vec<_>>(), expected);
    }

    fn all(stream: &[u8]) -> Vec<Line> {
        let mut lines = TerminalLines::default();
        let complete = lines.feed(stream);
        [complete, lines.finish()].concat()
    }

    #[test]
    fn the_last_state_of_a_line_is_what_counts() {
        check("one\n\ntwo", &["one", "", "two"]);
        check(" 10 %\r 20 %\r100 %\ndone\n", &["100 %", "done"]);
        check("loss 0.75\rloss\x1b[K\n", &["loss"]);
        check("abc\x08\x08X\n", &["aXc"]);
        check("a\tb\n", &["a       b"]);
    }

    #[test]
    fn what_a_terminal_would_be_told_is_left_out() {
        check("a\x1b]0;title\x07b\x1b[2J\x1b[H\x1b[6n\x1b[?1049h\x07c\n", &["abc"]);
        check("no end \x1b]of a title\nnext\n", &["no end ", "next"]);
        check("half a colour \x1b[3\nnext\n", &["half a colour ", "next"]);
    }

    #[test]
    fn bars_of_loops_within_loops_stay_where_they_are() {
        // What tqdm writes: the first time, nobody knows yet that it will come back.
        let step =
            |epoch, batch| format!("\r{epoch}: epochs\x1b[K\n\r{batch}: batches\x1b[K\x1b[A");
        let steps: String = (0..50).map(|batch| step(batch / 10, batch)).collect();
        check(&format!("{steps}\n\ndone\n"), &["0: epochs", "4: epochs", "49: batches", "done"]);
    }

    #[test]
    fn colours_end_with_their_line() {
        let lines = all(b"\x1b[31mred\nstill\x1b[0m plain\n");
        let text: Vec<String> = lines.iter().map(Line::coloured).collect();
        assert_eq!(text, ["\x1b[31mred\x1b[0m", "\x1b[31mstill\x1b[0m plain"]);
    }

    #[test]
    fn a_line_takes_as_many_rows_as_it_needs() {
        let rows = |text: &str, width| {
            let rows = Line::of(text).rows(width);
            rows.iter().map(Line::plain).collect::<Vec<_>>()
        };
        assert_eq!(rows("", 4), [""]);
        assert_eq!(rows("abcd", 4), ["abcd"]);
        assert_eq!(rows("abcde", 4), ["abcd", "e"]);
        assert_eq!(rows("训练损失", 5), ["训练", "损失"]);
        assert_eq!(Line::of("训练损失").clipped(5).plain(), "训练…");
    }

    #[test]
    fn a_line_without_end_is_not_kept_for_ever() {
        let lines = all(&vec![b'x'; COLUMNS_MAX * 2 + 1]);
        assert_eq!(
            lines.iter().map(Line::columns).collect::<Vec<_>>(),
            [COLUMNS_MAX, COLUMNS_MAX, 1]
        );
    }

    /// Parts of a stream that mean the same to a terminal.
    fn plain_part() -> impl Strategy<Value = Vec<u8>> {
        let sequences = [
            "\n",
            "\r",
            "\r\n",
            "\t",
            "\x08",
            "\x1b[K",
            "\x1b[1K",
            "\x1b[2K",
            "\x1b[31m",
            "\x1b[1;38;5;9m",
            "\x1b[0m",
            "\x1b[3D",
            "\x1b[2C",
            "\x1b]0;title\x07",
            "\x1b[?25l",
        ];
        prop_oneof![
            "[a-z ]{1,12}".prop_map(String::into_bytes),
            "[训练é🙂a\u{301}]{1,6}".prop_map(String::into_bytes),
            prop::sample::select(sequences.to_vec()).prop_map(|text| text.as_bytes().to_vec()),
        ]
    }

    /// Anything that a program may write.
    fn part() -> impl Strategy<Value = Vec<u8>> {
        let sequences = ["\x1b[A", "\x1b[2J", "\x1b[J", "\x1b[9F", "\x1b]", "\x1bP", "\x1b[999B"];
        prop_oneof![
            plain_part(),
            prop::collection::vec(any::<u8>(), 1..6),
            prop::sample::select(sequences.to_vec()).prop_map(|text| text.as_bytes().to_vec()),
        ]
    }

    proptest! {
        #[test]
        fn how_a_stream_is_split_makes_no_difference(
            parts in prop::collection::vec(part(), 0..60),
            sizes in prop::collection::vec(1_usize..7, 1..50),
        ) {
            let stream = parts.concat();
            let mut lines = TerminalLines::default();
            let mut found = Vec::new();
            let mut rest = stream.as_slice();
            for size in sizes.iter().cycle() {
                let (piece, next) = rest.split_at((*size).min(rest.len()));
                found.extend(lines.feed(piece));
                rest = next;
                if rest.is_empty() {
                    break;
                }
            }
            found.extend(lines.finish());
            prop_assert_eq!(found, all(&stream));
        }

        #[test]
        fn lines_are_those_of_a_terminal(parts in prop::collection::vec(plain_part(), 0..60)) {
            let stream = String::from_utf8(parts.concat()).expect("the parts are text");
            let terminal = |text: &str| {
                let size = |count| NonZero::new(count).expect("it is not 0");
                let mut terminal = vt100::Parser::new(size(70), size(1_000), 0);
                terminal.process(text.as_bytes());
                terminal
            };
            let shown = terminal(&stream.replace('\n', "\r\n"));
            let lines = all(stream.as_bytes());
            let text: String = lines.iter().map(|line| line.coloured() + "\r\n").collect();
            let again = terminal(&text);
            let rows = |of: &vt100::Parser| {
                of.screen().rows(0, 1_000).map(|row| row.trim_end().to_owned()).collect::<Vec<_>>()
            };
            prop_assert_eq!(rows(&again), rows(&shown));
            for (row, column) in (0..70).flat_map(|row| (0..200).map(move |column| (row, column))) {
                let cell = |of: &vt100::Parser| {
                    let cell = of.screen().cell(row, column).expect("it is on the screen");
                    // Of a blank, a terminal keeps another style than that of its text.
                    let is_blank = cell.contents().is_empty() || cell.contents().starts_with(' ');
                    (!is_blank).then(|| (cell.fgcolor(), cell.bgcolor(), cell.bold()))
                };
                prop_assert_eq!(cell(&again), cell(&shown));
            }
        }
    }
}
