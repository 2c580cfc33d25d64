//! Answering on connections, each for as long as its caller asks within the limit: whoever connects
//! and says nothing, or half a request, or stops asking, keeps no place from others.

use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;

use super::origins::Remote;

/// How long the head of a request may take, from the answer before it or from the connection on.
/// Clients that rest for longer connect anew.
pub(super) const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// Serves until `ended`, and then until whoever asked before has its answer.
pub(super) async fn serve<L: Listener<Addr: Remote>>(
    mut listener: L,
    app: Router,
    request_limit: Duration,
    ended: impl Future<Output = ()>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(request_limit);
    let answers = GracefulShutdown::new();
    let mut ended = std::pin::pin!(ended);
    loop {
        let (connection, address) = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut ended => break,
        };
        let (service, peer) = (TowerToHyperService::new(app.clone()), address.peer());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            service.call(request)
        });
        let served = answers.watch(http.serve_connection(TokioIo::new(connection), service));
        // What goes wrong on a connection its caller finds out.
        tokio::spawn(async move { drop(served.await) });
    }
    drop(listener);
    answers.shutdown().await;
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net;
    use std::thread;

    use tokio::net::UnixListener;
    use tokio::runtime::Builder;
    use tokio::sync::oneshot;

    use super::*;

    /// What a caller reads who writes this and then says nothing, until it is hung up on.
    fn answer_to(written: &str) -> String {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = dir.path().join("socket");
        let listener = net::UnixListener::bind(&path).expect("it can be bound");
        listener.set_nonblocking(true).expect("it can be set");
        let (end, ended) = oneshot::channel::<()>();
        let server = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be made").block_on(async {
                let listener = UnixListener::from_std(listener).expect("a listener");
                let limit = Duration::from_millis(20);
                serve(listener, Router::new(), limit, async { drop(ended.await) }).await;
            });
        });
        let mut caller = net::UnixStream::connect(&path).expect("somebody listens");
        caller.write_all(written.as_bytes()).expect("somebody listens");
        let mut read = String::new();
        caller.read_to_string(&mut read).expect("it is hung up on");
        drop(end);
        server.join().expect("it goes down");
        read.lines().next().unwrap_or_default().to_owned()
    }

    #[test]
    fn who_says_nothing_keeps_no_place() {
        assert_eq!(answer_to(""), "");
    }

    #[test]
    fn who_says_half_a_request_keeps_no_place() {
        assert_eq!(answer_to("GET / HTTP/1.1\r\nhost: h"), "");
    }

    #[test]
    fn who_has_an_answer_and_rests_keeps_no_place() {
        assert_eq!(answer_to("GET / HTTP/1.1\r\nhost: het\r\n\r\n"), "HTTP/1.1 404 Not Found");
    }
}
