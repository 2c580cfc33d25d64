//! `het`: the words typed and shown. One client of the embedded server.
//!
//! Knows: arguments, exit codes, tables, the live view.
//! Must never know: the inside of an engine.

mod client;
mod cluster;
mod commands;
mod environment;
mod fail;
mod live;
mod local;
mod output;
mod printable;
mod request;
mod scheduling;
mod selection;
mod snapshot;
mod summary;
mod watch;
mod workload;

use std::process::ExitCode;

use clap::Parser;

use crate::commands::{Args, dispatch};
use crate::fail::code;

/// Decisions make and drop many small lists, which takes a third longer with the C library's
/// allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Whatever runs here may hold the variables of submitters, or a token.
    het_server::forbid_core_dumps();
    if let Some(code) = het_bench::launcher_main() {
        return code;
    }
    // A Vulkan driver may crash whoever asks it, so discovery asks from a child of its own.
    if std::env::args().nth(1).as_deref() == Some(het_devices::VULKAN_PROBE_COMMAND) {
        return het_devices::vulkan_probe_main();
    }
    if std::env::args().nth(1).as_deref() == Some(het_bench::TRAINER_COMMAND) {
        return het_bench::trainer_main();
    }
    if std::env::args().nth(1).as_deref() == Some(het_bench::RANK_COMMAND) {
        return het_bench::rank_main();
    }
    if let Some(code) = agent() {
        return code;
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let usage = error.use_stderr();
            // A closed pipe leaves nobody to tell.
            let _ = error.print();
            return ExitCode::from(if usage { code::USAGE } else { code::OK });
        }
    };
    args.color.apply();
    end_where_nobody_can_read();
    match dispatch(args.command) {
        Ok(code) => ExitCode::from(code),
        Err(fail) => {
            fail.print();
            ExitCode::from(fail.code())
        }
    }
}

/// Runs as the agent of a user if it was started as one; gives its exit code then.
fn agent() -> Option<ExitCode> {
    let mut words = std::env::args().skip(1);
    if words.next()? != het_server::AGENT_COMMAND {
        return None;
    }
    let user = words.next().unwrap_or_default();
    Some(match het_server::agent_main(&user) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let fail = fail::Fail::from_error(error);
            fail.print();
            ExitCode::from(fail.code())
        }
    })
}

/// Printing panics where standard output takes no more, such as on a full disk: no fault of ours,
/// and no trace of calls helps.
fn end_where_nobody_can_read() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or_default();
        if let Some(why) = text.strip_prefix("failed printing to stdout: ") {
            anstream::eprintln!("error: standard output cannot be written: {why}");
            std::process::exit(i32::from(fail::code::FAILED));
        }
        before(panic);
    }));
}
