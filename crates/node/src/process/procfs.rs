//! Reads `/proc`: which processes belong to a gang, when they started, what they used.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::LazyLock;

use het_core::Millis;
use nix::unistd::{SysconfVar, sysconf};

/// Ticks a second of the times in `/proc/PID/stat` where the system does not say (proc(5)).
const TICKS_DEFAULT: i64 = 100;
/// Bytes read at once of a list that the system makes.
const CHUNK_BYTES: usize = 4_096;
/// Most ancestors of a process that are read.
const ANCESTORS_MAX: usize = 256;
/// Most processes of one rank that are looked at.
const TREE_MAX: usize = 4_096;

/// Most that is read of a process's mappings.
const MAPS_BYTES_MAX: u64 = 4 << 20;
/// Most descriptors of one process that are looked at.
const DESCRIPTORS_MAX: usize = 4_096;

/// The part of `/proc/PID/stat` that is used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    pub(crate) threads: u64,
    /// Own processor time and that of collected children.
    pub(crate) cpu_ticks: u64,
    /// Since boot: distinguishes a process from a later one with the same id.
    pub(crate) start_ticks: u64,
    /// On which it ran last.
    pub(crate) core: u32,
}

impl Stat {
    /// Only its status is left. The first thread may be a zombie while others run.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.state, 'Z' | 'X') && self.threads <= 1
    }
}

/// Field numbers are those of proc(5); the list begins with field 3, the state.
fn parse(text: &str) -> Option<Stat> {
    // Field 2 is the program's name in brackets, which may itself contain brackets and blanks.
    let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_whitespace().collect();
    let number = |index: usize| fields.get(index - 3)?.parse::<u64>().ok();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        threads: number(20)?,
        cpu_ticks: number(14)? + number(15)? + number(16)? + number(17)?,
        start_ticks: number(22)?,
        core: u32::try_from(number(39)?).ok()?,
    })
}

pub(crate) fn stat(pid: i32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Processes that run and either are in one of these groups or sessions, or were started with this
/// variable (`NAME=VALUE`, or the beginning of it) in their environment: `torchrun` and daemons
/// create sessions of their own.
pub(crate) fn members(groups: &BTreeSet<i32>, variable: &str) -> Vec<i32> {
    let own = std::process::id() as i32;
    let belongs = |pid: i32, stat: &Stat| {
        let grouped = groups.contains(&stat.group) || groups.contains(&stat.session);
        pid != own && !stat.is_gone() && (grouped || has_variable(pid, variable))
    };
    all().filter(|(pid, stat)| belongs(*pid, stat)).map(|(pid, _)| pid).collect()
}

/// Processes of a group whose leader is gone that have no parent in it: the leader's children.
pub(crate) fn orphans(group: i32) -> Vec<i32> {
    let members: BTreeMap<i32, Stat> =
        all().filter(|(_, stat)| stat.group == group && !stat.is_gone()).collect();
    let is_orphan = |stat: &Stat| !members.contains_key(&stat.parent);
    members.iter().filter(|(_, stat)| is_orphan(stat)).map(|(&pid, _)| pid).collect()
}

/// Processes with this variable (`NAME=VALUE`) whose parents lack it: the others descend from them.
pub(crate) fn topmost(variable: &str) -> Vec<i32> {
    let marked: BTreeMap<i32, Stat> =
        all().filter(|(pid, stat)| !stat.is_gone() && has_variable(*pid, variable)).collect();
    let is_top = |stat: &Stat| !marked.contains_key(&stat.parent);
    marked.iter().filter(|(_, stat)| is_top(stat)).map(|(&pid, _)| pid).collect()
}

/// Processes below one, whatever their state.
pub(crate) fn descendants(process: i32) -> Vec<i32> {
    let mut of: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    all().for_each(|(pid, stat)| of.entry(stat.parent).or_default().push(pid));
    let (mut found, mut left) = (Vec::new(), vec![process]);
    while let Some(parent) = left.pop() {
        let children = of.remove(&parent).unwrap_or_default();
        found.extend(&children);
        left.extend(children);
    }
    found
}

/// Whether a process runs the program that this one runs.
pub(crate) fn is_of_this_program(pid: i32) -> bool {
    let program = |of: &str| {
        let path = fs::read_link(format!("/proc/{of}/exe")).ok()?;
        // Its file may have been replaced by that of another version.
        let path = path.to_str()?;
        Some(path.strip_suffix(" (deleted)").unwrap_or(path).to_owned())
    };
    program(&pid.to_string()).is_some_and(|path| Some(path) == program("self"))
}

/// As whom a process runs.
pub(crate) fn user(pid: i32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().next()?.parse().ok()
}

/// Every visible process. One that ends meanwhile may be missing.
pub(crate) fn all() -> impl Iterator<Item = (i32, Stat)> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, stat(pid)?))
    })
}

/// The system's list of this process's children.
#[derive(Debug)]
pub(crate) struct Children(File);

impl Children {
    pub(crate) fn open() -> io::Result<Self> {
        // Orphans become children of the first thread.
        File::open(format!("/proc/self/task/{}/children", std::process::id())).map(Self)
    }

    pub(crate) fn read(&self) -> io::Result<Vec<i32>> {
        read_children(&self.0)
    }
}

/// Reads a file `children` of the system.
pub(crate) fn read_children(file: &File) -> io::Result<Vec<i32>> {
    let (mut text, mut chunk) = (Vec::new(), [0; CHUNK_BYTES]);
    loop {
        let length = file.read_at(&mut chunk, text.len() as u64)?;
        text.extend(&chunk[..length]);
        // The system returns whole entries, as many as fit.
        if length < CHUNK_BYTES / 2 {
            break;
        }
    }
    let text = String::from_utf8_lossy(&text);
    Ok(text.split_whitespace().filter_map(|id| id.parse().ok()).collect())
}

/// Children of this process in other sessions that it did not start: descendants of ranks that
/// ended, if it adopts orphans.
pub(crate) fn adopted(children: &[i32], known: &BTreeSet<i32>) -> Vec<(i32, Stat)> {
    let others = children.iter().filter(|pid| !known.contains(pid));
    let others: Vec<_> = others.filter_map(|&pid| Some((pid, stat(pid)?))).collect();
    let own = std::process::id() as i32;
    let session = if others.is_empty() { None } else { stat(own).map(|own| own.session) };
    others.into_iter().filter(|(_, stat)| session != Some(stat.session)).collect()
}

/// Whether a process was started with this variable (`NAME=VALUE`, or the beginning of it).
pub(crate) fn has_variable(pid: i32, variable: &str) -> bool {
    // One that cannot be read is gone, or another user's.
    let environment = environment(pid).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(|entry| entry.starts_with(variable.as_bytes()))
}

/// Value of a variable that a process was started with; `None` also where it cannot be read.
pub(crate) fn variable(pid: i32, name: &str) -> Option<String> {
    let environment = environment(pid)?;
    let mut entries = environment.split(|&byte| byte == 0);
    let value = entries.find_map(|entry| {
        entry.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="))
    });
    value.map(|value| String::from_utf8_lossy(value).into_owned())
}

fn environment(pid: i32) -> Option<Vec<u8>> {
    fs::read(format!("/proc/{pid}/environ")).ok()
}

/// Whether a process has neither arguments nor an environment: a kernel thread, or one that is in
/// `execve` or ending.
pub(crate) fn is_bare(pid: i32) -> bool {
    let is_empty =
        |name: &str| fs::read(format!("/proc/{pid}/{name}")).is_ok_and(|it| it.is_empty());
    is_empty("cmdline") && is_empty("environ")
}

/// Whether a process is in a cgroup whose path contains this name, such as a container id.
pub(crate) fn is_in_cgroup_named(pid: i32, name: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(name))
}

/// A process and its ancestors, up to the first process of the system.
pub(crate) fn lineage(pid: i32) -> impl Iterator<Item = (i32, Stat)> {
    let entry = |pid: i32| Some((pid, stat(pid).filter(|_| pid > 1)?));
    std::iter::successors(entry(pid), move |(_, stat)| entry(stat.parent)).take(ANCESTORS_MAX)
}

/// Processor time of a process and all that descend from it, in ticks.
pub(crate) fn tree_cpu_ticks(root: i32) -> u64 {
    tree(root).iter().filter_map(|&pid| stat(pid)).map(|stat| stat.cpu_ticks).sum()
}

/// What they have read from disks, in bytes.
pub(crate) fn tree_read_bytes(root: i32) -> u64 {
    let read = |&pid: &i32| -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok())
    };
    tree(root).iter().filter_map(read).sum()
}

/// Paths of files that a process has mapped, or open to read and not to write.
pub(crate) fn files_read(pid: i32) -> Vec<PathBuf> {
    let mut maps = Vec::new();
    let file = File::open(format!("/proc/{pid}/maps"));
    // What cannot be read has nothing mapped that could be seen.
    let _ = file.and_then(|file| file.take(MAPS_BYTES_MAX).read_to_end(&mut maps));
    let lines = maps.split(|byte| *byte == b'\n').filter_map(|line| str::from_utf8(line).ok());
    let mapped = lines.filter_map(|line| line.splitn(6, ' ').nth(5));
    // A file that was removed is called otherwise.
    let mapped = mapped.map(|path| PathBuf::from(path.trim_start()));
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let open = open.take(DESCRIPTORS_MAX).filter_map(|entry| {
        // The link of a descriptor may be read and not written as the file is open.
        let mode = entry.path().symlink_metadata().ok()?.mode();
        (mode & 0o600 == 0o400).then(|| fs::read_link(entry.path()).ok())?
    });
    let mut paths: Vec<PathBuf> = mapped.chain(open).filter(|path| path.is_absolute()).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// A process and all that descend from it.
pub(crate) fn tree(root: i32) -> Vec<i32> {
    let (mut found, mut waiting) = (Vec::new(), vec![root]);
    while found.len() < TREE_MAX {
        let Some(pid) = waiting.pop() else { break };
        found.push(pid);
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            waiting.extend(children.split_whitespace().filter_map(|id| id.parse::<i32>().ok()));
        }
    }
    found
}

pub(crate) fn ticks_to_millis(ticks: u64) -> Millis {
    Millis(ticks * 1_000 / ticks_per_second())
}

pub(crate) fn millis_to_ticks(millis: u64) -> u64 {
    millis * ticks_per_second() / 1_000
}

fn ticks_per_second() -> u64 {
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(TICKS_DEFAULT);
    per_second.max(1) as u64
}

/// Whether a process leads a session and started between these times, in clock ticks of this boot.
pub(crate) fn leads_session_since(pid: i32, from: u64, until: u64) -> bool {
    stat(pid).is_some_and(|stat| {
        stat.session == pid && !stat.is_gone() && (from..=until).contains(&stat.start_ticks)
    })
}

/// The threads of a process, each with the id of the process.
pub(crate) fn threads(pid: i32) -> Vec<(i32, i32)> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    names.map(|thread| (pid, thread)).collect()
}

/// A file that the kernel has about a thread; nothing where it is gone, or may not be read.
pub(crate) fn of_thread(pid: i32, thread: i32, name: &str) -> Option<Vec<u8>> {
    fs::read(format!("/proc/{pid}/task/{thread}/{name}")).ok()
}

/// Bytes that programs could have without anybody's being written out.
pub(crate) fn memory_available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let row = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = row.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

/// How many processes the kernel has killed for lack of memory since boot; `None` where it does not
/// count.
pub(crate) fn oom_kills() -> Option<u64> {
    let text = fs::read_to_string("/proc/vmstat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
}

/// Id of this boot. With every boot, process ids and start times start over.
pub fn boot_id() -> String {
    static ID: LazyLock<String> = LazyLock::new(|| {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim().to_owned()
    });
    ID.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_blanks_is_skipped() {
        let text = "42 (a) b (c)) S 1 40 39 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 777 9 \
                    0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 3";
        let expected = Stat {
            state: 'S',
            parent: 1,
            group: 40,
            session: 39,
            threads: 1,
            cpu_ticks: 100,
            start_ticks: 777,
            core: 3,
        };
        assert_eq!(parse(text), Some(expected));
    }

    #[test]
    fn half_a_line_is_nothing() {
        assert_eq!(parse("42 (sh) S 1 40"), None);
    }

    #[test]
    fn this_process_is_found_in_proc() {
        assert!(stat(std::process::id() as i32).is_some_and(|stat| stat.start_ticks > 0));
    }
}
