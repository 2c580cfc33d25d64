//! Pods of Alibaba's 2023 GPU cluster (Weng et al., USENIX ATC 2023), for packing: what each takes
//! of one node.

use std::path::Path;

use het_core::{Bytes, Share, Topology};
use het_policy::packing::Item;

use super::{CsvTable, WorkloadError};

/// Reads a pod list against the device classes of a cluster, of which a pod may accept some.
///
/// # Errors
/// When the file cannot be read, or with the place of the first malformed line.
pub fn read_pods(path: &Path, topology: &Topology) -> Result<Vec<Item>, WorkloadError> {
    let table = CsvTable::read(path)?;
    let [cores, memory, count, milli, models] =
        table.columns(["cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec"])?;
    let accepts = |words: &str| {
        let named = |id: &str| words.is_empty() || words.split('|').any(|word| word == id);
        let rows = topology.classes.iter().enumerate();
        rows.filter(|(_, class)| named(class.id.as_str())).fold(0, |bits, (row, _)| bits | 1 << row)
    };
    table.rows(|row| {
        let cores: u32 = row.number(cores, "cpu_milli")?;
        let mebibytes: u64 = row.number(memory, "memory_mib")?;
        let share: u32 = row.number(milli, "gpu_milli")?;
        if share > 1_000 {
            return Err(row.wrong(milli, format!("{share} thousandths are more than a GPU")));
        }
        Ok(Item {
            cores: Share(cores * 10),
            memory: Bytes(mebibytes << 20),
            devices: row.number(count, "num_gpu")?,
            share: Share(share * 10),
            models: accepts(row.text(models, "gpu_spec")?.trim()),
        })
    })
}
