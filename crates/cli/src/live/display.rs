//! Standard output and standard error together: which of them are terminals, and what goes where.

use std::env;
use std::io::{self, IsTerminal, Write, stderr, stdout};
use std::os::fd::AsFd;

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice, eprintln};
use nix::sys::stat::{SFlag, fstat};
use terminal_size::{Height, Width, terminal_size_of};

use super::lines::Line;
use super::output::{Colour, Item, OpenLines, Target};
use super::screen::{Area, Screen};

/// Columns and rows of a terminal that does not tell.
const SIZE_UNKNOWN: (usize, usize) = (80, 24);

/// Where things are shown.
pub struct Display {
    screen: Option<Screen<Box<dyn Write + Send>>>,
    /// What the screen is, and so whose size counts.
    output: Stream,
    messages: Stream,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Screen,
    Own,
}

impl Display {
    /// Of this process.
    pub fn new() -> Self {
        let place = |is_screen| if is_screen { Stream::Screen } else { Stream::Own };
        let (output, messages) = (is_screen(&stdout()), is_screen(&stderr()));
        let screen: Option<Box<dyn Write + Send>> = match (output, messages) {
            // Both: in one stream nothing gets out of order.
            (true, _) => Some(Box::new(stdout())),
            // Whoever reads the pipe may write to the same terminal.
            (false, true) if is_pipe(&stdout()) => None,
            (false, true) => Some(Box::new(stderr())),
            (false, false) => None,
        };
        let messages = messages && screen.is_some();
        let colour = if output { colour(&stdout()) } else { colour(&stderr()) };
        Self {
            screen: screen.map(|to| Screen::new(to, colour)),
            output: place(output),
            messages: place(messages),
        }
    }

    /// What output is turned into.
    pub fn target(&self) -> Target {
        match self.output {
            Stream::Screen => Target::Terminal(colour(&stdout())),
            Stream::Own => Target::Bytes,
        }
    }

    /// Whether progress can be drawn.
    pub fn has_status(&self) -> bool {
        self.messages == Stream::Screen
    }

    /// Shows what is new above the open lines and the rows of a status.
    ///
    /// # Errors
    /// When something cannot be written.
    pub fn show(
        &mut self,
        items: Vec<Item>,
        open: impl Iterator<Item = OpenLines>,
        status: &[Line],
    ) -> io::Result<()> {
        let mut above = Vec::new();
        let mut written = Ok(());
        for item in items {
            match (item, self.output, self.messages) {
                (Item::Output(text), Stream::Screen, _) => above.extend(text),
                (Item::Output(text), Stream::Own, _) => {
                    written = written.and_then(|()| write_output(&text));
                }
                (Item::Message(text), _, Stream::Screen) => above.extend(message(&text)),
                (Item::Message(text), _, Stream::Own) => eprintln!("{text}"),
            }
        }
        let size = self.size();
        if let Some(screen) = &mut self.screen {
            screen.show(&above, &Area::fit(open, status, size))?;
        }
        written
    }

    /// Columns and rows.
    fn size(&self) -> (usize, usize) {
        let size = match self.output {
            Stream::Screen => terminal_size_of(stdout().as_fd()),
            Stream::Own => terminal_size_of(stderr().as_fd()),
        };
        size.map_or(SIZE_UNKNOWN, |(Width(columns), Height(rows))| (columns.into(), rows.into()))
    }
}

/// Whether rows can be drawn again.
fn is_screen(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

fn is_pipe(stream: &impl AsFd) -> bool {
    let kind = fstat(stream).map(|found| SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT);
    kind.is_ok_and(|kind| kind == SFlag::S_IFIFO)
}

fn colour(stream: &impl anstream::stream::RawStream) -> Colour {
    match AutoStream::choice(stream) {
        ColorChoice::Never => Colour::Removed,
        _ => Colour::Kept,
    }
}

fn message(text: &str) -> Vec<u8> {
    match colour(&stderr()) {
        Colour::Kept => format!("{text}\n").into_bytes(),
        Colour::Removed => format!("{}\n", strip_str(text)).into_bytes(),
    }
}

fn write_output(bytes: &[u8]) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}
