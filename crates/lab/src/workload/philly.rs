//! The reduced list of Microsoft's Philly trace (Jeon et al., ATC 2019): jobs of several virtual
//! clusters with submit time, duration and GPUs, on devices of one kind.

use het_core::Priority;

use super::{CsvTable, TraceJob, Work, WorkloadError};

pub(super) fn jobs(table: &CsvTable) -> Result<Vec<TraceJob>, WorkloadError> {
    let [submit, duration, units, tenant] =
        table.columns(["timestamp", "duration", "num_gpus", "cluster"])?;
    let mut jobs = table.rows(|row| {
        let seconds: f64 = row.number(duration, "duration")?;
        let gang: u32 = row.number(units, "num_gpus")?;
        let arrival_s = seconds_of(row.text(submit, "timestamp")?)
            .map_err(|error| row.wrong(submit, error.to_string()))?;
        let tenant = row.text(tenant, "cluster")?;
        if gang == 0 {
            return Err(row.wrong(units, "a job of no GPUs cannot run".to_owned()));
        }
        let work = Work::Seconds(seconds.max(1.0));
        Ok(TraceJob::of_one_stage(arrival_s, Priority::Normal, tenant, None, gang, work))
    })?;
    TraceJob::from_zero(&mut jobs);
    Ok(jobs)
}

/// `2017-10-09 07:01:55` as seconds on a time line without leaps.
pub(super) fn seconds_of(text: &str) -> Result<f64, jiff::Error> {
    let moment: jiff::civil::DateTime = text.parse()?;
    Ok(moment.to_zoned(jiff::tz::TimeZone::UTC)?.timestamp().as_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn times_count_from_the_first_submit() {
        let text = "timestamp,duration,num_gpus,gpu_time,cluster\n\
                    2017-10-09 07:01:55,66.0,1,66.0,a\n2017-10-09 07:00:55,9.0,8,72.0,b\n\n";
        let jobs = jobs(&CsvTable::of(Path::new("p.csv"), text)).expect("two jobs");
        let told: Vec<_> = jobs.iter().map(|job| (job.arrival_s, job.tenant.as_str())).collect();
        assert_eq!(told, [(60.0, "a"), (0.0, "b")]);
    }
}
