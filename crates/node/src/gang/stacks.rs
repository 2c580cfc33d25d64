//! What the processes of a gang were doing when it hung, as far as the kernel says it.

use std::path::PathBuf;

use super::processes::Processes;
use crate::cgroup::Group;
use crate::launch::GangSpec;
use crate::process::procfs;

/// Threads that are told of, and bytes that are read of each of their files.
const THREADS_MAX: usize = 512;
const BYTES_MAX: usize = 4_096;

/// What the kernel says of a thread, the most telling first. `stack` is for root alone.
const FILES: [&str; 5] = ["comm", "wchan", "syscall", "stack", "status"];

/// Writes a file beside the logs; its path where that worked.
pub(super) fn keep(spec: &GangSpec, processes: &Processes, cgroups: &[Group]) -> Option<PathBuf> {
    let selector = processes.selector(spec, cgroups);
    let pids = procfs::members(&selector.groups, &selector.variable);
    let mut text = String::new();
    for (pid, thread) in pids.iter().flat_map(|pid| procfs::threads(*pid)).take(THREADS_MAX) {
        text.push_str(&format!("process {pid}, thread {thread}\n"));
        for name in FILES {
            if let Some(said) = procfs::of_thread(pid, thread, name) {
                let said = String::from_utf8_lossy(&said[..said.len().min(BYTES_MAX)]);
                said.lines().for_each(|line| text.push_str(&format!("  {name}: {line}\n")));
            }
        }
    }
    let path = spec.log_file(0).with_file_name(format!("stall-{}.txt", spec.attempt));
    // Whatever the job put there is replaced, neither followed nor waited for.
    het_files::replace_private(&path, text.as_bytes()).ok().map(|()| path)
}
