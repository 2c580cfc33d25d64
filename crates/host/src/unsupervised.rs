//! Programs that nobody supervises: those of a run that was killed, or of a server that ended.

use std::fs;
use std::path::Path;

use het_node::LiveLeases;

use crate::Home;

/// Whose programs still run without a supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsupervised {
    OfServer,
    OfJob(u64),
}

/// Programs of engines other than the one of `own_run_dir`. To be called by the holder of the
/// machine's lock: no other engine lives then, and what it left behind still uses devices.
pub fn unsupervised(home: &Home, own_run_dir: Option<&Path>) -> Option<Unsupervised> {
    let engines = fs::read_dir(home.run_root()).into_iter().flatten().flatten();
    let others =
        engines.map(|entry| entry.path()).filter(|path| Some(path.as_path()) != own_run_dir);
    let mut left = others.filter(|path| LiveLeases::read(path).are_alive()).filter_map(|path| {
        let engine = path.file_name()?.to_str()?;
        match engine.strip_prefix(Home::JOB_ENGINE) {
            Some(job) => job.parse().ok().map(Unsupervised::OfJob),
            None => Some(Unsupervised::OfServer),
        }
    });
    left.next()
}
