//! Images of programs of this machine, with the libraries that they want: no registry is needed.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::json;

/// What holds the namespaces of a pod.
pub const PAUSE: &str = "heterosis.test/pause:1";
/// An init that also does nothing but wait; linked statically.
pub const CATATONIT: &str = "/usr/bin/catatonit";
pub const BUSYBOX: &str = "/usr/bin/busybox";

/// What is in an image.
#[derive(Debug)]
pub struct Image<'a> {
    pub name: &'a str,
    /// Where on this machine each program is; in the image it lies in `/bin`.
    pub programs: &'a [&'a Path],
    pub command: &'a [&'a str],
}

impl Image<'_> {
    /// An archive of it in `dir`, as `ctr images import` takes one.
    ///
    /// # Errors
    /// When a program is missing, or it cannot be written.
    pub fn archive(&self, dir: &Path) -> Result<PathBuf> {
        let tag = self.name.replace(['/', ':'], "-");
        let work = dir.join(&tag);
        let root = work.join("root");
        for inner in ["bin", "tmp", "etc"] {
            fs::create_dir_all(root.join(inner))?;
        }
        fs::write(root.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n")?;
        for program in self.programs {
            let name = program.file_name().context("a program has a name")?;
            copy(program, &root.join("bin").join(name))?;
            for library in libraries(program)? {
                copy(&library, &root.join(library.strip_prefix("/").unwrap_or(&library)))?;
            }
        }
        if self.programs.contains(&Path::new(BUSYBOX)) {
            for word in ["sh", "sleep", "cat", "ls"] {
                symlink("busybox", root.join("bin").join(word))?;
            }
        }
        tar(&root, &work.join("layer.tar"), &["."])?;
        let config = json!({
            "architecture": architecture(), "os": "linux",
            "config": { "Cmd": self.command, "Env": ["PATH=/bin"], "WorkingDir": "/" },
            "rootfs": { "type": "layers", "diff_ids": [digest(&work.join("layer.tar"))?] },
        });
        fs::write(work.join("config.json"), config.to_string())?;
        let manifest = json!([
            { "Config": "config.json", "RepoTags": [self.name], "Layers": ["layer.tar"] },
        ]);
        fs::write(work.join("manifest.json"), manifest.to_string())?;
        let archive = dir.join(format!("{tag}.tar"));
        tar(&work, &archive, &["manifest.json", "config.json", "layer.tar"])?;
        fs::remove_dir_all(&work)?;
        Ok(archive)
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    to.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::copy(from, to).with_context(|| format!("`{}` is missing", from.display()))?;
    Ok(())
}

/// Those that the loader would take, and the loader; none of a program that is linked statically.
fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("`ldd` does not start")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(paths.map(PathBuf::from).filter(|path| path != program).collect())
}

fn tar(dir: &Path, archive: &Path, names: &[&str]) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--numeric-owner", "--owner=0", "--group=0", "--directory"]).arg(dir);
    let status = tar.arg("--file").arg(archive).args(names).status();
    if !status.context("`tar` does not start")?.success() {
        bail!("`{}` cannot be written", archive.display());
    }
    Ok(())
}

fn digest(file: &Path) -> Result<String> {
    let output = Command::new("sha256sum").arg(file).output();
    let output = output.context("`sha256sum` does not start")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let digest = text.split_whitespace().next().context("`sha256sum` says nothing")?;
    Ok(format!("sha256:{digest}"))
}

/// As images call it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
