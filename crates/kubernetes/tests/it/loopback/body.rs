//! What the server answers with: one object, or a stream of lines that somebody goes on writing.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The body of an answer.
pub enum Answer {
    Whole(Option<Bytes>),
    Stream(UnboundedReceiver<io::Result<Bytes>>),
}

/// The writing end of a stream; the stream ends where it is dropped.
#[derive(Debug)]
pub struct Lines(UnboundedSender<io::Result<Bytes>>);

pub fn stream() -> (Lines, Answer) {
    let (sender, receiver) = unbounded_channel();
    (Lines(sender), Answer::Stream(receiver))
}

impl Lines {
    /// Whether somebody still reads.
    pub fn write(&self, text: String) -> bool {
        self.0.send(Ok(text.into())).is_ok()
    }

    /// The connection breaks.
    pub fn fail(&self) {
        let _ = self.0.send(Err(io::Error::from(io::ErrorKind::ConnectionReset)));
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(lines) => {
                lines.poll_recv(context).map(|line| line.map(|line| line.map(Frame::data)))
            }
        }
    }
}
