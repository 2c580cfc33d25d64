//! A job as it runs: what its programs write, above a status that is drawn anew.
//!
//! One thread has the terminal. It looks for output, takes reports and messages from whoever
//! watches the job, and shows all of it in order. It ends once all that was written is shown.

mod display;
mod job_logs;
mod lines;
mod log_reader;
mod output;
mod progress;
mod screen;
mod sgr;

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use het_wire::report::RunReport;
use owo_colors::OwoColorize;

use self::job_logs::{JobLogs, Rest};
use self::lines::Line;
use self::progress::{Lines, Rows};

pub use self::display::Display;
pub use self::job_logs::{Attempts, Begins, Followed, Selection, ends, numbered};
pub use self::lines::TerminalLines;
pub use self::output::{Item, Output};

/// How often output is looked for and the status is drawn.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How the progress of a job is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Only output and messages.
    Hidden,
    /// With what Ctrl-C does.
    Shown { hint: String },
}

/// The logs that are followed.
#[derive(Debug)]
pub struct Follow {
    pub selection: Selection,
    pub attempts: Attempts,
    pub begins: Begins,
}

/// What a live view is told.
#[derive(Debug)]
enum Update {
    Report(Box<RunReport>),
    Message(String),
    Hint(String),
    /// Nobody writes any more.
    End,
}

/// Tells a live view what happens.
#[derive(Debug, Clone)]
pub struct Teller(Sender<Update>);

impl Teller {
    pub fn report(&self, report: &RunReport) {
        self.send(Update::Report(Box::new(report.clone())));
    }

    /// A line of ours, among those of programs.
    pub fn message(&self, text: impl Into<String>) {
        self.send(Update::Message(text.into()));
    }

    /// What Ctrl-C does from now on.
    pub fn hint(&self, text: impl Into<String>) {
        self.send(Update::Hint(text.into()));
    }

    fn send(&self, update: Update) {
        // Once the view has ended, nobody looks.
        let _ = self.0.send(update);
    }
}

/// The live view of a job; it ends when it is dropped.
#[derive(Debug)]
pub struct LiveView {
    teller: Teller,
    thread: Option<JoinHandle<Copied>>,
}

/// How much of the output came where it was to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copied {
    /// Or as much as its reader wanted.
    All,
    Partly,
}

impl LiveView {
    pub fn start(progress: Progress, follow: Option<Follow>) -> Self {
        let (sender, updates) = channel();
        let thread = thread::spawn(move || View::new(progress, follow).run(&updates));
        Self { teller: Teller(sender), thread: Some(thread) }
    }

    pub fn teller(&self) -> Teller {
        self.teller.clone()
    }

    /// Shows all that was written, then clears the status.
    pub fn finish(mut self, report: &RunReport) -> Copied {
        self.teller.report(report);
        self.end()
    }

    fn end(&mut self) -> Copied {
        self.teller.send(Update::End);
        let ended = self.thread.take().map(JoinHandle::join);
        // A thread that panicked told of it itself.
        ended.map_or(Copied::All, |copied| copied.unwrap_or(Copied::Partly))
    }
}

impl Drop for LiveView {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the thread of a live view has.
struct View {
    display: Display,
    output: Output,
    logs: Option<JobLogs>,
    status: Status,
    items: Vec<Item>,
    /// Once there is a report.
    job: Option<u64>,
    follows: bool,
    copied: Copied,
}

enum Status {
    Hidden,
    Lines(Lines),
    Rows(Rows),
}

impl View {
    fn new(progress: Progress, follow: Option<Follow>) -> Self {
        let display = Display::new();
        let status = match progress {
            Progress::Hidden => Status::Hidden,
            Progress::Shown { hint } if display.has_status() => Status::Rows(Rows::new(hint)),
            Progress::Shown { .. } => Status::Lines(Lines::default()),
        };
        let logs = |follow: Follow| JobLogs::new(follow.selection, follow.attempts, follow.begins);
        Self {
            follows: follow.is_some(),
            copied: Copied::All,
            output: Output::new(display.target()),
            display,
            logs: follow.map(logs),
            status,
            items: Vec::new(),
            job: None,
        }
    }

    fn run(mut self, updates: &Receiver<Update>) -> Copied {
        while self.updated(updates, Instant::now() + LOOK_EVERY) {
            while self.copy() == Rest::More {
                self.show();
                if !self.updated(updates, Instant::now()) {
                    return self.finish();
                }
            }
            self.show();
        }
        self.finish()
    }

    /// Takes what comes until the deadline; whether the job may still write.
    fn updated(&mut self, updates: &Receiver<Update>, deadline: Instant) -> bool {
        loop {
            match updates.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Update::End) | Err(RecvTimeoutError::Disconnected) => return false,
                Ok(update) => self.update(update),
                Err(RecvTimeoutError::Timeout) => return true,
            }
        }
    }

    fn update(&mut self, update: Update) {
        match update {
            Update::Report(report) => self.report(report),
            Update::Message(text) => self.items.push(Item::Message(text)),
            Update::Hint(text) => {
                if let Status::Rows(rows) = &mut self.status {
                    rows.hint(text);
                }
            }
            Update::End => {}
        }
    }

    fn report(&mut self, report: Box<RunReport>) {
        let is_first = self.job.replace(report.id).is_none();
        if let Some(logs) = &mut self.logs {
            logs.update(&report);
            if is_first && !Path::new(&report.workdir).exists() {
                self.items.push(Item::Message(format!(
                    "the programs run on another machine: what they write is there, below `{}`",
                    report.workdir
                )));
            }
        }
        let now = Instant::now();
        match &mut self.status {
            Status::Hidden => {}
            Status::Lines(lines) => {
                self.items.extend(lines.of(now, &report).into_iter().map(Item::Message));
            }
            Status::Rows(rows) => {
                self.items.extend(rows.update(now, report).into_iter().map(Item::Message));
            }
        }
    }

    /// Takes a piece of each log.
    fn copy(&mut self) -> Rest {
        self.follow(JobLogs::read).unwrap_or(Rest::Nothing)
    }

    fn follow<T>(
        &mut self,
        read: impl FnOnce(&mut JobLogs, &mut dyn FnMut(Followed)) -> io::Result<T>,
    ) -> Option<T> {
        let Self { logs, output, items, .. } = self;
        let mut tell = |followed| output.take(followed, &mut |item| items.push(item));
        match read(logs.as_mut()?, &mut tell) {
            Ok(told) => Some(told),
            Err(error) => {
                self.give_up("the output cannot be read", &error);
                None
            }
        }
    }

    fn show(&mut self) {
        let rows = match &self.status {
            Status::Rows(rows) => rows.all(Instant::now()),
            _ => Vec::new(),
        };
        let rows: Vec<Line> = rows.iter().map(|row| Line::of(row)).collect();
        let items = std::mem::take(&mut self.items);
        if let Err(error) = self.display.show(items, self.output.open(), &rows) {
            self.give_up("standard output cannot be written", &error);
        }
    }

    /// Output is not shown any more; the job goes on.
    fn give_up(&mut self, what: &str, error: &io::Error) {
        let Some(job) = self.job.filter(|_| self.logs.take().is_some()) else { return };
        // Who closes a pipe has read enough.
        let mark = match error.kind() {
            io::ErrorKind::BrokenPipe => "warning:".yellow().to_string(),
            _ => {
                self.copied = Copied::Partly;
                "error:".red().bold().to_string()
            }
        };
        let hint = "hint:".cyan();
        let text = format!("{mark} {what}: {error}\n{hint} `het logs {job}` shows what it wrote");
        self.items.push(Item::Message(text));
    }

    fn finish(mut self) -> Copied {
        // The first look may have found new ranks, which are read from the second on.
        self.copy();
        while self.copy() == Rest::More {
            self.show();
        }
        self.follow(JobLogs::finish);
        if let Status::Rows(rows) = &self.status
            && !self.follows
        {
            self.items.extend(rows.last().into_iter().map(Item::Message));
        }
        self.status = Status::Hidden;
        self.show();
        // What could not be shown is told of.
        self.show();
        self.copied
    }
}
