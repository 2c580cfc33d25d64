//! From root to a user, for good.

use std::ffi::CString;

use nix::errno::Errno;
use nix::sys::stat::{Mode, umask};
use nix::unistd::{
    Gid, Uid, User, getgroups, initgroups, setgroups, setresgid, setresuid, setsid, setuid,
};
use thiserror::Error;

/// Others than the user and its group, which for files below its directory is the server's, read
/// nothing.
const UMASK: Mode = Mode::from_bits_truncate(0o027);

/// Why a process is not, or not only, who it should be.
#[derive(Debug, Error)]
pub enum BecomeError {
    #[error("there is no user `{0}`")]
    Unknown(String),
    #[error("nothing of root's is to become root again")]
    Root,
    #[error("the rights of `{user}` cannot be taken")]
    System { user: String, source: Errno },
    #[error("the rights of root could be taken back")]
    NotForGood,
}

/// Becomes a user for good, without the session and the terminal of whoever started this process,
/// and with the rights of one more group, where it is given one. To be called by a process of one
/// thread.
///
/// # Errors
/// When not all other rights are gone; the process is to end then.
pub fn become_user(name: &str, more: Option<Gid>) -> Result<(), BecomeError> {
    let system = |source| BecomeError::System { user: name.to_owned(), source };
    let user = User::from_name(name).map_err(system)?;
    let user = user.ok_or_else(|| BecomeError::Unknown(name.to_owned()))?;
    drop_privileges(&user, more)?;
    umask(UMASK);
    // It may lead a session already.
    let _ = setsid();
    std::env::set_current_dir("/").map_err(|_| system(Errno::EACCES))
}

/// Gives up all rights but this user's, its groups' and those of one more group.
///
/// # Errors
/// When not all of them are gone; the process is to end then.
pub fn drop_privileges(user: &User, more: Option<Gid>) -> Result<(), BecomeError> {
    let system = |source| BecomeError::System { user: user.name.clone(), source };
    if user.uid.is_root() {
        return Err(BecomeError::Root);
    }
    let own = CString::new(user.name.as_str()).map_err(|_| system(Errno::EINVAL))?;
    initgroups(&own, user.gid).map_err(system)?;
    if let Some(more) = more {
        let mut groups = getgroups().map_err(system)?;
        groups.push(more);
        setgroups(&groups).map_err(system)?;
    }
    setresgid(user.gid, user.gid, user.gid).map_err(system)?;
    setresuid(user.uid, user.uid, user.uid).map_err(system)?;
    let roots = getgroups().map_err(system)?.contains(&Gid::from_raw(0));
    if setuid(Uid::from_raw(0)).is_ok() || (roots && user.gid.as_raw() != 0) {
        return Err(BecomeError::NotForGood);
    }
    Ok(())
}
