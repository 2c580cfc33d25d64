//! What can be typed: one module a command, with its arguments, what it does and what it shows.

mod bench;
mod change;
mod describe;
mod devices;
mod doctor;
mod explain;
mod export;
mod fabric;
mod history;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod logs;
mod preempt;
mod profile;
mod prune;
mod ps;
mod quotas;
#[cfg(feature = "kubernetes")]
mod rank;
mod run;
mod schema;
mod server;
mod set;
mod sim;
mod size;
mod submit;
mod top;
mod topo;
mod trace;
mod wait;

use std::path::PathBuf;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};

use self::bench::BenchArgs;
use self::describe::DescribeArgs;
use self::devices::DevicesArgs;
use self::explain::ExplainArgs;
use self::export::ExportArgs;
use self::fabric::FabricCommand;
#[cfg(feature = "kubernetes")]
use self::kubernetes::KubernetesCommand;
use self::logs::LogsArgs;
use self::preempt::PreemptArgs;
use self::profile::ProfileCommand;
use self::prune::PruneArgs;
use self::ps::PsArgs;
use self::quotas::QuotasArgs;
#[cfg(feature = "kubernetes")]
use self::rank::RankArgs;
use self::run::RunArgs;
use self::schema::SchemaArgs;
use self::server::ServerArgs;
use self::set::SetArgs;
use self::sim::SimArgs;
use self::size::SizeArgs;
use self::submit::SubmitArgs;
use self::topo::TopoArgs;
use self::trace::TraceArgs;
use self::wait::WaitArgs;
use crate::fail::{Fail, code};
use crate::output::ListArgs;
use crate::selection::SelectArgs;

/// Schedule training and fine-tuning across unlike devices.
#[derive(Debug, Parser)]
#[command(name = "het", version, max_term_width = 100, arg_required_else_help = true)]
pub struct Args {
    /// Colour on a terminal only, always, or never (`NO_COLOR` counts as never).
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto)]
    pub color: Color,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    Auto,
    Always,
    Never,
}

impl Color {
    pub fn apply(self) {
        match self {
            Self::Auto => {}
            Self::Always => anstream::ColorChoice::Always.write_global(),
            Self::Never => anstream::ColorChoice::Never.write_global(),
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a job on this machine and stay attached to it.
    Run(RunArgs),
    /// Queue a job on the server, which is started if it does not run.
    Submit(SubmitArgs),
    /// List the server's jobs.
    Ps(PsArgs),
    /// Watch the server's devices and jobs, and change jobs with a key.
    Top,
    /// Tell all there is about a job of the server.
    Describe(DescribeArgs),
    /// Wait until jobs have ended; returns the first code that is not 0.
    Wait(WaitArgs),
    /// End jobs for good.
    Cancel(SelectArgs),
    /// Let jobs save and stop until they are released.
    Hold(SelectArgs),
    /// Let held jobs go on.
    Release(SelectArgs),
    /// Change the priority or the time limit of jobs that have not ended.
    Set(SetArgs),
    /// Stop running jobs for more urgent ones that wait, or say what that would cost.
    Preempt(PreemptArgs),
    /// Show what tenants may have and have, or set it.
    Quotas(QuotasArgs),
    /// Queue failed or cancelled jobs again; they go on from their newest checkpoints.
    Requeue(SelectArgs),
    /// Write the server's log, every event chained to the one before by a hash.
    Export(ExportArgs),
    /// Remove the files of jobs that have ended: by age, number and size.
    Prune(PruneArgs),
    /// Run the server of this machine in the foreground.
    Server(ServerArgs),
    /// List this machine's devices, or take one out of the server's service and back.
    Devices(DevicesArgs),
    /// Show how the devices of this machine or of a cluster are linked.
    Topo(TopoArgs),
    /// Check that this machine is ready; every ✘ comes with its fix.
    Doctor,
    /// Say why a job's stages ran where they ran, or why they wait.
    Explain(ExplainArgs),
    /// Show what the processes of a job wrote.
    Logs(LogsArgs),
    /// List the jobs that ran on this machine.
    History(ListArgs),
    /// Print the JSON Schema of a file that people write.
    Schema(SchemaArgs),
    /// Ask what a policy would do to a workload on a cluster, in virtual time.
    Sim(SimArgs),
    /// Turn published workloads into our trace format.
    Trace(TraceArgs),
    /// Size a large job: how it is cut over devices, what it needs, how long it takes.
    Size(SizeArgs),
    /// Measure a device class: what `het size` then goes by.
    #[command(subcommand)]
    Profile(ProfileCommand),
    /// Simulate a fabric, plan paths through it, tune its marking.
    #[command(subcommand)]
    Fabric(FabricCommand),
    /// Supervise a program inside of a pod.
    #[cfg(feature = "kubernetes")]
    Rank(RankArgs),
    #[cfg(feature = "kubernetes")]
    /// Make a cluster ready for `het server --engine kubernetes`.
    #[command(subcommand)]
    Kubernetes(KubernetesCommand),
    /// Measure Heterosis itself.
    Bench(BenchArgs),
    /// Print a completion script for a shell.
    Completion { shell: clap_complete::Shell },
    /// Write the manual pages into a directory.
    Man { dir: PathBuf },
}

/// Runs a command; the exit code is part of its answer.
pub fn dispatch(command: Command) -> Result<u8, Fail> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Submit(args) => submit::submit(&args),
        Command::Ps(args) => ps::ps(&args),
        Command::Top => top::top(),
        Command::Describe(args) => describe::describe(&args),
        Command::Wait(args) => wait::wait(&args),
        Command::Cancel(args) => change::change(&args, "cancel"),
        Command::Hold(args) => change::change(&args, "hold"),
        Command::Release(args) => change::change(&args, "release"),
        Command::Set(args) => set::set(&args),
        Command::Preempt(args) => preempt::preempt(&args),
        Command::Quotas(args) => quotas::quotas(&args),
        Command::Requeue(args) => change::requeue(&args),
        Command::Export(args) => export::export(&args),
        Command::Prune(args) => prune::prune(&args),
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
        #[cfg(feature = "kubernetes")]
        Command::Rank(args) => rank::rank(&args),
        #[cfg(feature = "kubernetes")]
        Command::Kubernetes(command) => kubernetes::kubernetes(&command),
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
