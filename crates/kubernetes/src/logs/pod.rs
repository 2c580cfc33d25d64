//! What the program of one pod writes, while it writes it.
//!
//! A connection to a pod's log may break while its program goes on: its kubelet begins again, or
//! the API server does. Each line comes with the time at which it was written, and what follows
//! the last one is asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::{AsyncBufReadExt, pin_mut};
use het_wire::api::{FollowedLogs, LogPiece};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Error;
use kube::api::{Api, LogParams};
use tokio::sync::mpsc::Sender;
use tokio::time::sleep;

use super::LINES;

use crate::client::NOT_FOUND;

/// Longest piece, and longest beginning of a line that is kept until its end comes.
const PIECE_BYTES_MAX: usize = 16 << 10;
/// A follower that takes nothing for so long is given up.
const SLOW_MAX: Duration = Duration::from_secs(60);
/// Between two looks at a pod that writes nothing yet, or whose connection broke.
const PAUSE: Duration = Duration::from_secs(1);
/// Answers in a row that are none, after which a pod is given up.
const TRIES_MAX: u32 = 10;

/// Of a container that has not begun.
const BAD_REQUEST: u16 = 400;

/// Nobody takes what is told.
pub(super) struct Left;

pub(super) struct PodLogs {
    pub api: Api<Pod>,
    pub name: String,
    /// Whose pieces are told, without a text.
    pub piece: LogPiece,
    /// How many ranks its attempt has, as far as they were seen.
    pub ranks: Arc<AtomicU32>,
    pub to: Sender<FollowedLogs>,
}

impl PodLogs {
    /// Until the pod has ended, or is gone.
    ///
    /// # Errors
    /// When nobody takes it.
    pub async fn follow(self, tail: Option<u32>) -> Result<(), Left> {
        let (mut lines, mut tries) = (Lines::default(), 0);
        loop {
            let parameters = LogParams {
                follow: true,
                timestamps: true,
                since_time: lines.newest,
                tail_lines: lines.newest.is_none().then(|| tail.unwrap_or(LINES).into()),
                ..LogParams::default()
            };
            match self.api.log_stream(&self.name, &parameters).await {
                Ok(stream) => {
                    tries = 0;
                    self.tell_all(stream, &mut lines).await?;
                }
                Err(Error::Api(status)) if status.code == NOT_FOUND => return self.end(None).await,
                Err(Error::Api(status)) if status.code == BAD_REQUEST => {}
                Err(_) if tries < TRIES_MAX => tries += 1,
                Err(error) => return self.end(Some(error.to_string())).await,
            }
            if self.has_ended().await {
                return self.end(None).await;
            }
            sleep(PAUSE).await;
            lines.begin_again();
        }
    }

    async fn tell_all(
        &self,
        stream: impl futures_util::io::AsyncBufRead,
        lines: &mut Lines,
    ) -> Result<(), Left> {
        pin_mut!(stream);
        loop {
            let mut text = Vec::new();
            let count = match stream.fill_buf().await {
                // A connection that broke is one that ended: whoever asks knows whether all came.
                Ok([]) | Err(_) => 0,
                Ok(bytes) => {
                    let bytes = &bytes[..bytes.len().min(PIECE_BYTES_MAX)];
                    lines.feed(bytes, &mut text);
                    bytes.len()
                }
            };
            stream.consume_unpin(count);
            if count == 0 {
                lines.flush(&mut text);
            }
            if !text.is_empty() {
                let text = String::from_utf8_lossy(&text).into_owned();
                self.send(LogPiece { text, ..self.piece.clone() }).await?;
            }
            if count == 0 {
                return Ok(());
            }
        }
    }

    /// Says that nothing follows of it, and why there is nothing.
    ///
    /// # Errors
    /// When nobody takes it.
    pub async fn end(self, missing: Option<String>) -> Result<(), Left> {
        self.send(LogPiece { ended: true, missing, ..self.piece.clone() }).await
    }

    async fn send(&self, piece: LogPiece) -> Result<(), Left> {
        let ranks = self.ranks.load(Ordering::Relaxed);
        let piece = FollowedLogs::Piece(LogPiece { ranks, ..piece });
        self.to.send_timeout(piece, SLOW_MAX).await.map_err(|_| Left)
    }

    /// Whether its program will write nothing any more, as far as anybody says.
    async fn has_ended(&self) -> bool {
        match self.api.get_status(&self.name).await {
            Ok(pod) => {
                let phase = pod.status.and_then(|status| status.phase);
                matches!(phase.as_deref(), Some("Succeeded" | "Failed"))
            }
            Err(error) => matches!(error, Error::Api(status) if status.code == NOT_FOUND),
        }
    }
}

/// Lines that begin with their time, as they come in pieces.
#[derive(Debug, Default)]
struct Lines {
    /// The beginning of a line whose end has not come.
    partial: Vec<u8>,
    /// More of a line follows, whose beginning was told or left out.
    is_within: bool,
    is_left_out: bool,
    newest: Option<Timestamp>,
    /// What is no newer was told on the connection before.
    told: Option<Timestamp>,
}

impl Lines {
    /// Another connection begins, with lines of the second of the newest one.
    fn begin_again(&mut self) {
        self.told = self.newest;
        self.is_within = false;
    }

    /// Adds what is new of it, without times, to a text.
    fn feed(&mut self, bytes: &[u8], text: &mut Vec<u8>) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.partial.len() > PIECE_BYTES_MAX {
                self.flush(text);
            }
        }
    }

    /// Nothing follows of the line that is under way, or too much.
    fn flush(&mut self, text: &mut Vec<u8>) {
        let line = std::mem::take(&mut self.partial);
        let mut rest = line.as_slice();
        if !self.is_within {
            self.is_left_out = false;
            if let Some((at, after)) = timed(&line) {
                self.is_left_out = self.told.is_some_and(|told| at <= told);
                self.newest = self.newest.max(Some(at));
                rest = after;
            }
        }
        self.is_within = !line.is_empty() && !line.ends_with(b"\n");
        if !self.is_left_out {
            text.extend_from_slice(rest);
        }
    }
}

/// The time of a line and what follows it; `None` of a line without.
fn timed(line: &[u8]) -> Option<(Timestamp, &[u8])> {
    let end = line.iter().position(|byte| *byte == b' ')?;
    let at = std::str::from_utf8(&line[..end]).ok()?.parse().ok()?;
    Some((at, &line[end + 1..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(lines: &mut Lines, pieces: &[&[u8]]) -> String {
        let mut text = Vec::new();
        pieces.iter().for_each(|piece| lines.feed(piece, &mut text));
        lines.flush(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    const TWO: &str = "2026-11-29T10:00:00.1Z one\n2026-11-29T10:00:00.2Z two\n";

    #[test]
    fn a_connection_goes_on_after_the_last_line_of_the_one_before() {
        let mut lines = Lines::default();
        assert_eq!(text(&mut lines, &[TWO.as_bytes()]), "one\ntwo\n");
        lines.begin_again();
        let again = format!("{TWO}2026-11-29T10:00:00.3Z three\n");
        assert_eq!(text(&mut lines, &[again.as_bytes()]), "three\n");
        assert_eq!(lines.newest, "2026-11-29T10:00:00.3Z".parse().ok());
    }

    #[test]
    fn a_line_without_an_end_is_told_in_pieces() {
        let long = "x".repeat(3 * PIECE_BYTES_MAX);
        let line = format!("2026-11-29T10:00:00Z {long}\n2026-11-29T10:00:01Z y\n");
        let mut lines = Lines::default();
        assert_eq!(text(&mut lines, &[line.as_bytes()]), format!("{long}\ny\n"));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// However the bytes are cut, the same is told.
        #[test]
        fn where_a_stream_is_cut_makes_no_difference(
            cuts in prop::collection::vec(0..TWO.len(), 0..6),
        ) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&TWO.as_bytes()[from..cut]);
                from = cut;
            }
            pieces.push(&TWO.as_bytes()[from..]);
            prop_assert_eq!(text(&mut Lines::default(), &pieces), "one\ntwo\n");
        }
    }
}
