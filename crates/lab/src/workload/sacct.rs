//! What Slurm's accounting says of past jobs: the lines of
//! `sacct -a -X -P -o JobID,JobName,Account,QOS,Submit,ElapsedRaw,ReqTRES`,
//! in any order of columns.
//!
//! A job takes as many seconds as it took then, on as many accelerators as it asked for, or on as
//! many cores if it asked for none. One that never ran takes a second.

use het_core::Priority;

use super::philly::seconds_of;
use super::source::Fields;
use super::{CsvTable, TraceError, TraceJob, Work, WorkloadError};

pub(super) fn jobs(table: &CsvTable) -> Result<Vec<TraceJob>, WorkloadError> {
    let [id, name, account, qos, submit, elapsed, asked] =
        table.columns(["JobID", "JobName", "Account", "QOS", "Submit", "ElapsedRaw", "ReqTRES"])?;
    let mut jobs = table.rows(|row| {
        if row.text(id, "JobID")?.contains('.') {
            let reason = "a step of a job, which counts already; list jobs only with `sacct -X`";
            return Err(row.wrong(id, reason.to_owned()));
        }
        let arrival_s = seconds_of(row.text(submit, "Submit")?)
            .map_err(|error| row.wrong(submit, error.to_string()))?;
        let seconds: f64 = row.number(elapsed, "ElapsedRaw")?;
        let (units, classes) = resources(&row, asked)?;
        let priority = priority(row.text(qos, "QOS")?);
        let tenant = row.text(account, "Account")?;
        let work = Work::Seconds(seconds.max(1.0));
        let mut job = TraceJob::of_one_stage(arrival_s, priority, tenant, None, units, work);
        job.stages[0].classes = classes;
        Ok(TraceJob { name: row.text(name, "JobName")?.to_owned(), ..job })
    })?;
    TraceJob::from_zero(&mut jobs);
    Ok(jobs)
}

/// Accelerators, of any class, or else cores: `cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=1`.
fn resources(row: &Fields<'_>, asked: usize) -> Result<(u32, Vec<String>), TraceError> {
    let text = row.text(asked, "ReqTRES")?;
    let count = |wanted: &dyn Fn(&str) -> bool| -> Result<Option<u32>, TraceError> {
        let found = text.split(',').filter_map(|entry| entry.split_once('='));
        let Some((_, number)) = found.into_iter().find(|(name, _)| wanted(name)) else {
            return Ok(None);
        };
        let parsed = number.parse::<u32>();
        parsed
            .map(Some)
            .map_err(|_| row.wrong(asked, format!("`{number}` is no number of devices")))
    };
    // `gres/gpu` counts all of them, `gres/gpu:TYPE` those of a type.
    let all = |name: &str| matches!(name, "gres/gpu" | "gres/npu");
    let typed = |name: &str| name.starts_with("gres/gpu:") || name.starts_with("gres/npu:");
    let accelerators = match count(&all)? {
        Some(units) => Some(units),
        None => count(&typed)?,
    };
    if let Some(units) = accelerators.filter(|units| *units > 0) {
        return Ok((units, Vec::new()));
    }
    match count(&|name| name == "cpu")? {
        Some(cores) if cores > 0 => Ok((cores, vec!["cpu".to_owned()])),
        _ => Err(row.wrong(asked, "asks for no accelerators and no `cpu`".to_owned())),
    }
}

/// What the name of a quality of service says.
fn priority(qos: &str) -> Priority {
    let says = |words: &[&str]| words.iter().any(|word| qos.to_lowercase().contains(word));
    match qos {
        _ if says(&["urgent", "critical"]) => Priority::Urgent,
        _ if says(&["high", "prio"]) => Priority::High,
        _ if says(&["low", "scavenge", "preempt", "idle"]) => Priority::Low,
        _ => Priority::Normal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const HEADER: &str = "JobID|JobName|Account|QOS|Submit|ElapsedRaw|ReqTRES\n";

    fn read(line: &str) -> Result<Vec<TraceJob>, WorkloadError> {
        jobs(&CsvTable::of(Path::new("jobs.sacct"), &format!("{HEADER}{line}")).separated_by('|'))
    }

    #[test]
    fn accelerators_count_before_cores() {
        let check = |asked: &str, units: u32, classes: &[&str]| {
            let line = format!("7|tune, twice|nlp|high|2026-11-20T10:00:00|90|{asked}");
            let jobs = read(&line).expect("a job");
            let stage = &jobs[0].stages[0];
            assert_eq!((stage.units, stage.work), (units, Work::Seconds(90.0)), "{asked}");
            assert_eq!(stage.classes, classes, "{asked}");
            assert_eq!((jobs[0].priority, jobs[0].tenant.as_str()), (Priority::High, "nlp"));
        };
        check("billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=1", 4, &[]);
        check("cpu=8,gres/gpu:a100=2", 2, &[]);
        check("cpu=16,mem=4G,node=1", 16, &["cpu"]);
    }

    #[test]
    fn what_is_no_job_names_its_place() {
        let check = |line: &str, error: &str| {
            assert_eq!(read(line).expect_err("no job").to_string(), error);
        };
        check(
            "7.batch|x|a|normal|2026-11-20T10:00:00|9|cpu=1",
            "jobs.sacct:2:1: a step of a job, which counts already; list jobs only with `sacct -X`",
        );
        check(
            "7|x|a|normal|2026-11-20T10:00:00|9|mem=1G",
            "jobs.sacct:2:36: asks for no accelerators and no `cpu`",
        );
    }
}
