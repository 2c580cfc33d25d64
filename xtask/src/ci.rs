//! Everything that must pass before a change is shared.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cluster::{self, TestCluster};

/// What may be left out begins no later: nothing may take longer than 90 minutes.
const OPTIONAL_UNTIL: Duration = Duration::from_secs(55 * 60);
/// In this order: the quick ones first, the tests last, so that their closing line ends the output.
const STEPS: &[(&str, &[&str])] = &[
    ("fmt", &["fmt", "--all", "--check"]),
    ("clippy", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
    ("without Kubernetes", &["check", "--package", "het-cli", "--no-default-features", "--quiet"]),
    ("docs", &["doc", "--workspace", "--no-deps", "--quiet"]),
    ("doc tests", &["test", "--workspace", "--exclude", "xtask", "--doc", "--quiet"]),
    // The same packages as above: others would have other features, and all be built anew. It
    // builds the programs, too, that the command line's tests drive.
    ("tests", &["test", "--workspace", "--lib", "--bins", "--tests", "--exclude", "xtask"]),
    ("xtask", &["test", "--package", "xtask"]),
];

pub fn run() -> Result<()> {
    crate::arrows::check()?;
    crate::glossary::check()?;
    crate::tidy::check()?;
    crate::rules::check()?;
    crate::book::check()?;
    crate::book::build()?;
    let started = Instant::now();
    let mut cluster = None;
    for (name, arguments) in STEPS {
        if *name == "tests" {
            cluster = TestCluster::start_if_built()?;
        }
        // The tests have built the server; xtask's close.
        if *name == "xtask" {
            timed("api-test", crate::api_test::run)?;
            timed("timeline", crate::timeline::run)?;
            drop(cluster.take());
            match started.elapsed() < OPTIONAL_UNTIL {
                true => timed("cluster real", cluster::play_for_real_if_built)?,
                false => println!("SKIPPED: real nodes, because this takes long already"),
            }
        }
        let began = Instant::now();
        println!("── {name}: cargo {}", arguments.join(" "));
        let status = Command::new(env!("CARGO"))
            .args(*arguments)
            .env("RUSTDOCFLAGS", "-D warnings")
            .current_dir(crate::root())
            .status()
            .with_context(|| format!("{name} does not start"))?;
        if !status.success() {
            bail!("{name} failed");
        }
        eprintln!("── {name} took {} s", began.elapsed().as_secs());
    }
    Ok(())
}

fn timed(name: &str, step: impl FnOnce() -> Result<()>) -> Result<()> {
    let began = Instant::now();
    println!("── {name}: cargo xtask {name}");
    step()?;
    eprintln!("── {name} took {} s", began.elapsed().as_secs());
    Ok(())
}
