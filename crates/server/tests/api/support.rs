//! A service with its router behind both doors.

use axum::body::{Body, to_bytes};
use axum::extract::Extension;
use axum::http::{Request, StatusCode};
use axum::routing::Router;
use het_policy::by_name;
use het_server::api::auth::Listener;
use het_server::api::routes::{Route, router};
use het_server::api::{Api, Tokens};
use het_server::{Home, MachineService, ServiceOptions, this_machine};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt;

/// Jobs of one tenant that the service of a test takes.
pub const JOBS_OF_A_TENANT: usize = 60;

/// A service in a home of its own, and its router behind both doors.
pub struct Rig {
    pub runtime: Runtime,
    pub service: Option<MachineService>,
    pub own: Router,
    pub network: Router,
    pub home: Home,
    pub dir: TempDir,
}

pub struct Answer {
    pub status: StatusCode,
    pub body: Value,
}

impl Rig {
    pub fn new(tokens: impl FnOnce(&Home)) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let root = dir.path().to_string_lossy().into_owned();
        let home = Home::find(|name| (name == "HET_HOME").then(|| root.clone())).expect("a home");
        home.server_dir().expect("a directory can be made");
        tokens(&home);
        let machine = this_machine();
        let policy = by_name("adaptive").expect("the table has it");
        let service =
            MachineService::start(&machine, home.clone(), ServiceOptions::new(policy.into()));
        let service = service.expect("a new service");
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let tokens = Tokens::open(&home.tokens()).expect("they can be read");
        let api = Api::new(service.served(), home.clone(), tokens, JOBS_OF_A_TENANT);
        let api = runtime.block_on(api).expect("the loop runs");
        let app = router(api);
        let own = app.clone().layer(Extension(Listener::Socket));
        let network = app.layer(Extension(Listener::Network));
        Self { runtime, service: Some(service), own, network, home, dir }
    }

    pub fn send(&self, door: Listener, request: Request<Body>) -> Answer {
        let app = match door {
            Listener::Socket => self.own.clone(),
            Listener::Network => self.network.clone(),
        };
        self.runtime.block_on(async {
            let answer = app.oneshot(request).await.expect("a router always answers");
            let status = answer.status();
            let text = to_bytes(answer.into_body(), 64 << 20).await.expect("the body ends");
            let body = serde_json::from_slice(&text).unwrap_or(Value::Null);
            Answer { status, body }
        })
    }

    pub fn tokens(&self) -> Tokens {
        opened(&self.home)
    }

    pub fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.send(Listener::Socket, request(method, path, &[], body.to_string()))
    }

    pub fn submit(&self, tenant: &str) -> u64 {
        let answer = self.ask("POST", "/api/v1/jobs", &submission(tenant));
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        answer.body["id"].as_u64().expect("an id")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(service) = self.service.take() {
            service.handle().stop_soon();
            service.join().expect("the loop ends well");
        }
    }
}

pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: String) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path);
    request = request.header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::from(body)).expect("a request")
}

/// A job that waits for a release that never comes.
pub fn submission(tenant: &str) -> Value {
    let file = json!({
        "apiVersion": "heterosis.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": { "name": "demo", "tenant": tenant },
        "spec": { "stages": [{ "name": "main", "run": ["true"], "devices": "cpu:1" }] },
    });
    json!({ "file": file.to_string(), "cwd": "/", "begin": "held" })
}

pub fn no_tokens(_: &Home) {}

pub fn opened(home: &Home) -> Tokens {
    Tokens::open(&home.tokens()).expect("none is a list too")
}

/// The routes with a verb, as a caller asks for a job's.
pub fn asked(route: &Route, job: u64) -> String {
    let path = route.path.replace("{device}/{operation}", "cpu0/undrain");
    path.replace("{job}", &job.to_string()).replace("{operation}", "hold")
}
