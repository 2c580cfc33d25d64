//! Which chip a PCI id or a name stands for. Class ids are those of `wire/data/devices.csv`
//! where the model is there; anything else gets a slug of its name, so that a new chip is usable
//! before anybody has described it.

use std::ops::RangeInclusive;

use crate::kernel::parse;
use crate::kernel::pci::Function;

/// Base class and subclass of a processing accelerator. `0x1201` is SDXI, a copy engine.
const PROCESSING_ACCELERATOR: u16 = 0x1200;
/// Base class of display controllers, which GPUs are.
const DISPLAY: u16 = 0x03;
pub(crate) const NVIDIA: u16 = 0x10de;

/// Where a family's device nodes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    /// `/dev/accel/accelN`, named by the PCI function.
    Accel,
    /// `/dev/dri/renderDN`, named by the PCI function.
    Render,
    /// `/dev/PREFIX0…`: the n-th node belongs to the n-th function in the order of addresses.
    Numbered(&'static str),
}

/// A maker's line of chips that share a driver.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) vendor_id: u16,
    pub(crate) vendor: &'static str,
    pub(crate) kind: &'static str,
    /// Best first.
    pub(crate) drivers: &'static [&'static str],
    pub(crate) node: Node,
    /// A node below `/dev` that all of its devices need beside their own.
    pub(crate) manager: Option<&'static str>,
    /// What to load or install when there is no device node.
    pub(crate) install: &'static str,
    /// Device id, class id, human name.
    pub(crate) models: &'static [(u16, &'static str, &'static str)],
    /// For devices of the compute classes that are not listed: `PREFIX-DEVICE`.
    pub(crate) others: Option<&'static str>,
}

/// Sources: pci.ids 2023.04.11 and the kernel modules named.
pub(crate) const FAMILIES: &[Family] = &[
    Family {
        vendor_id: 0x19e5,
        vendor: "Huawei",
        kind: "npu",
        drivers: &["cann", "npu-ort"],
        node: Node::Numbered("davinci"),
        manager: Some("davinci_manager"),
        install: "the Ascend driver (`Ascend-hdk-*-npu-driver`)",
        models: &[
            (0xd100, "ascend-310", "Huawei Ascend 310"),
            (0xd500, "ascend-310p", "Huawei Ascend 310P"),
            (0xd801, "ascend-910-a", "Huawei Ascend 910 (A)"),
            (0xd802, "ascend-910b", "Huawei Ascend 910B"),
        ],
        others: Some("ascend"),
    },
    Family {
        vendor_id: 0x1da3,
        vendor: "Intel",
        kind: "npu",
        drivers: &["habana"],
        node: Node::Accel,
        manager: None,
        install: "the kernel module `habanalabs`",
        models: &[
            (0x0001, "goya", "Intel Goya"),
            (0x0030, "greco", "Intel Greco"),
            (0x1000, "gaudi", "Intel Gaudi"),
            (0x1010, "gaudi", "Intel Gaudi"),
            (0x1020, "gaudi2", "Intel Gaudi2"),
        ],
        others: Some("gaudi"),
    },
    Family {
        vendor_id: 0x8086,
        vendor: "Intel",
        kind: "npu",
        drivers: &["npu-ort"],
        node: Node::Accel,
        manager: None,
        install: "the kernel module `intel_vpu`",
        models: &[
            (0x7d1d, "intel-npu-mtl", "Intel NPU (Meteor Lake)"),
            (0xad1d, "intel-npu-arl", "Intel NPU (Arrow Lake)"),
            (0x643e, "intel-npu-lnl", "Intel NPU (Lunar Lake)"),
            (0xb03e, "intel-npu-ptl", "Intel NPU (Panther Lake)"),
        ],
        others: None,
    },
    // XDNA calls itself a signal processor (class 0x1180): only its ids tell.
    Family {
        vendor_id: 0x1022,
        vendor: "AMD",
        kind: "npu",
        drivers: &["npu-ort"],
        node: Node::Accel,
        manager: None,
        install: "the kernel module `amdxdna`",
        models: &[(0x1502, "amd-xdna", "AMD XDNA NPU"), (0x17f0, "amd-xdna2", "AMD XDNA 2 NPU")],
        others: None,
    },
    Family {
        vendor_id: 0xcabc,
        vendor: "Cambricon",
        kind: "npu",
        drivers: &["mlu"],
        node: Node::Numbered("cambricon_dev"),
        manager: None,
        install: "the Cambricon driver",
        models: &[],
        others: Some("cambricon"),
    },
    Family {
        vendor_id: 0x1e36,
        vendor: "Enflame",
        kind: "npu",
        drivers: &["tops"],
        node: Node::Numbered("gcu"),
        manager: None,
        install: "the Enflame driver",
        models: &[
            (0x0021, "enflame-t20-32", "Enflame T20 32GB"),
            (0x0022, "enflame-t20-64", "Enflame T20 64GB"),
            (0x8001, "enflame-i20", "Enflame I20"),
        ],
        others: Some("enflame"),
    },
    Family {
        vendor_id: 0x1d22,
        vendor: "Kunlunxin",
        kind: "npu",
        drivers: &["xpu"],
        node: Node::Numbered("xpu"),
        manager: None,
        install: "the Kunlunxin driver",
        models: &[
            (0x3684, "kunlun-1", "Kunlunxin Kunlun"),
            (0x3685, "r200-kunlun-2", "Kunlunxin R200 (Kunlun 2)"),
        ],
        others: None,
    },
    // Neuron devices are of a generic system class: only their ids tell.
    Family {
        vendor_id: 0x1d0f,
        vendor: "AWS",
        kind: "npu",
        drivers: &["neuron"],
        node: Node::Numbered("neuron"),
        manager: None,
        install: "the kernel module `neuron` (`aws-neuronx-dkms`)",
        models: &[
            (0x7064, "inferentia", "AWS Inferentia"),
            (0x7164, "trainium", "AWS Trainium"),
            (0x7264, "inferentia2", "AWS Inferentia2"),
        ],
        others: None,
    },
    Family {
        vendor_id: 0x1ded,
        vendor: "T-Head",
        kind: "npu",
        drivers: &["ppu"],
        node: Node::Numbered("alixpu_ppu"),
        manager: None,
        install: "the T-Head PPU driver",
        models: &[],
        others: Some("t-head"),
    },
    // Ids as in JAX's hardware_utils.py; other Google functions are network cards.
    Family {
        vendor_id: 0x1ae0,
        vendor: "Google",
        kind: "tpu",
        drivers: &["tpu"],
        node: Node::Numbered("accel"),
        manager: None,
        install: "the TPU driver",
        models: &[
            (0x0027, "tpu-v3", "Google TPU v3"),
            (0x005e, "tpu-v4", "Google TPU v4"),
            (0x0062, "tpu-v5p", "Google TPU v5p"),
            (0x0063, "tpu-v5e", "Google TPU v5e"),
            (0x006f, "tpu-v6e-trillium", "Google TPU v6e Trillium"),
        ],
        others: None,
    },
    Family {
        vendor_id: 0x1002,
        vendor: "AMD",
        kind: "gpu",
        drivers: &["rocm"],
        node: Node::Render,
        manager: Some("kfd"),
        install: "the kernel module `amdgpu` with ROCm's `/dev/kfd`",
        models: &[
            (0x738c, "mi100", "AMD MI100"),
            (0x740f, "mi210", "AMD MI210"),
            (0x7408, "mi250x", "AMD MI250X"),
            (0x74a1, "mi300x", "AMD MI300X"),
            (0x74a5, "mi325x", "AMD MI325X"),
        ],
        others: Some("amd-gpu"),
    },
    Family {
        vendor_id: 0x8086,
        vendor: "Intel",
        kind: "gpu",
        drivers: &["level-zero"],
        node: Node::Render,
        manager: None,
        install: "the kernel module `i915` or `xe`",
        models: &[
            (0x0bd5, "gpu-max-1550", "Intel Data Center GPU Max 1550"),
            (0x0bd9, "gpu-max-1100", "Intel Data Center GPU Max 1100"),
            (0x56c0, "gpu-flex-170", "Intel Data Center GPU Flex 170"),
        ],
        others: Some("intel-gpu"),
    },
    Family {
        vendor_id: 0x1d94,
        vendor: "Hygon",
        kind: "gpu",
        drivers: &["rocm"],
        node: Node::Render,
        manager: Some("kfd"),
        install: "the Hygon DCU driver (DTK)",
        models: &[],
        others: Some("hygon-dcu"),
    },
    Family {
        vendor_id: 0x1e3e,
        vendor: "Iluvatar",
        kind: "gpu",
        drivers: &["corex"],
        node: Node::Numbered("iluvatar"),
        manager: None,
        install: "the Iluvatar CoreX driver",
        models: &[],
        others: Some("iluvatar"),
    },
    Family {
        vendor_id: 0x9999,
        vendor: "MetaX",
        kind: "gpu",
        drivers: &["maca"],
        node: Node::Render,
        manager: Some("mxcd"),
        install: "the MetaX driver (MACA)",
        models: &[],
        others: Some("metax"),
    },
    Family {
        vendor_id: 0x1ed5,
        vendor: "Moore Threads",
        kind: "gpu",
        drivers: &["musa"],
        node: Node::Numbered("mtgpu."),
        manager: None,
        install: "the Moore Threads driver (MUSA)",
        models: &[
            (0x0201, "mtt-s80", "Moore Threads MTT S80"),
            (0x0222, "mtt-s3000", "Moore Threads MTT S3000"),
        ],
        others: Some("mtt"),
    },
];

/// Engines of the accelerator class that compress, encrypt or copy: HiSilicon's ZIP, SEC, HPRE and
/// RDE (pci.ids), Alibaba's Yitian.
const OFFLOAD_ENGINES: &[(u16, RangeInclusive<u16>)] =
    &[(0x19e5, 0xa100..=0xa3ff), (0x1ded, 0x8000..=0x80ff)];

/// What a PCI function is to us.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Recognised {
    /// NVIDIA's own library knows better.
    Nvidia,
    Member(&'static Family),
    /// An accelerator of a vendor that no family names.
    Unknown,
    /// A network card, a bridge, a display controller that cannot compute.
    Other,
}

pub(crate) fn recognise(function: &Function) -> Recognised {
    let is_display = function.class >> 8 == DISPLAY;
    let is_accelerator = function.class == PROCESSING_ACCELERATOR;
    let listed = |family: &&Family| {
        let models = family.models;
        family.vendor_id == function.vendor && models.iter().any(|row| row.0 == function.device)
    };
    // Huawei's servers carry a Huawei display controller: an NPU must be an accelerator.
    let unlisted = |family: &&Family| {
        let of_class = is_accelerator || (is_display && family.kind == "gpu");
        family.vendor_id == function.vendor && family.others.is_some() && of_class
    };
    let offloads = |(vendor, devices): &(u16, RangeInclusive<u16>)| {
        *vendor == function.vendor && devices.contains(&function.device)
    };
    if OFFLOAD_ENGINES.iter().any(offloads) {
        return Recognised::Other;
    }
    if function.vendor == NVIDIA && (is_display || is_accelerator) {
        return Recognised::Nvidia;
    }
    let family = FAMILIES.iter().find(listed).or_else(|| FAMILIES.iter().find(unlisted));
    match family {
        Some(family) => Recognised::Member(family),
        None if is_accelerator => Recognised::Unknown,
        None => Recognised::Other,
    }
}

/// Class id and human name of a family's device.
pub(crate) fn model(family: &Family, device: u16) -> (String, String) {
    if let Some((_, id, title)) = family.models.iter().find(|row| row.0 == device) {
        return ((*id).to_owned(), (*title).to_owned());
    }
    let prefix = family.others.unwrap_or(family.kind);
    (format!("{prefix}-{device:04x}"), format!("{} device {device:04x}", family.vendor))
}

/// Slugs of NVML names that differ from the catalogue's ids.
const NVIDIA_IDS: &[(&str, &str)] = &[
    ("a100-80-pcie", "a100-pcie-80"),
    ("b200", "b200-sxm"),
    ("gb200", "gb200-per-gpu"),
    ("h100-80-hbm3", "h100-sxm5-80"),
    ("h100-pcie", "h100-pcie-80"),
    ("h200", "h200-sxm5"),
    ("h800", "h800-sxm5-80"),
    ("p100-sxm2-16", "p100-sxm2"),
];

/// The class id of a device by the name that NVML or Vulkan gives it:
/// `NVIDIA A100-SXM4-80GB` → `a100-sxm4-80`.
pub fn nvidia_class(name: &str) -> String {
    let words = name.split(|letter: char| letter.is_whitespace() || letter == '-');
    let words = words.filter(|word| !matches!(*word, "NVIDIA" | "Tesla" | "GeForce" | "Quadro"));
    let without_unit = |word| match str::strip_suffix(word, "GB") {
        Some(size) if size.bytes().all(|digit| digit.is_ascii_digit()) => size,
        _ => word,
    };
    let slug = parse::slug(words.map(without_unit));
    let known = NVIDIA_IDS.iter().find(|(name, _)| *name == slug);
    match known {
        Some((_, id)) => (*id).to_owned(),
        None if slug.is_empty() => "nvidia-gpu".to_owned(),
        None => slug,
    }
}

/// ARM names a core by implementer and part (Linux `arch/arm64/include/asm/cputype.h`).
const ARM_PARTS: &[(&str, &str, &str, &str)] = &[
    ("0x41", "0xd0c", "neoverse-n1", "Arm Neoverse N1"),
    ("0x41", "0xd40", "neoverse-v1", "Arm Neoverse V1"),
    ("0x41", "0xd49", "neoverse-n2", "Arm Neoverse N2"),
    ("0x41", "0xd4f", "neoverse-v2", "Arm Neoverse V2"),
    ("0x48", "0xd01", "kunpeng-920", "Huawei Kunpeng 920"),
];

/// Class id, human name and maker of the processor that `/proc/cpuinfo` describes.
pub(crate) fn processor(cpuinfo: &str) -> (String, String, &'static str) {
    if let Some(name) = parse::field(cpuinfo, "model name").filter(|name| !name.is_empty()) {
        return (processor_class(name), name.to_owned(), processor_vendor(name));
    }
    let part = parse::field(cpuinfo, "CPU implementer").zip(parse::field(cpuinfo, "CPU part"));
    let known =
        part.and_then(|(maker, part)| ARM_PARTS.iter().find(|row| row.0 == maker && row.1 == part));
    match known {
        Some((_, _, id, title)) => ((*id).to_owned(), (*title).to_owned(), processor_vendor(title)),
        None => (format!("cpu-{}", std::env::consts::ARCH), "processor".to_owned(), "unknown"),
    }
}

/// `AMD EPYC 7763 64-Core Processor` → `epyc-7763`, `Intel(R) Xeon(R) Platinum 8480+` →
/// `xeon-8480`.
fn processor_class(name: &str) -> String {
    let name = name.replace("(R)", " ").replace("(TM)", " ").replace("(tm)", " ");
    let name = name.split('@').next().unwrap_or_default();
    let name = name.split(" with ").next().unwrap_or_default();
    let name = name.split(" w/ ").next().unwrap_or_default();
    let dropped = |word: &&str| {
        let noise = ["AMD", "Intel", "CPU", "Processor", "Gen", "Platinum", "Gold", "Silver"];
        let count = word.ends_with("-Core") || word.ends_with("th") || word.ends_with("rd");
        !noise.contains(word) && !count
    };
    let slug = parse::slug(name.split_whitespace().filter(dropped));
    match slug.as_str() {
        "" => "cpu".to_owned(),
        // The cloud's variants of the 8480+.
        "xeon-8480c" | "xeon-8480cl" => "xeon-8480".to_owned(),
        _ => slug,
    }
}

fn processor_vendor(name: &str) -> &'static str {
    let makers = ["AMD", "Intel", "Huawei", "Arm", "Hygon", "Ampere"];
    makers.into_iter().find(|maker| name.contains(maker)).unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvml_names_become_catalogue_ids() {
        let check = |name: &str, id: &str| assert_eq!(nvidia_class(name), id);
        check("NVIDIA H100 80GB HBM3", "h100-sxm5-80");
        check("NVIDIA H100 PCIe", "h100-pcie-80");
        check("NVIDIA H200", "h200-sxm5");
        check("NVIDIA H20", "h20");
        check("NVIDIA H800", "h800-sxm5-80");
        check("NVIDIA B200", "b200-sxm");
        check("NVIDIA GB200", "gb200-per-gpu");
        check("NVIDIA A100-SXM4-80GB", "a100-sxm4-80");
        check("NVIDIA A100-SXM4-40GB", "a100-sxm4-40");
        check("NVIDIA A100 80GB PCIe", "a100-pcie-80");
        check("NVIDIA A100-PCIE-40GB", "a100-pcie-40");
        check("NVIDIA A800-SXM4-80GB", "a800-sxm4-80");
        check("NVIDIA A10G", "a10g");
        check("Tesla V100-SXM2-32GB", "v100-sxm2-32");
        check("Tesla V100-PCIE-16GB", "v100-pcie-16");
        check("Tesla P100-SXM2-16GB", "p100-sxm2");
        check("Tesla K80", "k80");
        check("Tesla T4", "t4");
        check("NVIDIA L40S", "l40s");
        check("NVIDIA RTX A6000", "rtx-a6000");
        check("NVIDIA GeForce RTX 4090", "rtx-4090");
        check("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop-gpu");
        check("", "nvidia-gpu");
    }

    #[test]
    fn processor_names_become_catalogue_ids() {
        let check = |name: &str, id: &str| assert_eq!(processor_class(name), id);
        check("AMD EPYC 7763 64-Core Processor", "epyc-7763");
        check("AMD EPYC 9654 96-Core Processor", "epyc-9654");
        check("Intel(R) Xeon(R) Platinum 8480+", "xeon-8480");
        check("Intel(R) Xeon(R) Platinum 8480C", "xeon-8480");
        check("Intel(R) Xeon(R) CPU @ 2.20GHz", "xeon");
        check("Intel(R) Core(TM) Ultra 7 155H", "core-ultra-7-155h");
        check("12th Gen Intel(R) Core(TM) i7-1260P", "core-i7-1260p");
        check("AMD Ryzen 9 7940HS w/ Radeon 780M Graphics", "ryzen-9-7940hs");
        check("AMD EPYC", "epyc");
        check("(R)", "cpu");
    }

    #[test]
    fn every_family_can_be_named_and_told_apart() {
        for family in FAMILIES {
            assert!(!family.drivers.is_empty(), "{family:?}");
            assert!(family.others.is_some() || !family.models.is_empty(), "{family:?}");
        }
    }
}
