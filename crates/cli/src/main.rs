//! `het`: the words typed and shown. One client of the embedded server.
//!
//! Knows: arguments, exit codes, tables, the live view.
//! Must never know: the inside of an engine.

mod args;
mod attach;
mod bench;
mod client;
mod cluster;
mod devices;
mod doctor;
mod explain;
mod export;
mod fabric;
mod fail;
mod history;
mod jobs;
mod live;
mod logs;
mod output;
mod profile;
mod quotas;
mod request;
mod run;
mod scenario;
mod schema;
mod server;
mod sim;
mod size;
mod summary;
mod top;
mod topo;
mod trace;
mod trust;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::args::{Args, Command};
use crate::fail::{Fail, code};

/// Decisions make and drop many small lists, which takes a third longer with the C library's
/// allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // A Vulkan driver may crash whoever asks it, so discovery asks from a child of its own.
    if std::env::args().nth(1).as_deref() == Some(het_devices::VULKAN_PROBE_COMMAND) {
        return het_devices::vulkan_probe_main();
    }
    if std::env::args().nth(1).as_deref() == Some(het_bench::RANK_COMMAND) {
        return het_bench::rank_main();
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

/// Runs a command; the exit code is part of its answer.
fn dispatch(command: Command) -> Result<u8, Fail> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Submit(args) => jobs::submit(&args),
        Command::Ps(args) => jobs::ps(&args),
        Command::Top => top::top(),
        Command::Describe(args) => jobs::describe(&args),
        Command::Wait(args) => jobs::wait(&args),
        Command::Cancel(args) => jobs::change(&args, "cancel"),
        Command::Hold(args) => jobs::change(&args, "hold"),
        Command::Release(args) => jobs::change(&args, "release"),
        Command::Set(args) => jobs::set(&args),
        Command::Preempt(args) => jobs::preempt(&args),
        Command::Quotas(args) => quotas::quotas(&args),
        Command::Requeue(args) => jobs::requeue(&args),
        Command::Export(args) => export::export(&args),
        Command::Server(args) => server::server(&args),
        Command::Devices(args) => devices::devices(&args),
        Command::Topo(args) => topo::topo(&args),
        Command::Doctor => doctor::doctor(),
        Command::Explain(args) => explain::explain(&args),
        Command::Logs(args) => logs::logs(&args),
        Command::History(args) => history::history(&args),
        Command::Schema(args) => schema::schema(&args),
        Command::Sim(args) => sim::sim(&args),
        Command::Trace(args) => trace::trace(&args),
        Command::Size(args) => size::size(&args),
        Command::Profile(command) => profile::profile(&command),
        Command::Fabric(command) => fabric::fabric(&command),
        Command::Bench(args) => bench::bench(&args),
        Command::Completion { shell } => {
            let mut command = Args::command();
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command, "het", &mut script);
            anstream::print!("{}", String::from_utf8_lossy(&script));
            Ok(code::OK)
        }
        Command::Man { dir } => {
            let written = std::fs::create_dir_all(&dir)
                .and_then(|()| clap_mangen::generate_to(Args::command(), &dir));
            written.map_err(|error| Fail::file(&dir, error))?;
            Ok(code::OK)
        }
    }
}
