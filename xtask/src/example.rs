//! The first run: build both programs for this machine and fine-tune the example.

use std::process::Command;

use anyhow::{Context, Result, bail};

/// Builds in release and runs `het run examples/finetune.yaml` with further arguments.
pub fn run(arguments: Vec<String>) -> Result<()> {
    cargo(&["build", "--release", "--package", "het-cli", "--package", "het-train"])?;
    let het = crate::target().join("release/het");
    let status = Command::new(&het)
        .args(["run", "examples/finetune.yaml"])
        .args(arguments)
        .current_dir(crate::root())
        .status()
        .with_context(|| format!("`{}` does not start", het.display()))?;
    if !status.success() {
        bail!("the example ended with {status}");
    }
    Ok(())
}

fn cargo(arguments: &[&str]) -> Result<()> {
    let status = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(crate::root())
        .status()
        .context("cargo does not start")?;
    if !status.success() {
        bail!("cargo {} failed", arguments.join(" "));
    }
    Ok(())
}
