//! The reduced list of Microsoft's Philly trace (Jeon et al., ATC 2019): jobs of several virtual
//! clusters with submit time, duration and GPUs, on devices of one kind.

use std::path::Path;

use het_core::Priority;

use super::source::{Fields, TraceError};
use super::{TraceJob, Work};

pub(super) fn jobs(path: &Path, text: &str) -> Result<Vec<TraceJob>, TraceError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let header = match lines.next() {
        Some((index, line)) => Fields::split(path, index + 1, line, ','),
        None => return Ok(Vec::new()),
    };
    let find = |name: &str| {
        let named = |index: &usize| header.text(*index, name).is_ok_and(|title| title == name);
        let missing = || header.wrong(0, format!("the header has no `{name}`"));
        (0..header.len()).find(named).ok_or_else(missing)
    };
    let submit = find("timestamp")?;
    let duration = find("duration")?;
    let units = find("num_gpus")?;
    let tenant = find("cluster")?;
    let row = |(index, line): (usize, &str)| {
        let fields = Fields::split(path, index + 1, line, ',');
        let seconds: f64 = fields.number(duration, "duration")?;
        let gang: u32 = fields.number(units, "GPUs")?;
        let arrival_s = seconds_of(fields.text(submit, "timestamp")?)
            .map_err(|error| fields.wrong(submit, error.to_string()))?;
        let tenant = fields.text(tenant, "virtual cluster")?;
        if gang == 0 {
            return Err(fields.wrong(units, "a job of no GPUs cannot run".to_owned()));
        }
        let work = Work::Seconds(seconds.max(1.0));
        Ok(TraceJob::of_one_stage(arrival_s, Priority::Normal, tenant, None, gang, work))
    };
    let mut jobs: Vec<TraceJob> = lines.map(row).collect::<Result<_, _>>()?;
    let first = jobs.iter().map(|job| job.arrival_s).fold(f64::INFINITY, f64::min);
    jobs.iter_mut().for_each(|job| job.arrival_s -= first);
    Ok(jobs)
}

/// `2017-10-09 07:01:55` as seconds on a time line without leaps.
fn seconds_of(text: &str) -> Result<f64, jiff::Error> {
    let moment: jiff::civil::DateTime = text.parse()?;
    Ok(moment.to_zoned(jiff::tz::TimeZone::UTC)?.timestamp().as_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_count_from_the_first_submit() {
        let text = "timestamp,duration,num_gpus,gpu_time,cluster\n\
                    2017-10-09 07:01:55,66.0,1,66.0,a\n2017-10-09 07:00:55,9.0,8,72.0,b\n\n";
        let jobs = jobs(Path::new("p.csv"), text).expect("two jobs");
        let told: Vec<_> = jobs.iter().map(|job| (job.arrival_s, job.tenant.as_str())).collect();
        assert_eq!(told, [(60.0, "a"), (0.0, "b")]);
    }
}
