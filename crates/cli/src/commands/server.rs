//! `het server`: the service in the foreground, its status, its end, and tokens for it.

mod backup;

use std::error::Error;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{self, Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use anstream::{eprintln, println};
use clap::{Args, Subcommand, ValueEnum};
use het_devices::{System, mps_answers, mps_pipe};
use het_files::Links;
use het_server::api::{
    Api, Certificate, LIVE_JOBS_OF_A_TENANT, Listen, Network, Role, TokenError, TokenRow, Tokens,
    serve,
};
use het_server::{
    Checked, ControlLoopKind, DeviceChoice, DeviceLockError, DeviceLocks, EventStore, Existing,
    Home, Keeping, LockHolder, Machine, MachineChanges, MachineLock, MachineService, MachineUsers,
    Members, Privileged, Scheduling, SpawnRequests, StartError, StoreError, become_user,
    begin_store, forward_signal, lock_dir_name, machine_with, raise_descriptor_limit,
    run_restarter, store_check, take_devices,
};
use het_wire::api::{ServerInfo, StoreCheck};
use het_wire::declared::{self, DeclaredDevices};
use nix::sys::signal::Signal;
use nix::unistd::{AccessFlags, User, access, dup2_stdin};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::client::client;
use crate::fail::{Fail, code};
use crate::local::{device_lock_dir, home, open_server_home, refuse_unsupervised, server_home};
use crate::output::{self, Column, Form, ListArgs, Shown};
use crate::scheduling::{CadenceArgs, policy_named};

/// Digits of a process's id.
const READY_BYTES_MAX: u64 = 20;
const START_LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long a server may take to go down.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// How long a server waits for the machine.
const ACQUIRE_LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
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
    /// Make a token for callers across the network; it is shown once.
    Token {
        #[arg(long, value_enum)]
        role: RoleWord,
        /// Whose jobs are the caller's own; everybody's if absent.
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
        None if args.kept => serve_here(args),
        None => keep_one(args),
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
        Some(ServerCommand::Token { role, tenant, user }) => {
            token(*role, tenant.clone(), user.clone())
        }
        Some(ServerCommand::Tokens(form)) => tokens(form.output),
        Some(ServerCommand::Revoke { id }) => revoke(id),
    }
}

/// The program by its absolute path: ranks start elsewhere.
fn health_check(program: &Path) -> Result<PathBuf, Fail> {
    let path = path::absolute(program).map_err(|error| Fail::file(program, error))?;
    access(&path, AccessFlags::X_OK).map(|()| path).map_err(|errno| {
        let text = format!("the health check `{}` cannot be run: {errno}", program.display());
        Fail::new(code::USAGE, text).hint("give the path of an executable file")
    })
}

/// Starts the process that serves, and starts it again when it dies.
fn keep_one(args: &ServerArgs) -> Result<u8, Fail> {
    let program = env::current_exe().map_err(|error| Fail::file(Path::new("het"), error))?;
    let (home, privileged) = match args.shared() {
        None => {
            let home = home()?;
            home.server_dir()?;
            (home, None)
        }
        Some(names) => {
            // What is in it is for the server to make: it is not root's.
            let home = server_home()?;
            let locks = lock_dir_name(|name| env::var(name).ok());
            let privileged = Privileged::prepare(&home, names, &locks, program.clone());
            (home, Some(privileged.map_err(Fail::from_error)?))
        }
    };
    let mut arguments: Vec<_> = env::args_os().skip(1).collect();
    let kept = Arc::new(Kept::default());
    pass_signals_on(Arc::clone(&kept))?;
    let start = || {
        let mut command = Command::new(&program);
        // The allocator returns freed pages at once: a peak of waiting jobs does not stay.
        command.args(&arguments).arg("--kept").env("MIMALLOC_PURGE_DELAY", "0");
        if let Some(privileged) = &privileged {
            privileged.prepare_server(&mut command)?;
        }
        let child = command.spawn()?;
        // It was meant once: a store that is lost later is not begun anew by a restart.
        arguments.retain(|argument| argument != "--new-store");
        kept.server.store(child.id(), Ordering::SeqCst);
        Ok(child)
    };
    let ready = home.ready();
    let was_of_use = |id: u32| {
        // Its id may soon be another's.
        kept.server.store(0, Ordering::SeqCst);
        het_files::read(&ready, Links::Refused, READY_BYTES_MAX)
            .is_ok_and(|text| text == id.to_string().as_bytes())
    };
    let is_wanted = || !kept.stopped.load(Ordering::SeqCst);
    let keeps_running = |id| privileged.as_ref().is_some_and(|it| it.is_agent(id));
    let status = run_restarter(start, was_of_use, is_wanted, keeps_running);
    let status = status.map_err(|error| Fail::file(&program, error))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(code::FAILED))
}

/// What the keeper's signals are about.
#[derive(Default)]
struct Kept {
    /// The process that serves; 0 between two of them.
    server: AtomicU32,
    stopped: AtomicBool,
}

/// Whoever stops the keeper means the server. A second signal ends the keeper too, which may still
/// wait for what a server left behind.
fn pass_signals_on(kept: Arc<Kept>) -> Result<(), Fail> {
    let mut signals = signals()?;
    thread::spawn(move || {
        for _ in signals.forever() {
            let server = kept.server.load(Ordering::SeqCst);
            if server != 0 {
                forward_signal(server, Signal::SIGTERM);
            } else if kept.stopped.load(Ordering::SeqCst) {
                std::process::exit(i32::from(code::INTERRUPTED));
            }
            kept.stopped.store(true, Ordering::SeqCst);
        }
    });
    Ok(())
}

fn signals() -> Result<Signals, Fail> {
    Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Fail::new(code::FAILED, format!("signals cannot be caught: {error}")))
}

fn serve_here(args: &ServerArgs) -> Result<u8, Fail> {
    // Before there is another thread: each has rights of its own.
    let users = args.shared().map(leave_root).transpose()?;
    // Caught first: a stop during recovery is a stop after it, not a death.
    let mut signals = signals()?;
    raise_descriptor_limit();
    let policy = policy_named(&args.policy)?;
    let home = home()?;
    home.server_dir()?;
    let mut lock = acquire(&home)?;
    refuse_unsupervised(&home, Some(&home.run_dir("server")))?;
    let mut machine = machine(args)?;
    machine.users = users;
    lock.hold_devices(acquire_devices(args, &mut machine, &home)?);
    if args.new_store {
        begin_store(&home).map_err(Fail::from_error)?;
    }
    let tokens = Tokens::open(&home.tokens()).map_err(Fail::from_error)?;
    let health_check = args.health_check.as_deref().map(health_check).transpose()?;
    let keeping = Keeping {
        snapshot_every: args.snapshot_every,
        events: args.keep_events,
        jobs: args.keep_jobs,
    };
    let scheduling = Scheduling { policy, cadence: args.cadence.cadence() };
    let service = MachineService::start(&machine, scheduling, home.clone(), health_check, keeping);
    let service = service.map_err(start_failed)?;
    for refused in &service.refused {
        let why = refused.source().map(ToString::to_string).unwrap_or_default();
        eprintln!("{refused}: {why}; an older one and the events were used in its place");
    }
    for news in &service.news {
        eprintln!("{news}");
    }
    let ready = home.ready();
    let certificate = args.tls_certificate.clone().zip(args.tls_key.clone());
    let certificate = certificate.map(|(chain, key)| Certificate { chain, key });
    let network = args.listen.map(|address| Network { address, certificate });
    let socket = match &service.members {
        None => home.socket(),
        Some(_) => home.shared_socket(),
    };
    let listen = Listen { socket, network };
    let on_signal = service.handle().clone();
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            on_signal.stop_soon();
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Fail::new(code::FAILED, error.to_string()))?;
    let served = runtime.block_on(async {
        let api = Api::new(&service, home, tokens, args.jobs_per_tenant)
            .await
            .map_err(Fail::from_error)?;
        fs::write(&ready, std::process::id().to_string())
            .map_err(|error| Fail::file(&ready, error))?;
        eprintln!("serving at {}", listen.socket.display());
        serve(api, &listen).await.map_err(Fail::from_error)
    });
    // Why the loop ended says more than that nobody could be served any more.
    service.handle().stop_soon();
    service.join().map_err(Fail::from_error)?;
    served?;
    Ok(code::OK)
}

/// Gives the rights of root up for those of the server's user, and takes standard input for the way
/// to who starts agents.
fn leave_root((run_as, group): (&str, &str)) -> Result<MachineUsers, Fail> {
    let members = Members::of(group).map_err(|error| Fail::new(code::USAGE, error.to_string()))?;
    become_user(run_as, Some(members.group())).map_err(Fail::from_error)?;
    het_server::forbid_core_dumps();
    let lost = |error: io::Error| Fail::new(code::FAILED, format!("no agent can be had: {error}"));
    let requests = io::stdin().as_fd().try_clone_to_owned().map_err(lost)?;
    let requests = SpawnRequests::new(requests).map_err(lost)?;
    let null = fs::File::open("/dev/null").map_err(lost)?;
    dup2_stdin(null).map_err(|errno| lost(errno.into()))?;
    Ok(MachineUsers { members, spawner: Arc::new(requests) })
}

impl ServerArgs {
    /// The user as whom a server of several users runs, and their group.
    fn shared(&self) -> Option<(&str, &str)> {
        self.run_as.as_deref().zip(self.members.as_deref())
    }
}

fn start_failed(error: StartError) -> Fail {
    match error {
        StartError::StoreMissing { .. } => Fail::new(code::CONFLICT, error.to_string())
            .hint("put it back, or forget its jobs by `het server --new-store`"),
        StartError::Store(ref cause) if !matches!(cause, StoreError::InUse) => {
            Fail::from_error(error).hint("`het server check` names what is damaged")
        }
        error => Fail::from_error(error),
    }
}

/// This machine, with some of its devices cut into shares, and with those that a file declares.
fn machine(args: &ServerArgs) -> Result<Machine, Fail> {
    let shares = args.share.as_slice();
    let declared = args.declare.as_deref().map(declared).transpose()?.unwrap_or_default();
    let changes = MachineChanges { shares, declared: &declared };
    let machine = machine_with(System::this_machine(), &changes).map_err(|error| {
        Fail::new(code::USAGE, error.to_string())
            .hint("`het devices` names the devices; only NVIDIA's that are whole can be shared")
    })?;
    let pipe = mps_pipe(|name| env::var(name).ok());
    if !shares.is_empty() && !mps_answers(&pipe) {
        eprintln!(
            "nothing answers at `{}`: programs take turns on shares and nothing caps their memory; \
             start it with `nvidia-cuda-mps-control -d`",
            pipe.display()
        );
    }
    Ok(machine)
}

fn declared(path: &Path) -> Result<Vec<DeclaredDevices>, Fail> {
    let text = fs::read_to_string(path).map_err(|error| Fail::file(path, error))?;
    let declared = declared::parse(&text, &path.display().to_string());
    declared.map_err(|problems| Fail::Report { code: code::USAGE, text: problems.to_string() })
}

/// Takes the machine. A process that a killed server was about to start may hold its lock for a
/// moment longer.
fn acquire(home: &Home) -> Result<MachineLock, Fail> {
    let path = home.lock_file();
    let broken = |error: io::Error| Fail::file(&path, error);
    let deadline = Instant::now() + ACQUIRE_LIMIT;
    loop {
        match MachineLock::try_acquire(&path).map_err(broken)? {
            Ok(mut lock) => {
                lock.announce(&LockHolder::server()).map_err(broken)?;
                return Ok(lock);
            }
            Err(holder) if Instant::now() > deadline => {
                let whom = holder.map_or_else(|| "another run".to_owned(), |who| who.to_string());
                return Err(Fail::new(code::CONFLICT, format!("{whom} uses this machine"))
                    .hint("one loop decides on a machine: wait for it or stop it"));
            }
            Err(_) => thread::sleep(START_LOOK_EVERY),
        }
    }
}

/// Takes the devices that this server was given, or all. Those of a server that was killed may be
/// held for a moment longer.
fn acquire_devices(
    args: &ServerArgs,
    machine: &mut Machine,
    home: &Home,
) -> Result<DeviceLocks, Fail> {
    let dir = device_lock_dir()?;
    let choices = args.devices.as_deref();
    let deadline = Instant::now() + ACQUIRE_LIMIT;
    loop {
        match take_devices(&dir, machine, choices, (ControlLoopKind::Server, home.root())) {
            Err(DeviceLockError::Held(_)) if Instant::now() < deadline => {
                thread::sleep(START_LOOK_EVERY);
            }
            Err(DeviceLockError::Held(conflict)) => {
                let hint = match conflict.free.as_slice() {
                    [] => "stop it, or use it by its `HET_HOME`".to_owned(),
                    free => format!("give this server the rest: `--devices {}`", free.join(",")),
                };
                return Err(Fail::new(code::CONFLICT, conflict.to_string()).hint(hint));
            }
            taken => return taken.map_err(Fail::from_error),
        }
    }
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

fn token(role: RoleWord, tenant: Option<String>, user: Option<String>) -> Result<u8, Fail> {
    let role = match role {
        RoleWord::Viewer => Role::Viewer,
        RoleWord::User => Role::User,
        RoleWord::Operator => Role::Operator,
        RoleWord::Admin => Role::Admin,
    };
    if let Some(name) = &user {
        refuse_user(name)?;
    }
    let token = own_tokens()?.add_for(role, tenant, user).map_err(Fail::from_error)?;
    println!("{token}");
    eprintln!("it is shown once, and opens the server from now on");
    Ok(code::OK)
}

/// What no server would ever take. Whether the user is a member, it looks up whenever a job starts.
fn refuse_user(name: &str) -> Result<(), Fail> {
    let user = User::from_name(name).map_err(|errno| Fail::new(code::FAILED, errno.to_string()))?;
    let why = match user {
        _ if !server_home()?.is_shared() => "this server runs jobs as its own user only".to_owned(),
        None => format!("there is no user `{name}`"),
        Some(user) if user.uid.is_root() => "jobs never run as root".to_owned(),
        Some(_) => return Ok(()),
    };
    Err(Fail::new(code::USAGE, why))
}

const TOKEN_COLUMNS: &[Column] = &[
    Column("ID", "id", Shown::Always),
    Column("ROLE", "role", Shown::Always),
    Column("TENANT", "tenant", Shown::Always),
    Column("USER", "user", Shown::Wide),
];

fn tokens(form: Form) -> Result<u8, Fail> {
    let rows = own_tokens()?.list().map_err(Fail::from_error)?;
    let item = |row: &TokenRow| {
        let TokenRow { role, tenant, user, .. } = row;
        json!({ "id": row.id(), "role": role, "tenant": tenant, "user": user })
    };
    output::list("TokenList", &rows.iter().map(item).collect::<Vec<_>>(), TOKEN_COLUMNS, form);
    Ok(code::OK)
}

fn revoke(id: &str) -> Result<u8, Fail> {
    match own_tokens()?.revoke(id) {
        Err(error @ TokenError::Unknown { .. }) => {
            Err(Fail::new(code::NOT_FOUND, error.to_string()))
        }
        revoked => revoked.map(|()| code::OK).map_err(Fail::from_error),
    }
}

fn own_tokens() -> Result<Tokens, Fail> {
    let home = open_server_home()?;
    Tokens::open(&home.tokens()).map_err(Fail::from_error)
}
