//! Chores of this repository: `cargo xtask CHORE`.

mod api_test;
mod arrows;
mod book;
mod ci;
mod circles;
mod cluster;
mod example;
mod glossary;
mod installed;
mod rules;
mod study;
mod tidy;
mod timeline;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask CHORE

  example   build `het` and `het-train` for this machine and run the example
  ci        everything that must pass: arrows, tidy, book, fmt, clippy, tests, docs
  api-test  a built server answers as its OpenAPI document says, whatever it is asked
  arrows    no crate uses another that xtask/src/arrows.rs does not let it use, and no modules
            of a crate use each other in a circle
  book      links of all Markdown files lead somewhere; build the book into target/book
  cluster   a Kubernetes control plane on loopback for tests: `cluster up [NODES]`, `cluster down`;
            `cluster faults [RUNS [SEED]]` breaks one again and again
  glossary  what docs/glossary.md names exists, and retired words are no names any more
  study     print the tables of a study: `study gavel|sia|packing|planner|fabric DATA`,
            `study headline|faults|mixed|train`
  timeline  Perfetto opens the timeline of a run of the built `het-train`
  tidy      no leftovers, no overlong lines, no files that tell two stories; no
            `unsafe`, hash map, clock or sleep where the rules do not allow it";

fn main() -> ExitCode {
    let chore = std::env::args().nth(1).unwrap_or_default();
    let done = match chore.as_str() {
        "api-test" => api_test::run(),
        "arrows" => arrows::check().and_then(|()| circles::check()),
        "book" => book::check().and_then(|()| book::build()),
        "ci" => ci::run(),
        "cluster" => cluster::run(&std::env::args().skip(2).collect::<Vec<_>>()),
        "glossary" => glossary::check(),
        "example" => example::run(std::env::args().skip(2).collect()),
        "study" => study(&std::env::args().skip(2).collect::<Vec<_>>()),
        "timeline" => timeline::run(),
        "tidy" => tidy::check().and_then(|()| rules::check()),
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

fn study(words: &[String]) -> anyhow::Result<()> {
    let find = |name: &String| study::STUDIES.iter().find(|(known, _)| name == known);
    match words {
        [name, data @ ..] if find(name).is_some() && data.len() < 2 => {
            // What needs no data is given a folder that has none.
            let data = data.first().map_or(Path::new("."), Path::new);
            find(name).map_or(Ok(()), |(_, run)| run(data))
        }
        _ => {
            let names = study::STUDIES.map(|(name, _)| name).join(", ");
            anyhow::bail!("name one of {names} and its data: `cargo xtask study gavel FOLDER`")
        }
    }
}

/// The root of the repository.
fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map_or(manifest.clone(), PathBuf::from)
}

/// Where cargo puts what it builds.
fn target() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Whoever takes it first may be somebody else: then a program that is given it says so and ends.
fn free_port() -> anyhow::Result<u16> {
    let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}
