//! What tenants see of each other: whatever is asked for, by whatever role, no name of another
//! tenant's comes back.

use std::collections::BTreeSet;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::http::StatusCode;
use het_server::api::auth::Listener;
use het_server::api::routes::ROUTES;
use het_server::api::{Role, Tokens};
use serde_json::{Value, json};
use tokio_stream::StreamExt;
use tower::ServiceExt;

use crate::support::{Rig, asked, opened, request};

/// Part of every name of the tenant that is not to be seen.
const PLANTED: &str = "zq";

/// A job of which everything bears the planted word where `word` has it.
fn job(rig: &Rig, tenant: &str, word: &str, priority: &str) -> u64 {
    let units = rig.ask("GET", "/api/v1/devices", &Value::Null).body["items"][0]["units"].clone();
    let workdir = rig.dir.path().join(format!("{word}-work"));
    let file = json!({
        "apiVersion": "heterosis.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": { "name": format!("{word}-job"), "tenant": tenant },
        "spec": {
            "priority": priority,
            "params": { format!("{word}-param"): format!("{word}-value") },
            "stages": [{
                "name": format!("{word}-stage"), "run": ["sleep", "600"],
                "env": { format!("{word}_variable"): format!("{word}-value") },
                "devices": format!("cpu:{units}"),
            }],
        },
    });
    let body = json!({
        "file": file.to_string(), "cwd": "/", "source": format!("{word}.yaml"),
        "workdir": workdir, "environment": { format!("{word}_other"): format!("{word}-value") },
        "commit": format!("{word}-commit"),
    });
    let key = format!("{word}-key");
    let headers = [("idempotency-key", key.as_str())];
    let request = request("POST", "/api/v1/jobs", &headers, body.to_string());
    let answer = rig.send(Listener::Socket, request);
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    answer.body["id"].as_u64().expect("an id")
}

/// All that can be asked of every route with these jobs in the place of `{job}`.
fn requests(jobs: &[u64]) -> BTreeSet<(String, String)> {
    let mut requests = BTreeSet::new();
    for route in ROUTES.iter().filter(|route| route.path != "/api/v1/server/stop") {
        for job in jobs {
            let path = asked(route, *job);
            let method = route.method.to_uppercase();
            let ends_it = ["preemption", "requeue"].iter().any(|end| path.ends_with(end));
            if method == "GET" || !ends_it {
                requests.insert((method, path));
            }
        }
    }
    for job in jobs {
        requests.insert(("GET".into(), format!("/api/v1/jobs/{job}/explanation?placement=true")));
        requests.insert(("GET".into(), format!("/api/v1/jobs/{job}/explanation?lang=zh")));
        requests.insert(("GET".into(), format!("/api/v1/jobs/{job}/preemption?lang=zh")));
        requests.insert(("GET".into(), format!("/api/v1/jobs?all=true&select={job}")));
    }
    requests.insert(("GET".into(), "/api/v1/jobs?all=true".into()));
    requests
}

impl Rig {
    /// All that a token is answered as text; of a stream what has come when a change was made.
    fn told(&self, token: &str, method: &str, path: &str) -> (StatusCode, String) {
        let header = format!("Bearer {token}");
        let request = request(method, path, &[("authorization", &header)], "{}".to_owned());
        let (status, text) = self.runtime.block_on(self.text_of(request));
        (status, text)
    }

    async fn text_of(&self, request: Request<Body>) -> (StatusCode, String) {
        let answer = self.network.clone().oneshot(request).await.expect("a router answers");
        let status = answer.status();
        let body = to_bytes(answer.into_body(), 64 << 20).await.expect("it ends");
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    /// Waits until a job is in a state.
    fn wait_for(&self, job: u64, state: &str) {
        let jobs = self.service.as_ref().expect("it runs").handle().jobs();
        let mut changes = jobs.watch();
        let is_there = || jobs.row(het_core::JobId(job)).is_some_and(|row| row.state == state);
        while !is_there() {
            self.runtime.block_on(changes.recv()).expect("the service goes on");
        }
    }
}

/// Two jobs that want all of the machine: one of `lab`, which had to make room, and one of the
/// planted tenant, which runs.
struct Scene {
    rig: Rig,
    tokens: Vec<(Role, String)>,
    own: u64,
    planted: u64,
}

impl Scene {
    fn new() -> Self {
        let mut tokens = Vec::new();
        let rig = Rig::new(|home| {
            let add = |role| Tokens::add(&opened(home), role, Some("lab".to_owned()));
            tokens = Role::ALL.map(|role| (role, add(role).expect("it can be written"))).into();
        });
        let own = job(&rig, "lab", "own", "low");
        rig.wait_for(own, "running");
        let planted = job(&rig, &format!("{PLANTED}-tenant"), PLANTED, "urgent");
        let forced = rig.ask("POST", &format!("/api/v1/jobs/{own}/preemption"), &Value::Null);
        assert!(matches!(forced.status.as_u16(), 200 | 409), "it may have been stopped already");
        rig.wait_for(planted, "running");
        Self { rig, tokens, own, planted }
    }

    fn token(&self, role: Role) -> &str {
        let (_, token) =
            self.tokens.iter().find(|(other, _)| *other == role).expect("all are there");
        token
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for job in [self.own, self.planted] {
            self.rig.ask("POST", &format!("/api/v1/jobs/{job}/cancel"), &Value::Null);
            self.rig.wait_for(job, "cancelled");
        }
    }
}

#[test]
fn no_answer_names_what_is_another_tenants() {
    let scene = Scene::new();
    let mut answered = 0;
    for role in [Role::Viewer, Role::User] {
        for (method, path) in requests(&[scene.own, scene.planted]) {
            // Streams never end: they have a test of their own.
            if path == "/api/v1/watch" {
                continue;
            }
            let (status, text) = scene.rig.told(scene.token(role), &method, &path);
            assert!(!text.contains(PLANTED), "{role:?} {method} {path}: {status} {text}");
            answered += usize::from(status.is_success());
        }
    }
    assert!(answered > 20, "hardly anything was answered: {answered}");
}

#[test]
fn operators_are_told_the_names_and_others_the_quantities() {
    let scene = Scene::new();
    let explanation = format!("/api/v1/jobs/{}/explanation", scene.own);
    let told = |role| {
        let (_, text) = scene.rig.told(scene.token(role), "GET", &explanation);
        serde_json::from_str::<Value>(&text).expect("it is JSON")["stages"][0].clone()
    };
    let (user, operator) = (told(Role::User), told(Role::Operator));
    let (hidden, shown) = (&user["blockers"][0]["held_by"], &operator["blockers"][0]["held_by"]);
    assert_eq!(shown[0]["job"], scene.planted);
    assert_eq!(shown[0]["name"], format!("{PLANTED}-job"));
    assert_eq!(hidden[0]["units"], shown[0]["units"]);
    assert_eq!(hidden[0]["job"], Value::Null);
    assert_eq!(operator["stops"][0]["preemptor"], scene.planted);
    assert_eq!(user["stops"][0]["preemptor"], Value::Null);
    let (_, figures) = scene.rig.told(scene.token(Role::Viewer), "GET", "/metrics");
    assert!(
        figures.contains("tenant=\"others\"") && figures.contains("tenant=\"lab\""),
        "{figures}"
    );
    for name in ["het_device_pace_ratio{device=", "het_waiting_stages{priority="] {
        assert!(figures.contains(name), "{figures}");
    }
}

#[test]
fn a_stream_tells_of_own_jobs_only() {
    let scene = Scene::new();
    let header = format!("Bearer {}", scene.token(Role::Viewer));
    let watch = request("GET", "/api/v1/watch", &[("authorization", &header)], String::new());
    let Scene { rig, own, planted, .. } = &scene;
    let answer = rig.runtime.block_on(rig.network.clone().oneshot(watch)).expect("it answers");
    for (job, priority) in [(planted, "high"), (own, "normal")] {
        let changed = json!({ "priority": priority });
        let changed = rig.ask("PATCH", &format!("/api/v1/jobs/{job}"), &changed);
        assert_eq!(changed.status, StatusCode::OK, "{}", changed.body);
    }
    let mut body = answer.into_body().into_data_stream();
    let mut told = String::new();
    while !told.contains("own-job") {
        let sent = rig.runtime.block_on(body.next()).expect("it goes on").expect("it can be read");
        told += &String::from_utf8_lossy(&sent);
    }
    assert!(!told.contains(PLANTED), "{told}");
}
