//! The directories of users: each is its user's, and its group is the server's, which reads logs
//! there and writes nothing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, fchmod, fstat, mkdirat};
use nix::unistd::{Gid, User, fchown, geteuid};

/// Whatever is made in it gets its group; others do not see into it.
const MODE: Mode = Mode::from_bits_truncate(0o2750);
/// Others may pass through the directory of all users.
const PARENT_MODE: Mode = Mode::from_bits_truncate(0o711);
const DIRECTORY: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// The directory of all of them, held open: whoever can replace it on its path cannot lead a
/// privileged process elsewhere.
#[derive(Debug)]
pub struct UserDirs {
    dir: OwnedFd,
    server: Gid,
}

impl UserDirs {
    /// Opens or makes it. It has to be this process's own and nobody else's to write to.
    ///
    /// # Errors
    /// When it is not, or cannot be made.
    pub fn open(path: &Path, server: Gid) -> io::Result<Self> {
        match nix::unistd::mkdir(path, PARENT_MODE) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let dir = open(path, DIRECTORY, Mode::empty())?;
        let found = fstat(&dir)?;
        let others = Mode::S_IWGRP | Mode::S_IWOTH;
        if found.st_uid != geteuid().as_raw()
            || Mode::from_bits_truncate(found.st_mode).intersects(others)
        {
            let text = format!("`{}` is not this user's alone to write to", path.display());
            return Err(io::Error::other(text));
        }
        fchmod(&dir, PARENT_MODE)?;
        Ok(Self { dir, server })
    }

    /// Makes the directory of a user, unless it is there.
    ///
    /// # Errors
    /// When it cannot be made, or something else lies there.
    pub fn make(&self, user: &User) -> io::Result<()> {
        let name = user.name.as_str();
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        match mkdirat(&self.dir, name, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let dir = openat(self.dir.as_fd(), name, DIRECTORY, Mode::empty())?;
        let owner = fstat(&dir)?.st_uid;
        // Its maker may have ended before it gave it away.
        if owner != user.uid.as_raw() && owner != geteuid().as_raw() {
            return Err(io::Error::other(format!("the directory of `{name}` is another user's")));
        }
        fchown(&dir, Some(user.uid), Some(self.server))?;
        // A change of the owner takes the bit of the group away.
        Ok(fchmod(&dir, MODE)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    use nix::unistd::{Uid, getegid};

    use super::*;

    #[test]
    fn a_directory_is_its_users_and_nothing_in_its_place_is_taken_for_it() {
        let root = tempfile::tempdir().expect("a directory can be made");
        let path = root.path().join("users");
        let dirs = UserDirs::open(&path, getegid()).expect("it can be made");
        let own = User::from_uid(geteuid()).expect("users can be read").expect("it has a name");
        for _ in 0..2 {
            dirs.make(&own).expect("it can be made");
            let found = fs::metadata(path.join(&own.name)).expect("it is there");
            assert_eq!(
                (found.permissions().mode() & 0o7777, found.uid()),
                (0o2750, own.uid.as_raw())
            );
        }
        let named = |name: &str| User { name: name.to_owned(), ..own.clone() };
        for name in ["", "..", ".x", "a/b"] {
            assert!(dirs.make(&named(name)).is_err(), "{name}");
        }
        symlink("/etc", path.join("led")).expect("a link can be made");
        fs::write(path.join("file"), "").expect("a file can be made");
        assert!(dirs.make(&named("led")).is_err());
        assert!(dirs.make(&named("file")).is_err());
        if geteuid().is_root() {
            fs::create_dir(path.join("ada")).expect("a directory can be made");
            chown(path.join("ada"), Some(12_345), None).expect("root may");
            let ada = User { uid: Uid::from_raw(12_346), ..named("ada") };
            assert!(dirs.make(&ada).is_err(), "it is another user's");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("it is ours");
        assert!(UserDirs::open(&path, getegid()).is_err(), "anybody may write to it");
    }
}
