//! A listener that serves so many connections at a time. Others wait in the kernel's queue rather
//! than take the descriptors that programs are started with.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(super) struct Bounded<L> {
    inner: L,
    places: Arc<Semaphore>,
}

/// A connection that holds its place until it is closed.
pub(super) struct Held<Io> {
    io: Io,
    _place: OwnedSemaphorePermit,
}

impl<L> Bounded<L> {
    pub(super) fn new(inner: L, connections: usize) -> Self {
        Self { inner, places: Arc::new(Semaphore::new(connections)) }
    }
}

impl<L: Listener> Listener for Bounded<L> {
    type Io = Held<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let place = Arc::clone(&self.places).acquire_owned().await;
        let place = place.expect("the semaphore is never closed");
        let (io, address) = self.inner.accept().await;
        (Held { io, _place: place }, address)
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
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::{UnixListener, UnixStream};
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn one_more_than_fits_waits_for_a_place() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be made").block_on(fill_up());
    }

    async fn fill_up() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("it can be bound");
        let mut bounded = Bounded::new(listener, 2);
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
