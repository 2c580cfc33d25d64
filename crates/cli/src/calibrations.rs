//! Where calibrations of device classes are kept: a file each, below the folder of state.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use het_wire::calibration::{CalibrationFactors, CalibrationFile};

use crate::fail::{Fail, code};
use crate::history::home;

/// What was measured of a class.
pub fn stored(class: &str) -> Result<Option<CalibrationFile>, Fail> {
    let path = path_of(class)?;
    match fs::read_to_string(&path) {
        Ok(text) => read(&path, &text).map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Fail::file(&path, error)),
    }
}

/// On times of products, of element-wise kernels and launches, of exchange.
pub fn factors(file: &CalibrationFile) -> [f64; 3] {
    let CalibrationFactors { matrix, elementwise, exchange } = file.factors;
    [matrix, elementwise, exchange]
}

/// Every one, by class.
pub fn all() -> Result<Vec<CalibrationFile>, Fail> {
    let folder = home()?.calibration_dir();
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Fail::file(&folder, error)),
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let file = |path: &PathBuf| {
        let text = fs::read_to_string(path).map_err(|error| Fail::file(path, error))?;
        read(path, &text)
    };
    paths.iter().map(file).collect()
}

/// Keeps one in the place of what was there of its class.
pub fn store(file: &CalibrationFile) -> Result<(), Fail> {
    let path = path_of(&file.class)?;
    let folder = path.parent().unwrap_or(&path);
    fs::create_dir_all(folder).map_err(|error| Fail::file(folder, error))?;
    // Whole or not at all: `het size` may be reading it.
    let draft = path.with_extension("draft");
    fs::write(&draft, file.text()).map_err(|error| Fail::file(&draft, error))?;
    fs::rename(&draft, &path).map_err(|error| Fail::file(&path, error))
}

/// Removes what was measured of a class.
pub fn forget(class: &str) -> Result<(), Fail> {
    let path = path_of(class)?;
    match fs::remove_file(&path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(Fail::new(code::USAGE, format!("nothing was measured of `{class}`"))
                .hint("`het profile list` names what was"))
        }
        Err(error) => Err(Fail::file(&path, error)),
    }
}

fn path_of(class: &str) -> Result<PathBuf, Fail> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if class.is_empty() || class.starts_with('.') || !class.chars().all(plain) {
        return Err(Fail::new(code::USAGE, format!("`{class}` is no device class"))
            .hint("`het topo FILE -o table` and `het devices` name classes"));
    }
    Ok(home()?.calibration_dir().join(format!("{class}.json")))
}

fn read(path: &Path, text: &str) -> Result<CalibrationFile, Fail> {
    CalibrationFile::read(text).map_err(|error| {
        Fail::new(code::USAGE, format!("`{}`: {error}", path.display()))
            .hint("`het profile import` writes it anew, `het profile forget CLASS` removes it")
    })
}
