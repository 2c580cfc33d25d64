//! The process that serves.

#[cfg(feature = "kubernetes")]
mod cluster;

use std::error::Error;
use std::os::fd::AsFd;
use std::path::{self, Path, PathBuf};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use anstream::eprintln;
use het_devices::{System, mps_answers, mps_pipe};
use het_server::api::{Api, Certificate, Listen, Network, Tokens, serve};
use het_server::{
    ControlLoopKind, DeviceLockError, DeviceLocks, Handle, Home, InputCopies, Keeping, LockHolder,
    Machine, MachineChanges, MachineLock, MachineService, MachineUsers, Members, NodeSettings,
    Scheduling, Served, ServiceOptions, SpawnRequests, StartError, StoreError, become_user,
    begin_store, disk_size, machine_with, raise_descriptor_limit, take_devices,
};
use het_wire::declared::{self, DeclaredDevices};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{AccessFlags, User, access, dup2_stdin, geteuid};
use signal_hook::iterator::Signals;

use tokio::runtime::Runtime;

use super::{EngineChoice, ServerArgs, signals};
use crate::fail::{Fail, code};
use crate::local::{device_lock_dir, home, refuse_unsupervised};
use crate::scheduling::policy_named;

const START_LOOK_EVERY: Duration = Duration::from_millis(5);
/// Threads beside the one that answers, for what waits: more than those who read job files, plan
/// and look at files of jobs have places.
const WORKERS: usize = 24;
/// How long a server waits for the machine.
const ACQUIRE_LIMIT: Duration = Duration::from_secs(2);

pub(super) fn serve_here(args: &ServerArgs) -> Result<u8, Fail> {
    match args.engine {
        EngineChoice::Node => serve_machine(args),
        #[cfg(feature = "kubernetes")]
        EngineChoice::Kubernetes => cluster::serve_cluster(args),
    }
}

fn serve_machine(args: &ServerArgs) -> Result<u8, Fail> {
    // Before there is another thread: each has rights of its own.
    let users = args.shared().map(leave_root).transpose()?;
    // Caught first: a stop during recovery is a stop after it, not a death.
    let stop = StopRequest::on(signals()?);
    raise_descriptor_limit();
    let options = options(args)?;
    let home = home()?;
    home.server_dir()?;
    let mut lock = acquire(&home)?;
    refuse_unsupervised(&home, Some(&home.run_dir("server")))?;
    let mut machine = machine(args, &home)?;
    machine.users = users;
    lock.hold_devices(acquire_devices(args, &mut machine, &home)?);
    if args.new_store {
        begin_store(&home).map_err(Fail::from_error)?;
    }
    let tokens = Tokens::open(&home.tokens()).map_err(Fail::from_error)?;
    let service = MachineService::start(&machine, home.clone(), options).map_err(start_failed)?;
    say_at_start(&service.refused, &service.news);
    if service.members.is_none() {
        say_whose_jobs_are();
    }
    let served = serve_until_stopped(args, home, tokens, service.served(), &stop);
    // Why the loop ended says more than that nobody could be served any more.
    service.join().map_err(Fail::from_error)?;
    served
}

fn say_at_start(refused: &[StoreError], news: &[String]) {
    for refused in refused {
        let why = refused.source().map(ToString::to_string).unwrap_or_default();
        eprintln!("{refused}: {why}; an older one and the events were used in its place");
    }
    news.iter().for_each(|news| eprintln!("{news}"));
}

/// Whether a signal asked the process to end, and what is to end then; cheap to clone.
#[derive(Clone, Default)]
struct StopRequest(Arc<Mutex<Stopping>>);

#[derive(Default)]
struct Stopping {
    is_asked: bool,
    service: Option<Handle>,
}

impl StopRequest {
    fn on(mut signals: Signals) -> Self {
        let request = Self::default();
        let on_signal = request.clone();
        thread::spawn(move || {
            if signals.forever().next().is_some() {
                let mut stopping = on_signal.stopping();
                stopping.is_asked = true;
                stopping.service.iter().for_each(Handle::stop_soon);
            }
        });
        request
    }

    fn stopping(&self) -> MutexGuard<'_, Stopping> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(feature = "kubernetes")]
    fn is_asked(&self) -> bool {
        self.stopping().is_asked
    }

    /// From now on it ends this service.
    fn ends(&self, service: Handle) {
        let mut stopping = self.stopping();
        if stopping.is_asked {
            service.stop_soon();
        }
        stopping.service = Some(service);
    }
}

/// Answers callers until a signal or one of them ends the loop, which has ended then.
fn serve_until_stopped(
    args: &ServerArgs,
    home: Home,
    tokens: Tokens,
    served: Served,
    stop: &StopRequest,
) -> Result<u8, Fail> {
    let (ready, listen) = (home.ready(), listen(args, &home, &served));
    let handle = served.handle.clone();
    stop.ends(handle.clone());
    let runtime = runtime().map_err(|error| Fail::new(code::FAILED, error.to_string()))?;
    let served = runtime.block_on(async {
        let api =
            Api::new(served, home, tokens, args.jobs_per_tenant).await.map_err(Fail::from_error)?;
        fs::write(&ready, std::process::id().to_string())
            .map_err(|error| Fail::file(&ready, error))?;
        eprintln!("serving at {}", listen.socket.display());
        serve(api, &listen).await.map_err(Fail::from_error)
    });
    // What still reads files of a disk that does not answer would hold up the end.
    runtime.shutdown_background();
    handle.stop_soon();
    served.map(|()| code::OK)
}

/// A runtime with all the threads that it will ever have: a machine that is out of processes later
/// has no say in who is answered.
fn runtime() -> io::Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.max_blocking_threads(WORKERS).thread_keep_alive(Duration::MAX);
    let runtime = builder.enable_all().build()?;
    let all_there = Arc::new(Barrier::new(WORKERS + 1));
    for _ in 0..WORKERS {
        let all_there = Arc::clone(&all_there);
        runtime.spawn_blocking(move || {
            all_there.wait();
        });
    }
    all_there.wait();
    Ok(runtime)
}

fn scheduling(args: &ServerArgs) -> Result<Scheduling, Fail> {
    Ok(Scheduling { policy: policy_named(&args.policy)?, cadence: args.cadence.cadence() })
}

fn keeping(args: &ServerArgs) -> Keeping {
    Keeping { snapshot_every: args.snapshot_every, events: args.keep_events, jobs: args.keep_jobs }
}

fn options(args: &ServerArgs) -> Result<ServiceOptions, Fail> {
    Ok(ServiceOptions {
        scheduling: scheduling(args)?,
        settings: NodeSettings {
            health_check: args.health_check.as_deref().map(health_check).transpose()?,
            input_copies: InputCopies { which: args.copy_inputs.into(), dir: inputs_dir(args)? },
        },
        keeping: keeping(args),
        stall_limit: Some(Duration::from_millis(args.stall_limit.0)),
    })
}

/// By its absolute path. Where the default is missing, nothing is copied.
fn inputs_dir(args: &ServerArgs) -> Result<PathBuf, Fail> {
    let dir =
        path::absolute(&args.inputs_dir).map_err(|error| Fail::file(&args.inputs_dir, error))?;
    if !dir.is_dir() && dir != InputCopies::default().dir {
        let text = format!("`{}` is no directory", dir.display());
        return Err(Fail::new(code::USAGE, text).hint("make it, writable for all users with jobs"));
    }
    Ok(dir)
}

fn listen(args: &ServerArgs, home: &Home, served: &Served) -> Listen {
    let certificate = args.tls_certificate.clone().zip(args.tls_key.clone());
    let certificate = certificate.map(|(chain, key)| Certificate { chain, key });
    let socket = match &served.members {
        None => home.socket(),
        Some(_) => home.shared_socket(),
    };
    Listen { socket, network: args.listen.map(|address| Network { address, certificate }) }
}

fn say_whose_jobs_are() {
    let user = User::from_uid(geteuid()).ok().flatten();
    let user = user.map_or_else(|| geteuid().to_string(), |user| user.name);
    eprintln!(
        "all jobs run as `{user}`, whoever submits them; `sudo het server install` sets up a \
         server that runs them as their users"
    );
}

/// Gives the rights of root up for those of the server's user, and takes standard input for the way
/// to who starts agents.
fn leave_root((run_as, group): (&str, &str)) -> Result<MachineUsers, Fail> {
    let members = Members::of(group).map_err(|error| Fail::new(code::USAGE, error.to_string()))?;
    become_user(run_as, Some(members.group())).map_err(Fail::from_error)?;
    // Without its supervisor it could start nothing. Whoever starts the next one has the machine.
    set_pdeathsig(Signal::SIGTERM).map_err(Fail::from_error)?;
    het_server::forbid_core_dumps();
    let lost = |error: io::Error| Fail::new(code::FAILED, format!("no agent can be had: {error}"));
    let requests = io::stdin().as_fd().try_clone_to_owned().map_err(lost)?;
    let requests = SpawnRequests::new(requests).map_err(lost)?;
    let null = fs::File::open("/dev/null").map_err(lost)?;
    dup2_stdin(null).map_err(|errno| lost(errno.into()))?;
    Ok(MachineUsers { members, spawner: Arc::new(requests) })
}

/// The program by its absolute path: ranks start elsewhere.
fn health_check(program: &Path) -> Result<PathBuf, Fail> {
    let path = path::absolute(program).map_err(|error| Fail::file(program, error))?;
    access(&path, AccessFlags::X_OK).map(|()| path).map_err(|errno| {
        let text = format!("the health check `{}` cannot be run: {errno}", program.display());
        Fail::new(code::USAGE, text).hint("give the path of an executable file")
    })
}

fn start_failed(error: StartError) -> Fail {
    match error {
        StartError::StoreMissing { .. } => Fail::new(code::CONFLICT, error.to_string())
            .hint("put it back, or forget its jobs by `het server --new-store`"),
        StartError::StandsStill { .. } => Fail::from_error(error)
            .hint("look at what mounts, the disk and the kernel's log say, and start it again"),
        StartError::Store(ref cause) if !matches!(cause, StoreError::InUse) => {
            Fail::from_error(error).hint("`het server check` names what is damaged")
        }
        error => Fail::from_error(error),
    }
}

/// This machine, with some of its devices cut into shares, and with those that a file declares.
fn machine(args: &ServerArgs, home: &Home) -> Result<Machine, Fail> {
    let shares = args.share.as_slice();
    let declared = args.declare.as_deref().map(declared).transpose()?.unwrap_or_default();
    let scratch = args.scratch.or_else(|| disk_size(&home.server_dir().ok()?).ok());
    let changes = MachineChanges { shares, declared: &declared, scratch, read: args.read };
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
pub(super) fn acquire(home: &Home) -> Result<MachineLock, Fail> {
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
