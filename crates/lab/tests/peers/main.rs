//! Published workloads and the peers' published results. What may be copied lies in `tests/data`;
//! the rest is looked for in `HET_SHARED_DATA`, then in `../shared/data` beside the checkout, and
//! without it these tests say so and pass.

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
    /// Where a published file or folder is; `None`, and loudly, where it is not here.
    pub fn find(name: &str) -> Option<Self> {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let shared = std::env::var_os("HET_SHARED_DATA");
        let shared = shared.map_or_else(|| own.join("../../../shared/data"), PathBuf::from);
        let roots = [own.join("tests/data"), shared];
        if let Some(root) = roots.into_iter().find(|root| root.join(name).exists()) {
            return Some(Self { root });
        }
        // Straight to the process, past the capture of passing tests.
        let mut stderr = std::io::stderr().lock();
        writeln!(stderr, "SKIPPED: `{name}` is not here; see `HET_SHARED_DATA`")
            .expect("standard error takes a line");
        None
    }
}
