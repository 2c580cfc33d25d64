//! What the kubelet calls what pods may request. No I/O.

/// The cores of a node.
pub(crate) const CPU: &str = "cpu";
/// What begins the names of resources that are no devices.
const NO_DEVICES: [&str; 2] = ["hugepages-", "attachable-volumes-"];
const PLAIN: [&str; 4] = [CPU, "memory", "pods", "ephemeral-storage"];

/// Whether so called resources are devices.
pub(crate) fn is_device(resource: &str) -> bool {
    !PLAIN.contains(&resource) && !NO_DEVICES.iter().any(|begin| resource.starts_with(begin))
}
