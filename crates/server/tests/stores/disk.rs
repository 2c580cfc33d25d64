//! A disk in memory whose power goes off: unsynced writes are kept, lost, or torn sector by sector.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use het_lab::Draw;
use nix::errno::Errno;
use redb::StorageBackend;

/// What a disk writes as a whole.
const SECTOR: usize = 512;

/// A number, the same for the same seed and index.
pub fn drawn(seed: u64, index: u64) -> u64 {
    Draw::new(seed, index).between(0, u64::MAX - 1)
}

/// Whether the disk does what it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    Works,
    /// Says that it has synced, and has not: the test has to notice.
    Lies,
}

#[derive(Debug, Clone)]
enum Unsynced {
    Write(u64, Vec<u8>),
    Length(u64),
}

/// A disk in memory that knows what has reached the platter.
#[derive(Debug)]
struct Disk {
    now: Vec<u8>,
    safe: Vec<u8>,
    unsynced: Vec<Unsynced>,
    sync: Sync,
    operations: u64,
    /// Power goes off at this operation; from then on everything fails.
    off_at: u64,
    /// From this operation on, writes fail so.
    fails: Option<(u64, Errno)>,
}

#[derive(Debug, Clone)]
pub struct Handle(Arc<Mutex<Disk>>);

impl Handle {
    pub fn new(image: Vec<u8>, sync: Sync, off_at: u64) -> Self {
        let safe = image.clone();
        let disk = Disk {
            now: image,
            safe,
            unsynced: Vec::new(),
            sync,
            operations: 0,
            off_at,
            fails: None,
        };
        Self(Arc::new(Mutex::new(disk)))
    }

    /// What was written so far is safe, and the power goes off after so many operations.
    pub fn turn_off_after(&self, operations: u64) {
        let mut disk = self.lock();
        disk.safe = disk.now.clone();
        disk.unsynced.clear();
        disk.off_at = disk.operations + operations;
    }

    /// Nothing is tidied up any more.
    pub fn turn_off(&self) {
        self.lock().off_at = 0;
    }

    /// After so many operations the disk takes nothing more, and says so.
    pub fn fail_after(&self, operations: u64, errno: Errno) {
        let mut disk = self.lock();
        disk.fails = Some((disk.operations + operations, errno));
    }

    /// It works again.
    pub fn mend(&self) {
        self.lock().fails = None;
    }

    /// What the disk says that it holds.
    pub fn now(&self) -> Vec<u8> {
        self.lock().now.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Disk) -> T) -> io::Result<T> {
        let mut disk = self.lock();
        disk.operations += 1;
        if disk.operations > disk.off_at {
            return Err(io::Error::other("the power is off"));
        }
        Ok(act(&mut disk))
    }

    fn change<T>(&self, act: impl FnOnce(&mut Disk) -> T) -> io::Result<T> {
        self.with(|disk| match disk.fails {
            Some((from, errno)) if disk.operations > from => Err(errno.into()),
            _ => Ok(act(disk)),
        })?
    }

    /// What may be found after the power comes back.
    pub fn image(&self, seed: u64) -> Vec<u8> {
        let disk = self.lock();
        let mut image = disk.safe.clone();
        for (index, change) in (0..).zip(&disk.unsynced) {
            let fate = drawn(seed, index);
            match change {
                Unsynced::Length(length) if fate.is_multiple_of(2) => {
                    image.resize(*length as usize, 0)
                }
                Unsynced::Length(_) => {}
                Unsynced::Write(at, bytes) => {
                    for (number, sector) in bytes.chunks(SECTOR).enumerate() {
                        let kept = match fate % 3 {
                            0 => true,
                            1 => false,
                            _ => drawn(fate, number as u64).is_multiple_of(2),
                        };
                        let from = *at as usize + number * SECTOR;
                        if kept && from + sector.len() <= image.len() {
                            image[from..from + sector.len()].copy_from_slice(sector);
                        }
                    }
                }
            }
        }
        image
    }
}

impl StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        self.with(|disk| disk.now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|disk| {
            let from = offset as usize;
            let found = disk.now.get(from..from + out.len());
            found.map(|bytes| out.copy_from_slice(bytes)).ok_or(io::ErrorKind::UnexpectedEof.into())
        })?
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.change(|disk| {
            disk.now.resize(length as usize, 0);
            disk.unsynced.push(Unsynced::Length(length));
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.change(|disk| {
            if disk.sync == Sync::Works {
                disk.safe.clone_from(&disk.now);
                disk.unsynced.clear();
            }
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(|disk| {
            let from = offset as usize;
            disk.now[from..from + data.len()].copy_from_slice(data);
            disk.unsynced.push(Unsynced::Write(offset, data.to_vec()));
        })
    }
}
