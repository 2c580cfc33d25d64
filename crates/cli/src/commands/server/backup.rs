//! `het server backup` and `restore`.

use std::fs;
use std::path::Path;

use anstream::eprintln;
use het_server::{Existing, RestoreError, Restored, copy_private, restore};
use het_wire::api::Backup;
use serde_json::Value;

use super::acquire;
use crate::client::client;
use crate::fail::{Fail, code};
use crate::local::home;

/// The server writes beside its store; the file is taken from there.
pub(super) fn write(file: &Path, with_environments: bool) -> Result<u8, Fail> {
    if file.exists() {
        let text = format!("`{}` is there already", file.display());
        return Err(Fail::new(code::CONFLICT, text).hint("name a file that is not there"));
    }
    let path = format!("/api/v1/server/backup?environments={with_environments}");
    let Backup { path, events } = client()?.post(&path, &Value::Null)?;
    let written = home()?.backup();
    if Path::new(&path) != written {
        let text = format!("the server wrote `{path}`, which is not of this home");
        return Err(Fail::new(code::CONFLICT, text).hint("take it from the server's machine"));
    }
    copy_private(&written, file).map_err(|error| Fail::file(file, error))?;
    fs::remove_file(&written).map_err(|error| Fail::file(&written, error))?;
    eprintln!("{}: {events} events", file.display());
    Ok(code::OK)
}

pub(super) fn restore_here(file: &Path, existing: Existing) -> Result<u8, Fail> {
    let home = home()?;
    home.server_dir()?;
    let _lock = acquire(&home)?;
    let Restored { events, held } =
        restore(&home, file, existing).map_err(|error| match error {
            RestoreError::Existing { .. } => Fail::new(code::CONFLICT, error.to_string())
                .hint("choose an empty `HET_HOME`, or put that state aside by `--force`"),
            error => Fail::from_error(error),
        })?;
    eprintln!(
        "{events} events · {held} jobs had not ended and are held, `het release` starts them"
    );
    Ok(code::OK)
}
