//! Planning at submission, by what was measured on this machine.

use het_core::{JobSpec, Topology};
use het_host::Calibrations;
use het_planner::Measured;
use het_wire::job::JobFile;

/// Plans the stages of a job that say what they train, and returns what is to be told of it: gangs
/// that lack memory, and calibrations that cannot be read.
pub fn plan(
    file: &JobFile,
    topology: &Topology,
    calibrations: &Calibrations,
    spec: &mut JobSpec,
) -> Vec<String> {
    if !file.spec.stages.iter().any(|shape| shape.needs.trains.is_some()) {
        return Vec::new();
    }
    let (measured, fault) = match calibrations.all() {
        Ok(measured) => (measured, None),
        Err(fault) => (Measured::new(), Some(format!("{fault}; {}", fault.hint()))),
    };
    let warnings = het_planner::plan(file, topology, &measured, spec);
    fault.into_iter().chain(warnings).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use het_core::Domain;
    use het_host::Home;
    use het_planner::models;
    use het_wire::calibration::{CalibrationFactors, CalibrationFile};
    use het_wire::job::{Context, parse};
    use het_wire::topology;

    use super::*;

    #[test]
    fn a_calibration_that_cannot_be_read_is_reported_and_left_out() {
        let dir = tempfile::tempdir().expect("a folder");
        let root = dir.path().to_string_lossy().into_owned();
        let home = Home::find(|name| (name == "HET_HOME").then(|| root.clone())).expect("a home");
        let calibrations = home.calibrations();
        let cluster = topology::from_word("hgx-h100-8").expect("the word is known").topology;
        let text = "{ name: job, run: [train], devices: 'h100:8', \
                    trains: { model: llama3-8b, batch: 32, sequence: 4096 } }";
        let speed = || {
            let job = parse(text, "job.yaml").unwrap_or_else(|problems| panic!("{problems}"));
            let (env, classes) = (BTreeMap::new(), &cluster.classes);
            let context = Context::new(classes, models(), &env);
            let mut spec = job.resolve(&context).unwrap_or_else(|problems| panic!("{problems}"));
            let warnings = plan(&job.file, &cluster, &calibrations, &mut spec);
            let speeds = spec.stages[0].planned.speeds(&"h100-sxm5-80".into(), 8);
            (speeds.expect("planned").within(Domain::Node), warnings.len())
        };
        let (before, _) = speed();
        let factors = CalibrationFactors { matrix: 2.0, elementwise: 2.0, exchange: 2.0 };
        let file = CalibrationFile::new("h100-sxm5-80", factors, 0.02, 3, Vec::new());
        calibrations.store(&file).expect("it is written");
        assert!(speed().0 < before);
        let path = dir.path().join("calibration/h100-sxm5-80.json");
        std::fs::write(path, "{}").expect("it is written");
        assert_eq!(speed(), (before, 1));
    }
}
