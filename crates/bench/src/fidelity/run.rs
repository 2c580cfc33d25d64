//! The real run: a server with declared devices, to which the jobs are submitted when their time
//! comes.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use het_core::{Event, State, Time, Topology};
use het_server::{EventStore, Home};
use serde_json::json;

use super::FidelityOptions;
use super::workload::{DEVICES, Job};
use crate::http::Http;
use crate::server::Server;
use crate::{BenchError, io_at};

/// Longest run.
const PATIENCE: Duration = Duration::from_secs(1_800);
/// Between two looks whether all have ended.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What the server's store says of a run.
pub(super) struct Recorded {
    /// When the first job came.
    pub topology: Topology,
    pub events: Vec<(Time, Event)>,
    /// What they add up to, with all jobs.
    pub state: State,
}

pub(super) fn run(
    dir: &Path,
    program: &Path,
    options: &FidelityOptions,
    jobs: &[Job],
) -> Result<Recorded, BenchError> {
    fs::create_dir_all(dir).map_err(io_at(dir))?;
    let devices = DEVICES.map(|(kind, class, count)| {
        let variable = format!("{}_VISIBLE", class.to_uppercase());
        json!({
            "kind": kind, "class": class, "count": count, "memory": "1GiB", "variable": variable,
        })
    });
    let declared =
        json!({ "apiVersion": "heterosis.dev/v1alpha1", "kind": "Devices", "devices": devices });
    let path = dir.join("devices.yaml");
    fs::write(&path, declared.to_string()).map_err(io_at(&path))?;
    let mut arguments = vec!["--declare".to_owned(), path.to_string_lossy().into_owned()];
    if let Some(quantum) = options.quantum {
        arguments.extend(["--quantum".to_owned(), format!("{}ms", quantum.0)]);
    }
    let root = dir.join("home");
    let server = Server::start(&root, program, &arguments)?;
    let mut http = Http::connect(&server.socket)?;
    let program = program.to_string_lossy();
    let begun = Instant::now();
    for job in jobs {
        let due = begun + Duration::from_millis(job.after.0);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let body = json!({ "file": job.file(&program).to_string(), "cwd": "/" });
        http.json("POST", "/api/v1/jobs", &body.to_string())?;
    }
    while http.json("GET", "/api/v1/server", "")?["jobs_live"].as_u64() != Some(0) {
        if begun.elapsed() > PATIENCE {
            return Err(BenchError::Nothing { what: "the jobs do not end".to_owned() });
        }
        thread::sleep(LOOK_EVERY);
    }
    drop(server);
    let root = root.to_string_lossy().into_owned();
    let home = Home::find(|name| (name == "HET_HOME").then(|| root.clone()));
    let home = home.map_err(|error| BenchError::Nothing { what: error.to_string() })?;
    let reader = EventStore::open(&home.store())?.reader();
    let events = reader.events()?;
    let mut state = State::new(Arc::new(reader.topology()?));
    let mut topology = None;
    for (at, event) in &events {
        match event {
            // Devices join by events, before the first job comes.
            Event::JobSubmitted { .. } if topology.is_none() => {
                topology = Some(Topology::clone(state.topology()));
            }
            // Ended jobs are what this is about.
            Event::JobRetired { .. } => continue,
            _ => {}
        }
        state.apply(*at, event);
    }
    let topology = topology.unwrap_or_else(|| Topology::clone(state.topology()));
    Ok(Recorded { topology, events, state })
}
