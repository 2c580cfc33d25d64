//! `het server`: the service in the foreground, its status, its end, and tokens for it.

mod backup;
mod install;
mod keep;
mod serve;
mod tokens;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anstream::{eprintln, println};
use clap::{Args, Subcommand, ValueEnum};
use het_core::{Bytes, Millis};
use het_server::api::LIVE_JOBS_OF_A_TENANT;
use het_server::{
    Checked, CopyInputs, DeviceChoice, EventStore, Existing, Home, Keeping, StoreError, store_check,
};
#[cfg(feature = "kubernetes")]
use het_server::{SCHEDULER, SCHEDULER_NAMESPACE};
use het_wire::api::{ServerInfo, StoreCheck, WatchError};
use het_wire::quantity;
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::client::client;
use crate::fail::{Fail, code};
use crate::local::open_server_home;
use crate::output::{self, Form, ListArgs};
use crate::scheduling::{CadenceArgs, at_least_a_second};

/// How long a server may take to go down.
const STOP_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub struct ServerArgs {
    #[command(subcommand)]
    pub command: Option<ServerCommand>,
    /// Serve here, below a keeper.
    #[arg(long, hide = true)]
    pub kept: bool,
    /// What makes plans real: the processes of this machine, or the pods of a cluster.
    #[arg(long, value_enum, value_name = "ENGINE", default_value = "node")]
    pub engine: EngineChoice,
    #[cfg(feature = "kubernetes")]
    #[command(flatten)]
    pub kubernetes: KubernetesArgs,
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
    /// Disk space that the files of running jobs may take up together, as far as they say
    /// `scratch`. Without it the size of the disk on which the server keeps its state.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub scratch: Option<Bytes>,
    /// What the disk reads, `3GB/s`: jobs that say what they `read` are not started beside each
    /// other where that is more. Without it nobody counts.
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub read: Option<Bytes>,
    /// Which inputs of stages that wait are copied to a disk of this machine, within half of what
    /// is free there.
    #[arg(long, value_enum, value_name = "WHICH", default_value = "remote")]
    pub copy_inputs: CopyChoice,
    /// Where those copies lie, in a directory for each user.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub inputs_dir: PathBuf,
    /// Use these devices and leave the others to others, `cuda0,cuda1,cpu0:8`; of a CPU perhaps so
    /// many cores. Without it all devices, which no other server of the machine may hold.
    #[arg(long, value_name = "DEVICE[:CORES]", value_delimiter = ',', value_parser = device_choice)]
    pub devices: Option<Vec<DeviceChoice>>,
    /// A snapshot is taken after so many events, so that the next start reads only what came after.
    #[arg(long, value_name = "EVENTS", default_value_t = Keeping::default().snapshot_every)]
    pub snapshot_every: u64,
    /// So many of the newest events stay in the log; of older ones, those before the last snapshots
    /// that no job needs which is still kept are removed.
    #[arg(long, value_name = "EVENTS", default_value_t = Keeping::default().events)]
    pub keep_events: u64,
    /// The lines of so many jobs that ended last stay in `het ps --all`. What jobs wrote is
    /// removed by `het prune` alone.
    #[arg(long, value_name = "JOBS", default_value_t = Keeping::default().jobs)]
    pub keep_jobs: usize,
    /// So many jobs of one tenant may wait, run or be held; further submissions are refused.
    #[arg(long, value_name = "JOBS", default_value_t = LIVE_JOBS_OF_A_TENANT)]
    pub jobs_per_tenant: usize,
    /// Restart the server when its control loop stands still for so long, such as at a file system
    /// that does not answer; the second time at the same job's files that job is quarantined.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = at_least_a_second)]
    pub stall_limit: Millis,
    /// Serve several users: the server itself runs as this user, and each job as the one who
    /// submitted it. Root alone can start such a server.
    #[arg(long, value_name = "USER", requires = "members")]
    pub run_as: Option<String>,
    /// Members of this group may submit jobs to a server of several users.
    #[arg(long, value_name = "GROUP", requires = "run_as")]
    pub members: Option<String>,
    /// Begin with an empty store where the store is missing beside directories of jobs, which a
    /// server refuses otherwise. The directories stay; nothing is known of their jobs any more.
    #[arg(long)]
    pub new_store: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineChoice {
    Node,
    #[cfg(feature = "kubernetes")]
    Kubernetes,
}

/// Which cluster, and as whom.
#[cfg(feature = "kubernetes")]
#[derive(Debug, Args)]
pub struct KubernetesArgs {
    /// How the API server is reached. Without it `KUBECONFIG`, the user's own file, or the service
    /// account of the pod that the server runs in.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// A context of that file; its current one without it.
    #[arg(long, value_name = "NAME")]
    pub kube_context: Option<String>,
    /// The `schedulerName` of its pods. Two servers of one cluster need two.
    #[arg(long, value_name = "NAME", default_value = SCHEDULER)]
    pub scheduler_name: String,
    /// Leave it to kube-scheduler to give pods their nodes: the pods of a job are made for one
    /// node, and pods of others wait behind the scheduling gate `heterosis.dev/placement` until
    /// theirs is chosen. The rights for it: `het kubernetes manifests --scheduling-gates`.
    #[arg(long)]
    pub scheduling_gates: bool,
    /// An image with `het` on its path. `het rank` then supervises the program of each rank in its
    /// pod: progress, checkpoints that count, the notice to stop. Namespaces of jobs need its
    /// account: `het kubernetes manifests --jobs-namespace`.
    #[arg(long, value_name = "IMAGE")]
    pub rank_image: Option<String>,
    /// What extended resources of nodes are that the server does not know, or otherwise than it
    /// does: a file, in a cluster one of a ConfigMap. `het schema device-table` says what stands
    /// in it.
    #[arg(long, value_name = "FILE")]
    pub device_table: Option<PathBuf>,
    /// Where the Lease lies by which servers of one `schedulerName` agree who leads.
    #[arg(long, value_name = "NAMESPACE", default_value = SCHEDULER_NAMESPACE)]
    pub lease_namespace: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum CopyChoice {
    Never,
    /// Those on file systems of other machines.
    Remote,
    Always,
}

impl From<CopyChoice> for CopyInputs {
    fn from(choice: CopyChoice) -> Self {
        match choice {
            CopyChoice::Never => Self::Never,
            CopyChoice::Remote => Self::Remote,
            CopyChoice::Always => Self::Always,
        }
    }
}

fn size(text: &str) -> Result<Bytes, String> {
    quantity::size(text).ok_or_else(|| "write a size such as `500GiB`".to_owned())
}

fn rate(text: &str) -> Result<Bytes, String> {
    quantity::rate(text).ok_or_else(|| "write a bandwidth such as `3GB/s`".to_owned())
}

fn share(text: &str) -> Result<(String, u32), String> {
    let read = text.split_once('=').and_then(|(device, ways)| Some((device, ways.parse().ok()?)));
    let (device, ways) = read.ok_or("write the device and a number, as in `cuda0=4`")?;
    Ok((device.to_owned(), ways))
}

fn device_choice(text: &str) -> Result<DeviceChoice, String> {
    let (name, cores) = match text.split_once(':') {
        Some((name, cores)) => {
            let cores = cores.parse().ok().filter(|cores| *cores > 0);
            (name, Some(cores.ok_or("write a number of cores, as in `cpu0:8`")?))
        }
        None => (text, None),
    };
    Ok(DeviceChoice { name: name.to_owned(), cores })
}

#[derive(Debug, Subcommand)]
pub enum ServerCommand {
    /// Say whether it runs and what it does.
    Status(ListArgs),
    /// Read the event stores of this home, that of a running server too, and name what is damaged;
    /// the exit code is 1 where anything is.
    Check(ListArgs),
    /// Write the state of the running server into a new file for its owner alone: jobs, events, and
    /// scripts that were submitted. What jobs wrote is not in it, nor are tokens.
    Backup {
        file: PathBuf,
        /// Take the variables of submitters along, which may be secret; without them a job that
        /// had some cannot start again.
        #[arg(long)]
        with_environments: bool,
    },
    /// Put the state of a backup into this home, where no server runs; all of its jobs that had not
    /// ended are held.
    Restore {
        file: PathBuf,
        /// Put a state that is there aside.
        #[arg(long)]
        force: bool,
    },
    /// End it; running jobs go on and are taken up by the next one.
    Stop,
    /// Set up a server of several users on this machine, as root: a user and a group for it, its
    /// directory, and a service of systemd. What is there already stays.
    Install(install::InstallArgs),
    /// Make a token for callers across the network; it is shown once.
    Token {
        #[arg(long, value_enum)]
        role: RoleWord,
        /// Whose jobs are the caller's own. If absent the user's, where one is named, and else
        /// everybody's.
        #[arg(long)]
        tenant: Option<String>,
        /// As whom the caller's jobs run, on a server of several users.
        #[arg(long)]
        user: Option<String>,
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

pub fn server(args: &ServerArgs) -> Result<u8, Fail> {
    match &args.command {
        None if args.kept => serve::serve_here(args),
        None => keep::keep_one(args),
        Some(ServerCommand::Status(form)) => status(form.output),
        Some(ServerCommand::Check(form)) => check(form.output),
        Some(ServerCommand::Backup { file, with_environments }) => {
            backup::write(file, *with_environments)
        }
        Some(ServerCommand::Restore { file, force }) => backup::restore_here(
            file,
            if *force { Existing::MovedAside } else { Existing::Refused },
        ),
        Some(ServerCommand::Stop) => stop(),
        Some(ServerCommand::Install(args)) => install::install(args),
        Some(ServerCommand::Token { role, tenant, user }) => {
            tokens::token(*role, tenant.clone(), user.clone())
        }
        Some(ServerCommand::Tokens(form)) => tokens::tokens(form.output),
        Some(ServerCommand::Revoke { id }) => tokens::revoke(id),
    }
}

impl ServerArgs {
    /// The user as whom a server of several users runs, and their group.
    fn shared(&self) -> Option<(&str, &str)> {
        self.run_as.as_deref().zip(self.members.as_deref())
    }
}

fn signals() -> Result<Signals, Fail> {
    Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Fail::new(code::FAILED, format!("signals cannot be caught: {error}")))
}

fn status(form: Form) -> Result<u8, Fail> {
    let info: ServerInfo = client()?.get("/api/v1/server")?;
    let value = serde_json::to_value(&info).unwrap_or_default();
    output::object(&value, form, || {
        println!("server {} · process {} · policy {}", info.version, info.pid, info.policy);
        println!(
            "since {} · {} live jobs · {} events",
            info.started_at, info.jobs_live, info.events
        );
        info.storage.iter().for_each(|why| println!("nothing can be changed: {why}"));
        for WatchError { resource, reason, message } in &info.watch_errors {
            println!("`{resource}` of the cluster cannot be followed ({reason}): {message}");
        }
    });
    Ok(code::OK)
}

/// Checks the server's store and those of jobs that had a loop of their own.
fn check(form: Form) -> Result<u8, Fail> {
    let home = open_server_home()?;
    let stores = home.jobs()?.into_iter().map(|job| job.store());
    let stores = [home.store()].into_iter().chain(stores).filter(|path| path.exists());
    let checked = stores.map(|path| checked(&home, &path)).collect::<Result<Vec<_>, Fail>>()?;
    let is_damaged = checked.iter().any(|check| !check.damage.is_empty());
    output::object(&json!({ "kind": "StoreCheckList", "items": checked }), form, || {
        for StoreCheck { path, events, snapshots, rows, damage } in &checked {
            println!("{path}: {events} events · {snapshots} snapshots · {rows} rows of jobs");
            damage.iter().for_each(|damage| println!("{path}: {damage}"));
        }
    });
    Ok(if is_damaged { code::FAILED } else { code::OK })
}

/// What is in a store; one that cannot be opened is damaged as a whole. A running server looks at
/// its own.
fn checked(home: &Home, path: &Path) -> Result<StoreCheck, Fail> {
    match EventStore::open(path) {
        Ok(store) => Ok(store_check(&store.check(), path)),
        Err(StoreError::InUse) if path == home.store() => client()?.get("/api/v1/server/check"),
        Err(StoreError::InUse) => {
            Err(Fail::new(code::CONFLICT, format!("`{}` is in use", path.display()))
                .hint("a job has it: wait until that has ended"))
        }
        Err(error) => {
            let checked = Checked { damage: vec![error], ..Checked::default() };
            Ok(store_check(&checked, path))
        }
    }
}

fn stop() -> Result<u8, Fail> {
    let mut client = client()?;
    let stopped: Value = client.post("/api/v1/server/stop", &Value::Null)?;
    let left = stopped["jobs_running"].as_u64().unwrap_or(0);
    // Whoever asks next finds nobody, or the next server.
    if !client.closed(Instant::now() + STOP_LIMIT) {
        return Err(Fail::new(code::UNREACHABLE, "the server does not go down")
            .hint("`het server status` says which process it is"));
    }
    if left > 0 {
        eprintln!("stopped · {left} jobs wait or go on running, the next server takes them up");
    } else {
        eprintln!("stopped");
    }
    Ok(code::OK)
}
