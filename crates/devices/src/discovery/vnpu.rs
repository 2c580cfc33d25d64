//! Which virtual NPUs this machine has: device nodes and what `npu-smi` lists, put together.

use std::collections::{BTreeMap, BTreeSet};

use het_core::Bytes;

use crate::drivers::npu_smi::{NpuSmiProbe, PartitionedChip, Vnpu};
use crate::kernel::files::SystemFiles;
use crate::vnpu;

/// What is known of this machine's virtual NPUs, by number.
#[derive(Debug)]
pub(super) struct Vnpus<'a> {
    nodes: BTreeSet<u32>,
    /// Each with its chip.
    listed: BTreeMap<u32, (&'a PartitionedChip, &'a Vnpu)>,
    /// Why nothing is listed.
    query_error: Option<String>,
}

/// What is known of a virtual NPU's number.
pub(super) enum VnpuState {
    Usable {
        template: String,
        memory: Bytes,
    },
    /// The template is not known.
    UnknownTemplate {
        template: String,
    },
    /// It is listed and has no device node.
    NoNode,
    /// It has a device node, and the driver does not list it.
    NotListed,
    /// It has a device node, and the driver could not be queried.
    NotQueried,
}

impl<'a> Vnpus<'a> {
    pub(super) fn read(files: &SystemFiles, probe: &'a NpuSmiProbe) -> Self {
        let (chips, query_error) = match probe {
            NpuSmiProbe::Found(chips) => (chips.as_slice(), None),
            NpuSmiProbe::NotAsked => (&[][..], Some("it was not asked".to_owned())),
            NpuSmiProbe::Missing => (&[][..], Some("it is not installed".to_owned())),
            NpuSmiProbe::Failed { why } => (&[][..], Some(why.clone())),
        };
        let listed = chips.iter().flat_map(|chip| chip.vnpus.iter().map(move |one| (chip, one)));
        Self {
            nodes: vnpu::numbers_with_node(files),
            listed: listed.map(|(chip, one)| (one.number, (chip, one))).collect(),
            query_error,
        }
    }

    /// Why the virtual NPUs that have device nodes cannot be listed.
    pub(super) fn query_error(&self) -> Option<&str> {
        self.query_error.as_deref().filter(|_| !self.nodes.is_empty())
    }

    /// The virtual NPUs of a chip in the order of their numbers; empty for a whole chip.
    pub(super) fn of(&self, chip: usize) -> Vec<(u32, VnpuState)> {
        let is_of = |number: &u32| vnpu::chip_of(*number).is_some_and(|of| of as usize == chip);
        let numbers: BTreeSet<u32> =
            self.nodes.iter().chain(self.listed.keys()).copied().filter(is_of).collect();
        numbers.into_iter().map(|number| (number, self.state(number))).collect()
    }

    fn state(&self, number: u32) -> VnpuState {
        let Some((chip, one)) = self.listed.get(&number) else {
            return if self.query_error.is_some() {
                VnpuState::NotQueried
            } else {
                VnpuState::NotListed
            };
        };
        let template = one.template.clone();
        match Template::read(&template) {
            _ if !self.nodes.contains(&number) => VnpuState::NoNode,
            Some(read) => VnpuState::Usable { template, memory: read.memory(chip) },
            None => VnpuState::UnknownTemplate { template },
        }
    }
}

/// Resources in the name of a template: `vir10_3c_16g` has 10 AI cores, 3 AI processors and 16 GiB.
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
    fn memory(self, chip: &PartitionedChip) -> Bytes {
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
            let chip = PartitionedChip {
                ai_cores: Some(cores),
                memory: Some(Bytes::gib(gib)),
                vnpus: Vec::new(),
            };
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
}
