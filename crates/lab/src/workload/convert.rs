//! Our traces in the formats of others, so that their tools can run the same jobs.

use std::fmt::Write as _;

use thiserror::Error;

use super::{Format, TraceJob, TraceStage, Work, write_trace};

/// A job that a format has no words for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("job {job} cannot be written as `{}`: {reason}", format.word())]
pub struct CannotConvert {
    /// Its line, from 1.
    pub job: usize,
    pub format: Format,
    pub reason: &'static str,
}

/// The jobs as text.
///
/// # Errors
/// With the first job that the format has no words for.
pub fn convert(jobs: &[TraceJob], format: Format) -> Result<String, CannotConvert> {
    let line: fn(&TraceJob, &TraceStage) -> Result<String, &'static str> = match format {
        Format::Het => return Ok(write_trace(jobs)),
        Format::Gavel => gavel,
        Format::Philly => philly,
        Format::Sia | Format::Pollux | Format::AlibabaOpenb | Format::Sacct => {
            |_, _| Err("only `het`, `gavel` and `philly` can be written")
        }
    };
    let mut text = match format {
        Format::Philly => "timestamp,duration,num_gpus,gpu_time,cluster\n".to_owned(),
        _ => String::new(),
    };
    for (index, job) in jobs.iter().enumerate() {
        let cannot = |reason| CannotConvert { job: index + 1, format, reason };
        let [stage] = job.stages.as_slice() else {
            return Err(cannot("it has several stages"));
        };
        if stage.units == 0 {
            return Err(cannot("it does not say how many devices it takes"));
        }
        if !stage.classes.is_empty() {
            return Err(cannot("it runs on certain devices only"));
        }
        text.push_str(&line(job, stage).map_err(cannot)?);
        text.push('\n');
    }
    Ok(text)
}

/// Ten fields: see [`super::gavel`].
fn gavel(job: &TraceJob, stage: &TraceStage) -> Result<String, &'static str> {
    let (Work::Steps(steps), Some(profile)) = (stage.work, &stage.profile) else {
        return Err("it has no steps of a job type");
    };
    let (units, arrival) = (stage.units, job.arrival_s);
    Ok(format!("{profile}\ttrue\t.\t-n\t0\t{steps}\t{units}\t1\t-1.000000\t{arrival}"))
}

/// The first job comes at the beginning of 1970.
fn philly(job: &TraceJob, stage: &TraceStage) -> Result<String, &'static str> {
    let Work::Seconds(seconds) = stage.work else {
        return Err("how long it takes depends on its devices");
    };
    let at = jiff::Timestamp::from_second(job.arrival_s.round() as i64);
    let at = at.map_err(|_| "it comes too late for a date")?;
    let mut line = String::new();
    let _ = write!(
        line,
        "{},{seconds},{},{},{}",
        at.strftime("%Y-%m-%d %H:%M:%S"),
        stage.units,
        seconds * f64::from(stage.units),
        job.tenant
    );
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{CsvTable, gavel as read_gavel, philly as read_philly};
    use std::path::Path;

    #[test]
    fn what_is_written_is_read_again() {
        let path = Path::new("t");
        let line = "LM (batch size 5)\tx\t.\t-n\t0\t90\t2\t1\t-1.000000\t7";
        let jobs = read_gavel::jobs(path, line).expect("a job");
        let text = convert(&jobs, Format::Gavel).expect("one of its own");
        assert_eq!(read_gavel::jobs(path, &text).expect("a job"), jobs);
        let text = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66,2,132,a\n";
        let jobs = read_philly::jobs(&CsvTable::of(path, text)).expect("a job");
        let text = convert(&jobs, Format::Philly).expect("one of its own");
        assert_eq!(read_philly::jobs(&CsvTable::of(path, &text)).expect("a job"), jobs);
        let error = convert(&jobs, Format::Gavel).expect_err("seconds are no steps").to_string();
        assert_eq!(error, "job 1 cannot be written as `gavel`: it has no steps of a job type");
    }
}
