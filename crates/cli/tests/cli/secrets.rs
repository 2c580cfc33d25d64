//! Secrets are planted wherever a submission may have them, and looked for wherever the server
//! writes or answers.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::Uid;
use serde_json::Value;

use crate::commands::wait_for;
use crate::support::{Sandbox, Served};

/// What every planted value begins with.
const PLANTED: &str = "between-us-";

/// The variables of the shell, of `--env`, of a stage and of an alternative; a placeholder is
/// filled in for the program alone.
const NAMES: [&str; 5] = ["OF_SHELL", "OF_OPTION", "OF_STAGE", "OF_PLACE", "OF_ALTERNATIVE"];

const JOB: &str = r#"
apiVersion: heterosis.dev/v1alpha1
kind: TrainingJob
metadata: { name: planted }
spec:
  stages:
    - name: main
      env: { OF_STAGE: between-us-4, OF_PLACE: "between-us-{rank}" }
      run: [sh, -c, SCRIPT]
      alternatives:
        - { devices: "cpu:1", env: { OF_ALTERNATIVE: between-us-5 } }
"#;

/// Ends well where every variable has its value, of which the script knows the end alone.
const CHECK: &str = "for value in $OF_SHELL $OF_OPTION $OF_STAGE $OF_PLACE $OF_ALTERNATIVE; do \
                     ends=$ends${value##*-}; done; test $ends = 12405";

fn plant(sandbox: &Sandbox, words: &[&str], script: &str) -> String {
    sandbox.write("job.yaml", &JOB.replace("SCRIPT", &format!("{script:?}")));
    let mut command = sandbox.het(words);
    command.env("OF_SHELL", "between-us-1").env("OF_OPTION", "between-us-2");
    command.env("HET_TOKEN", "between-us-3");
    let output = command.output().expect("het starts");
    let told = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&told).into_owned()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let below = |path: PathBuf| match path.is_dir() {
        true => files(&path),
        false => vec![path],
    };
    // Neither sockets nor pipes can be read for what is in them.
    entries.flat_map(|entry| below(entry.path())).filter(|path| path.is_file()).collect()
}

fn holds(bytes: &[u8]) -> bool {
    bytes.windows(PLANTED.len()).any(|part| part == PLANTED.as_bytes())
}

/// Files below a directory that hold a planted value; each has to be its owner's alone.
#[track_caller]
fn check_files(dir: &Path) {
    for path in files(dir) {
        if holds(&fs::read(&path).unwrap_or_default()) {
            assert_eq!(path.extension().and_then(|word| word.to_str()), Some("env"), "{path:?}");
            let mode = fs::metadata(&path).expect("it is there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{path:?}");
        }
    }
}

/// What a route answers; of a stream, what is there at once.
fn answer(socket: &Path, path: &str) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(1))).expect("it can be set");
    let head = format!("GET {path} HTTP/1.1\r\nHost: het\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("the server reads");
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut part) {
        bytes.extend_from_slice(&part[..count]);
    }
    bytes
}

/// The paths of all routes that answer GET, for the first job and the first of all else.
fn paths(socket: &Path) -> Vec<String> {
    let document = answer(socket, "/openapi.json");
    let text = String::from_utf8_lossy(&document);
    let body = text.split_once("\r\n\r\n").expect("a head and a body").1;
    let from = body.find('{').expect("an object");
    let document = serde_json::Deserializer::from_str(&body[from..]).into_iter::<Value>().next();
    let document = document.expect("a value").expect("it is JSON");
    let paths = document["paths"].as_object().expect("paths");
    let with_get = paths.iter().filter(|(_, path)| path.get("get").is_some());
    let paths: Vec<String> = with_get.map(|(path, _)| path.replace("{job}", "1")).collect();
    assert!(paths.iter().any(|path| path.ends_with("/jobs/1")), "{paths:?}");
    assert!(!paths.iter().any(|path| path.contains('{')), "{paths:?}");
    paths
}

#[test]
fn what_is_planted_is_found_in_kept_files_alone() {
    let served = Served::new();
    let sandbox = &served.0;
    let words = ["submit", "--wait", "--env", "OF_OPTION", "job.yaml"];
    assert!(plant(sandbox, &words, CHECK).contains("planted"));
    assert_eq!(served.json(&["describe", "1"])["state"], "succeeded");
    let running = plant(sandbox, &["submit", "--env", "OF_OPTION", "job.yaml"], "sleep 600");
    assert!(!holds(running.as_bytes()), "{running}");
    wait_for("the job to run", || served.json(&["describe", "2"])["state"] == "running");
    let home = sandbox.path().join("home");
    check_files(&home);
    served.run(&["server", "backup", "backup"]);
    let backup = fs::read(sandbox.path().join("backup")).expect("it was written");
    assert!(!holds(&backup), "a backup leaves variables out");
    let socket = home.join("server/socket");
    for path in paths(&socket) {
        let told = answer(&socket, &path);
        assert!(!holds(&told), "{path}: {}", String::from_utf8_lossy(&told));
    }
    let commands: [&[&str]; 4] =
        [&["export"], &["describe", "2", "-o", "json"], &["explain", "2"], &["history"]];
    for words in commands {
        assert!(!holds(&served.run(words).stdout), "{words:?}");
    }
    let processes = fs::read_dir("/proc").expect("it is there").flatten();
    for command in processes.map(|entry| entry.path().join("cmdline")) {
        assert!(!holds(&fs::read(&command).unwrap_or_default()), "{command:?}");
    }
    let names = served.run(&["export"]).stdout;
    let names = String::from_utf8_lossy(&names).into_owned();
    assert!(NAMES[2..].iter().all(|name| names.contains(name)), "names are told: {names}");
}

#[test]
fn a_run_without_a_server_keeps_secrets_too() {
    let sandbox = Sandbox::new();
    let told = plant(&sandbox, &["run", "-q", "--env", "OF_OPTION", "job.yaml"], CHECK);
    assert!(!holds(told.as_bytes()), "{told}");
    let home = sandbox.path().join("home");
    let reports = files(&home).into_iter().filter(|path| path.ends_with("report.json"));
    let reports: Vec<String> = reports.filter_map(|path| fs::read_to_string(path).ok()).collect();
    assert!(reports.iter().any(|report| report.contains("\"succeeded\"")), "{told} {reports:?}");
    check_files(&home);
}

/// What opens the server is kept as a hash, and shown once.
#[test]
fn a_token_is_in_no_file_and_no_answer() {
    let served = Served::new();
    let made = served.run(&["server", "token", "--role", "viewer"]).stdout;
    let made = String::from_utf8_lossy(&made).into_owned();
    let token = made.split_whitespace().max_by_key(|word| word.len()).expect("it is shown once");
    assert!(token.len() >= 32, "{made}");
    served.submit("exit 0");
    let is_told = |bytes: &[u8]| bytes.windows(token.len()).any(|part| part == token.as_bytes());
    let home = served.0.path().join("home");
    for path in files(&home) {
        assert!(!is_told(&fs::read(&path).unwrap_or_default()), "{path:?}");
    }
    let socket = home.join("server/socket");
    for path in paths(&socket) {
        assert!(!is_told(&answer(&socket, &path)), "{path}");
    }
}

/// The kernel gives the files of a process that may not be dumped to root.
#[test]
fn the_server_is_in_no_core_dump() {
    let served = Served::new().start(&[]);
    let id = served.json(&["server", "status"])["pid"].as_u64().expect("a process");
    let owner = fs::metadata(format!("/proc/{id}/environ")).expect("it lives").uid();
    assert_eq!(owner, 0, "of {}", Uid::current());
    if !Uid::current().is_root() {
        assert!(fs::read(format!("/proc/{id}/environ")).is_err());
    }
}
