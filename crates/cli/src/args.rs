//! What can be typed.

mod fabric;
mod size;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use het_core::Millis;
use het_lab::Cadence;
use het_server::Keeping;
use het_wire::quantity;

pub use fabric::{
    EcnArgs, FabricCommand, FabricKind, PathsArgs, RanksArgs, SimulateArgs, TrafficWord,
};
pub use size::{
    PrecisionWord, ProfileCommand, ProfileImportArgs, RanArgs, RecomputeWord, RouteWord, SizeArgs,
    SizeCommand, TuningWord, ValidateArgs,
};

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
    /// Measure Heterosis itself.
    Bench(BenchArgs),
    /// Print a completion script for a shell.
    Completion { shell: clap_complete::Shell },
    /// Write the manual pages into a directory.
    Man { dir: PathBuf },
}

/// When decisions are made.
#[derive(Debug, Clone, Copy, ClapArgs)]
pub struct CadenceArgs {
    /// How long a running stage is left alone before it may be moved, resized or suspended for its
    /// equals: seconds, or as in `6m`; as long as its stops cost, from 1 to 30 minutes, where
    /// absent.
    #[arg(long, value_name = "TIME", value_parser = at_least_a_second, conflicts_with = "round")]
    pub quantum: Option<Millis>,
    /// Decide in rounds of so many seconds, or as in `6m`, as some published schedulers do; on
    /// every event where absent.
    #[arg(long, value_name = "TIME", value_parser = at_least_a_second)]
    pub round: Option<Millis>,
}

impl CadenceArgs {
    /// When decisions are made.
    pub fn cadence(self) -> Cadence {
        self.round.map_or(Cadence::EveryEvent { quantum: self.quantum }, Cadence::Rounds)
    }
}

fn at_least_a_second(text: &str) -> Result<Millis, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.0..1e9).contains(seconds));
    let millis = |seconds: f64| Millis((seconds * 1e3).round() as u64);
    let span = seconds.map(millis).or_else(|| quantity::duration(text));
    let long_enough = span.filter(|span| *span >= Millis::seconds(1));
    long_enough.ok_or_else(|| "give one second or more, as in `360` or `6m`".to_owned())
}

#[derive(Debug, ClapArgs)]
pub struct RunArgs {
    /// Job file (YAML), or a script with `#HET` or `#SBATCH` directives.
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub short: ShortArgs,
    /// Continue a job that did not succeed, from its newest checkpoints; the last one if no id is
    /// given.
    #[arg(long, value_name = "JOB", num_args = 0..=1, default_missing_value = "last",
          conflicts_with = "command")]
    pub resume: Option<String>,
    /// Fail with 6 instead of waiting when another run uses this machine. Where a server does, the
    /// job is queued like any other.
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub cadence: CadenceArgs,
    /// Who chooses devices: `fifo`, `static`, `dynamic`, `hybrid`, `feedback` or `adaptive`.
    #[arg(long, default_value = "adaptive")]
    pub policy: String,
    /// Directory for outputs, logs and checkpoints; a new one under the state directory if absent.
    #[arg(long)]
    pub workdir: Option<PathBuf>,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
    /// No progress, only the result.
    #[arg(short, long)]
    pub quiet: bool,
    /// A command to run instead of a job file, or the arguments of a script.
    #[arg(last = true)]
    pub command: Vec<String>,
}

/// What a command or a script has instead of a job file.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Of a command or a script")]
pub struct ShortArgs {
    /// Devices, for example `cpu:2` or `cuda:1 | cpu:2`.
    #[arg(long)]
    pub devices: Option<String>,
    /// Name of the job; the command's own name if absent.
    #[arg(long)]
    pub name: Option<String>,
    /// Owner of the quota.
    #[arg(long)]
    pub tenant: Option<String>,
    /// `urgent`, `high`, `normal` or `low`.
    #[arg(long)]
    pub priority: Option<String>,
    /// Longest time from the first start to the end, for example `6h`.
    #[arg(long)]
    pub time_limit: Option<String>,
    /// Host cores beside accelerators.
    #[arg(long)]
    pub cores: Option<String>,
    /// Host memory, for example `64GiB`.
    #[arg(long)]
    pub memory: Option<String>,
    /// How often a failed program is started again.
    #[arg(long)]
    pub retries: Option<String>,
}

#[derive(Debug, ClapArgs)]
pub struct SubmitArgs {
    /// Job file (YAML), or a script with `#HET` or `#SBATCH` directives.
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub short: ShortArgs,
    /// Directory for outputs, logs and checkpoints; a new one under the state directory if absent.
    #[arg(long)]
    pub workdir: Option<PathBuf>,
    /// Queue it, but start it only after `het release`.
    #[arg(long)]
    pub hold: bool,
    /// Submitting again under the same key gives the same job.
    #[arg(long)]
    pub key: Option<String>,
    /// A job for each of these indices (`0-9`, `1,3,5`, `0-100:10`), which it finds in
    /// `HET_ARRAY_INDEX`.
    #[arg(long)]
    pub array: Option<String>,
    /// Wait for its end and return its code.
    #[arg(long)]
    pub wait: bool,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
    /// A command to run instead of a job file, or the arguments of a script.
    #[arg(last = true)]
    pub command: Vec<String>,
}

#[derive(Debug, ClapArgs)]
pub struct PsArgs {
    /// Ended jobs too.
    #[arg(short, long)]
    pub all: bool,
    /// Only jobs in this state.
    #[arg(long)]
    pub state: Option<String>,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

#[derive(Debug, ClapArgs)]
pub struct DescribeArgs {
    /// Job id, `last`, or a job's name.
    #[arg(default_value = "last")]
    pub job: String,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

#[derive(Debug, ClapArgs)]
pub struct ExportArgs {
    /// The first event.
    #[arg(long, default_value_t = 0)]
    pub from: u64,
    #[arg(short, long, value_enum, default_value_t = ExportForm::Jsonl)]
    pub output: ExportForm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportForm {
    Jsonl,
    Csv,
}

#[derive(Debug, ClapArgs)]
pub struct WaitArgs {
    /// `42`, `40-45`, `last`, `all`, or a job's name.
    #[arg(required = true)]
    pub jobs: Vec<String>,
    /// Give up after this long, with 124.
    #[arg(long)]
    pub timeout: Option<String>,
}

#[derive(Debug, ClapArgs)]
pub struct SelectArgs {
    /// `42`, `40-45`, `last`, `all`, or a job's name.
    #[arg(required = true)]
    pub jobs: Vec<String>,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

#[derive(Debug, ClapArgs)]
pub struct SetArgs {
    #[command(flatten)]
    pub select: SelectArgs,
    /// `urgent`, `high`, `normal` or `low`.
    #[arg(long, required_unless_present = "time_limit")]
    pub priority: Option<String>,
    /// Longest time from the first start to the end, for example `6h`.
    #[arg(long)]
    pub time_limit: Option<String>,
}

#[derive(Debug, ClapArgs)]
pub struct PreemptArgs {
    #[command(flatten)]
    pub select: SelectArgs,
    /// Only say what it would cost, and for whom.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, ClapArgs)]
pub struct QuotasArgs {
    /// What holds from now on instead of all that was set before: see `het schema quotas`.
    #[arg(long, value_name = "FILE")]
    pub set: Option<PathBuf>,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

#[derive(Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DevicesArgs {
    #[command(subcommand)]
    pub command: Option<DevicesCommand>,
    #[command(flatten)]
    pub list: ListArgs,
}

#[derive(Debug, Subcommand)]
pub enum DevicesCommand {
    /// Let nothing start there any more; what saves goes elsewhere, the rest may end there.
    Drain(DeviceNames),
    /// Take it into service again, also after it has failed.
    Undrain(DeviceNames),
}

#[derive(Debug, ClapArgs)]
pub struct DeviceNames {
    /// As `het devices` lists them.
    #[arg(required = true)]
    pub devices: Vec<String>,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

#[derive(Debug, ClapArgs)]
pub struct ServerArgs {
    #[command(subcommand)]
    pub command: Option<ServerCommand>,
    /// Serve here, below a keeper.
    #[arg(long, hide = true)]
    pub kept: bool,
    /// Also listen on this address; callers need a token then.
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<SocketAddr>,
    /// Certificate for that address, with those that it rests on: a PEM file. Needed where other
    /// machines can reach it.
    #[arg(long, value_name = "FILE", requires_all = ["listen", "tls_key"])]
    pub tls_certificate: Option<PathBuf>,
    /// Private key of the certificate: a PEM file without a passphrase.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_key: Option<PathBuf>,
    /// Who chooses devices.
    #[arg(long, default_value = "adaptive")]
    pub policy: String,
    #[command(flatten)]
    pub cadence: CadenceArgs,
    /// A program that every rank runs before its own, with the same devices; where it fails, the
    /// devices are taken out of service and the job begins elsewhere.
    #[arg(long, value_name = "PROGRAM")]
    pub health_check: Option<PathBuf>,
    /// Offer so many equal shares of an NVIDIA device in its place, `cuda0=4`: NVIDIA's
    /// Multi-Process Service caps the threads and the memory of each. Goes with several devices.
    #[arg(long, value_name = "DEVICE=N", value_parser = share)]
    pub share: Vec<(String, u32)>,
    /// Also offer the devices of this file: an accelerator that `het devices` does not find, or
    /// pretended ones for a trial. `het schema devices` says what stands in it.
    #[arg(long, value_name = "FILE")]
    pub declare: Option<PathBuf>,
    /// A snapshot is taken after so many events, so that the next start reads only what came after.
    #[arg(long, value_name = "EVENTS", default_value_t = Keeping::default().snapshot_every)]
    pub snapshot_every: u64,
    /// So many of the newest events stay in the log; of older ones, those before the last snapshots
    /// that no job needs which is still kept are removed.
    #[arg(long, value_name = "EVENTS", default_value_t = Keeping::default().events)]
    pub keep_events: u64,
    /// The lines of so many jobs that ended last stay in `het ps --all`. What jobs wrote is never
    /// removed.
    #[arg(long, value_name = "JOBS", default_value_t = Keeping::default().jobs)]
    pub keep_jobs: usize,
}

fn share(text: &str) -> Result<(String, u32), String> {
    let read = text.split_once('=').and_then(|(device, ways)| Some((device, ways.parse().ok()?)));
    let (device, ways) = read.ok_or("write the device and a number, as in `cuda0=4`")?;
    Ok((device.to_owned(), ways))
}

#[derive(Debug, Subcommand)]
pub enum ServerCommand {
    /// Say whether it runs and what it does.
    Status(ListArgs),
    /// End it; running jobs go on and are taken up by the next one.
    Stop,
    /// Make a token for callers across the network; it is shown once.
    Token {
        #[arg(long, value_enum)]
        role: RoleWord,
        /// Whose jobs are the caller's own; everybody's if absent.
        #[arg(long)]
        tenant: Option<String>,
    },
    /// List the tokens, without what is secret about them.
    Tokens(ListArgs),
    /// Take a token back: it opens nothing any more.
    Revoke {
        /// As `het server tokens` lists it.
        id: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RoleWord {
    /// Looks at jobs of the own tenant.
    Viewer,
    /// Also submits and changes them.
    User,
    /// Looks at and changes everybody's jobs.
    Operator,
    /// Everything.
    Admin,
}

#[derive(Debug, ClapArgs)]
pub struct ListArgs {
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Form {
    Table,
    Wide,
    Json,
    Jsonl,
    Yaml,
    Name,
    Csv,
}

#[derive(Debug, ClapArgs)]
pub struct TopoArgs {
    /// A cluster file, a template such as `hgx-h100-8x4+rail` (`TEMPLATE[xN][+FABRIC]`), or `this`
    /// machine.
    #[arg(default_value = "this")]
    pub what: String,
    #[arg(short, long, value_enum, default_value_t = TopoForm::Tree)]
    pub output: TopoForm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TopoForm {
    Tree,
    /// Nodes, figures of the device classes, links by kind.
    Table,
    /// A picture.
    Svg,
    Dot,
    Json,
}

#[derive(Debug, ClapArgs)]
pub struct ExplainArgs {
    /// Job id, `last`, or a job's name.
    #[arg(default_value = "last")]
    pub job: String,
    /// Show what each alternative is weighed by: its speed in the best place and where it stands.
    #[arg(long)]
    pub placement: bool,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

#[derive(Debug, ClapArgs)]
pub struct LogsArgs {
    /// Job id, `last`, or a job's name.
    #[arg(default_value = "last")]
    pub job: String,
    /// Only this stage.
    #[arg(long)]
    pub stage: Option<String>,
    /// Only this rank.
    #[arg(long)]
    pub rank: Option<u32>,
    /// Only this attempt; the last one if absent.
    #[arg(long)]
    pub attempt: Option<u32>,
    /// Only the last lines.
    #[arg(long)]
    pub tail: Option<usize>,
}

#[derive(Debug, ClapArgs)]
pub struct SchemaArgs {
    #[arg(value_enum)]
    pub file: SchemaFile,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SchemaFile {
    Job,
    /// Nodes, fabric and device classes of a cluster.
    Cluster,
    /// Devices that a server has beside those that it finds.
    Devices,
    /// What tenants are entitled to and limited to.
    Quotas,
}

#[derive(Debug, ClapArgs)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub what: Bench,
}

#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Time launches, hops, submissions, reads and notices on this machine, beside a plain loop.
    Node(NodeBenchArgs),
    /// Time scheduling rounds on a simulated cluster with a long queue.
    Sim(RoundsArgs),
}

#[derive(Debug, ClapArgs)]
pub struct NodeBenchArgs {
    /// A tenth of everything: a first look.
    #[arg(long)]
    pub quick: bool,
    /// Programs at a time, of the launches and of the spawn loop beside them.
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=512))]
    pub parallel: u16,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

#[derive(Debug, ClapArgs)]
pub struct RoundsArgs {
    /// As for `sim run`, instead of nodes of two classes in turn.
    #[arg(long, value_name = "CLUSTER", conflicts_with_all = ["nodes", "devices"])]
    pub cluster: Option<String>,
    #[arg(long, default_value_t = 64)]
    pub nodes: u32,
    /// Accelerators a node.
    #[arg(long, default_value_t = 8)]
    pub devices: u32,
    /// Jobs that wait.
    #[arg(long, default_value_t = 1_000)]
    pub jobs: u64,
    /// Time 100 to 10,000 jobs on 64 to 4,096 nodes instead, and draw that as SVG.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cluster", "nodes", "jobs"])]
    pub scaling: Option<PathBuf>,
    #[arg(long, default_value_t = 1_000)]
    pub rounds: u32,
    #[command(flatten)]
    pub cadence: CadenceArgs,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[arg(long, default_value = "adaptive")]
    pub policy: String,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

#[derive(Debug, ClapArgs)]
pub struct SimArgs {
    #[command(subcommand)]
    pub what: SimCommand,
}

#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Play one policy.
    Run {
        #[command(flatten)]
        scenario: ScenarioArgs,
        /// Scheduling policy.
        #[arg(long, default_value = "adaptive")]
        policy: String,
        /// Also say what no schedule can beat: mean completion time and makespan.
        #[arg(long)]
        bound: bool,
        #[arg(short, long, value_enum, default_value_t = Form::Table)]
        output: Form,
    },
    /// Fill a cluster with pods that never leave, and say how much of its accelerators is allocated
    /// when as much was asked for as there is.
    Pack {
        /// As for `sim run`; nodes need cores, as in `alibaba-openb:NODES.csv`.
        #[arg(long, value_name = "CLUSTER")]
        cluster: String,
        /// Pod list in the format of Alibaba's 2023 GPU cluster.
        #[arg(long, value_name = "FILE")]
        pods: PathBuf,
        /// `adaptive`, `fgd`, `best-fit` or `random`; all of them where none is named.
        #[arg(long, value_delimiter = ',')]
        policy: Vec<String>,
        /// Runs, each with its own order of pods.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
        seeds: u64,
        #[arg(short, long, value_enum, default_value_t = Form::Table)]
        output: Form,
    },
    /// Play several policies on the same scenario, one row each.
    Compare {
        #[command(flatten)]
        scenario: ScenarioArgs,
        /// Policies, or all of them where none is named.
        #[arg(long, value_delimiter = ',')]
        policies: Vec<String>,
        /// Runs of each policy, with seeds counting up from `--seed`; figures are means then.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000))]
        seeds: u64,
        /// Folder for a report: `index.html`, `results.csv`, and `trace.json` for Perfetto.
        #[arg(long, value_name = "FOLDER")]
        report: Option<PathBuf>,
        /// A row more, `lower-bound`: what no schedule can beat.
        #[arg(long)]
        bound: bool,
        #[arg(short, long, value_enum, default_value_t = Form::Table)]
        output: Form,
    },
    /// Say why a job landed where and when it did under each policy.
    Explain {
        /// Number of the job, in the order of arrival from 1.
        job: u64,
        #[command(flatten)]
        scenario: ScenarioArgs,
        /// Policies to explain.
        #[arg(long, value_delimiter = ',', default_value = "adaptive")]
        policies: Vec<String>,
        #[arg(short, long, value_enum, default_value_t = Form::Table)]
        output: Form,
    },
}

/// Cluster, workload and what is assumed beside them.
#[derive(Debug, ClapArgs)]
pub struct ScenarioArgs {
    /// A cluster file, `this`, templates as in `hgx-h100-8x4+rail`, `8xh100-sxm5-80`,
    /// `uniform:NODESxDEVICES[/NODES_A_RACK]`, `gavel:V100,P100,K80`, `sia:default`, `sia:TIMES`,
    /// `alibaba-openb:NODES.csv` or `spot2026:FILE`.
    #[arg(long, value_name = "CLUSTER")]
    pub cluster: String,
    /// Trace file; `.gz` is unpacked on the way.
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// Format of the trace where its name does not say it: `het`, `gavel`, `philly`, `sia`,
    /// `pollux`, `alibaba-openb` or `sacct`.
    #[arg(long)]
    pub format: Option<String>,
    /// Throughput table, folder of measured applications, or `roofline[:SCALE]`: estimates from the
    /// device catalogue, with everything but the H100 that many times as fast.
    #[arg(long, value_name = "FILE|FOLDER|roofline")]
    pub profiles: Option<PathBuf>,
    #[command(flatten)]
    pub cadence: CadenceArgs,
    /// Pause at every start, restart and change of devices: `none`, seconds, or `profile` for that
    /// of each application.
    #[arg(long, value_name = "none|profile|SECONDS", default_value = "none")]
    pub restart_cost: String,
    /// Errors in what policies are told: `speed=0.2,work=0.3` (σ of a lognormal factor).
    #[arg(long, default_value = "")]
    pub noise: String,
    /// What tenants are entitled to and limited to: see `het schema quotas`.
    #[arg(long, value_name = "FILE")]
    pub quotas: Option<PathBuf>,
    /// Price of an hour of one device by class: `v100=2.5,p100=1`.
    #[arg(long, value_name = "CLASS=PRICE,…", default_value = "")]
    pub price: String,
    /// Failures: published rates (`llama3`, `rsc1`, `rsc2`) or a list in JSON Lines.
    #[arg(long, value_name = "RATES|FILE")]
    pub faults: Option<String>,
    /// Part of the failures that something announces ten minutes before.
    #[arg(long, value_name = "PART", default_value_t = 0.0, requires = "faults")]
    pub foreseen: f64,
    /// Seconds until a failed node is back.
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600.0, requires = "faults")]
    pub repair: f64,
    /// Seconds of running between two checkpoints; none but at a stop where absent.
    #[arg(long, value_name = "SECONDS")]
    pub checkpoint_every: Option<f64>,
    /// Seconds that a checkpoint takes.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub checkpoint_cost: f64,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

#[derive(Debug, ClapArgs)]
pub struct TraceArgs {
    #[command(subcommand)]
    pub what: TraceCommand,
}

/// What `het trace gen` draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Preset {
    /// Fine-tuning of models of 1 to 14 billion parameters.
    FineTuning,
    /// Microsoft's Philly, 2017: one stage a job.
    Philly,
    /// A cluster for large language models, 2023: needs a cluster with cores.
    Llm,
}

#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Write a trace in the format of somebody else, where that has words for all of its jobs.
    Convert {
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Format of the file; by its name where absent.
        #[arg(long)]
        format: Option<String>,
        /// `het`, `gavel` or `philly`.
        #[arg(long, value_name = "FORMAT")]
        to: String,
        /// Where to write; standard output where absent.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Draw jobs: a mix of fine-tuning (prepare data, load the model, train, validate), to be run
    /// with `--profiles roofline`, or jobs like those of a published cluster.
    Gen {
        #[arg(long, value_enum, default_value_t = Preset::FineTuning)]
        preset: Preset,
        #[arg(long, default_value_t = 200)]
        jobs: u32,
        /// Accelerator work that arrives, over what the devices can do meanwhile.
        #[arg(long, default_value_t = 1.0)]
        load: f64,
        /// Accelerators that the load is meant for; of fine-tuning, H100.
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
        devices: u32,
        /// Fix the devices of every stage by a rule: how many H100 train a model of 1, 3, 8 and 14
        /// billion parameters, for example `1,1,2,4`; any shape where absent.
        #[arg(long, value_name = "N,N,N,N", value_delimiter = ',')]
        rule: Vec<u32>,
        /// With `--rule`: class that validates.
        #[arg(long, default_value = "ascend-910b", requires = "rule")]
        validate_on: String,
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Where to write; standard output where absent.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Read published files and write one trace of ours.
    Import {
        /// `gavel`, `philly`, `sia`, `pollux`, `alibaba-openb` or `sacct` (what `sacct -a -X -P -o
        /// JobID,JobName,Account,QOS,Submit,ElapsedRaw,ReqTRES` prints); by the file's name where
        /// absent.
        #[arg(long)]
        format: Option<String>,
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Where to write; standard output where absent.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}
