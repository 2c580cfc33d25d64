//! `het server backup` and `restore`.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use anstream::eprintln;
use het_files::{Links, create_private, open};
use het_server::{Existing, RestoreError, Restored, copy, restore};
use het_wire::api::Backup;
use serde_json::Value;

use super::serve::acquire;
use crate::client::client;
use crate::fail::{Fail, code};
use crate::local::open_server_home;

/// The server writes beside its store; the file is taken from there.
pub(super) fn write(file: &Path, with_environments: bool) -> Result<u8, Fail> {
    let path = format!("/api/v1/server/backup?environments={with_environments}");
    let mut client = client()?;
    let target = create_private(file).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            let text = format!("`{}` is there already", file.display());
            Fail::new(code::CONFLICT, text).hint("name a file that is not there")
        }
        _ => Fail::file(file, error),
    })?;
    let events = client.post(&path, &Value::Null).and_then(|written| taken(&written, target));
    let events = events.inspect_err(|_| {
        // There is nothing in it.
        let _ = fs::remove_file(file);
    })?;
    eprintln!("{}: {events} events", file.display());
    Ok(code::OK)
}

/// Moves what the server wrote; the number of its events.
fn taken(Backup { path, events }: &Backup, target: File) -> Result<u64, Fail> {
    let written = open_server_home()?.backup();
    if Path::new(path) != written {
        let text = format!("the server wrote `{path}`, which is not of this home");
        return Err(Fail::new(code::CONFLICT, text).hint("take it from the server's machine"));
    }
    let trouble = |error| Fail::file(&written, error);
    copy(open(&written, Links::Refused).map_err(trouble)?, target).map_err(trouble)?;
    fs::remove_file(&written).map_err(trouble)?;
    Ok(*events)
}

pub(super) fn restore_here(file: &Path, existing: Existing) -> Result<u8, Fail> {
    let backup = open(file, Links::Followed).map_err(|error| Fail::file(file, error))?;
    let home = open_server_home()?;
    let _lock = acquire(&home)?;
    let Restored { events, held } =
        restore(&home, backup, existing).map_err(|error| match error {
            RestoreError::Existing { .. } => Fail::new(code::CONFLICT, error.to_string())
                .hint("choose an empty `HET_HOME`, or put that state aside by `--force`"),
            error => Fail::from_error(error),
        })?;
    eprintln!(
        "{events} events · {held} jobs had not ended and are held, `het release` starts them"
    );
    Ok(code::OK)
}
