//! What the extended resources of nodes are. Vendors' plug-ins name the same card differently, so
//! this is a table, and what it does not list is shown as not understood.

use std::collections::BTreeMap;

use het_core::{Bytes, DeviceClass, Name};
use het_devices::nvidia_class;
use het_wire::catalogue;
use het_wire::device_table::{ClassOf, ResourceRow};

/// What the devices of a resource are.
#[derive(Debug, Clone, Copy)]
struct Resource {
    /// Its name, or with a `*` at the end how it begins.
    name: &'static str,
    kind: &'static str,
    vendor: &'static str,
    driver: &'static str,
    class: ClassRule,
    /// A label with the memory of each device, in MiB.
    memory_label: Option<&'static str>,
}

/// How the class of a device is known.
#[derive(Debug, Clone, Copy)]
enum ClassRule {
    /// The resource is for devices of this class only.
    Is(&'static str),
    /// A label of the node has the product name that NVML gives, with hyphens.
    Nvidia(&'static str),
    /// As before; the rest of the resource's name is the instance's profile.
    NvidiaInstance(&'static str),
    /// A label of the node has a word for it; the class of each.
    Label(&'static str, &'static [(&'static str, &'static str)]),
}

const NVIDIA_PRODUCT: &str = "nvidia.com/gpu.product";
const INSTANCE: &str = "-mig-";

/// MindCluster's and Ascend device plug-in's words.
const ASCEND_CHIPS: &[(&str, &str)] = &[
    ("910", "ascend-910-a"),
    ("Ascend910", "ascend-910-a"),
    ("Ascend910A", "ascend-910-a"),
    ("Ascend910B", "ascend-910-a"),
    ("910A", "ascend-910-a"),
    ("910B1", "ascend-910b"),
    ("910B2", "ascend-910b"),
    ("910B2C", "ascend-910b"),
    ("910B3", "ascend-910b"),
    ("910B4", "ascend-910b4"),
    ("910C", "ascend-910c"),
];

const TPU_TYPES: &[(&str, &str)] = &[
    ("tpu-v4-podslice", "tpu-v4"),
    ("tpu-v5-lite-podslice", "tpu-v5e"),
    ("tpu-v5-lite-device", "tpu-v5e"),
    ("tpu-v5p-slice", "tpu-v5p"),
    ("tpu-v6e-slice", "tpu-v6e-trillium"),
];

const CHIP_LABEL: &str = "node.kubernetes.io/npu.chip.name";

const fn row(
    name: &'static str,
    (kind, vendor, driver): (&'static str, &'static str, &'static str),
    class: ClassRule,
) -> Resource {
    Resource { name, kind, vendor, driver, class, memory_label: None }
}

const ASCEND: (&str, &str, &str) = ("npu", "Huawei", "cann");
const NVIDIA: (&str, &str, &str) = ("gpu", "NVIDIA", "cuda");

/// Sources: NVIDIA device plugin and GPU feature discovery; ROCm, Intel and Habana device plugins;
/// GKE and EKS documentation; Ascend MindCluster; HAMi 2.10 `pkg/device`; Cambricon, Enflame,
/// Hygon, Kunlunxin, MetaX and Vastai device plugins.
const RESOURCES: &[Resource] = &[
    Resource {
        memory_label: Some("nvidia.com/gpu.memory"),
        ..row("nvidia.com/gpu", NVIDIA, ClassRule::Nvidia(NVIDIA_PRODUCT))
    },
    row("nvidia.com/mig-*", NVIDIA, ClassRule::NvidiaInstance(NVIDIA_PRODUCT)),
    row("amd.com/gpu", ("gpu", "AMD", "rocm"), ClassRule::Label("amd.com/gpu.product-name", &[])),
    row("gpu.intel.com/i915", ("gpu", "Intel", "level-zero"), ClassRule::Is("intel-gpu")),
    row("gpu.intel.com/xe", ("gpu", "Intel", "level-zero"), ClassRule::Is("intel-gpu")),
    row("habana.ai/gaudi", ("npu", "Intel", "habana"), ClassRule::Is("gaudi2")),
    row(
        "google.com/tpu",
        ("tpu", "Google", "tpu"),
        ClassRule::Label("cloud.google.com/gke-tpu-accelerator", TPU_TYPES),
    ),
    row("aws.amazon.com/neuron", ("npu", "AWS", "neuron"), ClassRule::Is("aws-neuron")),
    row("huawei.com/Ascend910A", ASCEND, ClassRule::Is("ascend-910-a")),
    row("huawei.com/Ascend910B2", ASCEND, ClassRule::Is("ascend-910b")),
    row("huawei.com/Ascend910B3", ASCEND, ClassRule::Is("ascend-910b")),
    row("huawei.com/Ascend910B4", ASCEND, ClassRule::Is("ascend-910b4")),
    row("huawei.com/Ascend910C", ASCEND, ClassRule::Is("ascend-910c")),
    row("huawei.com/Ascend910", ASCEND, ClassRule::Label(CHIP_LABEL, ASCEND_CHIPS)),
    row("huawei.com/npu", ASCEND, ClassRule::Label(CHIP_LABEL, ASCEND_CHIPS)),
    row("huawei.com/Ascend310P", ASCEND, ClassRule::Is("ascend-310p")),
    row("cambricon.com/mlu", ("npu", "Cambricon", "mlu"), ClassRule::Is("cambricon")),
    row("enflame.com/gcu", ("npu", "Enflame", "tops"), ClassRule::Is("enflame")),
    row("hygon.com/dcunum", ("gpu", "Hygon", "rocm"), ClassRule::Is("hygon-dcu")),
    row("kunlunxin.com/xpu", ("npu", "Kunlunxin", "xpu"), ClassRule::Is("kunlunxin")),
    row("metax-tech.com/gpu", ("gpu", "MetaX", "maca"), ClassRule::Is("metax")),
    row("vastaitech.com/va", ("npu", "Vastai", "vastai"), ClassRule::Is("vastai")),
];

/// A driver of dynamic resource allocation.
#[derive(Debug, Clone, Copy)]
struct DraDriver {
    name: &'static str,
    /// The extended resource that the same devices are of where a plug-in offers them.
    resource: &'static str,
    /// The attribute that says what a label of nodes says of that resource.
    product: &'static str,
    /// The `type` of whole devices.
    whole: &'static str,
    /// The `type` of instances, whose attribute `profile` ends the name of their resource.
    instances: Option<(&'static str, &'static str)>,
}

/// Sources: documentation of NVIDIA's, AMD's and Intel's drivers of dynamic resource allocation.
const DRA_DRIVERS: &[DraDriver] = &[
    DraDriver {
        name: "gpu.nvidia.com",
        resource: "nvidia.com/gpu",
        product: "productName",
        whole: "gpu",
        instances: Some(("mig", "nvidia.com/mig-")),
    },
    DraDriver {
        name: "gpu.amd.com",
        resource: "amd.com/gpu",
        product: "productName",
        whole: "amdgpu",
        instances: None,
    },
    DraDriver {
        name: "gpu.intel.com",
        resource: "gpu.intel.com/xe",
        product: "model",
        whole: "gpu",
        instances: None,
    },
];

/// What a node's devices of one resource are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub class: DeviceClass,
    pub driver: Name,
    pub memory: Bytes,
}

/// What is known of resources: rows of the cluster's own first.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceTable(Vec<ResourceRow>);

impl DeviceTable {
    pub fn new(own: Vec<ResourceRow>) -> Self {
        Self(own)
    }

    /// What a resource's devices are on a node with these labels; `None` where nobody knows.
    pub fn known(&self, resource: &str, labels: &BTreeMap<String, String>) -> Option<Known> {
        match self.0.iter().find(|row| is_named(resource, &row.resource)) {
            Some(row) => Some(of_own(row, labels)),
            None => of_vendor(resource, labels),
        }
    }
}

impl DeviceTable {
    /// What a device with these attributes is that a driver of dynamic resource allocation offers;
    /// `None` where nobody knows. A row of the cluster's own is named after the driver, and its
    /// label is an attribute.
    pub fn claimable(&self, driver: &str, attributes: &BTreeMap<String, String>) -> Option<Known> {
        match self.0.iter().find(|row| is_named(driver, &row.resource)) {
            Some(row) => Some(of_own(row, attributes)),
            None => of_dra_driver(driver, attributes),
        }
    }
}

/// Keys of taints that keep pods away from the devices of a driver which do not want them.
pub(crate) fn dra_taints(driver: &str) -> impl Iterator<Item = &str> {
    let twin = DRA_DRIVERS.iter().find(|row| row.name == driver).map(|row| row.resource);
    [driver].into_iter().chain(twin)
}

fn of_dra_driver(driver: &str, attributes: &BTreeMap<String, String>) -> Option<Known> {
    let driver = DRA_DRIVERS.iter().find(|row| row.name == driver)?;
    let kind = attributes.get("type").map_or(driver.whole, String::as_str);
    let resource = match driver.instances {
        _ if kind == driver.whole => driver.resource.to_owned(),
        Some((of, begin)) if kind == of => format!("{begin}{}", attributes.get("profile")?),
        _ => return None,
    };
    let row = RESOURCES.iter().find(|row| is_named(&resource, row.name))?;
    let product = attributes.get(driver.product);
    let label = row.class.label().zip(product);
    let labels = label.map(|(name, product)| (name.to_owned(), product.clone()));
    of_vendor(&resource, &labels.into_iter().collect())
}

impl ClassRule {
    /// The label of nodes that tells the class.
    fn label(self) -> Option<&'static str> {
        match self {
            Self::Is(_) => None,
            Self::Nvidia(name) | Self::NvidiaInstance(name) | Self::Label(name, _) => Some(name),
        }
    }
}

fn is_named(resource: &str, name: &str) -> bool {
    match name.strip_suffix('*') {
        Some(begin) => resource.starts_with(begin),
        None => resource == name,
    }
}

fn of_own(row: &ResourceRow, labels: &BTreeMap<String, String>) -> Known {
    let id = match &row.class {
        ClassOf::Is(id) => id.clone(),
        ClassOf::Label { name, classes } => match labels.get(name) {
            None => format!("{}-{}", row.vendor.to_lowercase(), row.kind),
            Some(word) => classes.get(word).cloned().unwrap_or_else(|| slug(&row.vendor, word)),
        },
    };
    let memory = row.memory.or_else(|| catalogue::memory(&id)).unwrap_or_default();
    let class = class_of(&id, row.kind.as_str(), &row.vendor);
    Known { class, driver: row.driver.clone(), memory }
}

fn of_vendor(resource: &str, labels: &BTreeMap<String, String>) -> Option<Known> {
    let row = RESOURCES.iter().find(|row| is_named(resource, row.name))?;
    let id = row.class_id(resource, labels);
    let stated = row.memory_label.and_then(|label| labels.get(label)?.parse::<u64>().ok());
    let stated = stated.and_then(|mib| mib.checked_mul(1 << 20)).map(Bytes);
    let memory = stated.or_else(|| catalogue::memory(&id)).unwrap_or_default();
    let class = class_of(&id, row.kind, row.vendor);
    Some(Known { class, driver: row.driver.into(), memory })
}

fn class_of(id: &str, kind: &str, vendor: &str) -> DeviceClass {
    catalogue::class_by_id(id).cloned().unwrap_or_else(|| DeviceClass {
        id: id.into(),
        kind: kind.into(),
        vendor: vendor.into(),
        title: format!("{vendor} {id}").as_str().into(),
        peak_gflops: catalogue::peak_gflops(id),
        software: false,
    })
}

impl Resource {
    fn class_id(&self, resource: &str, labels: &BTreeMap<String, String>) -> String {
        let label = |name: &str| labels.get(name).map_or("", String::as_str);
        match self.class {
            ClassRule::Is(id) => id.to_owned(),
            ClassRule::Nvidia(product) => nvidia_class(label(product)),
            ClassRule::NvidiaInstance(product) => {
                let profile = resource.strip_prefix(self.name.trim_end_matches('*'));
                // Whole devices of such a node are named after what they are cut into, too.
                let whole = label(product).split("-MIG-").next().unwrap_or_default();
                format!("{}{INSTANCE}{}", nvidia_class(whole), profile.unwrap_or_default())
            }
            ClassRule::Label(name, classes) => match label(name) {
                "" => format!("{}-{}", self.vendor.to_lowercase(), self.kind),
                word => match classes.iter().find(|(of, _)| *of == word) {
                    Some((_, id)) => (*id).to_owned(),
                    None => slug(self.vendor, word),
                },
            },
        }
    }
}

/// A class id for a word that no table lists.
fn slug(vendor: &str, word: &str) -> String {
    let letters = word.chars().map(|letter| match letter.to_ascii_lowercase() {
        letter if letter.is_ascii_alphanumeric() => letter,
        _ => '-',
    });
    let slug: String = letters.collect();
    let prefix = format!("{}-", vendor.to_lowercase());
    let bare = slug.strip_prefix(&prefix).unwrap_or(&slug);
    let of_catalogue = bare.strip_prefix("instinct-").unwrap_or(bare);
    match catalogue::class_by_id(of_catalogue) {
        Some(class) => class.id.to_string(),
        None => format!("{prefix}{bare}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(resource: &str, labels: &[(&str, &str)], class: &str, memory_gib: u64) {
        let pairs = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let known = of_vendor(resource, &pairs.collect()).expect("it is listed");
        assert_eq!(known.class.id, *class);
        assert_eq!(known.memory.0 >> 30, memory_gib, "{}", known.memory);
    }

    #[test]
    fn labels_tell_the_class_of_a_resource() {
        let product = |name| (NVIDIA_PRODUCT, name);
        check("nvidia.com/gpu", &[product("NVIDIA-H100-80GB-HBM3")], "h100-sxm5-80", 80);
        let stated = ("nvidia.com/gpu.memory", "40960");
        check("nvidia.com/gpu", &[product("NVIDIA-A100-SXM4-40GB"), stated], "a100-sxm4-40", 40);
        check("nvidia.com/gpu", &[], "nvidia-gpu", 0);
        let cut = product("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb");
        check("nvidia.com/mig-1g.5gb", &[cut], "a100-sxm4-40-mig-1g.5gb", 0);
        check("amd.com/gpu", &[("amd.com/gpu.product-name", "AMD_Instinct_MI300X")], "mi300x", 192);
        check("huawei.com/Ascend910", &[(CHIP_LABEL, "910B3")], "ascend-910b", 64);
        check("huawei.com/Ascend910B4", &[], "ascend-910b4", 0);
        let tpu = ("cloud.google.com/gke-tpu-accelerator", "tpu-v5p-slice");
        check("google.com/tpu", &[tpu], "tpu-v5p", 95);
    }

    #[test]
    fn attributes_tell_the_class_of_a_device_that_is_claimed() {
        let class = |driver: &str, attributes: &[(&str, &str)]| {
            let pairs = attributes.iter().map(|(name, of)| ((*name).to_owned(), (*of).to_owned()));
            let known = DeviceTable::default().claimable(driver, &pairs.collect());
            known.map(|known| known.class.id.to_string())
        };
        let product = ("productName", "NVIDIA A100-SXM4-40GB");
        let nvidia = |more: &[(&str, &str)]| class("gpu.nvidia.com", &[&[product], more].concat());
        assert_eq!(nvidia(&[("type", "gpu")]).as_deref(), Some("a100-sxm4-40"));
        let instance = nvidia(&[("type", "mig"), ("profile", "1g.5gb")]);
        assert_eq!(instance.as_deref(), Some("a100-sxm4-40-mig-1g.5gb"));
        assert_eq!(nvidia(&[("type", "vfio")]), None);
        let amd = class("gpu.amd.com", &[("productName", "AMD Instinct MI300X")]);
        assert_eq!(amd.as_deref(), Some("mi300x"));
        assert_eq!(class("nic.example.com", &[product]), None);
    }

    #[test]
    fn what_no_table_lists_is_not_known() {
        assert_eq!(of_vendor("example.com/fpga", &BTreeMap::new()), None);
    }

    #[test]
    fn what_a_table_of_ones_own_lists_comes_first() {
        let row = |resource: &str, class| ResourceRow {
            resource: resource.to_owned(),
            kind: "npu".into(),
            vendor: "Example".to_owned(),
            driver: "example".into(),
            class,
            memory: Some(Bytes::gib(16)),
        };
        let classes = BTreeMap::from([("A".to_owned(), "example-a".to_owned())]);
        let label = ClassOf::Label { name: "example.com/product".to_owned(), classes };
        let table = DeviceTable::new(vec![
            row("example.com/npu-*", label),
            row("nvidia.com/gpu", ClassOf::Is("h20".to_owned())),
        ]);
        let class = |resource: &str, product: &str| {
            let labels = [("example.com/product".to_owned(), product.to_owned())].into();
            table.known(resource, &labels).map(|known| known.class.id.to_string())
        };
        assert_eq!(class("example.com/npu-2", "A").as_deref(), Some("example-a"));
        assert_eq!(class("example.com/npu-2", "B 2").as_deref(), Some("example-b-2"));
        assert_eq!(class("nvidia.com/gpu", "A").as_deref(), Some("h20"));
        assert_eq!(class("example.com/fpga", "A"), None);
    }

    #[test]
    fn every_class_of_the_table_is_of_its_kind() {
        for row in RESOURCES {
            if let ClassRule::Is(id) = row.class
                && let Some(class) = catalogue::class_by_id(id)
            {
                assert_eq!(class.kind, *row.kind, "{}", row.name);
                assert_eq!(class.vendor, *row.vendor, "{}", row.name);
            }
        }
    }
}
