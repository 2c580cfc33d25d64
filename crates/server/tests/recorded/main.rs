//! Machines as trees of files: who uses an Ascend 910B and who may, and what the first example
//! does on every composed one.

mod drivers;
mod external;
#[path = "../../../devices/tests/tree/mod.rs"]
mod tree;
mod vnpus;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

const FUNCTION: &str = "sys/devices/pci0000:00/0000:01:00.0";
const ON_BUS: &str = "sys/bus/pci/devices/0000:01:00.0";

/// A CPU of two cores and the NPU, with these device nodes beside its own.
fn record(root: &Path, nodes: &[&str]) {
    let files = [
        ("proc/self/status", "Name:\thet\nCpus_allowed_list:\t0-1\n"),
        ("proc/meminfo", "MemTotal:       1056964608 kB\n"),
        ("sys/devices/system/cpu/online", "0-1\n"),
        (&format!("{FUNCTION}/vendor"), "0x19e5\n"),
        (&format!("{FUNCTION}/device"), "0xd802\n"),
        (&format!("{FUNCTION}/class"), "0x120000\n"),
        ("dev/davinci0", ""),
        ("dev/davinci_manager", ""),
    ];
    for (path, text) in files.into_iter().chain(nodes.iter().map(|&node| (node, ""))) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("it lies in a directory")).expect("writable");
        fs::write(path, text).expect("writable");
    }
    for directory in ["sys/bus/pci/devices", "sys/bus/pci/drivers/devdrv"] {
        fs::create_dir_all(root.join(directory)).expect("writable");
    }
    let links = [
        (format!("../../../../{FUNCTION}"), ON_BUS.to_owned()),
        ("../../../bus/pci/drivers/devdrv".to_owned(), format!("{FUNCTION}/driver")),
    ];
    for (target, path) in links {
        symlink(target, root.join(path)).expect("writable");
    }
}
