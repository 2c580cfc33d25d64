//! A server that other machines may reach.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Output};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::commands::wait_for;
use crate::support::Sandbox;

/// A server behind TLS with a certificate that it signed itself.
struct Rig {
    sandbox: Sandbox,
    server: Child,
    port: u16,
    token: String,
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    listener.local_addr().expect("it has an address").port()
}

/// As `openssl req -x509` makes it, its own authority: certificate and key.
fn self_signed(names: &[&str]) -> (String, String) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut wanted = rcgen::CertificateParams::new(names).expect("names");
    wanted.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().expect("a key can be made");
    let certificate = wanted.self_signed(&key).expect("a certificate can be made");
    (certificate.pem(), key.serialize_pem())
}

impl Rig {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        let (certificate, key) = self_signed(&["localhost"]);
        sandbox.write("certificate.pem", &certificate);
        sandbox.write("key.pem", &key);
        let token = sandbox.run(&["server", "token", "--role", "admin"]);
        let token = String::from_utf8_lossy(&token.stdout).trim().to_owned();
        let port = free_port();
        let address = format!("127.0.0.1:{port}");
        let files = ["--tls-certificate", "certificate.pem", "--tls-key", "key.pem"];
        let mut server = sandbox.het(&["server", "--listen", &address]);
        let server = server.args(files).spawn().expect("het starts");
        let rig = Self { sandbox, server, port, token };
        wait_for("the server to answer", || {
            rig.status("https", Some("certificate.pem")).status.success()
        });
        rig
    }

    fn status(&self, scheme: &str, ca: Option<&str>) -> Output {
        let mut asked: Command = self.sandbox.het(&["server", "status"]);
        asked.env("HET_SERVER", format!("{scheme}://localhost:{}", self.port));
        asked.env("HET_TOKEN", &self.token);
        if let Some(ca) = ca {
            asked.env("HET_CA", ca);
        }
        asked.output().expect("het starts")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.server.id() as i32), Signal::SIGTERM);
        let _ = self.server.wait();
    }
}

#[track_caller]
fn check_refused(refused: &Output, code: i32, why: &str) {
    let told = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(code), "{told}");
    assert!(told.contains(why), "{told}");
}

#[test]
fn a_server_behind_tls_is_heard_by_who_trusts_it() {
    let rig = Rig::new();
    check_refused(&rig.status("https", None), 5, "is not to be trusted");
    check_refused(&rig.status("http", None), 5, "the server went away");
    check_refused(&rig.status("https", Some("key.pem")), 2, "nobody who could vouch");
}

#[test]
fn tokens_never_travel_in_the_clear() {
    let sandbox = Sandbox::new();
    sandbox.run(&["server", "token", "--role", "admin"]);
    let address = format!("0.0.0.0:{}", free_port());
    let refused = sandbox.run(&["server", "--listen", &address]);
    check_refused(&refused, 1, "--tls-certificate");
    sandbox.write("empty.pem", "");
    let files = ["--tls-certificate", "empty.pem", "--tls-key", "empty.pem"];
    let refused = sandbox.run(&[&["server", "--listen", &address][..], &files].concat());
    check_refused(&refused, 1, "holds no certificate");
}
