//! What a program in a pod writes on its way to where its container's log comes from, and when it
//! wrote last: a program that writes is no silent one.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{ChildStderr, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use het_core::Time;

use crate::clock::Clock;

const BUFFER_BYTES: usize = 64 << 10;
/// How long what a program left behind may go on writing once that has ended.
const REST_MAX: Duration = Duration::from_secs(2);

/// Standard output and standard error of a program.
#[derive(Debug)]
pub(super) struct Output {
    /// 0 where nothing was written yet.
    written_at: Arc<AtomicU64>,
    /// Nobody sends: it is over once both are copied.
    copied: Receiver<()>,
}

impl Output {
    /// Copies what comes to this program's own output and error.
    ///
    /// # Errors
    /// When the system is out of descriptors.
    pub fn copy(
        (out, err): (Option<ChildStdout>, Option<ChildStderr>),
        clock: Clock,
    ) -> io::Result<Self> {
        let (alive, copied) = channel();
        let output = Self { written_at: Arc::default(), copied };
        let (own_out, own_err) = (io::stdout(), io::stderr());
        let own = [own_out.as_fd().try_clone_to_owned()?, own_err.as_fd().try_clone_to_owned()?];
        let pipes = [out.map(OwnedFd::from), err.map(OwnedFd::from)];
        for (pipe, own) in pipes.into_iter().zip(own) {
            let Some(pipe) = pipe else { continue };
            let (written_at, alive) = (Arc::clone(&output.written_at), alive.clone());
            drop(thread::spawn(move || {
                // Where nobody takes it any more, its program is told so by the closed pipe.
                pass_on(File::from(pipe), File::from(own), (&written_at, clock));
                drop::<Sender<()>>(alive);
            }));
        }
        Ok(output)
    }

    /// When something was written last.
    pub fn written_at(&self) -> Option<Time> {
        let at = self.written_at.load(Ordering::Relaxed);
        (at > 0).then_some(Time(at))
    }

    /// Waits until all is copied, but not for ever: an orphan may hold the pipes.
    pub fn finish(&self) {
        let _ = self.copied.recv_timeout(REST_MAX);
    }
}

fn pass_on(mut from: File, mut to: File, (written_at, clock): (&AtomicU64, Clock)) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => {
                written_at.store(clock.now().0.max(1), Ordering::Relaxed);
                if to.write_all(&buffer[..count]).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
