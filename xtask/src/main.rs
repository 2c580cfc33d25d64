//! Chores of this repository: `cargo xtask ci|arrows|tidy|example`.

mod arrows;
mod ci;
mod example;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask CHORE

  example   build `het` and `het-train` for this machine and run the example
  ci        everything that must pass: arrows, tidy, fmt, clippy, tests, docs
  arrows    no crate uses another that ARCHITECTURE.md does not let it use
  tidy      no leftovers, no overlong lines, no files that tell two stories";

fn main() -> ExitCode {
    let chore = std::env::args().nth(1).unwrap_or_default();
    let done = match chore.as_str() {
        "arrows" => arrows::check(),
        "ci" => ci::run(),
        "example" => example::run(std::env::args().skip(2).collect()),
        "tidy" => tidy::check(),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the repository.
fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map_or(manifest.clone(), PathBuf::from)
}
