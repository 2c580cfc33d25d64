//! Errors that are nobody's mistake: something of the machine ran out or is broken.

use std::io;

use nix::libc;

/// Whether it is for want of space, quota, descriptors, processes or memory, or the disk fails: the
/// same may well succeed later, and neither a path nor a program is to blame.
pub fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ENOSPC
                | libc::EDQUOT
                | libc::EROFS
                | libc::EIO
                | libc::EMFILE
                | libc::ENFILE
                | libc::ENOMEM
                | libc::EAGAIN
        )
    )
}
