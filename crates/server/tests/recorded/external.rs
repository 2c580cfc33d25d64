//! Somebody's notebook on a device, and a device that fails: a recorded machine with one NPU, whose
//! `/proc` says who has it open.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::extract::Extension;
use axum::http::Request;
use axum::routing::Router;
use het_devices::System;
use het_policy::by_name;
use het_server::api::auth::Listener;
use het_server::api::routes::router;
use het_server::api::{Api, LIVE_JOBS_OF_A_TENANT, Tokens};
use het_server::{Home, MachineService, ServiceOptions, machine};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt;

use crate::{FUNCTION, ON_BUS, record};

/// Far more than a look takes, which comes every two seconds.
const PATIENCE: Duration = Duration::from_secs(30);

struct Rig {
    root: TempDir,
    service: MachineService,
    runtime: Runtime,
    app: Router,
}

impl Rig {
    /// May be started again on the same root.
    fn start(root: TempDir) -> Self {
        let machine = machine(System::recorded(root.path()));
        let text = root.path().join("home").to_string_lossy().into_owned();
        let home = Home::find(|name| (name == "HET_HOME").then(|| text.clone())).expect("a home");
        home.server_dir().expect("a directory can be made");
        let policy = by_name("adaptive").expect("the table has it");
        let service =
            MachineService::start(&machine, home.clone(), ServiceOptions::new(policy.into()));
        let service = service.expect("a new service");
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let tokens = Tokens::open(&home.tokens()).expect("none is a list too");
        let api = Api::new(service.served(), home, tokens, LIVE_JOBS_OF_A_TENANT);
        let api = runtime.block_on(api).expect("the loop runs");
        Self { root, service, runtime, app: router(api).layer(Extension(Listener::Socket)) }
    }

    /// The machine goes on without it.
    fn end(self) -> TempDir {
        self.service.handle().stop_soon();
        self.service.join().expect("the loop ends well");
        self.root
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("content-type", "application/json");
        let request = request.body(Body::from(body.to_string())).expect("a request");
        self.runtime.block_on(async {
            let answer = self.app.clone().oneshot(request).await.expect("a router always answers");
            let text = to_bytes(answer.into_body(), 1 << 20).await.expect("the body ends");
            serde_json::from_slice(&text).expect("an answer is JSON")
        })
    }

    fn npu(&self) -> Value {
        self.ask("GET", "/api/v1/devices", &Value::Null)["items"][1].clone()
    }

    fn job_state(&self, id: &Value) -> String {
        let row = self.ask("GET", &format!("/api/v1/jobs/{id}"), &Value::Null);
        row["state"].as_str().unwrap_or_default().to_owned()
    }
}

fn wait_for(is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "it never comes to that");
        std::thread::yield_now();
    }
}

#[test]
fn a_device_that_a_stranger_uses_is_busy_until_he_leaves() {
    let root = tempfile::tempdir().expect("a temporary directory");
    record(root.path(), &[]);
    let mut ada = Command::new("sleep").arg("60").spawn().expect("`sleep` is there");
    let process = ada.id();
    let opened = root.path().join(format!("proc/{process}/fd/7"));
    fs::create_dir_all(opened.parent().expect("it lies in a directory")).expect("writable");
    symlink("/dev/davinci0", &opened).expect("writable");
    let rig = Rig::start(root);

    let npu = rig.npu();
    assert_eq!(npu["state"], "occupied", "{npu}");
    assert!(npu["occupant"].as_str().is_some_and(|who| who.contains(&process.to_string())));

    let file = json!({ "name": "demo", "run": ["true"], "devices": "npu:1" });
    let submission = json!({ "file": file.to_string(), "cwd": "/" });
    let submitted = rig.ask("POST", "/api/v1/jobs", &submission);
    let id = &submitted["id"];
    let explained = rig.ask("GET", &format!("/api/v1/jobs/{id}/explanation"), &Value::Null);
    let blocker = &explained["stages"][0]["blockers"][0];
    assert_eq!(blocker["occupied"][0]["process"], process, "{explained}");
    assert_eq!(rig.job_state(id), "queued");

    fs::remove_file(opened).expect("he leaves");
    wait_for(|| rig.job_state(id) == "succeeded");
    ada.kill().expect("it can be killed");
    ada.wait().expect("it is a child");
    rig.end();
}

#[test]
fn a_device_that_is_still_gone_when_it_is_taken_back_fails_again() {
    let root = tempfile::tempdir().expect("a temporary directory");
    record(root.path(), &[]);
    let rig = Rig::start(root);
    assert_eq!(rig.npu()["state"], "up");
    fs::remove_file(rig.root.path().join(ON_BUS)).expect("it leaves the bus");
    wait_for(|| rig.npu()["state"] == "failed");
    let name = rig.npu()["name"].as_str().expect("a name").replace('/', "%2F");
    let back = rig.ask("POST", &format!("/api/v1/devices/{name}/undrain"), &Value::Null);
    assert_eq!(back["state"], "up", "{back}");
    wait_for(|| rig.npu()["state"] == "failed");
    rig.end();
}

#[test]
fn a_machine_may_lose_a_device_and_get_it_back() {
    let root = tempfile::tempdir().expect("a temporary directory");
    record(root.path(), &[]);
    let rig = Rig::start(root);
    let file = json!({ "name": "demo", "run": ["true"], "devices": "npu:1" });
    let submission = json!({ "file": file.to_string(), "cwd": "/" });
    let ran = rig.ask("POST", "/api/v1/jobs", &submission)["id"].clone();
    wait_for(|| rig.job_state(&ran) == "succeeded");

    let root = rig.end();
    fs::remove_file(root.path().join(ON_BUS)).expect("it falls off the bus");
    let memory = root.path().join("proc/meminfo");
    fs::write(memory, "MemTotal:       1056964000 kB\n").expect("another kernel takes a little");
    let rig = Rig::start(root);
    assert_eq!(rig.service.news.len(), 1, "{:?}", rig.service.news);
    assert_eq!(rig.npu()["state"], "gone");
    assert_eq!(rig.job_state(&ran), "succeeded");
    let name = rig.npu()["name"].as_str().expect("a name").replace('/', "%2F");
    let refused = rig.ask("POST", &format!("/api/v1/devices/{name}/undrain"), &Value::Null);
    assert_eq!(refused["code"], "conflict", "{refused}");
    let waits = rig.ask("POST", "/api/v1/jobs", &submission)["id"].clone();
    assert_eq!(rig.job_state(&waits), "queued");

    let root = rig.end();
    symlink(format!("../../../../{FUNCTION}"), root.path().join(ON_BUS)).expect("it is back");
    let rig = Rig::start(root);
    assert_eq!((rig.npu()["state"].as_str(), rig.service.news.len()), (Some("up"), 0));
    wait_for(|| rig.job_state(&waits) == "succeeded");
    rig.end();
}
