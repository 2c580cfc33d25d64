//! Which drivers there are, and which of them compute here.

use super::arguments::Format;
use super::{show, show_list};
use crate::batch::{Batch, Sequence};
use crate::error::{Error, Result};
use crate::lora::Adapter;
use crate::steps::Executor;
use crate::workers::Workers;
use crate::{drivers, tiny};
use serde_json::{Value as Json, json};
use std::io::{self, Read};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// For one driver; the slowest that work take some seconds when they start for the first time.
const PROBE_LIMIT: Duration = Duration::from_secs(10);
/// A driver may write without end.
const PROBE_OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// Lists every driver with what its probe says. A driver may crash the process that starts it, or
/// never come back, so each is started in one of its own.
pub fn list(format: Format) -> Result<ExitCode> {
    let items: Vec<Json> = drivers::KNOWN.iter().map(|name| probed(name)).collect();
    match format {
        Format::Json => show_list("DriverList", &items)?,
        Format::Table => {
            show(&format!("{:<8} {:<7} DETAIL", "DRIVER", "STARTS"))?;
            for item in &items {
                let detail = item["detail"].as_str().unwrap_or_default();
                let starts = if item["starts"] == true { "yes" } else { "no" };
                let name = item["name"].as_str().unwrap_or_default();
                show(&format!("{name:<8} {starts:<7} {detail}"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Computes one small gradient with the driver.
pub fn probe(name: &str) -> Result<ExitCode> {
    let name = drivers::resolve(name, None)?;
    let weights = Arc::new(tiny::weights(1));
    let adapter = Adapter::random(&weights.architecture, 2, 4.0, 1);
    let mut executor = Executor::adapting(&weights, &adapter, Workers::default())?;
    let sequence = Sequence { tokens: vec![1, 2, 3, 4], scored: vec![true; 4] };
    executor.begin_step()?;
    executor.add_gradients(&Batch::pack([&sequence], 4))?;
    if !executor.step_loss()?.is_finite() {
        let what = "its loss is not a number".to_owned();
        return Err(Error::DriverFailed { driver: name, what });
    }
    show(executor.detail())?;
    Ok(ExitCode::SUCCESS)
}

fn probed(name: &str) -> Json {
    let answer = std::env::current_exe()
        .map_err(|error| format!("its probe does not start: {error}"))
        .and_then(|program| answer(Command::new(program).args(["probe", name]), PROBE_LIMIT));
    let starts = answer.is_ok();
    let (Ok(detail) | Err(detail)) = answer;
    json!({"name": name, "starts": starts, "detail": detail})
}

/// The last line that a probe prints.
///
/// # Errors
/// What it says of its failure, or how it ended.
fn answer(command: &mut Command, limit: Duration) -> std::result::Result<String, String> {
    let cannot_start = |error: io::Error| format!("its probe does not start: {error}");
    let (reader, writer) = io::pipe().map_err(cannot_start)?;
    let errors = writer.try_clone().map_err(cannot_start)?;
    command.stdin(Stdio::null()).stdout(writer).stderr(errors);
    let mut child = command.spawn().map_err(cannot_start)?;
    // The command would hold the pipe open.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut said = Vec::new();
        // What was read until an error came is told.
        drop(reader.take(PROBE_OUTPUT_BYTES_MAX).read_to_end(&mut said));
        // The receiver is gone only when the time was up.
        drop(sender.send(String::from_utf8_lossy(&said).into_owned()));
    });
    let said = receiver.recv_timeout(limit);
    // One that has ended keeps the status it ended with.
    drop(child.kill());
    let status =
        child.wait().map_err(|error| format!("its probe cannot be waited for: {error}"))?;
    let said =
        said.map_err(|_| format!("its probe did not answer within {} s", limit.as_secs_f64()))?;
    let mut lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    if status.success() {
        return Ok(lines.next_back().unwrap_or_default().to_owned());
    }
    let error = lines.find_map(|line| line.strip_prefix("error: "));
    Err(error.map_or_else(|| format!("its probe ended with {status}"), str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_may_fail_in_any_way() {
        let check = |script: &str, expected: std::result::Result<&str, &str>| {
            let mut shell = Command::new("sh");
            let told = answer(shell.args(["-c", script]), Duration::from_millis(500));
            assert_eq!(told.as_deref().map_err(String::as_str), expected, "{script}");
        };
        check("echo noise; echo '4 threads'", Ok("4 threads"));
        let failed = "echo noise; echo 'error: no loader' >&2; echo 'hint: install it' >&2; exit 1";
        check(failed, Err("no loader"));
        check("exit 3", Err("its probe ended with exit status: 3"));
        check("kill -TERM $$", Err("its probe ended with signal: 15 (SIGTERM)"));
        check("exec sleep 60", Err("its probe did not answer within 0.5 s"));
    }
}
