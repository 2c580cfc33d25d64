//! A client of a server: of this user's own, which may be started for it, or of one across the
//! network.

mod connection;
mod trust;

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use het_server::{Home, LockHolder, MachineLock};

use crate::fail::{Fail, code};
use crate::local::{home, refuse_unsupervised, server_home};

pub use connection::{Client, Next, Place, Stream};

/// Every change of every job.
pub const WATCH: &str = "/api/v1/watch";

/// How long a server that was started on demand may take to answer.
const START_LIMIT: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Where the server is: the one that was named, the one of this state directory where it runs, the
/// machine's where one is installed, and else the user's own.
fn place() -> Result<Place, Fail> {
    if let Some(named) = Place::named()? {
        return Ok(named);
    }
    let system = Home::of_system();
    let home = server_home()?;
    let is_named = env::var_os("HET_HOME").is_some_and(|path| !path.is_empty());
    Ok(Place::Socket(if home.is_shared() {
        home.shared_socket()
    } else if is_named || home.socket().exists() || !system.is_shared() {
        home.socket()
    } else {
        system.shared_socket()
    }))
}

/// The state directory of the server, where that has several users and is on this machine.
pub fn shared_home() -> Result<Option<Home>, Fail> {
    let Place::Socket(socket) = place()? else { return Ok(None) };
    let home = socket.parent().map(Home::at).filter(Home::is_shared);
    Ok(home.filter(|home| home.shared_socket() == socket))
}

/// A client of the server that runs.
pub fn client() -> Result<Client, Fail> {
    let place = place()?;
    Client::connect(place.clone())?.ok_or_else(|| unreachable(&place))
}

/// The same, where there may be none; one that was named has to be there.
pub fn client_if_any() -> Result<Option<Client>, Fail> {
    let place = place()?;
    match (Client::connect(place.clone())?, &place) {
        (None, Place::Network { .. }) => Err(unreachable(&place)),
        (client, _) => Ok(client),
    }
}

/// A client of the next server, after the one before went away: its keeper starts it again.
pub fn client_again() -> Result<Client, Fail> {
    let place = place()?;
    let deadline = Instant::now() + START_LIMIT;
    loop {
        match Client::connect(place.clone())? {
            Some(client) => return Ok(client),
            None if Instant::now() > deadline => return Err(unreachable(&place)),
            None => thread::sleep(LOOK_EVERY),
        }
    }
}

/// A client of the server; starts the user's own one if it does not run.
pub fn on_demand() -> Result<Client, Fail> {
    let place = place()?;
    if let Some(client) = Client::connect(place.clone())? {
        return Ok(client);
    }
    let home = home()?;
    if place != Place::Socket(home.socket()) {
        return Err(unreachable(&place));
    }
    refuse_busy(&home)?;
    start_in_background(&home)?;
    let deadline = Instant::now() + START_LIMIT;
    loop {
        if let Some(client) = Client::connect(place.clone())? {
            return Ok(client);
        }
        if Instant::now() > deadline {
            let log = home.server_log();
            let last = fs::read_to_string(&log).unwrap_or_default();
            let why = last.lines().rev().find_map(|line| line.strip_prefix("error: "));
            let last = why.or(last.lines().last()).unwrap_or("it said nothing").to_owned();
            return Err(Fail::new(code::UNREACHABLE, format!("no server came up: {last}"))
                .hint(format!("its log is `{}`", log.display())));
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// What would keep a server from starting is told at once.
fn refuse_busy(home: &Home) -> Result<(), Fail> {
    let path = home.lock_file();
    match MachineLock::try_acquire(&path).map_err(|error| Fail::file(&path, error))? {
        // One that is just starting answers in a moment.
        Err(None | Some(LockHolder { job: 0, .. })) => Ok(()),
        Err(Some(holder)) => Err(Fail::new(code::CONFLICT, format!("{holder} uses this machine"))
            .hint("wait for its end, or stop it with Ctrl-C where it runs")),
        Ok(_) => refuse_unsupervised(home, Some(&home.run_dir("server"))),
    }
}

fn unreachable(place: &Place) -> Fail {
    let place = match place {
        Place::Socket(path) => path.display().to_string(),
        Place::Network { authority, .. } => authority.clone(),
    };
    Fail::new(code::UNREACHABLE, format!("no server listens at `{place}`"))
        .hint("`het server` starts one, and so does `het submit`")
}

fn start_in_background(home: &Home) -> Result<(), Fail> {
    home.server_dir()?;
    let path = home.server_log();
    let trouble = |error: io::Error| Fail::file(&path, error);
    let log = OpenOptions::new().create(true).append(true).open(&path).map_err(trouble)?;
    let errors = log.try_clone().map_err(trouble)?;
    let program = env::current_exe().map_err(|error| Fail::file(Path::new("het"), error))?;
    let mut command = Command::new(program);
    command.arg("server").current_dir("/").stdin(Stdio::null()).stdout(log).stderr(errors);
    // Ctrl-C on this terminal is not meant for it.
    command.process_group(0);
    command.spawn().map(drop).map_err(trouble)
}

/// A selector as a part of a path.
pub fn escaped(selector: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    selector
        .bytes()
        .map(|byte| match plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}
