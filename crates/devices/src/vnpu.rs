//! Virtual NPUs: the parts that an administrator cuts an Ascend chip into. Each is a device of its
//! own, with AI cores and memory of its own; the chip cannot be used whole beside them, and no
//! program can use one outside of a container.
//!
//! Source: Huawei's MindCluster 7.3 documentation, "Virtual instances" (templates, numbers, limits,
//! "Mounting vNPUs with native Docker").

use std::collections::BTreeSet;
use std::path::Path;

use crate::kernel::files::SystemFiles;

/// Before the number of a virtual NPU, below `/dev` and in visible ids; the driver's libraries look
/// for [`INSIDE`] and the same number.
const NODE: &str = "vdavinci";
const INSIDE: &str = "davinci";

/// The first number of a virtual NPU, and how many numbers each chip has: chip `n`, whose node is
/// `/dev/davinciN`, has 100 + 16 n and those behind it ("Creating vNPUs").
const NUMBER_MIN: u32 = 100;
const NUMBERS_PER_CHIP: u32 = 16;

/// The number of the chip that a virtual NPU is part of; `None` for a number that none has.
pub(crate) fn chip_of(number: u32) -> Option<u32> {
    Some(number.checked_sub(NUMBER_MIN)? / NUMBERS_PER_CHIP)
}

/// Numbers of the virtual NPUs that have a device node.
pub(crate) fn numbers_with_node(files: &SystemFiles) -> BTreeSet<u32> {
    files.names("dev").iter().filter_map(|name| number(name)).collect()
}

/// The number in a visible id or in the name of a node.
fn number(name: &str) -> Option<u32> {
    name.strip_prefix(NODE)?.parse().ok().filter(|number| chip_of(*number).is_some())
}

/// Name of the node below `/dev`, and visible id.
pub(crate) fn node_name(number: u32) -> String {
    format!("{NODE}{number}")
}

/// The argument that gives a container the virtual NPU under the name that the driver's libraries
/// look for; `None` where the id is not that of a virtual NPU.
pub(crate) fn container_argument(visible_id: &str) -> Option<String> {
    let number = number(visible_id)?;
    Some(format!("--device=/dev/{NODE}{number}:/dev/{INSIDE}{number}"))
}

/// Whether a device with this visible id is one.
pub(crate) fn is_vnpu(visible_id: &str) -> bool {
    number(visible_id).is_some()
}

/// All paths under which programs have the node of a device open. Inside of a container a virtual
/// NPU has another name, and `/proc/PID/fd` shows the one that its process used.
pub(crate) fn node_paths(node: &Path) -> Vec<String> {
    let own = node.to_string_lossy().into_owned();
    let name = node.file_name().and_then(|name| name.to_str()).and_then(number);
    let inside = name.map(|number| format!("/dev/{INSIDE}{number}"));
    [Some(own), inside].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_belong_to_chips() {
        assert_eq!(
            [99, 100, 115, 116, 212].map(chip_of),
            [None, Some(0), Some(0), Some(1), Some(7)]
        );
        assert_eq!(
            ["davinci100", "vdavinci7", "vdavinci", "vdavinci100"].map(is_vnpu),
            [false, false, false, true]
        );
        let paths = |node: &str| node_paths(Path::new(node));
        assert_eq!(paths("/dev/vdavinci100"), ["/dev/vdavinci100", "/dev/davinci100"]);
        assert_eq!(paths("/dev/davinci3"), ["/dev/davinci3"]);
    }
}
