//! Everything that must pass before a change is shared.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::cluster::TestCluster;

/// In this order: the quick ones first, the tests last, so that their closing line ends the output.
const STEPS: &[(&str, &[&str])] = &[
    ("fmt", &["fmt", "--all", "--check"]),
    ("clippy", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
    ("without Kubernetes", &["check", "--package", "het-cli", "--no-default-features", "--quiet"]),
    ("docs", &["doc", "--workspace", "--no-deps", "--quiet"]),
    ("doc tests", &["test", "--workspace", "--doc", "--quiet"]),
    (
        "tests",
        &[
            "test",
            "--workspace",
            "--lib",
            "--bins",
            "--tests",
            "--exclude",
            "het-cli",
            "--exclude",
            "xtask",
        ],
    ),
    // The command line drives the real binaries, so they are built by then; xtask closes.
    ("trainer", &["build", "--package", "het-train"]),
    ("command line", &["test", "--package", "het-cli"]),
    ("xtask", &["test", "--package", "xtask"]),
];

pub fn run() -> Result<()> {
    crate::arrows::check()?;
    crate::glossary::check()?;
    crate::tidy::check()?;
    crate::rules::check()?;
    crate::book::check()?;
    crate::book::build()?;
    let mut cluster = None;
    for (name, arguments) in STEPS {
        if *name == "tests" {
            cluster = TestCluster::start_if_built()?;
        }
        // The command line's tests have built the server; xtask's close.
        if *name == "xtask" {
            let began = Instant::now();
            println!("── api-test: cargo xtask api-test");
            crate::api_test::run()?;
            eprintln!("── api-test took {} s", began.elapsed().as_secs());
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
    drop(cluster);
    Ok(())
}
