//! The HTTP interface over a real service: who may do what, what is refused how, and a storm of
//! requests that nobody would send.

mod redaction;
mod support;

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use het_lab::Draw;
use het_server::api::auth::{Listener, Whose, may};
use het_server::api::routes::ROUTES;
use het_server::api::{BODY_BYTES_MAX, FILE_BYTES_MAX, KEY_CHARS_MAX, PAGE_MAX, Peer, Role};
use serde_json::{Value, json};
use support::{Answer, JOBS_OF_A_TENANT, Rig, asked, no_tokens, opened, request, submission};
use tokio_stream::pending;
use tower::ServiceExt;

/// Requests of the storm.
const STORM: u64 = 100_000;

const OPERATIONS: &[&str] = &["cancel", "hold", "release", "drain", "undrain", "", "drop"];

const QUOTAS: &str =
    "{ apiVersion: heterosis.dev/v1alpha1, kind: Quotas, tenants: { lab: { weight: 2 } } }";

#[test]
fn every_role_may_exactly_what_the_table_says() {
    let mut secrets = Vec::new();
    let rig = Rig::new(|home| {
        for role in Role::ALL {
            let tenant = Some("lab".to_owned());
            let token = opened(home).add(role, tenant).expect("it can be written");
            secrets.push((role, token));
        }
    });
    let jobs = [
        (Whose::Own, "lab/nlp", rig.submit("lab/nlp")),
        (Whose::Others, "shop", rig.submit("shop")),
    ];
    let mut cells = 0;
    for route in ROUTES.iter().filter(|route| route.path != "/api/v1/server/stop") {
        // Streams never end.
        let Some(verb) = route.verb.filter(|_| route.path != "/api/v1/watch") else { continue };
        for (role, token) in &secrets {
            for (whose, tenant, job) in &jobs {
                let body = match (route.method, route.path) {
                    ("post", "/api/v1/jobs") => submission(tenant).to_string(),
                    ("patch", _) => json!({ "priority": "low" }).to_string(),
                    ("put", _) => json!({ "file": QUOTAS }).to_string(),
                    _ => String::new(),
                };
                let header = format!("Bearer {token}");
                let headers = [("authorization", header.as_str())];
                let path = asked(route, *job);
                let answer = rig.send(
                    Listener::Network,
                    request(route.method.to_uppercase().as_str(), &path, &headers, body),
                );
                let submits = (route.method, route.path) == ("post", "/api/v1/jobs");
                let is_about_a_job = submits || route.path.contains("{job}");
                let whose = if is_about_a_job { *whose } else { Whose::Own };
                let refused = matches!(answer.status.as_u16(), 403 | 404);
                let allowed = may(*role, verb, whose);
                let told = format!(
                    "{role:?} {whose:?} {} {path}: {} {}",
                    route.method, answer.status, answer.body
                );
                assert_eq!(refused, !allowed, "{told}");
                // A job that waits cannot be queued again; whoever hears that has passed the door.
                let conflict = answer.status.as_u16() == 409;
                assert!(refused || conflict || answer.status.is_success(), "{told}");
                cells += 1;
            }
        }
    }
    assert!(cells > 60, "the table has shrunk: {cells} cells");
}

#[test]
fn who_may_not_is_refused_before_its_body_is_read() {
    let mut secrets = Vec::new();
    let rig = Rig::new(|home| {
        for role in Role::ALL {
            secrets.push((role, opened(home).add(role, None).expect("it can be written")));
        }
    });
    let mut refused = 0;
    for route in ROUTES {
        let Some(verb) = route.verb else { continue };
        let may_ever =
            |role| [Whose::Own, Whose::Others].iter().any(|&whose| may(role, verb, whose));
        for (role, token) in secrets.iter().filter(|(role, _)| !may_ever(*role)) {
            let header = format!("Bearer {token}");
            let headers = [("authorization", header.as_str())];
            let path = asked(route, 1);
            let request = request(&route.method.to_uppercase(), &path, &headers, String::new());
            let (head, _) = request.into_parts();
            // Of a body that never comes nothing can be read.
            let body = Body::from_stream(pending::<Result<Vec<u8>, Infallible>>());
            let answer = rig.send(Listener::Network, Request::from_parts(head, body));
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{role:?} {path}: {}", answer.body);
            refused += 1;
        }
    }
    assert!(refused >= 10, "the table has shrunk: {refused} refusals");
}

#[test]
fn a_list_shows_only_what_the_caller_may_see() {
    let mut secret = String::new();
    let rig = Rig::new(|home| {
        let tenant = Some("lab".to_owned());
        secret = opened(home).add(Role::Viewer, tenant).expect("it can be written");
    });
    rig.submit("shop");
    let own = rig.submit("lab");
    let header = format!("Bearer {secret}");
    let headers = [("authorization", header.as_str())];
    let answer =
        rig.send(Listener::Network, request("GET", "/api/v1/jobs", &headers, String::new()));
    let ids: Vec<u64> = answer.body["items"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|row| row["id"].as_u64())
        .collect();
    assert_eq!(ids, [own]);
    let last =
        rig.send(Listener::Network, request("GET", "/api/v1/jobs/demo", &headers, String::new()));
    assert_eq!(last.body["id"].as_u64(), Some(own));
}

#[test]
fn without_a_token_the_network_gets_nothing() {
    let rig = Rig::new(no_tokens);
    for route in ROUTES {
        let method = route.method.to_uppercase();
        let answer =
            rig.send(Listener::Network, request(&method, &asked(route, 1), &[], String::new()));
        let expected = if route.verb.is_some() { StatusCode::UNAUTHORIZED } else { StatusCode::OK };
        assert_eq!(answer.status, expected, "{method} {}", route.path);
    }
}

#[test]
fn every_refusal_is_json_with_a_code() {
    let rig = Rig::new(no_tokens);
    let id = rig.submit("lab");
    let check = |method: &str, path: &str, kind: &str, expected: u16, code: &str| {
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        let answer = rig.send(Listener::Socket, request.body(Body::from("{}")).expect("a request"));
        let told = format!("{method} {path}: {}", answer.body);
        assert_eq!(answer.status.as_u16(), expected, "{told}");
        assert_eq!(answer.body["code"], code, "{told}");
        assert!(answer.body["message"].is_string(), "{told}");
    };
    let json = "application/json";
    check("GET", "/api/v1/jobs?limit=x", json, 400, "bad_request");
    check("GET", "/api/v1/jobs?what=1", json, 400, "bad_request");
    check("GET", "/api/v1/watch?what=1", json, 400, "bad_request");
    check("GET", "/api/v1/events?from=-1", json, 400, "bad_request");
    check("POST", &format!("/api/v1/jobs/{id}/explode"), json, 400, "bad_request");
    check("GET", "/api/v1/jobs/%ff", json, 400, "bad_request");
    check("POST", "/api/v1/devices/cpu0/explode", json, 400, "bad_request");
    check("DELETE", "/api/v1/jobs", json, 405, "no_such_method");
    check("GET", "/nowhere", json, 404, "not_found");
    check("POST", "/api/v1/jobs", "text/plain", 415, "not_json");
    check("POST", "/api/v1/jobs", json, 400, "bad_request");
}

#[test]
fn texts_of_a_submission_are_checked_by_field() {
    let rig = Rig::new(no_tokens);
    let check = |field: &str, value: Value, named: &str| {
        let mut body = submission("lab");
        body[field] = value;
        let answer = rig.ask("POST", "/api/v1/jobs", &body);
        let told = format!("{field}: {}", answer.body);
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{told}");
        let message = answer.body["message"].as_str().expect("a text");
        assert!(message.starts_with(&format!("`{named}` ")), "{told}");
        assert!(answer.body["hint"].is_string(), "{told}");
    };
    check("cwd", json!("relative"), "cwd");
    check("cwd", json!("/no/such/directory"), "cwd");
    check("cwd", json!("/dev/null"), "cwd");
    check("workdir", json!("/a\0b"), "workdir");
    check("stdin", json!("stdin"), "stdin");
    check("path", json!("/bin\0"), "path");
    check("source", json!("a\nb"), "source");
    check("commit", json!("\u{7f}"), "commit");
    check("environment", json!({ "": "x" }), "environment");
    check("environment", json!({ "A=B": "x" }), "environment");
    check("env", json!({ "A": "\0" }), "env");
    check("script", json!({ "name": "../x", "text": "" }), "script.name");
    check("script", json!({ "name": "x", "text": "\0" }), "script.text");
}

#[test]
fn a_tenant_with_all_its_jobs_is_told_so_and_others_are_served() {
    let rig = Rig::new(no_tokens);
    let first = rig.submit("lab");
    for _ in 1..JOBS_OF_A_TENANT {
        rig.submit("lab");
    }
    let refused = rig.ask("POST", "/api/v1/jobs", &submission("lab"));
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS, "{}", refused.body);
    assert_eq!(refused.body["message"], "60 jobs of `lab` wait, run or are held already");
    rig.submit("shop");
    rig.ask("POST", &format!("/api/v1/jobs/{first}/cancel"), &Value::Null);
    rig.submit("lab");
}

#[test]
fn quotas_say_what_a_tenants_jobs_may_ask_for() {
    let (mut user, mut operator) = (String::new(), String::new());
    let rig = Rig::new(|home| {
        let add = |role| opened(home).add(role, Some("lab".to_owned())).expect("it is written");
        (user, operator) = (add(Role::User), add(Role::Operator));
    });
    let file = json!({
        "apiVersion": "heterosis.dev/v1alpha1", "kind": "Quotas",
        "tenants": { "lab": { "priority_max": "high", "scratch_max": "20GiB" } },
    });
    let quotas = json!({ "file": file.to_string(), "source": "quotas.yaml" });
    assert_eq!(rig.ask("PUT", "/api/v1/quotas", &quotas).status, StatusCode::OK);
    let ask = |token: &str, method: &str, path: &str, body: &Value| {
        let header = format!("Bearer {token}");
        let headers = [("authorization", header.as_str())];
        rig.send(Listener::Network, request(method, path, &headers, body.to_string()))
    };
    let submit_with = |token: &str, edit: &dyn Fn(&mut Value)| {
        let mut submission = submission("lab/nlp");
        let file = submission["file"].as_str().expect("a text").to_owned();
        let mut file: Value = serde_json::from_str(&file).expect("it is JSON too");
        edit(&mut file["spec"]);
        submission["file"] = json!(file.to_string());
        ask(token, "POST", "/api/v1/jobs", &submission)
    };
    let submit = |token: &str, priority: &str| {
        submit_with(token, &|spec| spec["priority"] = json!(priority))
    };
    let submit_large = |token: &str, scratch: &str| {
        submit_with(token, &|spec| spec["stages"][0]["with"] = json!({ "scratch": scratch }))
    };
    let refused = submit_large(&user, "30GiB");
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert_eq!(refused.body["message"], "jobs of `lab/nlp` have 20GiB of `scratch` a rank at most");
    let modest = submit_large(&user, "10GiB");
    assert_eq!(modest.status, StatusCode::CREATED, "{}", modest.body);
    let refused = submit(&user, "urgent");
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert_eq!(refused.body["message"], "jobs of `lab/nlp` have priority `high` at most");
    assert_eq!(submit(&operator, "urgent").status, StatusCode::CREATED);
    let high = submit(&user, "high");
    assert_eq!(high.status, StatusCode::CREATED);
    let path = format!("/api/v1/jobs/{}", high.body["id"]);
    let urgent = json!({ "priority": "urgent" });
    assert_eq!(ask(&user, "PATCH", &path, &urgent).status, StatusCode::FORBIDDEN);
    assert_eq!(ask(&operator, "PATCH", &path, &urgent).status, StatusCode::OK);
}

#[test]
fn the_log_says_who_asked() {
    let mut secret = String::new();
    let rig = Rig::new(|home| {
        secret = opened(home).add(Role::User, Some("lab".to_owned())).expect("it can be written");
    });
    let ask = |peer: Peer, door: Listener, path: &str, body: &Value| {
        let header = format!("Bearer {secret}");
        let headers = [("authorization", header.as_str())];
        let mut request = request("POST", path, &headers, body.to_string());
        request.extensions_mut().insert(peer);
        let answer = rig.send(door, request);
        assert!(answer.status.is_success(), "{path}: {}", answer.body);
        answer.body
    };
    let remote = Peer::Remote([10, 0, 0, 7].into());
    let submitted = ask(remote, Listener::Network, "/api/v1/jobs", &submission("lab"));
    let id = submitted["id"].as_u64().expect("an id");
    let cancel = format!("/api/v1/jobs/{id}/cancel");
    ask(Peer::Local(Some(u32::MAX - 7)), Listener::Socket, &cancel, &Value::Null);

    let told = rig.ask("GET", &format!("/api/v1/jobs/{id}/report"), &Value::Null).body;
    let token = rig.tokens().list().expect("they can be read")[0].id().to_owned();
    let requests = &told["requests"];
    assert_eq!(
        (&requests[0]["what"], &requests[0]["token"], &requests[0]["address"]),
        (&json!("submit"), &json!(token), &json!("10.0.0.7"))
    );
    assert_eq!(
        (&requests[1]["what"], &requests[1]["user"]),
        (&json!("cancel"), &json!("4294967288"))
    );
    let page = rig.ask("GET", "/api/v1/events", &Value::Null).body;
    let rows = page["items"].as_array().expect("a list");
    let asked = rows.iter().filter(|row| row["record"]["event"] == "change_requested");
    let asked: Vec<_> = asked.map(|row| row["record"]["by"].clone()).collect();
    assert_eq!(
        asked,
        [json!({ "token": token, "address": "10.0.0.7" }), json!({ "user": "4294967288" })]
    );
    let header = format!("Bearer {secret}");
    let headers = [("authorization", header.as_str())];
    let path = format!("/api/v1/jobs/{id}/report");
    let seen = rig.send(Listener::Network, request("GET", &path, &headers, String::new()));
    assert_eq!(seen.body["requests"][0]["address"], Value::Null, "addresses are for operators");
}

#[test]
fn a_second_submission_of_a_key_is_the_first() {
    let rig = Rig::new(no_tokens);
    let send = |key: &str, tenant: &str| {
        let body = submission(tenant).to_string();
        rig.send(
            Listener::Socket,
            request("POST", "/api/v1/jobs", &[("idempotency-key", key)], body),
        )
    };
    let first = send("k", "lab");
    let second = send("k", "lab");
    assert_eq!((first.status, second.status), (StatusCode::CREATED, StatusCode::OK));
    assert_eq!(first.body["id"], second.body["id"]);
    assert_ne!(send("k", "shop").body["id"], first.body["id"], "each tenant has its own keys");
    assert_ne!(send("l", "lab").body["id"], first.body["id"]);
    let mut other = submission("lab");
    let file = other["file"].as_str().expect("text").replace("true", "false");
    other["file"] = file.into();
    let other = request("POST", "/api/v1/jobs", &[("idempotency-key", "k")], other.to_string());
    let refused = rig.send(Listener::Socket, other);
    assert_eq!(refused.status, StatusCode::CONFLICT, "a key stands for one job");
}

#[test]
fn a_client_that_goes_away_takes_nothing_back() {
    let rig = Rig::new(no_tokens);
    let body = submission("lab").to_string();
    for number in 0..40u64 {
        let key = format!("k{number}");
        let send = || request("POST", "/api/v1/jobs", &[("idempotency-key", &key)], body.clone());
        let app = rig.own.clone();
        rig.runtime.block_on(async {
            let patience = Duration::from_micros(number * 100);
            // Whether it is answered in time is left to chance.
            let _ = tokio::time::timeout(patience, app.oneshot(send())).await;
        });
        assert!(rig.send(Listener::Socket, send()).status.is_success());
    }
    let jobs = rig.ask("GET", "/api/v1/jobs", &Value::Null).body;
    assert_eq!(jobs["items"].as_array().map(Vec::len), Some(40), "one job a key");
}

#[test]
fn limits_hold_at_the_limit_and_not_beyond() {
    let rig = Rig::new(no_tokens);
    let key = |length: usize| {
        let body = submission("lab").to_string();
        let key = "k".repeat(length);
        rig.send(
            Listener::Socket,
            request("POST", "/api/v1/jobs", &[("idempotency-key", &key)], body),
        )
        .status
    };
    assert_eq!(key(KEY_CHARS_MAX), StatusCode::CREATED);
    assert_eq!(key(KEY_CHARS_MAX + 1), StatusCode::BAD_REQUEST);

    let page =
        |limit: usize| rig.ask("GET", &format!("/api/v1/jobs?limit={limit}"), &Value::Null).status;
    assert_eq!((page(0), page(1)), (StatusCode::BAD_REQUEST, StatusCode::OK));
    assert_eq!((page(PAGE_MAX), page(PAGE_MAX + 1)), (StatusCode::OK, StatusCode::BAD_REQUEST));

    let file = |length: usize| {
        let mut body = submission("lab");
        let text = body["file"].as_str().expect("a text").to_owned();
        let padded = format!("{text}{}", " ".repeat(length - text.len()));
        body["file"] = json!(padded);
        rig.ask("POST", "/api/v1/jobs", &body).status
    };
    assert_eq!(file(FILE_BYTES_MAX), StatusCode::CREATED);
    assert_eq!(file(FILE_BYTES_MAX + 1), StatusCode::PAYLOAD_TOO_LARGE);

    let body = |length: usize| {
        let text = submission("lab").to_string();
        let padded = format!("{text}{}", " ".repeat(length - text.len()));
        rig.send(Listener::Socket, request("POST", "/api/v1/jobs", &[], padded)).status
    };
    assert_eq!(body(BODY_BYTES_MAX), StatusCode::CREATED);
    assert_eq!(body(BODY_BYTES_MAX + 1), StatusCode::PAYLOAD_TOO_LARGE);
}

#[test]
fn refusals_say_what_to_do() {
    let rig = Rig::new(no_tokens);
    let code = |answer: &Answer| answer.body["code"].as_str().unwrap_or_default().to_owned();
    let bad = json!({ "file": "name: x\nrun: true\ndevice: cpu:1", "cwd": "/" });
    let answer = rig.ask("POST", "/api/v1/jobs", &bad);
    assert_eq!((answer.status.as_u16(), code(&answer).as_str()), (422, "bad_job_file"));
    assert!(answer.body["message"].as_str().expect("a report").contains("devices"));
    let huge =
        json!({ "file": "name: x\nrun: \"true\"\nkind: custom\ndevices: \"cpu:500\"", "cwd": "/" });
    let answer = rig.ask("POST", "/api/v1/jobs", &huge);
    assert_eq!((answer.status.as_u16(), code(&answer).as_str()), (422, "impossible"));
    let answer = rig.ask("GET", "/api/v1/jobs/77", &Value::Null);
    assert_eq!((answer.status.as_u16(), code(&answer).as_str()), (404, "not_found"));
    let id = rig.submit("lab");
    let path = format!("/api/v1/jobs/{id}/cancel");
    assert_eq!(rig.ask("POST", &path, &Value::Null).body["state"], "cancelled");
    let answer = rig.ask("POST", &path, &Value::Null);
    assert_eq!((answer.status.as_u16(), code(&answer).as_str()), (409, "conflict"));
}

#[test]
fn the_document_names_every_route_and_every_reference_leads_somewhere() {
    let rig = Rig::new(no_tokens);
    let document = rig.ask("GET", "/openapi.json", &Value::Null).body;
    assert_eq!(document["openapi"], "3.1.0");
    for route in ROUTES {
        assert!(document["paths"][route.path][route.method].is_object(), "{}", route.path);
    }
    let text = document.to_string();
    let references = text.split("\"$ref\":\"#/components/schemas/").skip(1);
    for name in references.filter_map(|rest| rest.split('"').next()) {
        assert!(document["components"]["schemas"][name].is_object(), "{name} leads nowhere");
    }
}

#[test]
fn a_stream_ends_with_its_token() {
    let mut secret = String::new();
    let rig = Rig::new(|home| {
        let tenant = Some("lab".to_owned());
        secret = opened(home).add(Role::Viewer, tenant).expect("it can be written");
    });
    let header = format!("Bearer {secret}");
    let headers = [("authorization", header.as_str())];
    let watch = request("GET", "/api/v1/watch", &headers, String::new());
    rig.runtime.block_on(async {
        let answer = rig.network.clone().oneshot(watch).await.expect("a router always answers");
        assert_eq!(answer.status(), StatusCode::OK);
        let tokens = opened(&rig.home);
        let id = tokens.list().expect("it can be read")[0].id().to_owned();
        tokens.revoke(&id).expect("it is there");
        to_bytes(answer.into_body(), BODY_BYTES_MAX).await.expect("the stream ends");
    });
}

/// A number below a limit.
fn below(draw: &mut Draw, limit: usize) -> usize {
    draw.between(0, limit as u64 - 1) as usize
}

/// One of these.
fn word(draw: &mut Draw, words: &[&'static str]) -> &'static str {
    words[below(draw, words.len())]
}

/// Words that often break something.
const WORDS: &[&str] = &[
    "",
    "0",
    "-1",
    "1",
    "18446744073709551616",
    "last",
    "all",
    "null",
    "true",
    "../..",
    "%00",
    "%2f",
    "a%20b",
    "é",
    "NaN",
    "1e400",
    "[",
    "{",
    "\u{202e}",
    "x&y=z",
    "cancel",
    "hold",
    "release",
];

/// A body with a few bytes changed, cut, doubled, or replaced by a word.
fn mutated(draw: &mut Draw, text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..below(draw, 4) {
        let at = below(draw, bytes.len().max(1));
        match below(draw, 5) {
            0 if !bytes.is_empty() => bytes[at] = below(draw, 256) as u8,
            1 => bytes.truncate(at),
            2 => {
                let word = word(draw, WORDS).as_bytes().to_vec();
                bytes.splice(at..at, word);
            }
            3 if !bytes.is_empty() => {
                let end = (at + below(draw, 40)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            _ => {
                let deep = below(draw, 300);
                bytes.splice(at..at, "[".repeat(deep).into_bytes());
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn storm_request(draw: &mut Draw) -> Option<Request<Body>> {
    let route = &ROUTES[below(draw, ROUTES.len())];
    // It would end the service, and a stream never ends.
    if ["/api/v1/server/stop", "/api/v1/watch"].contains(&route.path) {
        return None;
    }
    // Pages of the log and the document are long, and a change is a sync of the disk: some are
    // enough.
    let changes = route.method != "get" && route.path != "/api/v1/jobs";
    let long = ["/api/v1/events", "/openapi.json"].contains(&route.path);
    if (changes || long) && below(draw, 8) != 0 {
        return None;
    }
    let mut path: String = route
        .path
        .replace("{job}", word(draw, WORDS))
        .replace("{device}", word(draw, &["cpu0", "x", "", "%2F", "node/cpu0"]))
        .replace("{operation}", word(draw, OPERATIONS));
    if below(draw, 3) == 0 {
        let (name, value) = (
            word(draw, &["all", "after", "limit", "tenant", "state", "lang", "x"]),
            word(draw, WORDS),
        );
        path.push_str(&format!("?{name}={value}"));
    }
    let method = match below(draw, 10) {
        0 => word(draw, &["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"]),
        _ => &route.method.to_uppercase(),
    };
    let yaml = "name: x\nrun: [\"true\"]\ndevices: \"cpu:1 | gpu:2:24GiB\"\n\
                with: { cores: 1, memory: 2GiB }\n";
    let body = match below(draw, 6) {
        3 => mutated(draw, &json!({ "priority": "low", "time_limit": "6h" }).to_string()),
        4 => json!({ "file": mutated(draw, QUOTAS) }).to_string(),
        0 => mutated(draw, &submission("lab").to_string()),
        1 => {
            let file = mutated(draw, yaml);
            json!({ "file": file, "cwd": "/", "begin": "held" }).to_string()
        }
        2 => {
            let mut body = submission("lab");
            let file = mutated(draw, body["file"].as_str().expect("a text"));
            body["file"] = json!(file);
            body.to_string()
        }
        _ => String::new(),
    };
    let request =
        Request::builder().method(method).uri(path).header("content-type", "application/json");
    let request = match below(draw, 5) {
        0 => request.header("idempotency-key", word(draw, &["", "k", "two words", "\u{7f}"])),
        _ => request,
    };
    // What is no request at all never reaches the server.
    request.body(Body::from(body)).ok()
}

#[test]
fn a_storm_of_nonsense_breaks_nothing() {
    let rig = Rig::new(no_tokens);
    let mut draw = Draw::new(7, 0);
    let mut sent = 0;
    let mut accepted = 0;
    while sent < STORM {
        let Some(request) = storm_request(&mut draw) else { continue };
        let told = format!("{request:?}");
        let answer = rig.send(Listener::Socket, request);
        let server_error = answer.status.is_server_error();
        assert!(
            !server_error || answer.status == StatusCode::SERVICE_UNAVAILABLE,
            "{told}: {}",
            answer.status
        );
        accepted += u64::from(answer.status == StatusCode::CREATED);
        sent += 1;
    }
    assert!(accepted > 100, "hardly anything was a job: {accepted}");
    assert_eq!(rig.ask("GET", "/readyz", &Value::Null).status, StatusCode::OK);
    let replayed = het_server::EventStore::open(&rig.home.store());
    assert!(replayed.is_err(), "the service still holds its store");
}
