//! Which crate may use which, held against what Cargo says.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Crate → crates it may use. Development dependencies are free.
const ARROWS: &[(&str, &[&str])] = &[
    ("blocks", &[]),
    ("core", &[]),
    ("files", &[]),
    ("perf", &["core"]),
    ("wire", &["core"]),
    ("engine", &["core"]),
    ("devices", &["core"]),
    ("parallel", &["core", "perf"]),
    ("policy", &["core", "perf"]),
    ("runtime", &["core", "perf"]),
    ("sim", &["core", "perf", "engine"]),
    ("node", &["core", "files", "perf", "wire", "engine", "devices"]),
    ("agent", &["core", "files", "wire", "engine", "node"]),
    ("kubernetes", &["core", "devices", "engine", "wire"]),
    ("scheduler", &["core", "perf", "parallel", "policy"]),
    ("planner", &["core", "perf", "parallel", "wire"]),
    ("control", &["core", "perf", "policy", "scheduler", "engine"]),
    ("host", &["agent", "core", "files", "wire", "engine", "node", "devices"]),
    ("forecast", &["core", "perf", "policy", "scheduler", "control", "sim"]),
    (
        "lab",
        &["core", "perf", "planner", "policy", "scheduler", "control", "sim", "wire", "forecast"],
    ),
    ("service", &["core", "perf", "wire", "policy", "scheduler", "control", "engine"]),
    (
        "server",
        &[
            "agent",
            "core",
            "files",
            "perf",
            "planner",
            "policy",
            "scheduler",
            "control",
            "wire",
            "engine",
            "kubernetes",
            "node",
            "devices",
            "host",
            "service",
        ],
    ),
    (
        "bench",
        &[
            "core", "perf", "policy", "control", "engine", "node", "devices", "server", "sim",
            "forecast", "lab",
        ],
    ),
    ("train", &["blocks", "core", "perf", "parallel", "runtime", "vulkan", "wire", "devices"]),
    (
        "cli",
        &[
            "core", "files", "wire", "perf", "parallel", "planner", "policy", "devices", "lab",
            "runtime", "server", "bench",
        ],
    ),
    ("vulkan", &[]),
    ("testkit", &["core", "perf", "policy", "scheduler"]),
];

pub fn check() -> Result<()> {
    let uses = used_by_crate()?;
    let mut wrong = Vec::new();
    for (name, used) in &uses {
        match ARROWS.iter().find(|(known, _)| known == name) {
            None => wrong.push(format!("`{name}` has no row in xtask/src/arrows.rs")),
            Some((_, allowed)) => {
                let forbidden = used.iter().filter(|other| !allowed.contains(&other.as_str()));
                wrong.extend(forbidden.map(|other| format!("`{name}` must not use `{other}`")));
            }
        }
    }
    if !wrong.is_empty() {
        bail!("forbidden arrows:\n  {}", wrong.join("\n  "));
    }
    println!("arrows: {} crates, none forbidden", uses.len());
    Ok(())
}

/// The normal dependencies of each `het-*` crate on others, without the prefix.
fn used_by_crate() -> Result<BTreeMap<String, Vec<String>>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(crate::root())
        .output()
        .context("cargo metadata does not start")?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let short = |value: &Value| value.as_str()?.strip_prefix("het-").map(str::to_owned);
    let rows = packages.iter().filter_map(|package| {
        let dependencies = package["dependencies"].as_array()?.iter();
        let normal = dependencies.filter(|dependency| dependency["kind"].is_null());
        let used = normal.filter_map(|dependency| short(&dependency["name"]));
        Some((short(&package["name"])?, used.collect()))
    });
    Ok(rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_arrow_is_allowed() {
        check().expect("the table of ARCHITECTURE.md holds");
    }

    #[test]
    fn the_decision_half_and_the_node_half_do_not_meet() {
        let row = |name| ARROWS.iter().find(|(known, _)| *known == name).expect("in the table").1;
        for decision in ["policy", "scheduler"] {
            for node in ["node", "host", "devices"] {
                assert!(!row(decision).contains(&node) && !row(node).contains(&decision));
            }
        }
    }
}
