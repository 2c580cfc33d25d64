//! Sia's elastic jobs and the measurements of their applications (Jayaram Subramanya et al., SOSP
//! 2023), which extend those of Pollux (Qiao et al., OSDI 2021).
//!
//! A folder for each application holds, for every node type, `placements-TYPE.csv` (step and sync
//! time by devices on each node and local batch) and `scalability-TYPE.csv` (by nodes and devices),
//! and `validation-BATCH.csv` (progress and gradient statistics by epoch).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use het_core::{Millis, Name, Priority};
use het_perf::{ElasticClass, ElasticProfile};
use het_sim::{Application, StepTime, StepTimes, first_rotation};

use super::{CsvTable, Speeds, TraceJob, Work, WorkloadError};

/// What the measurements do not say: application, pause at every start in seconds, how much slower
/// it is in reality than in its measurements, epochs until it is done, all as in Sia's simulator.
const KNOWN: &[(&str, u64, f64, usize)] = &[
    ("cifar10", 50, 1.8, 100),
    ("imagenet", 250, 1.2, 90),
    ("yolov3", 80, 1.2, 50),
    ("bert", 120, 1.2, 2),
    ("deepspeech2", 25, 1.2, 80),
    ("ncf", 15, 1.5, 10),
];

/// Devices a node of each type.
const NODE_TYPES: &[(&str, u32)] =
    &[("aws", 4), ("azure", 8), ("dgx", 8), ("dgx-ext", 8), ("quad", 4), ("rtx", 8)];

/// Local batches that do not fit although they were measured.
const LOCAL_MAX: &[(&str, &str, u32)] = &[("deepspeech2", "rtx", 57)];

/// The jobs of Sia's lists, and of Pollux's, which have the same columns; all of one `tenant`.
pub(super) fn jobs(table: &CsvTable, tenant: &str) -> Result<Vec<TraceJob>, WorkloadError> {
    let [name, submit, application, units] =
        table.columns(["name", "time", "application", "num_replicas"])?;
    table.rows(|row| {
        let gang: u32 = row.number(units, "num_replicas")?;
        if gang == 0 {
            return Err(row.wrong(units, "a job of no devices cannot run".to_owned()));
        }
        let profile = Some(row.text(application, "application")?.to_owned());
        let at: f64 = row.number(submit, "time")?;
        let job = TraceJob::of_one_stage(at, Priority::Normal, tenant, profile, gang, Work::Epochs);
        Ok(TraceJob { name: row.text(name, "name")?.to_owned(), ..job })
    })
}

/// Every application of a folder that is known here.
pub(super) fn applications(folder: &Path) -> Result<Speeds, WorkloadError> {
    let mut speeds = Speeds::default();
    for &(name, pause, slowdown, epochs) in KNOWN {
        let folder = folder.join(name);
        if folder.is_dir() {
            let application = read_application(&folder, name, slowdown, epochs)?;
            speeds.declare_application(name, application, Millis::seconds(pause));
        }
    }
    Ok(speeds)
}

fn read_application(
    folder: &Path,
    name: &str,
    slowdown: f64,
    epochs: usize,
) -> Result<Application, WorkloadError> {
    let validations = validations(folder)?;
    let mut noise = BTreeMap::new();
    // An epoch ends when the slowest of the measured runs had made that much progress.
    let mut ends = vec![f64::INFINITY; epochs];
    for (batch, path) in &validations {
        let table = CsvTable::read(path)?;
        let [progress, square, variance] = table.columns(["progress", "grad_sqr", "grad_var"])?;
        let rows = table.rows(|row| {
            let square: f64 = row.number(square, "grad_sqr")?;
            let variance: f64 = row.number(variance, "grad_var")?;
            Ok((row.number(progress, "progress")?, variance / square.max(f64::MIN_POSITIVE)))
        })?;
        for (end, (progress, _)) in ends.iter_mut().zip(&rows) {
            *end = end.min(*progress);
        }
        noise.insert(*batch, rows.into_iter().map(|(_, noise)| noise).collect());
    }
    ends.retain(|end| end.is_finite());
    let batches = || validations.iter().map(|(batch, _)| *batch);
    let mut profile = ElasticProfile {
        batch_initial: batches().min().unwrap_or(1),
        batch_max: batches().max().unwrap_or(1),
        classes: BTreeMap::new(),
    };
    let mut classes = BTreeMap::new();
    for &(node_type, devices_per_node) in NODE_TYPES {
        let placements = folder.join(format!("placements-{node_type}.csv"));
        if !placements.is_file() {
            continue;
        }
        let scalability = folder.join(format!("scalability-{node_type}.csv"));
        let times = step_times(&placements, &scalability)?;
        let class = elastic_class(&times, devices_per_node);
        let smaller = LOCAL_MAX.iter().find(|row| (row.0, row.1) == (name, node_type));
        let local_max = smaller.map_or(class.local_max, |row| row.2.min(class.local_max));
        profile.classes.insert(node_type.into(), ElasticClass { local_max, ..class });
        classes.insert(Name::from(node_type), times);
    }
    Ok(Application { profile, classes, epochs: ends, noise, slowdown })
}

/// `validation-BATCH.csv` files by batch.
fn validations(folder: &Path) -> Result<Vec<(u32, PathBuf)>, WorkloadError> {
    let unreadable = |source| WorkloadError::Unreadable { path: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if let Some(batch) = stem.strip_prefix("validation-").and_then(|text| text.parse().ok()) {
            found.push((batch, path));
        }
    }
    found.sort();
    Ok(found)
}

fn step_times(placements: &Path, scalability: &Path) -> Result<StepTimes, WorkloadError> {
    let mut times = StepTimes::default();
    let table = CsvTable::read(placements)?;
    let [placement, local, step, sync] =
        table.columns(["placement", "local_bsz", "step_time", "sync_time"])?;
    let rows = table.rows(|row| {
        let digits = row.text(placement, "placement")?;
        let counts: Option<Vec<u32>> = digits.chars().map(|digit| digit.to_digit(10)).collect();
        let counts = counts.filter(|counts| counts.iter().sum::<u32>() > 0);
        let wrong = || row.wrong(placement, format!("`{digits}` is no digit a node"));
        let time = StepTime {
            local: row.number(local, "local_bsz")?,
            step_s: row.number(step, "step_time")?,
            exchange_s: row.number(sync, "sync_time")?,
        };
        Ok((counts.ok_or_else(wrong)?, time))
    })?;
    for (counts, time) in rows {
        let size = (counts.len() as u32, counts.iter().sum());
        times.by_size.entry(size).or_default().push(time);
        times.by_placement.entry(first_rotation(&counts)).or_default().push(time);
    }
    if scalability.is_file() {
        let table = CsvTable::read(scalability)?;
        let [nodes, devices, local, step, sync] =
            table.columns(["num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"])?;
        let rows = table.rows(|row| {
            let size: (f64, f64) =
                (row.number(nodes, "num_nodes")?, row.number(devices, "num_replicas")?);
            let time = StepTime {
                local: row.number(local, "local_bsz")?,
                step_s: row.number(step, "step_time")?,
                exchange_s: row.number(sync, "sync_time")?,
            };
            Ok(((size.0 as u32, size.1 as u32), time))
        })?;
        for (size, time) in rows {
            times.by_size.entry(size).or_default().push(time);
        }
    }
    let tables = times.by_placement.values_mut().chain(times.by_size.values_mut());
    tables.for_each(|rows| rows.sort_by(|a, b| a.local.total_cmp(&b.local)));
    Ok(times)
}

fn elastic_class(times: &StepTimes, devices_per_node: u32) -> ElasticClass {
    let locals = || times.by_placement.values().flatten().map(|row| row.local);
    let single = times.by_placement.get([1].as_slice()).map_or(&[][..], Vec::as_slice);
    let largest = single.iter().map(|row| row.local).fold(0.0, f64::max);
    let longest = single.iter().map(|row| row.step_s).fold(f64::MIN_POSITIVE, f64::max);
    ElasticClass {
        local_min: locals().fold(f64::INFINITY, f64::min) as u32,
        local_max: locals().fold(0.0, f64::max) as u32,
        devices_per_node,
        relative_speed: largest / longest,
    }
}
