//! What the end of a log says of why its program failed. No I/O.
//!
//! The last line is often of somebody else: of a launcher that draws a box, of what a program
//! prints on its way out, of a progress bar. What counts, in this order: the first failure that a
//! launcher names, with the exception of that worker; an exception that ended the program; what the
//! C++ runtime says before it aborts; the last line.

mod exception;
mod terminal;

use exception::{Exception, exceptions};
use terminal::shown_lines;

/// Longest text that is given, in characters.
const CHARS_MAX: usize = 300;

/// Most lines after an exception that a program prints on its way out. After more of them the
/// exception was handled, and the last line says more.
const LAST_WORDS_MAX: usize = 20;

/// Exceptions of launchers, which say only that another process failed.
const OF_LAUNCHERS: [&str; 3] =
    ["ChildFailedError", "CalledProcessError", "ProcessExitedException"];

/// Why a program failed, by the end of its log; empty where that says nothing.
pub(crate) fn cause(log: &str) -> String {
    let lines = shown_lines(log);
    let exceptions = exceptions(&lines);
    let found = first_failure(&lines, &exceptions)
        .or_else(|| last_exception(&lines, &exceptions))
        .or_else(|| abort(&lines));
    let last = || lines.iter().map(|line| line.text.trim()).rfind(|text| !text.is_empty());
    let text = found.unwrap_or_else(|| last().unwrap_or_default().to_owned());
    text.chars().take(CHARS_MAX).collect()
}

/// A line of a log as a terminal shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    /// Of the worker that wrote it, where the line begins with that.
    worker: Option<u32>,
    text: String,
}

/// What a launcher says of the first of its workers that failed.
fn first_failure(lines: &[Line], exceptions: &[Exception]) -> Option<String> {
    torchrun(lines, exceptions).or_else(|| deepspeed(lines, exceptions))
}

/// The block that `torchrun` prints at its end.
fn torchrun(lines: &[Line], exceptions: &[Exception]) -> Option<String> {
    let from = lines.iter().rposition(|line| line.text.starts_with("Root Cause"))?;
    let block = &lines[from..];
    let to = block.iter().position(|line| line.text.starts_with("====")).unwrap_or(block.len());
    let block = &block[..to];
    let field = |name: &str| {
        block.iter().find_map(|line| {
            let rest = line.text.trim_start().strip_prefix(name)?;
            rest.trim_start().strip_prefix(':').map(str::trim)
        })
    };
    let worker: u32 = field("rank")?.split_whitespace().next()?.parse().ok()?;
    let exit = field("exitcode")?.split_whitespace().next()?;
    let traceback = field("traceback").unwrap_or_default();
    if traceback.starts_with("Signal ") {
        return Some(format!("worker {worker}: {traceback}"));
    }
    // The exception, where the program is decorated so that it is passed on.
    let passed_on = traceback.starts_with("Traceback").then(|| {
        let mut texts = block.iter().map(|line| line.text.trim());
        texts.rfind(|text| !text.is_empty()).map(str::to_owned)
    });
    let own = passed_on.flatten().or_else(|| exception_of(worker, exceptions, from));
    Some(failed_worker(worker, exit, own))
}

/// The line that DeepSpeed's launcher prints at its end.
fn deepspeed(lines: &[Line], exceptions: &[Exception]) -> Option<String> {
    const EXITS: &str = "exits with return code = ";
    let at = lines.iter().rposition(|line| line.text.contains(EXITS))?;
    let (command, exit) = lines[at].text.split_once(EXITS)?;
    let (_, rank) = command.split_once("--local_rank=")?;
    let digits: String = rank.chars().take_while(char::is_ascii_digit).collect();
    let worker = digits.parse().ok()?;
    Some(failed_worker(worker, exit.trim(), exception_of(worker, exceptions, at)))
}

fn failed_worker(worker: u32, exit: &str, exception: Option<String>) -> String {
    match exception {
        Some(exception) => format!("worker {worker}: {exception}"),
        None => format!("worker {worker} exited with code {exit}"),
    }
}

/// The last exception of a worker before this line: of those that it is known to have written, or
/// else of those that nobody is.
fn exception_of(worker: u32, exceptions: &[Exception], before: usize) -> Option<String> {
    let by = |worker: Option<u32>| {
        let mut of = exceptions.iter().filter(|found| found.is_own() && found.end <= before);
        of.rfind(|found| found.worker == worker).map(|found| found.text.clone())
    };
    by(Some(worker)).or_else(|| by(None))
}

/// The exception that ended the program. Where several workers wrote theirs, that of the worker
/// that failed first: the others lost their connections to it.
fn last_exception(lines: &[Line], exceptions: &[Exception]) -> Option<String> {
    let own: Vec<&Exception> = exceptions.iter().filter(|found| found.is_own()).collect();
    let last = own.last()?;
    let is_last_of_its_worker = |found: &&&Exception| {
        own.iter().rfind(|other| other.worker == found.worker) == Some(*found)
    };
    let of_workers = own.iter().filter(|found| found.worker.is_some());
    let found = of_workers.clone().find(is_last_of_its_worker).unwrap_or(last);
    let end = exceptions.last().map_or(last.end, |other| other.end);
    let after = lines[end..].iter().filter(|line| !line.text.trim().is_empty()).count();
    (after <= LAST_WORDS_MAX).then(|| found.text.clone())
}

/// What the C++ runtime says of an exception that nobody caught.
fn abort(lines: &[Line]) -> Option<String> {
    const THROWN: &str = "terminate called after throwing an instance of '";
    let at = lines.iter().rposition(|line| line.text.contains(THROWN))?;
    let (_, rest) = lines[at].text.split_once(THROWN)?;
    let class = rest.trim_end_matches('\'');
    let what = lines.get(at + 1).and_then(|line| line.text.trim().strip_prefix("what():"));
    Some(match what {
        Some(what) => format!("{class}: {}", what.trim()),
        None => class.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logs of programs that were run: `python` 3.11, PyTorch 2.9, Accelerate 1.15, DeepSpeed 0.19,
    /// Lightning 2.6.
    macro_rules! recorded {
        ($name:literal) => {
            include_str!(concat!("../../tests/data/failures/", $name, ".log"))
        };
    }

    #[test]
    fn launchers_name_the_worker_that_failed_first() {
        let check = |log: &str, expected: &str| assert_eq!(cause(log), expected);
        check(recorded!("torchrun"), "worker 1: RuntimeError: loss is not finite at step 3");
        check(recorded!("torchrun_record"), "worker 1: ValueError: bad batch: 7 labels for 8 rows");
        check(
            recorded!("torchrun_early"),
            "worker 1: FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'",
        );
        check(recorded!("torchrun_killed"), "worker 1: Signal 9 (SIGKILL) received by PID 18400");
        check(recorded!("deepspeed"), "worker 1: RuntimeError: optimizer state is missing");
        check(recorded!("accelerate"), "RuntimeError: gradient overflow");
        check(recorded!("lightning"), "RuntimeError: bad sample in batch 3");
    }

    #[test]
    fn an_exception_says_more_than_what_follows_it() {
        let check = |log: &str, expected: &str| assert_eq!(cause(log), expected);
        check(recorded!("chain"), "ValueError: the configuration lacks `lr`");
        check(
            recorded!("group"),
            "ExceptionGroup: two workers failed (2 sub-exceptions): ValueError: shard 3 is empty",
        );
        check(
            recorded!("atexit_noise"),
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x16 and 32x1)",
        );
        check(
            recorded!("oom"),
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a \
             total capacity of 79.11 GiB of which 512.00 MiB is free.",
        );
        check(
            recorded!("multiline"),
            "RuntimeError: Error(s) in loading state_dict for Net: Missing key(s) in state_dict: \
             \"a.weight\".",
        );
        check(recorded!("notes"), "ValueError: shard is empty");
        check(recorded!("mp_fail"), "ValueError: worker 1 has no data");
        check(recorded!("interrupt"), "KeyboardInterrupt");
        check(recorded!("tqdm_fail"), "RuntimeError: loss is nan");
        check(recorded!("abort_cpp"), "std::runtime_error: tensor shapes differ: 3 and 4");
    }

    #[test]
    fn without_an_exception_the_last_line_counts_as_it_is_shown() {
        let check = |log: &str, expected: &str| assert_eq!(cause(log), expected);
        check("step 1\nno data in /data\n\n  \n", "no data in /data");
        check("", "");
        check(&"x".repeat(400), &"x".repeat(300));
        let handled = recorded!("handled_then");
        let later = format!("{handled}{}no space left\n", "step\n".repeat(LAST_WORDS_MAX));
        check(&later, "no space left");
        let bar = cause(recorded!("tqdm_exit"));
        assert!(bar.starts_with("30%|") && bar.contains("30/100"), "{bar}");
    }
}
