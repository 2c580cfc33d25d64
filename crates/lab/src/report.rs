//! Reports of a comparison: one web page that needs nothing beside itself, a table for other tools,
//! and a trace that opens in Perfetto.

mod fabric;
mod page;
mod plot;
mod scaling;
mod scatter;
mod spread;
mod timeline;

use std::path::{Path, PathBuf};

use het_core::Topology;
use het_wire::text::Lang;
use thiserror::Error;

use crate::{Outcome, Recording};

pub use fabric::{queue_plot, rate_plot};
pub use page::sentence;
pub use scaling::{ScalingRow, scaling_plot};
pub use scatter::{Cloud, scatter_plot};
pub use spread::Spread;

/// All runs of one policy: one a seed, the first of them recorded.
#[derive(Debug, Clone)]
pub struct PolicyRuns {
    pub recording: Recording,
    /// The first seed's too.
    pub outcomes: Vec<Outcome>,
}

/// A report cannot be written.
#[derive(Debug, Error)]
#[error("`{}` cannot be written", path.display())]
pub struct ReportError {
    pub path: PathBuf,
    pub source: std::io::Error,
}

/// Writes `index.html`, `results.csv` and `trace.json` into a folder, which is made if need be.
///
/// # Errors
/// With the file that cannot be written.
pub fn write(
    folder: &Path,
    title: &str,
    lang: Lang,
    topology: &Topology,
    runs: &[PolicyRuns],
) -> Result<(), ReportError> {
    let failed = |path: PathBuf| move |source| ReportError { path, source };
    std::fs::create_dir_all(folder).map_err(failed(folder.to_owned()))?;
    let files = [
        ("index.html", page::html(title, lang, topology, runs)),
        ("results.csv", csv(runs)),
        ("trace.json", timeline::perfetto(topology, runs)),
    ];
    for (name, text) in files {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(failed(path.clone()))?;
    }
    Ok(())
}

/// One row a policy and seed.
fn csv(runs: &[PolicyRuns]) -> String {
    let mut text = String::from(
        "policy,seed,jobs_total,jobs_done,avg_jct_s,p50_jct_s,p99_jct_s,makespan_s,allocated,busy,\
         useful,effective_time,worst_finish_time_fairness,energy_kwh,price,preemptions,reclaims,\
         suspensions,migrations,lost_work_s\n",
    );
    let known = |figure: Option<f64>| figure.map_or(String::new(), |it| format!("{it:.3}"));
    for outcome in runs.iter().flat_map(|runs| &runs.outcomes) {
        let row = [
            outcome.policy.to_owned(),
            outcome.seed.to_string(),
            outcome.jobs_total.to_string(),
            outcome.jobs_done.to_string(),
            format!("{:.3}", outcome.avg_jct_s),
            format!("{:.3}", outcome.p50_jct_s),
            format!("{:.3}", outcome.p99_jct_s),
            format!("{:.3}", outcome.makespan_s),
            format!("{:.5}", outcome.utilisation.allocated),
            format!("{:.5}", outcome.utilisation.busy),
            format!("{:.5}", outcome.utilisation.useful),
            format!("{:.5}", outcome.effective_time),
            format!("{:.4}", outcome.finish_time_fairness.worst),
            known(outcome.energy_kwh),
            known(outcome.price),
            outcome.preemptions.to_string(),
            outcome.reclaims.to_string(),
            outcome.suspensions.to_string(),
            outcome.migrations.to_string(),
            format!("{:.3}", outcome.lost_work_s),
        ];
        text.push_str(&row.join(","));
        text.push('\n');
    }
    text
}
