//! The owner's socket: where it lies, and that it is made again when somebody removes it.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::serve::Listener;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::unistd::{Gid, chown};
use tokio::net::unix::pipe::Receiver;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::sleep;

use super::peer::Peer;

/// Pause before a socket that cannot be made, or whose directory cannot be watched, is tried again.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Bytes of the kernel's queue that are read at once.
const EVENTS_BYTES: usize = 4_096;

/// A listener at a path that only its owner may connect to, or a group besides. The holder of the
/// machine's lock owns the path: whatever else lies there is removed.
#[derive(Debug)]
pub(super) struct OwnSocket {
    path: PathBuf,
    /// Whose members may connect too.
    group: Option<Gid>,
    bound: Bound,
}

/// A socket, what it is known by on disk, and a watch of its directory from before it was made.
#[derive(Debug)]
struct Bound {
    listener: UnixListener,
    identity: (u64, u64),
    watch: Receiver,
}

impl OwnSocket {
    /// # Errors
    /// When nothing can be made at the path.
    pub(super) fn open(path: &Path, group: Option<Gid>) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), group, bound: Bound::at(path, group)? })
    }

    /// Makes the socket again, as soon as that is possible.
    async fn make_again(&mut self) {
        loop {
            match Bound::at(&self.path, self.group) {
                Ok(bound) => {
                    self.bound = bound;
                    return;
                }
                Err(_) => sleep(TRY_AGAIN_AFTER).await,
            }
        }
    }
}

impl Bound {
    fn at(path: &Path, group: Option<Gid>) -> io::Result<Self> {
        let dir = path.parent().unwrap_or(path);
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let gone = AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM;
        let replaced = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
        let dir_gone = AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_MOVE_SELF;
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        let mode = match group {
            None => 0o600,
            Some(group) => {
                chown(path, None, Some(group))?;
                0o660
            }
        };
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        let identity = identity(path)?;
        // What happened before is seen by the identity.
        inotify.add_watch(dir, gone | replaced | dir_gone)?;
        // The runtime reads it as it reads a pipe.
        let watch = Receiver::from_owned_fd_unchecked(inotify.into())?;
        Ok(Self { listener, identity, watch })
    }

    fn is_at(&self, path: &Path) -> bool {
        identity(path).is_ok_and(|found| found == self.identity)
    }
}

/// Waits until something has come to the watched directory or left it. What it was is seen by the
/// identity.
async fn changed(watch: &Receiver) {
    let readable = watch.readable().await;
    match readable.and_then(|()| watch.try_read(&mut [0; EVENTS_BYTES])) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => sleep(TRY_AGAIN_AFTER).await,
        _ => {}
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

impl Listener for OwnSocket {
    type Io = UnixStream;
    type Addr = Peer;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            if !self.bound.is_at(&self.path) {
                self.make_again().await;
            }
            let Bound { listener, watch, .. } = &mut self.bound;
            tokio::select! {
                (stream, _) = Listener::accept(listener) => {
                    let uid = stream.peer_cred().map(|credentials| credentials.uid()).ok();
                    return (stream, Peer::Local(uid));
                }
                () = changed(watch) => {}
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.bound.listener.local_addr().map(|_| Peer::Local(None))
    }
}
