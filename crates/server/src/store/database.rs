//! The database of a store and where it lies: opened again after a failure, and told apart from
//! another file that took its place.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use redb::{Database, ReadTransaction, ReadableDatabase, StorageBackend, WriteTransaction};

use super::check::guarded;
use super::{StoreError, builder};

/// A database that its readers share, also when it is opened again. There is none while that fails.
#[derive(Debug, Clone)]
pub(super) struct SharedDatabase(Arc<RwLock<Option<Arc<Closing>>>>);

/// A database that is closed in the end. That writes, and may meet damage.
#[derive(Debug)]
struct Closing(Option<Database>);

impl Drop for Closing {
    fn drop(&mut self) {
        let database = self.0.take();
        // What could not be written is found by the next who opens it.
        let _ = guarded(|| {
            drop(database);
            Ok(())
        });
    }
}

impl SharedDatabase {
    pub(super) fn new(database: Database) -> Self {
        Self(Arc::new(RwLock::new(Some(Arc::new(Closing(Some(database)))))))
    }

    pub(super) fn begin_read(&self) -> Result<ReadTransaction, StoreError> {
        self.with(|database| Ok(database.begin_read()?))
    }

    pub(super) fn begin_write(&self) -> Result<WriteTransaction, StoreError> {
        self.with(|database| Ok(database.begin_write()?))
    }

    fn with<T>(
        &self,
        act: impl FnOnce(&Database) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let database = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        let database = database.ok_or(StoreError::Closed)?;
        act(database.0.as_ref().expect("only its end takes it"))
    }

    /// Closes it: what somebody still reads keeps its file open until that is read.
    pub(super) fn close(&self) {
        let closed = self.0.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(closed);
    }

    pub(super) fn replace(&self, database: Database) {
        let new = Arc::new(Closing(Some(database)));
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(new);
    }
}

/// Where a store lies.
pub(super) enum Source {
    File(StoreFile),
    /// A disk that is not a file: tests put one there that fails.
    Disk(Box<dyn Fn() -> Result<Database, StoreError> + Send>),
}

/// A file by its path and by what it is.
#[derive(Debug)]
pub(super) struct StoreFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
    /// After the last batch.
    bytes: u64,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => file.fmt(f),
            Self::Disk(_) => f.write_str("Disk"),
        }
    }
}

impl Source {
    pub(super) fn file(path: &Path) -> Result<Self, StoreError> {
        let found = found(path)?;
        let identity = (found.dev(), found.ino());
        Ok(Self::File(StoreFile { path: path.to_owned(), identity, bytes: found.len() }))
    }

    pub(super) fn disk(disk: impl StorageBackend + Clone) -> Self {
        Self::Disk(Box::new(move || Ok(builder().create_with_backend(disk.clone())?)))
    }

    pub(super) fn open(&self) -> Result<Database, StoreError> {
        match self {
            Self::File(file) => Ok(builder().open(&file.path)?),
            Self::Disk(open) => open(),
        }
    }

    /// Whether it is still there, the same, and whole: what is written to a file that was removed
    /// is lost.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let Self::File(StoreFile { path, identity, bytes }) = self else { return Ok(()) };
        let found = found(path)?;
        let path = || path.clone();
        if (found.dev(), found.ino()) != *identity {
            return Err(StoreError::Replaced { path: path() });
        }
        match found.len() < *bytes {
            true => Err(StoreError::Truncated { path: path(), bytes: found.len(), was: *bytes }),
            false => Ok(()),
        }
    }

    /// After a batch was written.
    pub(super) fn written(&mut self) {
        if let Self::File(file) = self {
            file.bytes = fs::metadata(&file.path).map_or(file.bytes, |found| found.len());
        }
    }
}

fn found(path: &Path) -> Result<fs::Metadata, StoreError> {
    fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => StoreError::Missing { path: path.to_owned() },
        _ => error.into(),
    })
}
