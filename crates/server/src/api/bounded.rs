//! A listener that serves so many connections at a time. Others wait in the kernel's queue rather
//! than take the descriptors that programs are started with. An origin has some of the places, and
//! whoever does not read what it is sent loses its own.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

use super::origins::{Origin, Origins, Place, Remote};

/// What a listener gives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// More of them, for those alone who are not counted by their origin.
    pub reserved: usize,
    /// Connections of one address of the network or of one user.
    pub of_an_origin: usize,
    /// How long a connection may take none of what is written to it.
    pub unread: Duration,
}

pub(super) struct Bounded<L> {
    inner: L,
    places: Arc<Semaphore>,
    reserved: usize,
    origins: Origins,
    unread: Duration,
}

/// A connection that holds its place until it is closed.
pub(super) struct Held<Io> {
    io: Io,
    unread: Duration,
    /// Runs while something is written that is not taken.
    stalled: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
    _of_origin: Option<Place>,
}

impl<L> Bounded<L> {
    pub(super) fn new(inner: L, limits: Limits) -> Self {
        Self {
            inner,
            places: Arc::new(Semaphore::new(limits.connections + limits.reserved)),
            reserved: limits.reserved,
            origins: Origins::new(limits.of_an_origin),
            unread: limits.unread,
        }
    }
}

impl<Io> Held<Io> {
    /// What became of something written, in time.
    fn in_time<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let unread = self.unread;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(unread)));
        stalled.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<L: Listener<Addr: Remote>> Listener for Bounded<L> {
    type Io = Held<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let place = Arc::clone(&self.places).acquire_owned().await;
        let place = place.expect("the semaphore is never closed");
        loop {
            let (io, address) = self.inner.accept().await;
            let of_origin = match Origin::of(address.peer()) {
                None => None,
                // All but the reserved places are taken, this one included.
                Some(_) if self.places.available_permits() < self.reserved => continue,
                // It has all it may have, and hears so by being hung up on.
                Some(origin) => match self.origins.place(origin) {
                    None => continue,
                    place => place,
                },
            };
            let (unread, stalled) = (self.unread, None);
            let held = Held { io, unread, stalled, _place: place, _of_origin: of_origin };
            return (held, address);
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.inner.local_addr()
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Held<Io> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Held<Io> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        self.in_time(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        self.in_time(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(context);
        self.in_time(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Read;
    use std::net::Ipv4Addr;

    use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
    use tokio::time::timeout;

    use super::*;

    const LIMITS: Limits =
        Limits { connections: 2, reserved: 0, of_an_origin: 1, unread: Duration::from_millis(20) };

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be made").block_on(test);
    }

    #[test]
    fn one_more_than_fits_waits_for_a_place() {
        run(fill_up());
    }

    #[test]
    fn who_does_not_read_is_hung_up_on() {
        run(async {
            let dir = tempfile::tempdir().expect("a temporary directory can be made");
            let path = dir.path().join("socket");
            let listener = UnixListener::bind(&path).expect("it can be bound");
            let mut bounded = Bounded::new(listener, LIMITS);
            let _caller = UnixStream::connect(&path).await.expect("the queue has room");
            let (mut held, _) = bounded.accept().await;
            let ended = loop {
                let write = |context: &mut Context<'_>| {
                    Pin::new(&mut held).poll_write(context, &[0; 1 << 16])
                };
                if let Err(error) = poll_fn(write).await {
                    break error;
                }
            };
            assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn an_address_with_all_its_places_is_hung_up_on_and_others_are_served() {
        run(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
            let to = listener.local_addr().expect("it has an address");
            let mut bounded = Bounded::new(listener, LIMITS);
            let _greedy = TcpStream::connect(to).await.expect("the queue has room");
            let (_held, _) = bounded.accept().await;
            let refused = TcpStream::connect(to).await.expect("the queue has room");
            let other = TcpSocket::new_v4().expect("a socket");
            other.bind(([127, 0, 0, 2], 0).into()).expect("all of 127/8 is this machine");
            let _other = other.connect(to).await.expect("the queue has room");
            let (_other_held, from) = bounded.accept().await;
            assert_eq!(from.ip(), Ipv4Addr::new(127, 0, 0, 2));
            let mut refused = refused.into_std().expect("it can be taken out");
            refused.set_nonblocking(false).expect("it can be set");
            let read = refused.read(&mut [0]);
            assert!(read.is_err() || read.is_ok_and(|count| count == 0), "it was hung up on");
        });
    }

    async fn fill_up() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("it can be bound");
        let mut bounded = Bounded::new(listener, LIMITS);
        let mut callers = Vec::new();
        for _ in 0..3 {
            callers.push(UnixStream::connect(&path).await.expect("the kernel's queue has room"));
        }
        let (first, _) = bounded.accept().await;
        let _second = bounded.accept().await;
        let third = timeout(Duration::from_millis(20), bounded.accept()).await;
        assert!(third.is_err(), "there are two places");
        drop(first);
        bounded.accept().await;
    }
}
