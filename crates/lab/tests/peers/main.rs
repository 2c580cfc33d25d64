//! Published workloads and the peers' published results. The data is looked for in
//! `HET_SHARED_DATA`, then `../shared/data` beside the checkout; without it these tests say so and
//! pass.

mod fabric;
mod gavel;
mod packing;
mod planner;
mod sia;

use std::io::Write;
use std::path::{Path, PathBuf};

/// The folder of published data.
#[derive(Debug)]
pub struct Data {
    pub root: PathBuf,
}

impl Data {
    /// `None`, and loudly, if there is no folder of that name in it.
    pub fn find(name: &str) -> Option<Self> {
        let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
        let root = std::env::var_os("HET_SHARED_DATA").map_or(beside, PathBuf::from);
        if root.join(name).is_dir() {
            return Some(Self { root });
        }
        // Straight to the process, past the capture of passing tests.
        let mut stderr = std::io::stderr().lock();
        let path = root.join(name);
        writeln!(stderr, "SKIPPED: no published data in `{}`", path.display())
            .expect("standard error takes a line");
        None
    }
}
