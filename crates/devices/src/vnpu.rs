//! Virtual NPUs: the parts that an administrator cuts an Ascend chip into. Each is a device of its
//! own, with AI cores and memory of its own; the chip cannot be used whole beside them, and no
//! program can use one outside of a container.
//!
//! Source: Huawei's MindCluster 7.3 documentation, "Virtual instances" (templates, numbers, limits,
//! "Mounting vNPUs with native Docker").

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use het_core::Bytes;

use crate::drivers::npu_smi::{CutChip, NpuSmiProbe, Vnpu};
use crate::tree::Tree;

/// Before the number of a virtual NPU, below `/dev` and in visible ids; the driver's libraries look
/// for [`INSIDE`] and the same number.
const NODE: &str = "vdavinci";
const INSIDE: &str = "davinci";

/// The first number of a virtual NPU, and how many numbers each chip has: chip `n`, whose node is
/// `/dev/davinciN`, has 100 + 16 n and those behind it ("Creating vNPUs").
const NUMBER_MIN: u32 = 100;
const NUMBERS_PER_CARD: u32 = 16;

/// The number of the chip that a virtual NPU is part of; `None` for a number that none has.
pub(crate) fn card(number: u32) -> Option<u32> {
    Some(number.checked_sub(NUMBER_MIN)? / NUMBERS_PER_CARD)
}

/// Those that have a device node.
pub(crate) fn numbers(tree: &Tree) -> BTreeSet<u32> {
    tree.names("dev").iter().filter_map(|name| number(name)).collect()
}

/// The number in a visible id or in the name of a node.
fn number(name: &str) -> Option<u32> {
    name.strip_prefix(NODE)?.parse().ok().filter(|number| card(*number).is_some())
}

/// Name of the node below `/dev`, and visible id.
pub(crate) fn node(number: u32) -> String {
    format!("{NODE}{number}")
}

/// The word by which a container is given it under the name that is looked for inside; `None` where
/// the id is not that of a virtual NPU.
pub(crate) fn container_word(visible_id: &str) -> Option<String> {
    let number = number(visible_id)?;
    Some(format!("--device=/dev/{NODE}{number}:/dev/{INSIDE}{number}"))
}

/// Whether a device with this visible id is one.
pub(crate) fn is_one(visible_id: &str) -> bool {
    number(visible_id).is_some()
}

/// All paths under which programs have the node of a device open. Inside of a container a virtual
/// NPU has another name, and `/proc/PID/fd` shows the one that its process used.
pub(crate) fn paths(node: &Path) -> Vec<String> {
    let own = node.to_string_lossy().into_owned();
    let name = node.file_name().and_then(|name| name.to_str()).and_then(number);
    let inside = name.map(|number| format!("/dev/{INSIDE}{number}"));
    [Some(own), inside].into_iter().flatten().collect()
}

/// What is known of this machine's virtual NPUs, by number.
#[derive(Debug)]
pub(crate) struct Vnpus<'a> {
    nodes: BTreeSet<u32>,
    /// Each with its chip.
    listed: BTreeMap<u32, (&'a CutChip, &'a Vnpu)>,
    /// Why nothing is listed.
    silence: Option<String>,
}

/// A number of a chip, and what is behind it.
pub(crate) enum Part {
    Sound {
        template: String,
        memory: Bytes,
    },
    /// Nothing is known of the template.
    OfUnknownTemplate {
        template: String,
    },
    /// There is no device node.
    WithoutNode,
    /// There is a node and nothing behind it that the driver would tell of.
    NotListed,
    /// There is a node, and the driver tells of nothing.
    Untold,
}

impl<'a> Vnpus<'a> {
    pub(crate) fn seen(tree: &Tree, probe: &'a NpuSmiProbe) -> Self {
        let (chips, silence) = match probe {
            NpuSmiProbe::Found(chips) => (chips.as_slice(), None),
            NpuSmiProbe::NotAsked => (&[][..], Some("it was not asked".to_owned())),
            NpuSmiProbe::Missing => (&[][..], Some("it is not installed".to_owned())),
            NpuSmiProbe::Failed { why } => (&[][..], Some(why.clone())),
        };
        let listed = chips.iter().flat_map(|chip| chip.vnpus.iter().map(move |one| (chip, one)));
        Self {
            nodes: numbers(tree),
            listed: listed.map(|(chip, one)| (one.number, (chip, one))).collect(),
            silence,
        }
    }

    /// Why the virtual NPUs that there are cannot be told apart.
    pub(crate) fn silence(&self) -> Option<&str> {
        self.silence.as_deref().filter(|_| !self.nodes.is_empty())
    }

    /// The parts of a chip in the order of their numbers: none of one that is whole.
    pub(crate) fn of(&self, chip: usize) -> Vec<(u32, Part)> {
        let is_of = |number: &u32| card(*number).is_some_and(|card| card as usize == chip);
        let numbers: BTreeSet<u32> =
            self.nodes.iter().chain(self.listed.keys()).copied().filter(is_of).collect();
        numbers.into_iter().map(|number| (number, self.part(number))).collect()
    }

    fn part(&self, number: u32) -> Part {
        let Some((chip, one)) = self.listed.get(&number) else {
            return if self.silence.is_some() { Part::Untold } else { Part::NotListed };
        };
        let template = one.template.clone();
        match Template::read(&template) {
            _ if !self.nodes.contains(&number) => Part::WithoutNode,
            Some(read) => Part::Sound { template, memory: read.memory(chip) },
            None => Part::OfUnknownTemplate { template },
        }
    }
}

/// What the name of a template tells: `vir10_3c_16g` has 10 AI cores, 3 AI processors and 16 GiB.
/// Source: MindCluster documentation, "Virtualization templates".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Template {
    ai_cores: u32,
    memory: Option<Bytes>,
}

impl Template {
    fn read(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix("vir")?.split('_');
        let ai_cores = parts.next()?.parse().ok().filter(|cores| *cores > 0)?;
        let memory = parts.find_map(|part| part.strip_suffix('g')?.parse().ok());
        Some(Self { ai_cores, memory: memory.map(Bytes::gib) })
    }

    /// As named; else as large a part of the chip's memory as its cores are of the chip's cores,
    /// which holds for every template whose name has both.
    fn memory(self, chip: &CutChip) -> Bytes {
        let part = || {
            let (all, cores) = (chip.memory?, chip.ai_cores.filter(|cores| *cores > 0)?);
            Some(Bytes(
                all.0.saturating_mul(u64::from(self.ai_cores.min(cores))) / u64::from(cores),
            ))
        };
        self.memory.or_else(part).unwrap_or(Bytes::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_what_a_template_has() {
        let check = |name: &str, expected: Option<(u32, Option<u64>)>| {
            let found = Template::read(name);
            let found = found.map(|it| (it.ai_cores, it.memory.map(|memory| memory.0 >> 30)));
            assert_eq!(found, expected, "{name}");
        };
        check("vir16", Some((16, None)));
        check("vir02_1c", Some((2, None)));
        check("vir04_3c_ndvpp", Some((4, None)));
        check("vir03_1c_8g", Some((3, Some(8))));
        check("vir10_4c_16g_m", Some((10, Some(16))));
        check("NA", None);
        check("vir", None);
        check("vir00", None);
    }

    #[test]
    fn memory_is_named_or_the_part_of_the_cores() {
        let check = |name: &str, (cores, gib): (u32, u64), expected: u64| {
            let chip =
                CutChip { ai_cores: Some(cores), memory: Some(Bytes::gib(gib)), vnpus: Vec::new() };
            let template = Template::read(name).expect("a template");
            assert_eq!(template.memory(&chip).0 >> 20, expected, "{name}");
        };
        // 300V Pro and 300I Duo (310P), 910 of 30 and 32 cores, 910B3 with 64 GiB.
        check("vir01", (8, 24), 3 << 10);
        check("vir04_3c", (8, 42), 21 << 10);
        check("vir02", (30, 32), 2_184);
        check("vir16", (32, 32), 16 << 10);
        check("vir05_1c_16g", (20, 64), 16 << 10);
    }

    #[test]
    fn numbers_belong_to_chips() {
        assert_eq!([99, 100, 115, 116, 212].map(card), [None, Some(0), Some(0), Some(1), Some(7)]);
        assert_eq!(
            ["davinci100", "vdavinci7", "vdavinci", "vdavinci100"].map(is_one),
            [false, false, false, true]
        );
        let paths = |node: &str| paths(Path::new(node));
        assert_eq!(paths("/dev/vdavinci100"), ["/dev/vdavinci100", "/dev/davinci100"]);
        assert_eq!(paths("/dev/davinci3"), ["/dev/davinci3"]);
    }
}
