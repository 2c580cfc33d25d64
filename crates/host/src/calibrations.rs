//! What was measured of device classes: a file each, in the state directory. `het profile` writes
//! them; `het size` and planning at submission read them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use het_wire::calibration::{CalibrationError, CalibrationFile};
use thiserror::Error;

/// The folder of calibrations.
#[derive(Debug, Clone)]
pub struct Calibrations {
    folder: PathBuf,
}

/// Why a calibration cannot be read, kept or removed.
#[derive(Debug, Error)]
pub enum CalibrationFault {
    #[error("`{}` cannot be used: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("`{}` is no calibration: {source}", path.display())]
    Unreadable { path: PathBuf, source: CalibrationError },
    #[error("`{class}` is no device class")]
    NoClass { class: String },
    #[error("nothing was measured of `{class}`")]
    NotMeasured { class: String },
}

impl CalibrationFault {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Io { .. } => "see to the file's owner and permissions",
            Self::Unreadable { .. } => {
                "`het profile import` writes it anew, `het profile forget CLASS` removes it"
            }
            Self::NoClass { .. } => "`het topo FILE -o table` and `het devices` name classes",
            Self::NotMeasured { .. } => "`het profile list` names what was",
        }
    }

    fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}

impl Calibrations {
    pub(crate) fn below(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Every one, by class.
    ///
    /// # Errors
    /// When the folder or a file cannot be read.
    pub fn all(&self) -> Result<BTreeMap<String, CalibrationFile>, CalibrationFault> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(error) => return Err(CalibrationFault::io(&self.folder, error)),
        };
        let paths = entries.flatten().map(|entry| entry.path());
        let kept = paths.filter(|path| path.extension().is_some_and(|end| end == ENDING));
        kept.map(|path| read(&path).map(|file| (file.class.clone(), file))).collect()
    }

    /// Keeps one in the place of what was there of its class.
    ///
    /// # Errors
    /// When its class is no file's name, or the file cannot be written.
    pub fn store(&self, file: &CalibrationFile) -> Result<(), CalibrationFault> {
        let path = self.path(&file.class)?;
        let made = fs::create_dir_all(&self.folder);
        made.map_err(|error| CalibrationFault::io(&self.folder, error))?;
        // Whole or not at all: somebody may be reading it.
        let draft = path.with_extension("draft");
        fs::write(&draft, file.text()).map_err(|error| CalibrationFault::io(&draft, error))?;
        fs::rename(&draft, &path).map_err(|error| CalibrationFault::io(&path, error))
    }

    /// Removes what was measured of a class.
    ///
    /// # Errors
    /// When there is nothing of it, or it cannot be removed.
    pub fn forget(&self, class: &str) -> Result<(), CalibrationFault> {
        let path = self.path(class)?;
        fs::remove_file(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => CalibrationFault::NotMeasured { class: class.to_owned() },
            _ => CalibrationFault::io(&path, error),
        })
    }

    fn path(&self, class: &str) -> Result<PathBuf, CalibrationFault> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if class.is_empty() || class.starts_with('.') || !class.chars().all(plain) {
            return Err(CalibrationFault::NoClass { class: class.to_owned() });
        }
        Ok(self.folder.join(format!("{class}.{ENDING}")))
    }
}

const ENDING: &str = "json";

fn read(path: &Path) -> Result<CalibrationFile, CalibrationFault> {
    let text = fs::read_to_string(path).map_err(|error| CalibrationFault::io(path, error))?;
    CalibrationFile::read(&text)
        .map_err(|source| CalibrationFault::Unreadable { path: path.to_owned(), source })
}
