//! The shim of a gang: the parent of its ranks, which outlives the engine, its keeper and the
//! launcher, and notes how each rank ended before anybody else learns of it.
//!
//! It has one thread and waits for its children and for the engine; it is never woken otherwise.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, getpid, setsid};

use super::report::{Others, Report};
use super::request::{GangRequest, HOLD, RANK_DESCRIPTORS_MAX, RELEASE, decode_rank};
use super::wait::{Woken, wait, wait_for};
use crate::process::exit::Exit;
use crate::process::messages::{receive, try_send};
use crate::process::procfs;
use crate::process::slots::{EndNote, SHIM_AT, STARTUP_AT, StartupNote, end_at, note_at, slot};
use crate::process::sys::{RankFiles, become_subreaper, exit_status, name_process, start_program};

/// As `ps` shows it.
const NAME: &std::ffi::CStr = c"het-shim";

/// One rank, from its start.
struct Rank {
    number: u32,
    pid: i32,
    end: Option<EndNote>,
    is_told: Told,
}

#[derive(PartialEq, Eq)]
enum Told {
    No,
    Yes,
}

/// A request for a rank that was received.
type Request = (Vec<u8>, Vec<OwnedFd>);

/// A gang that runs.
struct Gang {
    record: File,
    /// Devices are held as long as it is open.
    hold: Option<OwnedFd>,
    slots_at: u64,
    ranks: Vec<Rank>,
}

/// Whether the engine is there. One that is not has died, or needs nothing any more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Engine {
    There,
    Gone,
}

/// Runs a shim in a process of its own: for one gang after another, until the engine is gone and
/// all ranks have ended.
pub(super) fn run(
    (request, descriptors): (GangRequest, impl Iterator<Item = OwnedFd>),
    connection: &OwnedFd,
    lock: OwnedFd,
) -> io::Result<()> {
    setsid()?;
    let mut next = take(request, descriptors)?;
    drop(lock);
    become_subreaper()?;
    name_process(NAME);
    let children = File::open(CHILDREN)?;
    while let Some((GangRequest { slots_at, ranks }, record, hold)) = next {
        let Some(ranks) = receive_ranks(connection, ranks)? else {
            // The engine died, or cannot start every rank: none begins.
            return Ok(());
        };
        let mut gang = Gang { record, hold, slots_at, ranks: Vec::new() };
        gang.start(ranks, connection);
        if gang.attend(connection, &children)? == Engine::Gone {
            return Ok(());
        }
        drop(gang);
        next = receive_gang(connection)?;
    }
    Ok(())
}

/// A gang that a shim was asked to take: where its record is, and what is held for it.
type Taken = (GangRequest, File, Option<OwnedFd>);

/// Notes itself in the record.
fn take(
    request: GangRequest,
    mut descriptors: impl Iterator<Item = OwnedFd>,
) -> io::Result<Option<Taken>> {
    let Some(record) = descriptors.next().map(File::from) else { return Ok(None) };
    let own = slot(format_args!("shim {}", getpid()));
    record.write_all_at(own.as_bytes(), request.slots_at + SHIM_AT)?;
    Ok(Some((request, record, descriptors.next())))
}

/// Waits for the next gang; `None` where none will come.
fn receive_gang(connection: &OwnedFd) -> io::Result<Option<Taken>> {
    while wait_for(connection)? != Woken::ByDescriptor {
        // Whatever ranks left behind comes here: as zombies it would use up the user's processes.
        let ended = || waitpid(None, Some(WaitPidFlag::WNOHANG));
        while ended().is_ok_and(|status| status.pid().is_some()) {}
    }
    let Some((bytes, descriptors)) = receive(connection.as_fd())? else { return Ok(None) };
    let Some(request) = GangRequest::decode(&bytes) else { return Ok(None) };
    take(request, descriptors.into_iter())
}

/// The requests for all ranks; `None` where some will never come.
fn receive_ranks(connection: &OwnedFd, count: u32) -> io::Result<Option<Vec<Request>>> {
    let mut ranks = Vec::new();
    while (ranks.len() as u64) < u64::from(count) {
        if wait_for(connection)? == Woken::ByDescriptor {
            let Some(request) = receive(connection.as_fd())? else { return Ok(None) };
            ranks.push(request);
        }
    }
    Ok(Some(ranks))
}

impl Gang {
    /// Starts every rank in order, until one cannot be started.
    fn start(&mut self, ranks: Vec<Request>, connection: &OwnedFd) {
        let mut note = StartupNote::Begun;
        for (number, request) in (0..).zip(ranks) {
            if let Err(error) = self.start_rank(number, &request) {
                let errno = error.raw_os_error().unwrap_or(Errno::EINVAL as i32);
                note = StartupNote::Failed { rank: number, errno };
                break;
            }
        }
        // The engine is told too: a disk that takes nothing does not keep a gang from running.
        let _ = self.record.write_all_at(slot(note).as_bytes(), self.slots_at + STARTUP_AT);
        if let StartupNote::Failed { rank, errno } = note {
            let _ = try_send(connection.as_fd(), &Report::Failed { rank, errno }.encode());
        }
    }

    fn start_rank(&mut self, number: u32, (bytes, descriptors): &Request) -> io::Result<()> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let (program, inherited) = decode_rank(bytes).ok_or_else(invalid)?;
        let [stdin, stdout, stderr, cgroup_procs @ ..] = &descriptors[..] else {
            return Err(invalid());
        };
        if program.rank != number || descriptors.len() > RANK_DESCRIPTORS_MAX {
            return Err(invalid());
        }
        let files = RankFiles {
            stdin: stdin.as_fd(),
            stdout: stdout.as_fd(),
            stderr: stderr.as_fd(),
            note: self.record.as_fd(),
            note_at: self.slots_at + note_at(number),
            cgroup_procs,
            inherited,
        };
        let started = start_program(&program, &files)?;
        self.ranks.push(Rank { number, pid: started.pid, end: None, is_told: Told::No });
        started.errno.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }

    /// Notes and tells how ranks end, until all have and the engine needs nothing of them any more;
    /// gives whether it is there.
    fn attend(&mut self, connection: &OwnedFd, children: &File) -> io::Result<Engine> {
        let (mut engine, mut others) = (Engine::There, self.collect(children));
        loop {
            if engine == Engine::Gone {
                if self.is_over() {
                    self.forget_ranks();
                    return Ok(engine);
                }
                wait(&mut [])?;
                others = self.collect(children);
                continue;
            }
            self.tell(connection, others);
            // An end that could not be told waits for room.
            let waiting = self.ranks.iter().any(Rank::is_waiting);
            let room = if waiting { PollFlags::POLLOUT } else { PollFlags::empty() };
            let mut watched = [PollFd::new(connection.as_fd(), PollFlags::POLLIN | room)];
            if wait(&mut watched)? == Woken::ByChild {
                others = self.collect(children);
            } else if watched[0].revents().is_some_and(|found| found != PollFlags::POLLOUT) {
                match receive(connection.as_fd())? {
                    Some((bytes, descriptors)) if bytes == HOLD => {
                        self.hold = descriptors.into_iter().next();
                    }
                    Some((bytes, _)) if bytes == RELEASE && self.is_over() => {
                        self.forget_ranks();
                        return Ok(engine);
                    }
                    _ => engine = Engine::Gone,
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        self.ranks.iter().all(|rank| rank.end.is_some())
    }

    /// Nobody needs the zombies any more. Descendants that are left become children of the next
    /// subreaper when this process ends.
    fn forget_ranks(&mut self) {
        for rank in self.ranks.drain(..) {
            let _ = waitpid(Pid::from_raw(rank.pid), None);
        }
    }

    /// Notes how ranks ended, and collects other children that have.
    fn collect(&mut self, children: &File) -> Others {
        for rank in self.ranks.iter_mut().filter(|rank| rank.end.is_none()) {
            let unknown = || Some((Exit::Unknown, het_core::Millis::ZERO));
            let ended = exit_status(rank.pid).unwrap_or_else(|_| unknown());
            let Some((exit, cpu)) = ended else { continue };
            let end = EndNote { exit, cpu };
            let at = self.slots_at + end_at(rank.number);
            // Where the disk takes nothing a live engine is told; for a later one it is unseen.
            let _ = self.record.write_all_at(slot(end).as_bytes(), at);
            rank.end = Some(end);
        }
        self.collect_others(children)
    }

    /// Children of ranks that ended become this process's: they must not stay zombies.
    fn collect_others(&self, children: &File) -> Others {
        let Ok(children) = procfs::read_children(children) else { return Others::Perhaps };
        let mut others = Others::None;
        for pid in children {
            if self.ranks.iter().any(|rank| rank.pid == pid) {
                continue;
            }
            let collected = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
            if collected.is_ok_and(|status| status.pid().is_none()) {
                others = Others::Perhaps;
            }
        }
        others
    }

    fn tell(&mut self, connection: &OwnedFd, others: Others) {
        for rank in self.ranks.iter_mut().filter(|rank| rank.is_waiting()) {
            let Some(end) = rank.end else { continue };
            let report = Report::Ended { rank: rank.number, pid: rank.pid, end, others };
            if try_send(connection.as_fd(), &report.encode()).is_err() {
                return;
            }
            rank.is_told = Told::Yes;
        }
    }
}

impl Rank {
    /// Its end is to be told.
    fn is_waiting(&self) -> bool {
        self.end.is_some() && self.is_told == Told::No
    }
}

/// The system's list of the children of this process, which has one thread.
const CHILDREN: &str = "/proc/thread-self/children";
