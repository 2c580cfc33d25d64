//! A backup: one file that is a store itself, with the files that submissions keep in a table more.
//! It is taken from between two batches of a store in use.

use std::fs;
use std::path::Path;

use redb::{ReadTransaction, ReadableTable, TableDefinition, TableHandle, WriteTransaction};

use super::check::guarded;
use super::{
    EVENTS, EventStore, GAPS, HEAD, PARTS, ROWS, SNAPSHOTS, StoreError, StoreReader, builder,
};

/// Path below the directory of kept files → its bytes.
const FILES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("files");

/// A kept file: its path below their directory, and its bytes.
pub type KeptFile = (String, Vec<u8>);

impl StoreReader {
    /// Writes what the store holds now into a new file, for its owner alone. Gives the number of
    /// its events.
    ///
    /// # Errors
    /// When the store cannot be read or the file cannot be written; there is none then.
    pub fn back_up(&self, path: &Path, files: &[KeptFile]) -> Result<u64, StoreError> {
        let written = guarded(|| self.write_backup(path, files));
        written.inspect_err(|_| drop(fs::remove_file(path)))
    }

    fn write_backup(&self, path: &Path, files: &[KeptFile]) -> Result<u64, StoreError> {
        let read = self.0.begin_read()?;
        let database = builder().create_file(het_files::create_private(path)?)?;
        let write = database.begin_write()?;
        let events = copy_table(&read, &write, EVENTS)?;
        copy_table(&read, &write, GAPS)?;
        copy_table(&read, &write, SNAPSHOTS)?;
        copy_table(&read, &write, PARTS)?;
        copy_table(&read, &write, ROWS)?;
        copy_table(&read, &write, HEAD)?;
        {
            let mut table = write.open_table(FILES)?;
            for (name, bytes) in files {
                table.insert(name.as_str(), bytes.as_slice())?;
            }
        }
        write.commit()?;
        Ok(events)
    }
}

impl EventStore {
    /// Takes the kept files of a backup out of it: it is a store like others then.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn take_files(&mut self) -> Result<Vec<KeptFile>, StoreError> {
        guarded(|| {
            let write = self.database.begin_write()?;
            let is_backup = write.list_tables()?.any(|table| table.name() == FILES.name());
            let mut files = Vec::new();
            if is_backup {
                for row in write.open_table(FILES)?.iter()? {
                    let (name, bytes) = row?;
                    files.push((name.value().to_owned(), bytes.value().to_vec()));
                }
                write.delete_table(FILES)?;
            }
            write.commit()?;
            Ok(files)
        })
    }
}

/// How many rows were copied.
fn copy_table<K: redb::Key + 'static>(
    read: &ReadTransaction,
    write: &WriteTransaction,
    table: TableDefinition<'_, K, &'static [u8]>,
) -> Result<u64, StoreError> {
    let mut target = write.open_table(table)?;
    let mut count = 0;
    for row in read.open_table(table)?.iter()? {
        let (key, value) = row?;
        target.insert(key.value(), value.value())?;
        count += 1;
    }
    Ok(count)
}
