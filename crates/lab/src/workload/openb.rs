//! Pods of Alibaba's 2023 GPU cluster (Weng et al., USENIX ATC 2023): for packing, what each takes
//! of one node; as jobs, when each came and how long it stayed.

use std::path::Path;

use het_core::{Bytes, Priority, Share, Topology};
use het_policy::packing::Item;

use super::{CsvTable, Fields, TraceError, TraceJob, Work, WorkloadError};

/// The same pods as jobs: each takes the time from when it was scheduled (where it never was, from
/// when it was created) until it was deleted, on as many GPUs as it asked for, or on cores if it
/// asked for none, with the cores beside them. A part of a GPU is taken whole.
pub(super) fn jobs(table: &CsvTable) -> Result<Vec<TraceJob>, WorkloadError> {
    let models = table.column_if_any("gpu_spec");
    let [name, cores, count, qos, created, deleted, scheduled] = table.columns([
        "name",
        "cpu_milli",
        "num_gpu",
        "qos",
        "creation_time",
        "deletion_time",
        "scheduled_time",
    ])?;
    table.rows(|row| {
        let arrival_s: f64 = row.number(created, "creation_time")?;
        let from = match row.text(scheduled, "scheduled_time")?.trim() {
            "" => arrival_s,
            _ => row.number(scheduled, "scheduled_time")?,
        };
        let until: f64 = row.number(deleted, "deletion_time")?;
        let devices: u32 = row.number(count, "num_gpu")?;
        let milli: u32 = row.number(cores, "cpu_milli")?;
        let classes = text_if_any(&row, models, "gpu_spec")?.split('|').map(str::trim);
        let classes = classes.filter(|class| !class.is_empty()).map(str::to_owned);
        let whole = milli.div_ceil(1_000);
        let (units, cores, classes) = match devices {
            0 => (whole.max(1), 0, vec!["cpu".to_owned()]),
            _ => (devices, whole, classes.collect()),
        };
        let priority = match row.text(qos, "qos")? {
            "LS" | "Guaranteed" => Priority::High,
            _ => Priority::Low,
        };
        let work = Work::Seconds((until - from).max(1.0));
        let mut job = TraceJob::of_one_stage(arrival_s, priority, "openb", None, units, work);
        job.stages[0].classes = classes;
        job.stages[0].cores = cores;
        Ok(TraceJob { name: row.text(name, "name")?.to_owned(), ..job })
    })
}

/// What a column says that some lists do not have: nothing.
fn text_if_any<'a>(
    row: &Fields<'a>,
    column: Option<usize>,
    name: &str,
) -> Result<&'a str, TraceError> {
    column.map_or(Ok(""), |column| row.text(column, name)).map(str::trim)
}

/// Reads a pod list against the device classes of a cluster, of which a pod may accept some; all of
/// them where the list has no such column.
///
/// # Errors
/// When the file cannot be read, or with the place of the first malformed line.
pub fn read_pods(path: &Path, topology: &Topology) -> Result<Vec<Item>, WorkloadError> {
    pods(&CsvTable::read(path)?, topology)
}

fn pods(table: &CsvTable, topology: &Topology) -> Result<Vec<Item>, WorkloadError> {
    let [cores, memory, count, milli] =
        table.columns(["cpu_milli", "memory_mib", "num_gpu", "gpu_milli"])?;
    let models = table.column_if_any("gpu_spec");
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
            models: accepts(text_if_any(&row, models, "gpu_spec")?),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_without_models_accepts_all_of_them() {
        let topology = crate::cluster("gavel:1,1,1").expect("three counts");
        let text = "num_gpu,name,cpu_milli,gpu_milli,memory_mib\n2,pod,4000,1000,1024\n";
        let table = CsvTable::of(Path::new("pods.csv"), text);
        let pods = pods(&table, &topology).expect("all that is needed is there");
        assert_eq!((pods[0].devices, pods[0].models), (2, 0b111));
    }
}
