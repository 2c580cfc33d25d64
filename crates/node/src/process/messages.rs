//! Messages with descriptors, over sockets that keep their boundaries.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
    sendmsg, socketpair,
};

use crate::process::sys::received;

/// Longest bytes that go through a socket; longer ones go through a file in memory.
const INLINE_MAX: usize = 16 * 1024;
/// Longest bytes of one message: far more than the system takes as arguments and environment.
const BYTES_MAX: u64 = 16 << 20;
/// Most descriptors of one message.
const DESCRIPTORS_MAX: usize = 16;

/// First byte of a message: where the others are.
const INLINE: u8 = 0;
const IN_FILE: u8 = 1;

/// Two ends that are connected, closed when a program begins.
pub fn pair(flags: SockFlag) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC | flags;
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?)
}

/// Sends a message and copies of descriptors.
///
/// # Errors
/// When nobody can receive it any more, and `WouldBlock` where the other end is full and this one
/// does not wait.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: impl Iterator<Item = RawFd>,
) -> io::Result<()> {
    let (kind, file, inline) = if bytes.len() <= INLINE_MAX {
        ([INLINE], None, bytes)
    } else {
        ([IN_FILE], Some(in_memory(bytes)?), &[][..])
    };
    let file = file.as_ref().map(AsRawFd::as_raw_fd);
    let descriptors: Vec<RawFd> = file.into_iter().chain(descriptors).collect();
    let parts = [IoSlice::new(&kind), IoSlice::new(inline)];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let rights = if descriptors.is_empty() { &[][..] } else { &rights[..] };
    sendmsg::<()>(socket.as_raw_fd(), &parts, rights, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

fn in_memory(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create(c"het-rank", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file.into())
}

/// Receives a message and its descriptors; `None` when the other end is closed, or when what came
/// is none of these messages.
///
/// # Errors
/// `WouldBlock` where nothing is there and this end does not wait, `Interrupted` by a signal.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; 1 + INLINE_MAX];
    let mut room = nix::cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut room), flags)?;
    let mut descriptors = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(rights) = control {
            descriptors.extend(rights.into_iter().map(received));
        }
    }
    let is_cut = message.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC);
    let length = message.bytes;
    if length == 0 || is_cut {
        return Ok(None);
    }
    bytes.truncate(length);
    match bytes.remove(0) {
        INLINE => Ok(Some((bytes, descriptors))),
        IN_FILE if !descriptors.is_empty() => {
            let file = File::from(descriptors.remove(0));
            Ok(Some((contents(&file)?, descriptors)))
        }
        _ => Ok(None),
    }
}

fn contents(file: &File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    if length > BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Sends a message without descriptors if there is room for it.
pub(crate) fn try_send(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Errno> {
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    sendmsg::<()>(socket.as_fd().as_raw_fd(), &[IoSlice::new(bytes)], &[], flags, None).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(length: usize) {
        let (one, other) = pair(SockFlag::empty()).expect("a pair can be made");
        let bytes: Vec<u8> = (0..length).map(|number| number as u8).collect();
        send(one.as_fd(), &bytes, [one.as_raw_fd()].into_iter()).expect("it is sent");
        let (got, descriptors) = receive(other.as_fd()).expect("it is there").expect("it is open");
        assert_eq!((got, descriptors.len()), (bytes, 1));
        drop((one, descriptors));
        assert!(receive(other.as_fd()).expect("it is closed").is_none());
    }

    #[test]
    fn a_message_arrives_whatever_its_length() {
        for length in [0, 1, INLINE_MAX, INLINE_MAX + 1, 1 << 20] {
            check(length);
        }
    }
}
