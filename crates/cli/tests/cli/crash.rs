//! Server, keeper, launcher and shims, killed again and again under load, alone and together:
//! nothing acknowledged is lost, no attempt starts or ends twice, what runs goes on, and how it
//! ends is known, unless whoever could have seen it was killed too.
//!
//! `HET_KILLS=500 cargo test -p het-cli --test cli crash` kills more often than a CI run does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use het_lab::Draw;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::Sandbox;

/// Kills in a CI run.
const KILLS: u32 = 150;
/// Snapshots so often that many kills fall into one that is being written.
const KEEPING: &[&str] = &["--snapshot-every", "100", "--keep-events", "200"];
/// Events of which some are stood for by a snapshot: on a busy machine that takes more kills.
const EVENTS_MIN: u64 = 400;
/// Longest wait for anything: far more than a test needs on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Jobs that one submitter has on the server at a time.
const OPEN_MAX: usize = 24;

/// One job of the load: it notes its start and its end in files of its own.
const SCRIPT: &str = "echo start $HET_ATTEMPT >> $NOTES/$KEY; sleep $SPAN; \
                      echo end $HET_ATTEMPT >> $NOTES/$KEY; exit $CODE";

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Server,
    /// The server goes on without it, until it is killed itself.
    Keeper,
    Launcher,
    /// Those of all gangs.
    Shims,
    All,
}

impl Victim {
    fn draw(draw: &mut Draw) -> Self {
        match draw.between(0, 9) {
            0 => Self::All,
            1 => Self::Keeper,
            2 => Self::Launcher,
            3 => Self::Shims,
            _ => Self::Server,
        }
    }
}

/// A server with a keeper; killed for good at the end of the test.
struct Server<'a> {
    sandbox: &'a Sandbox,
    keeper: Mutex<Child>,
    home: PathBuf,
}

impl<'a> Server<'a> {
    fn start(sandbox: &'a Sandbox) -> Self {
        let home = sandbox.path().join("home");
        let server = Self { sandbox, keeper: Mutex::new(Self::keeper(sandbox)), home };
        server.info();
        server
    }

    fn keeper(sandbox: &Sandbox) -> Child {
        let mut command = sandbox.het(&[&["server"], KEEPING].concat());
        let mut log = fs::File::options();
        let log = log.create(true).append(true).open(sandbox.path().join("log"));
        let log = log.expect("a file can be made");
        let keeper = command.stdout(Stdio::null()).stderr(log).spawn();
        keeper.expect("the server can be started")
    }

    /// One request; `None` while nobody answers.
    fn ask(&self, method: &str, path: &str, key: &str, body: &str) -> Option<(u16, Value)> {
        let mut stream = UnixStream::connect(self.home.join("server/socket")).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: het\r\nconnection: close\r\nidempotency-key: {key}\
             \r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        // A chunked body is one chunk here: its JSON stands between the sizes.
        let json = &body[body.find(['{', '['])?..=body.rfind(['}', ']'])?];
        Some((status, serde_json::from_str(json).ok()?))
    }

    /// The same, until somebody answers.
    fn ask_on(&self, method: &str, path: &str, key: &str, body: &str) -> (u16, Value) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(answer) = self.ask(method, path, key, body) {
                return answer;
            }
            let log = || fs::read_to_string(self.home.with_file_name("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "nobody answers {method} {path}: {}", log());
            self.revive();
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn info(&self) -> Value {
        self.ask_on("GET", "/api/v1/server", "-", "").1
    }

    fn kill(&self, victim: Victim) {
        let server = self.info()["pid"].as_i64().expect("a process id") as i32;
        let keeper_pid = self.keeper.lock().expect("nobody panics with it").id() as i32;
        let pids = match victim {
            Victim::Server => vec![server],
            Victim::Keeper => vec![keeper_pid],
            Victim::Launcher => self.launcher(),
            Victim::Shims => self.shims(),
            Victim::All => [vec![keeper_pid, server], self.launcher(), self.shims()].concat(),
        };
        for pid in pids {
            // It may have been killed by the last round already.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }

    /// Nobody else starts a server again whose keeper is dead.
    fn revive(&self) {
        let mut keeper = self.keeper.lock().expect("nobody panics with it");
        if keeper.try_wait().expect("it is a child").is_some() {
            *keeper = Self::keeper(self.sandbox);
        }
    }

    fn run_files(&self, prefix: &str) -> Vec<String> {
        let entries = fs::read_dir(self.home.join("run/server")).into_iter().flatten().flatten();
        let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
        named.filter_map(|entry| fs::read_to_string(entry.path()).ok()).collect()
    }

    fn launcher(&self) -> Vec<i32> {
        let texts = self.run_files("launcher");
        texts.iter().filter_map(|text| text.split(' ').nth(1)?.parse().ok()).collect()
    }

    /// As far as they run: an id may be another process's now.
    fn shims(&self) -> Vec<i32> {
        let records = self.run_files("record-");
        let noted = records.iter().filter_map(|record| {
            record.lines().find_map(|line| line.strip_prefix("shim ")?.trim().parse().ok())
        });
        let is_shim = |pid: &i32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name == "het-shim\n"
        };
        noted.filter(is_shim).collect()
    }

    fn jobs(&self) -> Vec<Value> {
        let mut rows = Vec::new();
        loop {
            let after = rows.last().map_or(0, |row: &Value| row["id"].as_u64().expect("an id"));
            let path = format!("/api/v1/jobs?all=true&after={after}");
            let (_, page) = self.ask_on("GET", &path, "-", "");
            rows.extend(page["items"].as_array().expect("a list").iter().cloned());
            if page["next"].is_null() {
                return rows;
            }
        }
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let keeper = self.keeper.get_mut().expect("nobody panics with it");
        if keeper.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = kill(Pid::from_raw(keeper.id() as i32), Signal::SIGTERM);
            let _ = keeper.wait();
        } else if let Some((_, info)) = self.ask("GET", "/api/v1/server", "-", "") {
            let server = info["pid"].as_i64().unwrap_or_default() as i32;
            let _ = kill(Pid::from_raw(server), Signal::SIGTERM);
        }
    }
}

/// Submits jobs until told to stop; gives the ids that were acknowledged, by key.
fn submit_until(
    server: &Server<'_>,
    notes: &Path,
    name: &str,
    seed: u64,
    stop: &AtomicBool,
) -> BTreeMap<String, u64> {
    let mut draw = Draw::new(seed, 0);
    let mut acknowledged = BTreeMap::new();
    while !stop.load(Ordering::SeqCst) {
        let key = format!("{name}-{}", acknowledged.len());
        // Most are short; some outlive many servers.
        let span =
            if draw.between(0, 19) == 0 { 1.5 } else { draw.between(0, 29) as f64 / 1_000.0 };
        let file = json!({
            "name": key, "kind": "custom", "devices": "cpu:1", "run": ["sh", "-c", SCRIPT],
            "env": {
                "NOTES": notes.to_string_lossy(), "KEY": key, "SPAN": span.to_string(),
                "CODE": code(&key).to_string(),
            },
        });
        let body = json!({ "file": file.to_string(), "cwd": "/" }).to_string();
        let (status, answer) = server.ask_on("POST", "/api/v1/jobs", &key, &body);
        assert!(status == 200 || status == 201, "{status} {answer}");
        acknowledged.insert(key, answer["id"].as_u64().expect("an id"));
        while !stop.load(Ordering::SeqCst) && open_jobs(server) > OPEN_MAX {
            thread::sleep(Duration::from_millis(5));
        }
    }
    acknowledged
}

/// What a job of the load exits with.
fn code(key: &str) -> u8 {
    if key.ends_with('3') { 3 } else { 0 }
}

fn open_jobs(server: &Server<'_>) -> usize {
    server.info()["jobs_live"].as_u64().expect("a number") as usize
}

/// Processes that bear this home in their environment, other than the server and this test.
fn strays(home: &Path) -> Vec<String> {
    let mark = format!("HET_OUTPUT={}", home.display());
    let entries = fs::read_dir("/proc").expect("/proc is there").flatten();
    let marked = entries.filter_map(|entry| {
        let environ = fs::read(entry.path().join("environ")).ok()?;
        let found = String::from_utf8_lossy(&environ).contains(&mark);
        found.then(|| entry.file_name().to_string_lossy().into_owned())
    });
    marked.collect()
}

#[test]
fn whoever_is_killed_nothing_is_lost_and_nothing_starts_twice() {
    let kills = std::env::var("HET_KILLS").ok().and_then(|text| text.parse().ok());
    let kills: u32 = kills.unwrap_or(KILLS);
    let sandbox = Sandbox::new();
    let notes = sandbox.path().join("notes");
    fs::create_dir(&notes).expect("a directory can be made");
    let server = Server::start(&sandbox);
    let stop = AtomicBool::new(false);
    let acknowledged = thread::scope(|scope| {
        let submitters: Vec<_> = (0..2u64)
            .map(|number| {
                let (server, notes, stop) = (&server, &notes, &stop);
                let name = format!("load{number}");
                scope.spawn(move || submit_until(server, notes, &name, number, stop))
            })
            .collect();
        let mut draw = Draw::new(99, 0);
        let events = || server.info()["events"].as_u64().expect("a number");
        let mut killed = 0;
        while killed < kills || events() < EVENTS_MIN {
            killed += 1;
            thread::sleep(Duration::from_millis(draw.between(0, 59)));
            server.kill(Victim::draw(&mut draw));
        }
        stop.store(true, Ordering::SeqCst);
        let mut all = BTreeMap::new();
        for submitter in submitters {
            all.extend(submitter.join().expect("a submitter does not panic"));
        }
        all
    });
    let deadline = Instant::now() + PATIENCE;
    while open_jobs(&server) > 0 {
        assert!(Instant::now() < deadline, "{} jobs never end", open_jobs(&server));
        thread::sleep(Duration::from_millis(20));
    }
    let rows = server.jobs();
    let by_name: BTreeMap<&str, &Value> =
        rows.iter().map(|row| (row["name"].as_str().expect("a name"), row)).collect();
    assert_eq!(by_name.len(), rows.len(), "a key has two jobs");
    let unseen: usize =
        acknowledged.iter().map(|(key, id)| check(key, *id, &by_name, &notes)).sum();
    assert_eq!(strays(&server.home), Vec::<String>::new());
    let (_, page) = server.ask_on("GET", "/api/v1/events?limit=1", "-", "");
    let (length, first) = (&server.info()["events"], &page["chain"]["sequence"]);
    assert!(first.as_u64() > Some(0), "of {length} events some are stood for by a snapshot");
    eprintln!(
        "{kills} kills, {} jobs, {unseen} ends that nobody saw, chain from {first} of {length}",
        acknowledged.len()
    );
}

/// An acknowledged job is there, ended as it should, and no attempt of it began or ended twice;
/// gives how many of its ends nobody saw.
#[track_caller]
fn check(key: &str, id: u64, rows: &BTreeMap<&str, &Value>, notes: &Path) -> usize {
    let row = rows.get(key).unwrap_or_else(|| panic!("{key} ({id}) is lost"));
    let state = if code(key) == 0 { "succeeded" } else { "failed" };
    assert_eq!((row["id"].as_u64(), &row["state"]), (Some(id), &json!(state)), "{row}");
    let noted = fs::read_to_string(notes.join(key)).expect("it ran");
    let lines: Vec<&str> = noted.lines().collect();
    let distinct: BTreeSet<&str> = lines.iter().copied().collect();
    assert_eq!(distinct.len(), lines.len(), "an attempt of {key} began or ended twice: {noted}");
    let starts = lines.iter().filter(|line| line.starts_with("start")).count();
    let last = lines.last().and_then(|line| line.strip_prefix("end"));
    let begun = lines.iter().rfind(|line| line.starts_with("start"));
    assert_eq!(last, begun.and_then(|line| line.strip_prefix("start")), "{key}: {noted}");
    starts - 1
}
