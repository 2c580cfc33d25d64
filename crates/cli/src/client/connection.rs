//! One client for every server: the own one behind its socket, or one across the network.

use std::env;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use het_wire::api::Refusal;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout, timeout_at};

use super::trust::Trust;
use crate::fail::{Fail, code};
use crate::printable::make_printable;

/// Longest answer that is read.
const ANSWER_BYTES_MAX: usize = 256 << 20;
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// How long a server across the network may take to be connected to, TLS included.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// A connection on which nothing was asked for so long is not asked again: servers close those that
/// rest, and it is not seen here until it is too late.
const REST_MAX: Duration = Duration::from_secs(10);

/// So long a request is sent again that the server refuses because of too many others.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where those listen whose URL names no port (RFC 9110).
const HTTPS_PORT: u16 = 443;
const HTTP_PORT: u16 = 80;

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Socket(PathBuf),
    /// `HOST:PORT`, and what says who asks.
    Network {
        authority: String,
        token: Option<String>,
        /// Where it speaks TLS.
        trust: Option<Trust>,
    },
}

impl Place {
    /// The one that `HET_SERVER` names, if any: `https://HOST:PORT` or `http://HOST:PORT`, with
    /// `HET_TOKEN`, or `unix:PATH`.
    pub fn named() -> Result<Option<Self>, Fail> {
        let Some(url) = env::var("HET_SERVER").ok().filter(|url| !url.is_empty()) else {
            return Ok(None);
        };
        if let Some(path) = url.strip_prefix("unix:") {
            return Ok(Some(Self::Socket(path.into())));
        }
        let secure = url.strip_prefix("https://");
        let port = if secure.is_some() { HTTPS_PORT } else { HTTP_PORT };
        let authority = secure.or_else(|| url.strip_prefix("http://"));
        let authority = authority.map(|rest| rest.trim_end_matches('/'));
        let authority = authority.filter(|authority| !authority.is_empty()).ok_or_else(|| {
            Fail::new(code::USAGE, format!("`HET_SERVER` is `{url}`, which is no address"))
                .hint("write `https://HOST:PORT` or `unix:PATH`")
        })?;
        let trust = secure.map(|_| match env::var_os("HET_CA").filter(|path| !path.is_empty()) {
            Some(path) => Trust::File(path.into()),
            None => Trust::System,
        });
        let token = env::var("HET_TOKEN").ok();
        Ok(Some(Self::Network { authority: with_port(authority, port), token, trust }))
    }
}

/// The same with a port, where it names none; the colons of an address in brackets name none.
fn with_port(authority: &str, port: u16) -> String {
    let names_one = authority.rsplit_once(':').is_some_and(|(_, last)| !last.ends_with(']'));
    if names_one { authority.to_owned() } else { format!("{authority}:{port}") }
}

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    runtime: Runtime,
    sender: SendRequest<Full<Bytes>>,
    place: Place,
    asked_at: Instant,
}

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Told {
    pub event: String,
    pub data: String,
}

impl Client {
    /// Connects; `None` where nobody listens.
    pub fn connect(place: Place) -> Result<Option<Self>, Fail> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(|error| Fail::new(code::FAILED, error.to_string()))?;
        let sender = runtime.block_on(reach(&place, CONNECT_LIMIT))?;
        let asked_at = Instant::now();
        Ok(sender.map(|sender| Self { runtime, sender, place, asked_at }))
    }

    /// Connects anew where the connection may have been closed meanwhile.
    fn wake_up(&mut self) -> Result<(), Fail> {
        if self.asked_at.elapsed() > REST_MAX
            && let Some(sender) = self.runtime.block_on(reach(&self.place, CONNECT_LIMIT))?
        {
            self.sender = sender;
        }
        self.asked_at = Instant::now();
        Ok(())
    }

    pub fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, Fail> {
        self.ask(Method::GET, path, Bytes::new(), None)
    }

    pub fn post<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Fail> {
        self.post_once(path, body, None)
    }

    /// Sends a body that replaces or changes what is there.
    pub fn send<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Fail> {
        let body = serde_json::to_vec(body).map_err(|error| broken(&error))?;
        self.ask(method, path, body.into(), None)
    }

    /// Posts what is to be done once, however often it is asked for under this key.
    pub fn post_once<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
        key: Option<&str>,
    ) -> Result<T, Fail> {
        let body = serde_json::to_vec(body).map_err(|error| broken(&error))?;
        self.ask(Method::POST, path, body.into(), key)
    }

    /// Opens a stream of events; nothing else can be asked on this connection from then on.
    pub fn open(mut self, path: &str) -> Result<Stream, Fail> {
        self.wake_up()?;
        let request = self.request(Method::GET, path, Bytes::new(), None)?;
        let answer = self.answer(&request)?;
        Ok(Stream { client: self, body: answer.into_body(), bytes: Vec::new() })
    }

    /// Waits until the server has closed the connection; whether it did.
    pub fn closed(self, deadline: Instant) -> bool {
        let Self { runtime, sender, .. } = self;
        runtime.block_on(async {
            while !sender.is_closed() && Instant::now() < deadline {
                sleep(LOOK_EVERY).await;
            }
            sender.is_closed()
        })
    }

    fn ask<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
        key: Option<&str>,
    ) -> Result<T, Fail> {
        self.wake_up()?;
        let request = self.request(method, path, body, key)?;
        let answer = self.answer(&request)?;
        let bytes = self.runtime.block_on(async {
            let limited = http_body_util::Limited::new(answer.into_body(), ANSWER_BYTES_MAX);
            let collected = limited.collect().await;
            Ok::<_, Fail>(collected.map_err(|error| broken(&*error))?.to_bytes())
        })?;
        let mut value: Value = serde_json::from_slice(&bytes).map_err(|error| broken(&error))?;
        make_printable(&mut value);
        T::deserialize(value).map_err(|error| broken(&error))
    }

    /// The answer to a request, unless it is a refusal. One that came at a time of too many others
    /// had no effect, and is sent again.
    fn answer(&mut self, request: &Request<Full<Bytes>>) -> Result<Response<Incoming>, Fail> {
        let Self { runtime, sender, place, .. } = self;
        let deadline = Instant::now() + PATIENCE;
        runtime.block_on(async {
            loop {
                let answer = send(sender, request.clone()).await?;
                match pause(&answer) {
                    Some(pause) if Instant::now() + pause < deadline => sleep(pause).await,
                    _ => return checked(answer).await,
                }
                // The server may have closed a connection of which it did not read everything.
                if let Some(again) = reach(place, CONNECT_LIMIT).await? {
                    *sender = again;
                }
            }
        })
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        key: Option<&str>,
    ) -> Result<Request<Full<Bytes>>, Fail> {
        let (host, token) = match &self.place {
            Place::Socket(_) => ("het", None),
            Place::Network { authority, token, .. } => (authority.as_str(), token.as_ref()),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, host)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/json");
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        request.body(Full::new(body)).map_err(|error| {
            Fail::new(code::USAGE, format!("`{path}` cannot be asked for: {error}"))
        })
    }
}

/// A stream of server-sent events.
#[derive(Debug)]
pub struct Stream {
    client: Client,
    body: Incoming,
    bytes: Vec<u8>,
}

/// What comes next on a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    Told(Told),
    Deadline,
    /// The server went away, or something between.
    Ended,
}

impl Stream {
    pub fn next(&mut self, deadline: Option<Instant>) -> Next {
        let Self { client, body, bytes } = self;
        client.runtime.block_on(async {
            loop {
                if let Some(end) = bytes.windows(2).position(|pair| pair == b"\n\n") {
                    let told = read(&String::from_utf8_lossy(&bytes[..end]));
                    bytes.drain(..end + 2);
                    if told.data.is_empty() {
                        continue;
                    }
                    return Next::Told(told);
                }
                let frame = match deadline {
                    Some(at) => match timeout_at(at.into(), body.frame()).await {
                        Ok(frame) => frame,
                        Err(_) => return Next::Deadline,
                    },
                    None => body.frame().await,
                };
                match frame.map(|frame| frame.map(hyper::body::Frame::into_data)) {
                    Some(Ok(Ok(data))) => bytes.extend_from_slice(&data),
                    Some(Ok(Err(_))) => {}
                    Some(Err(_)) | None => return Next::Ended,
                }
            }
        })
    }
}

/// Connects; `None` where nobody listens.
async fn reach(place: &Place, limit: Duration) -> Result<Option<SendRequest<Full<Bytes>>>, Fail> {
    match place {
        Place::Socket(path) => match UnixStream::connect(path).await {
            Ok(stream) => Ok(shake(stream).await),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                let text = format!("the server at `{}` is somebody else's", path.display());
                Err(Fail::new(code::NOT_ALLOWED, text).hint(
                    "ask its owner for a token, or to be taken into its group; or set `HET_HOME`",
                ))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let text = format!("too many callers wait at `{}`", path.display());
                Err(Fail::new(code::UNREACHABLE, text).hint("try again in a moment"))
            }
            Err(_) => Ok(None),
        },
        Place::Network { authority, trust, .. } => {
            timeout(limit, across(authority, trust.as_ref())).await.unwrap_or_else(|_| {
                let text = format!("`{authority}` did not answer within {} s", limit.as_secs());
                Err(Fail::new(code::UNREACHABLE, text)
                    .hint("check the address, and that no firewall is in between"))
            })
        }
    }
}

async fn across(
    authority: &str,
    trust: Option<&Trust>,
) -> Result<Option<SendRequest<Full<Bytes>>>, Fail> {
    let Ok(stream) = TcpStream::connect(authority).await else { return Ok(None) };
    match trust {
        Some(trust) => Ok(shake(trust.secure(stream, authority).await?).await),
        None => Ok(shake(stream).await),
    }
}

async fn shake<T>(stream: T) -> Option<SendRequest<Full<Bytes>>>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await.ok()?;
    // It ends with the client; what goes wrong on it, requests find out.
    tokio::spawn(async move { drop(connection.await) });
    Some(sender)
}

async fn send(
    sender: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, Fail> {
    sender.ready().await.map_err(|error| broken(&error))?;
    sender.send_request(request).await.map_err(|error| broken(&error))
}

/// How long to wait before a request that was refused because of too many others is sent again.
fn pause(answer: &Response<Incoming>) -> Option<Duration> {
    let is_refused = answer.status() == StatusCode::TOO_MANY_REQUESTS;
    let seconds = answer.headers().get(RETRY_AFTER).filter(|_| is_refused)?.to_str().ok()?;
    seconds.parse().ok().map(Duration::from_secs)
}

/// The answer, unless it is a refusal.
async fn checked(answer: Response<Incoming>) -> Result<Response<Incoming>, Fail> {
    if answer.status().is_success() {
        return Ok(answer);
    }
    let status = answer.status();
    let body = answer.into_body().collect().await.map_err(|error| broken(&error))?.to_bytes();
    let Ok(Refusal { code: word, message, hint }) = serde_json::from_slice(&body) else {
        let text = format!("the server answered {status}");
        return Err(Fail::new(code::FAILED, text).hint("see the server's log"));
    };
    let exit = match word.as_str() {
        "not_found" => code::NOT_FOUND,
        "not_allowed" | "no_token" => code::NOT_ALLOWED,
        "conflict" => code::CONFLICT,
        "busy" | "insufficient_storage" => code::UNREACHABLE,
        _ => code::USAGE,
    };
    if word == "bad_job_file" {
        // A whole report, with lines and carets.
        return Err(Fail::Report { code: exit, text: message });
    }
    let fail = Fail::new(exit, message);
    Err(match hint {
        Some(hint) => fail.hint(hint),
        None => fail,
    })
}

fn broken(error: &dyn std::fmt::Display) -> Fail {
    Fail::new(code::UNREACHABLE, format!("the server went away: {error}"))
        .hint("`het server status` says whether it runs; nothing that was acknowledged is lost")
}

/// One event of a stream of server-sent events.
fn read(text: &str) -> Told {
    let mut told = Told::default();
    for line in text.lines() {
        match line.split_once(": ") {
            Some(("event", event)) => told.event = event.to_owned(),
            Some(("data", data)) => told.data.push_str(data),
            _ => {}
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn an_address_without_a_port_has_the_usual_one() {
        let check = |authority, expected| assert_eq!(with_port(authority, 443), expected);
        check("het.example.org", "het.example.org:443");
        check("het.example.org:7000", "het.example.org:7000");
        check("[fd00::7]", "[fd00::7]:443");
        check("[fd00::7]:7000", "[fd00::7]:7000");
    }

    #[test]
    fn a_request_at_a_time_of_too_many_others_is_sent_again() {
        let busy = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let authority = busy.local_addr().expect("it has an address").to_string();
        let server = std::thread::spawn(move || {
            let refusal = "429 Too Many Requests\r\nretry-after: 0\r\nconnection: close";
            for (status, body) in [(refusal, "{}"), (refusal, "{}"), ("200 OK", "[7]")] {
                let (mut stream, _) = busy.accept().expect("a client comes");
                let mut head = [0; 4096];
                assert!(stream.read(&mut head).expect("it asks") > 0);
                let length = body.len();
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}");
                stream.write_all(answer.as_bytes()).expect("it listens");
            }
        });
        let place = Place::Network { authority, token: None, trust: None };
        let mut client = Client::connect(place).expect("no error").expect("it listens");
        assert_eq!(client.get::<Vec<u64>>("/").expect("an answer"), [7]);
        server.join().expect("three requests came");
    }

    #[test]
    fn a_server_that_says_nothing_is_given_up() {
        let mute = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let authority = mute.local_addr().expect("it has an address").to_string();
        let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
        let certificate = certificate.expect("a certificate can be made").cert.pem();
        let file = tempfile::NamedTempFile::new().expect("a file can be made");
        std::fs::write(file.path(), certificate).expect("it is writable");
        let trust = Some(Trust::File(file.path().to_owned()));
        let place = Place::Network { authority, token: None, trust };
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let fail = runtime.block_on(reach(&place, Duration::from_millis(20)));
        let text = fail.expect_err("nobody shakes hands").text();
        assert!(text.contains("did not answer"), "{text}");
    }
}
