//! What a user sees of a run in a terminal, and what a file gets of it.

use std::fs::File;
use std::io::Read;
use std::num::NonZero;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, spawn};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::commands::wait_for;
use crate::support::{Sandbox, Served};

const ROWS: u16 = 24;

/// A pseudo-terminal, and what came to it.
struct Terminal {
    columns: u16,
    written: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

/// Which streams of a command are the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Streams {
    Both,
    Output,
    Messages,
}

impl Terminal {
    /// Starts a command in a new terminal.
    fn start(command: &mut Command, columns: u16, streams: Streams) -> (Self, Child) {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let master = openpt(flags).expect("a pseudo-terminal can be had");
        grantpt(&master).expect("it is ours");
        unlockpt(&master).expect("it is ours");
        let size = Winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).expect("it has a size");
        let slave = || Stdio::from(ioctl_tiocgptpeer(&master, flags).expect("it has a slave"));
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        match streams {
            Streams::Both => command.stdout(slave()).stderr(slave()),
            Streams::Output => command.stdout(slave()).stderr(Stdio::piped()),
            Streams::Messages => command.stdout(Stdio::piped()).stderr(slave()),
        };
        let child = command.spawn().expect("het starts");
        // Where only the child has the slave, its end ends the reading.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let written = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&written);
        let mut master = File::from(master);
        let reader = spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = master.read(&mut piece) {
                let mut written = into.lock().unwrap_or_else(PoisonError::into_inner);
                written.extend_from_slice(&piece[..count]);
            }
        });
        (Self { columns, written, reader }, child)
    }

    /// Whether a text was written so far.
    fn has(&self, text: &str) -> bool {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&written).contains(text)
    }

    /// All lines that are to be seen in the end, also those that scrolled away.
    fn lines(self) -> Vec<String> {
        let size = |count| NonZero::new(count).expect("it is not 0");
        let mut terminal = vt100::Parser::new(size(ROWS), size(self.columns), 100_000);
        self.reader.join().expect("it read to the end");
        terminal.process(&self.written.lock().unwrap_or_else(PoisonError::into_inner));
        let screen = terminal.screen_mut();
        screen.set_scrollback(usize::MAX);
        let mut above = screen.scrollback();
        let mut lines = vec![String::new()];
        loop {
            screen.set_scrollback(above);
            let count = if above > 0 { 1 } else { usize::from(ROWS) };
            for (index, row) in screen.rows(0, self.columns).take(count).enumerate() {
                lines.last_mut().expect("it has one").push_str(&row);
                if !screen.row_wrapped(index as u16) {
                    lines.push(String::new());
                }
            }
            if above == 0 {
                return lines;
            }
            above -= 1;
        }
    }
}

/// What a shell script shows under `het run` in a terminal of some width.
fn shown(sandbox: &Sandbox, script: &str, columns: u16) -> Vec<String> {
    let (terminal, mut child) = start(sandbox, script, columns);
    child.wait().expect("it ends");
    terminal.lines()
}

fn start(sandbox: &Sandbox, script: &str, columns: u16) -> (Terminal, Child) {
    let mut command = sandbox.het(&["run", "--", "sh", "-c", script]);
    Terminal::start(&mut command, columns, Streams::Both)
}

/// The lines between the first one and the summary.
#[track_caller]
fn output(lines: &[String]) -> Vec<&str> {
    let lines: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
    let first = lines.iter().position(|line| line.contains("Ctrl-C"));
    assert_eq!(first, Some(0), "what Ctrl-C does is said first: {lines:#?}");
    let is_summary = |line: &&str| line.starts_with("job ") && line.contains(" after ");
    let ends = |line: &&str| line.starts_with("error:") || is_summary(line);
    let last = lines.iter().position(ends);
    lines[1..last.unwrap_or_else(|| panic!("no summary: {lines:#?}"))].to_vec()
}

#[test]
fn every_line_is_there_once_at_any_width() {
    let alone = Sandbox::new();
    let served = Served::new().start(&[]);
    let script = "seq 1 3000; printf 'no end'";
    let numbers = (1..=3000).map(|number| number.to_string());
    let expected: Vec<String> = numbers.chain(["no end".to_owned()]).collect();
    for sandbox in [&alone, &served.0] {
        for columns in [60, 200] {
            assert_eq!(output(&shown(sandbox, script, columns)), expected, "{columns} columns");
        }
    }
}

#[test]
fn the_last_lines_of_a_crash_are_there() {
    let script = "seq 1 100; echo 'Traceback (most recent call last):' >&2; \
                  printf 'ValueError: loss is nan' >&2; kill -SEGV $$";
    let lines = shown(&Sandbox::new(), script, 80);
    let last = &output(&lines)[99..];
    assert_eq!(last, ["100", "Traceback (most recent call last):", "ValueError: loss is nan"]);
}

#[test]
fn a_bar_stays_in_its_line_and_the_screen_is_ours() {
    let script = r"for i in $(seq 1 500); do printf '\r%3d %%' $i; done; echo
                   printf '\033]0;title\007\033[2J\033[Hred: \033[31mloss\n'; echo 训练 🙂";
    assert_eq!(output(&shown(&Sandbox::new(), script, 60)), ["500 %", "red: loss", "训练 🙂"]);
}

#[test]
fn a_line_is_seen_before_it_ends() {
    let sandbox = Sandbox::new();
    let script = "printf 'name? '; until test -e told; do sleep 0.01; done; echo Ada";
    let (terminal, mut child) = start(&sandbox, script, 80);
    wait_for("the question", || terminal.has("name? "));
    sandbox.write("told", "");
    child.wait().expect("it ends");
    assert_eq!(output(&terminal.lines()), ["name? Ada"]);
}

#[test]
fn what_is_no_terminal_gets_the_bytes_of_the_program() {
    let sandbox = Sandbox::new();
    let script = r"printf 'a\r\033[31mb\033[2J\377\000 no end'";
    let mut command = sandbox.het(&["run", "--", "sh", "-c", script]);
    let (terminal, child) = Terminal::start(&mut command, 80, Streams::Messages);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.stdout, b"a\r\x1b[31mb\x1b[2J\xff\0 no end");
    let told = terminal.lines();
    assert!(told[0].contains("Ctrl-C saves and stops"), "{told:#?}");
    // Whoever reads the pipe may write to the terminal too: nothing is drawn there again.
    assert!(told[3].starts_with("job 1 sh succeeded"), "{told:#?}");
}

#[test]
fn a_terminal_gets_output_alone_where_messages_go_elsewhere() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.het(&["run", "--", "seq", "1", "3"]);
    let (terminal, child) = Terminal::start(&mut command, 80, Streams::Output);
    let told = child.wait_with_output().expect("it ends").stderr;
    let told = String::from_utf8_lossy(&told);
    assert!(told.lines().next().is_some_and(|line| line.contains("Ctrl-C")), "{told}");
    assert_eq!(terminal.lines()[..4], ["1", "2", "3", ""]);
}

#[test]
fn a_stage_that_starts_again_goes_on_being_followed() {
    let sandbox = Sandbox::new();
    let script = "echo here; test -e failed || { touch failed; exit 1; }";
    let mut command = sandbox.het(&["run", "--retries", "1", "--", "sh", "-c", script]);
    let (terminal, mut child) = Terminal::start(&mut command, 80, Streams::Both);
    assert!(child.wait().expect("it ends").success());
    let lines = terminal.lines();
    // That it restarts is seen or not, as it is so short.
    let told = output(&lines).into_iter().filter(|line| !line.starts_with("[main] restarting"));
    let expected = ["here", "stage `main` starts again · attempt 2", "here"];
    assert_eq!(told.collect::<Vec<_>>(), expected);
}

#[test]
fn what_another_job_wrote_to_the_same_directory_is_not_shown_again() {
    let sandbox = Sandbox::new();
    let say = |word| sandbox.run(&["run", "--workdir", "w", "--", "echo", word]).stdout;
    assert_eq!(say("first"), b"first\n");
    assert_eq!(say("second"), b"second\n");
}

#[test]
fn a_resumed_command_shows_what_it_writes_from_then_on() {
    let sandbox = Sandbox::new();
    let script = "echo here; test -e fixed";
    assert_eq!(sandbox.run(&["run", "--", "sh", "-c", script]).status.code(), Some(1));
    sandbox.write("fixed", "");
    assert_eq!(sandbox.run(&["run", "--resume"]).stdout, b"here\n");
}

const GANG: &str = r#"apiVersion: heterosis.dev/v1alpha1
kind: TrainingJob
metadata: { name: gang }
spec:
  stages:
    - { name: load, run: "printf 'one\ntwo'", devices: "cpu:1" }
    - name: train
      after: [load]
      ranks: device
      run: echo rank $RANK
      devices: "cpu:2"
"#;

#[test]
fn lines_of_several_stages_and_ranks_say_whose_they_are() {
    let sandbox = Sandbox::new();
    let file = sandbox.write("gang.yaml", GANG);
    let output = sandbox.run(&["run", "--follow", &file.to_string_lossy()]);
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines: Vec<&str> = text.lines().filter(|line| line.starts_with('[')).collect();
    lines[2..].sort_unstable();
    assert_eq!(lines, ["[load] one", "[load] two", "[train/0] rank 0", "[train/1] rank 1"]);
    let json = sandbox.run(&["run", "--follow", &file.to_string_lossy(), "-o", "json"]);
    assert_eq!(json.status.code(), Some(2), "standard output is the result's");
}

#[test]
fn an_interrupt_leaves_a_job_of_the_server_alone_and_logs_follow_it() {
    let served = Served::new().start(&[]);
    let script = "echo begun; until test -e told; do sleep 0.01; done; echo done";
    let (terminal, mut child) = start(&served.0, script, 100);
    wait_for("the beginning", || terminal.has("begun"));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("it lives");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    let told = terminal.lines();
    assert!(told[0].ends_with("Ctrl-C detaches, the job goes on"), "{told:#?}");
    assert_eq!(told[1], "begun");
    assert!(told[2].contains("`het logs --follow 1` follows it"), "{told:#?}");
    assert!(told[2].contains("`het cancel 1` ends it"), "{told:#?}");
    let mut logs = served.0.het(&["logs", "--follow", "--tail", "5", "1"]);
    let (terminal, mut child) = Terminal::start(&mut logs, 100, Streams::Both);
    wait_for("what was written", || terminal.has("begun"));
    served.0.write("told", "");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert_eq!(terminal.lines()[..3], ["begun", "done", ""]);
}

#[test]
fn a_run_without_a_server_is_followed_from_another_terminal() {
    let sandbox = Sandbox::new();
    let script = "echo begun; until test -e told; do sleep 0.01; done; printf done";
    let (_terminal, mut run) = start(&sandbox, script, 80);
    wait_for("the beginning", || sandbox.run(&["logs"]).stdout == b"begun\n");
    let mut logs = sandbox.het(&["logs", "--follow"]);
    let logs = logs.stdout(Stdio::piped()).spawn().expect("het starts");
    sandbox.write("told", "");
    assert!(run.wait().expect("it ends").success());
    let Output { status, stdout, .. } = logs.wait_with_output().expect("it ends");
    assert_eq!((status.code(), stdout), (Some(0), b"begun\ndone".to_vec()));
}

#[test]
fn output_that_cannot_be_written_is_no_success() {
    let sandbox = Sandbox::new();
    let full = File::options().write(true).open("/dev/full").expect("Linux has it");
    let mut run = sandbox.het(&["run", "--", "echo", "spoken"]);
    let output = run.stdout(full).stderr(Stdio::piped()).output().expect("het starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("`het logs 1` shows what it wrote"), "{told}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(sandbox.run(&["logs"]).stdout, b"spoken\n");
}
