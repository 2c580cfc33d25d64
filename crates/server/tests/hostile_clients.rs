//! Clients that mean harm, all at once, against a real server with sockets, with tokens and
//! without. Meanwhile another client is answered.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use het_policy::by_name;
use het_server::api::{
    Api, Certificate, LIVE_JOBS_OF_A_TENANT, Listen, Network, Role, Tokens, serve,
};
use het_server::{Home, MachineService, ServiceOptions, this_machine};
use serde_json::json;
use tempfile::TempDir;

/// Connections that are opened and say nothing, or little.
const CONNECTIONS: usize = 2_000;
/// Answers of which the slowest are told.
const ANSWERS: usize = 400;
/// What a client waits for an answer, at most.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a client of TLS says first, cut off.
const CLIENT_HELLO: &str = "\u{16}\u{3}\u{1}";

/// A server in this process, and its addresses.
struct Server {
    address: SocketAddr,
    socket: PathBuf,
    viewer: String,
    user: String,
    handle: het_service::Handle,
    thread: Option<JoinHandle<()>>,
    _dir: TempDir,
}

impl Server {
    fn start() -> Self {
        Self::listening(None)
    }

    /// Behind TLS, with a certificate that it signed itself.
    fn start_secured() -> Self {
        let files = tempfile::tempdir().expect("a temporary directory can be made");
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
        let made = made.expect("a certificate can be made");
        let chain = files.path().join("certificate.pem");
        let key = files.path().join("key.pem");
        fs::write(&chain, made.cert.pem()).expect("it is writable");
        fs::write(&key, made.signing_key.serialize_pem()).expect("it is writable");
        Self::listening(Some(Certificate { chain, key }))
    }

    fn listening(certificate: Option<Certificate>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let root = dir.path().to_string_lossy().into_owned();
        let home = Home::find(|name| (name == "HET_HOME").then(|| root.clone())).expect("a home");
        home.server_dir().expect("a directory can be made");
        let tokens = Tokens::open(&home.tokens()).expect("none is a list too");
        let add = |role| tokens.add(role, Some("lab".to_owned())).expect("it can be written");
        let (viewer, user) = (add(Role::Viewer), add(Role::User));
        let policy = by_name("adaptive").expect("the table has it");
        let machine = this_machine();
        let options = ServiceOptions::new(policy.into());
        let service = MachineService::start(&machine, home.clone(), options);
        let service = service.expect("a new service");
        let handle = service.handle().clone();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        drop(listener);
        let socket = home.socket();
        let network = Some(Network { address, certificate });
        let listen = Listen { socket: socket.clone(), network };
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be made").block_on(async {
                let api = Api::new(service.served(), home, tokens, LIVE_JOBS_OF_A_TENANT).await;
                serve(api.expect("the loop runs"), &listen).await.expect("it can listen");
            });
            service.join().expect("it ends well");
        });
        let server =
            Self { address, socket, viewer, user, handle, thread: Some(thread), _dir: dir };
        while TcpStream::connect(server.address).is_err() {
            thread::yield_now();
        }
        server
    }

    fn request(&self, token: Option<&str>, method: &str, path: &str, body: &str) -> String {
        let token = token.map(|token| format!("authorization: Bearer {token}\r\n"));
        format!(
            "{method} {path} HTTP/1.1\r\nhost: het\r\n{}content-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            token.unwrap_or_default(),
            body.len()
        )
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.handle.stop_soon();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it goes down");
        }
    }
}

/// The status of an answer, or 0 where there is none.
fn status(stream: &mut (impl Read + Write), request: &str) -> u16 {
    let mut head = [0; 4_096];
    let read = stream.write_all(request.as_bytes()).and_then(|()| stream.read(&mut head));
    let text = String::from_utf8_lossy(&head[..read.unwrap_or(0)]).into_owned();
    text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

fn connect(server: &Server) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(server.address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn submission(file: &str) -> String {
    json!({ "file": file, "cwd": "/", "begin": "held" }).to_string()
}

/// Job files that take long to read, or would.
fn files() -> Vec<String> {
    let stage = |row: usize, after: &[String]| {
        let name = format!("s{row}");
        json!({ "name": name, "run": ["true"], "after": after })
    };
    let long = |stages: Vec<serde_json::Value>| {
        let file = json!({
            "apiVersion": "heterosis.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": { "name": "hostile", "tenant": "lab" }, "spec": { "stages": stages },
        });
        file.to_string()
    };
    let names = |below: usize| (0..below).map(|row| format!("s{row}")).collect::<Vec<_>>();
    let dense = (0..64).map(|row| stage(row, &names(row))).collect();
    let many: Vec<String> = (0..160).flat_map(|_| names(63)).collect();
    let edges = (0..64).map(|row| stage(row, if row == 63 { &many } else { &[] })).collect();
    let level = |level: usize| {
        format!("l{level}: &l{level} [{}]\n", format!("*l{}, ", level - 1).repeat(9))
    };
    let bomb: String = (1..12).map(level).collect();
    let bomb = format!("name: bomb\nl0: &l0 [x]\n{bomb}run: [x]\n");
    let deep = format!("name: deep\nrun: {}{}\n", "[".repeat(50_000), "]".repeat(50_000));
    vec![long(dense), long(edges), bomb, deep, "x".repeat(250_000)]
}

/// Sends every file over and over until it is told to end; how often it was answered.
fn send_files(server: &Server, token: Option<&str>, ended: &AtomicBool) -> usize {
    let mut answered = 0;
    let bodies: Vec<String> = files().iter().map(|file| submission(file)).collect();
    for body in bodies.iter().cycle() {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        let Ok(mut stream) = connect(server) else { continue };
        let request = server.request(token, "POST", "/api/v1/jobs", body);
        answered += usize::from(status(&mut stream, &request) > 0);
    }
    answered
}

/// Connections that say nothing, half a head, or half a body, and streams that nobody reads. They
/// are held until they are dropped.
fn idlers(server: &Server) -> Vec<TcpStream> {
    let half_head = "GET /api/v1/jobs HTTP/1.1\r\nhost: het\r\nx: ".to_owned();
    let whole = submission("name: slow\nrun: [x]");
    let half_body = server.request(Some(&server.user), "POST", "/api/v1/jobs", &whole);
    let half_body = half_body[..half_body.len() - 10].to_owned();
    let stream = server.request(Some(&server.viewer), "GET", "/api/v1/watch", "");
    let tls = CLIENT_HELLO.to_owned();
    hold(server, &[String::new(), half_head, half_body, stream, tls])
}

/// Connections that say these by turns, and nothing else.
fn hold(server: &Server, said: &[String]) -> Vec<TcpStream> {
    let opened = (0..CONNECTIONS).filter_map(|row| {
        let mut connection = TcpStream::connect(server.address).ok()?;
        // Whoever has no place left is hung up on, which is as it should be.
        let _ = connection.write_all(said[row % said.len()].as_bytes());
        Some(connection)
    });
    opened.collect()
}

/// How long another client waits for answers on the socket, slowest last.
fn answers(server: &Server) -> Vec<Duration> {
    let mut stream = UnixStream::connect(&server.socket).expect("the socket has places of its own");
    stream.set_read_timeout(Some(PATIENCE)).expect("it can be set");
    let request = server.request(None, "GET", "/api/v1/jobs?limit=1", "");
    let mut waited: Vec<Duration> = (0..ANSWERS)
        .map(|_| {
            let began = Instant::now();
            assert_eq!(status(&mut stream, &request), 200, "another client is served");
            began.elapsed()
        })
        .collect();
    waited.sort_unstable();
    waited
}

/// How long another client waited, as a sentence.
fn told(waited: &[Duration]) -> String {
    let at = |part: usize| waited[(waited.len() * part / 100).min(waited.len() - 1)];
    format!("another client: p50 {:?}, p99 {:?}, at most {:?}", at(50), at(99), at(100))
}

#[test]
fn others_are_answered_whatever_hostile_clients_do() {
    let server = Arc::new(Server::start());
    let ended = Arc::new(AtomicBool::new(false));
    let tokens = [None, Some(server.viewer.clone()), Some(server.user.clone())];
    let senders: Vec<_> = tokens.into_iter().cycle().take(12).collect();
    let senders: Vec<_> = senders
        .into_iter()
        .map(|token| {
            let (server, ended) = (Arc::clone(&server), Arc::clone(&ended));
            thread::spawn(move || send_files(&server, token.as_deref(), &ended))
        })
        .collect();
    let held = idlers(&server);
    let waited = answers(&server);
    ended.store(true, Ordering::Relaxed);
    let answered: usize = senders.into_iter().map(|one| one.join().expect("it ends")).sum();
    println!("{} connections held, {answered} files answered; {}", held.len(), told(&waited));
    drop(held);
    let mut after = connect(&server).expect("places come free");
    let request = server.request(Some(&server.user), "GET", "/api/v1/jobs", "");
    // A place of the address may come free a moment later.
    while status(&mut after, &request) != 200 {
        after = connect(&server).expect("the kernel's queue has room");
    }
    assert!(fs::metadata(&server.socket).is_ok());
}

#[test]
fn others_are_answered_whoever_begins_handshakes_and_says_no_more() {
    let server = Server::start_secured();
    let beyond = "x".repeat(1_000);
    let held = hold(&server, &[String::new(), CLIENT_HELLO.to_owned(), beyond]);
    let waited = answers(&server);
    println!("{} handshakes begun; {}", held.len(), told(&waited));
}
