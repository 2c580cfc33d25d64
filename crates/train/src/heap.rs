//! How the C library's heap hands large buffers back.
//!
//! glibc raises the size from which a buffer is a mapping of its own with each mapping that is
//! freed, up to 32 MiB. Buffers of a run grow with its batches, and those that became too small
//! would leave gaps in the heap that nothing fits into: a sixth of the memory of a run was seen.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What glibc reads when a process starts (mallopt(3)); set at all, it stays as it is.
const VARIABLE: &str = "MALLOC_MMAP_THRESHOLD_";
/// Bytes from which a buffer is a mapping of its own.
const THRESHOLD: &str = "1048576";
const TUNABLES: &str = "GLIBC_TUNABLES";
/// Says that this was tried: a process with more rights than its user's loses the other.
const TRIED: &str = "HET_TRAIN_HEAP";
/// The program that may be begun anew: `current_exe` is the loader's where that was named.
const PROGRAM: &str = "het-train";

/// Begins this program anew, as the same process, with a fixed size; returns where it is fixed
/// already, or where that cannot be.
pub fn fix_threshold() {
    let is_told = |tunables: &OsStr| tunables.to_string_lossy().contains("mmap_threshold");
    let is_fixed = std::env::var_os(VARIABLE).is_some()
        || std::env::var_os(TRIED).is_some()
        || std::env::var_os(TUNABLES).is_some_and(|tunables| is_told(&tunables));
    if is_fixed || !cfg!(target_env = "gnu") {
        return;
    }
    let program = std::env::current_exe().ok();
    if let Some(program) = program.filter(|path| path.file_name() == Some(OsStr::new(PROGRAM))) {
        let mut arguments = std::env::args_os();
        let mut again = Command::new(program);
        if let Some(name) = arguments.next() {
            again.arg0(name);
        }
        // An error leaves all as it is: the program computes the same in more memory.
        let _error = again.args(arguments).env(VARIABLE, THRESHOLD).env(TRIED, "1").exec();
    }
}
