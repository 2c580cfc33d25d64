//! A real server in a process of its own, with a home of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::http::Http;
use crate::rank::RANK_COMMAND;
use crate::{BenchError, Size, io_at};

/// Clients that submit at the same time: their jobs share syncs of the log.
const CLIENTS: usize = 32;
/// Rounds over all kinds of reads.
const READ_ROUNDS: usize = 40;
const START_LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct ServerBenchmark {
    pub(crate) submits_per_s: f64,
    pub(crate) reads_ms: Vec<f64>,
    pub(crate) rss_mib: f64,
    pub(crate) gaps_ms: Vec<f64>,
    pub(crate) recovery_s: f64,
}

pub(crate) struct Server {
    keeper: Child,
    pub(crate) socket: PathBuf,
}

impl Server {
    pub(crate) fn start(
        home: &Path,
        program: &Path,
        arguments: &[String],
    ) -> Result<Self, BenchError> {
        fs::create_dir_all(home).map_err(io_at(home))?;
        let keeper = Command::new(program)
            .arg("server")
            .args(arguments)
            .env("HET_HOME", home)
            .env("HET_LOCK_DIR", home)
            .env_remove("HET_SERVER")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(io_at(program))?;
        let server = Self { keeper, socket: home.join("server/socket") };
        server.answering(0)?;
        Ok(server)
    }

    /// Waits until a process other than `before` answers; gives its id.
    pub(crate) fn answering(&self, before: i32) -> Result<i32, BenchError> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let info = Http::connect(&self.socket)
                .and_then(|mut http| http.json("GET", "/api/v1/server", ""));
            let pid = info.as_ref().ok().and_then(|info| info["pid"].as_i64()).unwrap_or(0) as i32;
            if pid != 0 && pid != before {
                return Ok(pid);
            }
            if Instant::now() > deadline {
                return Err(BenchError::Server { what: "nothing for a minute".to_owned() });
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

#[cfg(feature = "kubernetes")]
impl Server {
    /// The process that starts the next server when one dies.
    pub(crate) fn keeper(&self) -> i32 {
        self.keeper.id() as i32
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.keeper.id() as i32), Signal::SIGTERM);
        let _ = self.keeper.wait();
    }
}

pub(crate) fn bench_server(
    home: &Path,
    program: &Path,
    size: &Size,
    say: &mut impl FnMut(&str),
) -> Result<ServerBenchmark, BenchError> {
    let server = Server::start(home, program, &[])?;
    let mut http = Http::connect(&server.socket)?;
    let gaps_ms = gaps(&mut http, home, program, size.gaps)?;
    // One job has the machine, so that the others wait.
    let blocker = submit(&mut http, &["sleep", "100000"])?;
    let began = Instant::now();
    submit_many(&server.socket, size.jobs_waiting)?;
    let submits_per_s = size.jobs_waiting as f64 / began.elapsed().as_secs_f64();
    let reads_ms = reads(&mut http, blocker)?;
    say("killing the server, and waiting for the next one");
    let pid = server.answering(0)?;
    kill(Pid::from_raw(pid), Signal::SIGKILL)
        .map_err(|errno| BenchError::Server { what: errno.to_string() })?;
    let began = Instant::now();
    let pid = server.answering(pid)?;
    let recovery_s = began.elapsed().as_secs_f64();
    say("ending many jobs");
    let mut done = size.jobs_waiting;
    cancel_all(&server.socket, blocker, done)?;
    while done < size.jobs_ended {
        let more = (size.jobs_ended - done).min(size.jobs_waiting);
        submit_many(&server.socket, more)?;
        done += more;
        cancel_all(&server.socket, blocker, more)?;
    }
    let rss_mib = memory_mib(pid, "VmRSS:")?;
    let mut http = Http::connect(&server.socket)?;
    http.ask("POST", &format!("/api/v1/jobs/{blocker}/cancel"), "")?;
    Ok(ServerBenchmark { submits_per_s, reads_ms, rss_mib, gaps_ms, recovery_s })
}

fn body(run: &[&str]) -> String {
    let file = json!({ "name": "bench", "kind": "custom", "devices": "cpu:1", "run": run });
    json!({ "file": file.to_string(), "cwd": "/" }).to_string()
}

fn submit(http: &mut Http, run: &[&str]) -> Result<u64, BenchError> {
    // All cores of the first socket: nothing runs beside it.
    let devices = http.json("GET", "/api/v1/devices", "")?;
    let items = devices["items"].as_array().cloned().unwrap_or_default();
    let cores: u64 = items.iter().filter_map(|item| item["units"].as_u64()).max().unwrap_or(1);
    let devices = format!("cpu:{cores}");
    let file = json!({ "name": "bench", "kind": "custom", "devices": devices, "run": run });
    let body = json!({ "file": file.to_string(), "cwd": "/" }).to_string();
    let answer = http.json("POST", "/api/v1/jobs", &body)?;
    answer["id"].as_u64().ok_or_else(|| BenchError::Server { what: answer.to_string() })
}

/// By several clients at once.
fn submit_many(socket: &Path, count: usize) -> Result<(), BenchError> {
    each_of(socket, count, |http, _| http.ask("POST", "/api/v1/jobs", &body(&["true"])).map(drop))
}

/// Does something `count` times, shared out among several clients.
fn each_of(
    socket: &Path,
    count: usize,
    act: impl Fn(&mut Http, usize) -> Result<(), BenchError> + Sync,
) -> Result<(), BenchError> {
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let act = &act;
                scope.spawn(move || {
                    let mut http = Http::connect(socket)?;
                    (client..count).step_by(CLIENTS).try_for_each(|number| act(&mut http, number))
                })
            })
            .collect();
        clients.into_iter().try_for_each(|client| {
            client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

/// Cancels all that wait.
fn cancel_all(socket: &Path, blocker: u64, count: usize) -> Result<(), BenchError> {
    let mut http = Http::connect(socket)?;
    let mut ids = Vec::with_capacity(count);
    let mut after = blocker;
    loop {
        let page = http.json("GET", &format!("/api/v1/jobs?after={after}"), "")?;
        let items = page["items"].as_array().cloned().unwrap_or_default();
        ids.extend(items.iter().filter_map(|item| item["id"].as_u64()));
        match page["next"].as_u64() {
            Some(next) => after = next,
            None => break,
        }
    }
    each_of(socket, ids.len(), |http, number| {
        http.ask("POST", &format!("/api/v1/jobs/{}/cancel", ids[number]), "").map(drop)
    })
}

/// Every kind of read, in turn.
fn reads(http: &mut Http, blocker: u64) -> Result<Vec<f64>, BenchError> {
    let newest = http.json("GET", "/api/v1/jobs/last", "")?["id"].as_u64().unwrap_or(0);
    let paths = [
        "/api/v1/jobs".to_owned(),
        format!("/api/v1/jobs?all=true&after={}", newest.saturating_sub(1_000)),
        format!("/api/v1/jobs/{newest}"),
        format!("/api/v1/jobs/{newest}/report"),
        format!("/api/v1/jobs/{newest}/explanation"),
        format!("/api/v1/jobs/{blocker}/report"),
        "/api/v1/jobs/bench".to_owned(),
        "/api/v1/devices".to_owned(),
        "/api/v1/server".to_owned(),
        "/metrics".to_owned(),
    ];
    let mut times = Vec::new();
    for path in (0..READ_ROUNDS).flat_map(|_| &paths) {
        let began = Instant::now();
        http.ask("GET", path, "")?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(times)
}

/// Between programs that wait for the same device, one after the other.
fn gaps(
    http: &mut Http,
    home: &Path,
    program: &Path,
    count: usize,
) -> Result<Vec<f64>, BenchError> {
    let path = home.join("stamps");
    let words = [program.to_string_lossy(), RANK_COMMAND.into(), path.to_string_lossy()];
    let run = [&*words[0], &*words[1], &*words[2], "once"];
    let mut last = 0;
    for _ in 0..count {
        last = submit(http, &run)?;
    }
    let deadline = Instant::now() + START_LIMIT;
    while http.json("GET", &format!("/api/v1/jobs/{last}"), "")?["ended_at"].is_null() {
        if Instant::now() > deadline {
            return Err(BenchError::Nothing { what: "jobs do not end".to_owned() });
        }
        thread::sleep(Duration::from_millis(20));
    }
    let text = fs::read_to_string(&path).map_err(io_at(&path))?;
    let stamps: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    // Start, end, start, end: the gap is from an end to the next start.
    let gaps = stamps.windows(2).skip(1).step_by(2);
    Ok(gaps.map(|pair| pair[1].saturating_sub(pair[0]) as f64 / 1e6).collect())
}

/// A line of `/proc/PID/status`, proc(5).
pub(crate) fn memory_mib(pid: i32, line: &str) -> Result<f64, BenchError> {
    let path = PathBuf::from(format!("/proc/{pid}/status"));
    let text = fs::read_to_string(&path).map_err(io_at(&path))?;
    let value = text.lines().find_map(|text| text.strip_prefix(line));
    let kib = value.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kib.map(|kib| kib / 1_024.0)
        .ok_or_else(|| BenchError::Nothing { what: "no resident memory is told".to_owned() })
}
