//! Whether a checkpoint reads back: structure and sizes, by what its files say of themselves.
//!
//! Nothing is unpickled and no weight is read. Time and bytes are bounded: of what lies beyond
//! them only the sizes are checked, and a format that is not known is taken as it is.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use het_files::{Kind, Links, is_directory, is_file, list, open, read};
use serde_json::Value;

/// Most entries of a directory that are looked at.
const ENTRIES_MAX: usize = 4_096;
/// Most bytes that are read of all files together, of which the headers are the most.
const BYTES_MAX: u64 = 8 << 20;
/// Bytes of the number that a safetensors file begins with, the length of its header
/// (<https://github.com/huggingface/safetensors>, "Format").
const PREFIX_BYTES: u64 = 8;
/// The first record of a zip archive, which PyTorch's files are, and its last, with its length
/// (APPNOTE 6.3.10, sections 4.3.7 and 4.3.16).
const ZIP_BEGIN: &[u8] = b"PK\x03\x04";
const ZIP_END: &[u8] = b"PK\x05\x06";
const ZIP_END_BYTES: u64 = 22;

/// Why a checkpoint cannot be resumed from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file that does not read back.
    pub file: PathBuf,
    /// What is wrong with it, in one sentence without its subject.
    pub why: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.file.display(), self.why)
    }
}

/// Checks the files of a checkpoint, which is a directory or a file.
///
/// # Errors
/// The first file that is truncated, names others that are not there, or is no file.
pub fn verify(path: &Path) -> Result<(), Damage> {
    if is_directory(path) {
        return Verification { path, bytes_left: BYTES_MAX }.check();
    }
    let checked = open(path, Links::Refused).map_err(|error| unread(&error));
    let checked = checked.and_then(|file| check_zip(&file));
    checked.map_err(|why| Damage { file: path.to_owned(), why })
}

struct Verification<'a> {
    path: &'a Path,
    bytes_left: u64,
}

impl Verification<'_> {
    fn check(&mut self) -> Result<(), Damage> {
        let entries = list(self.path, ENTRIES_MAX).entries;
        for entry in entries.iter().filter(|entry| entry.kind == Kind::File) {
            let Some(name) = entry.name.to_str() else { continue };
            self.check_file(name).map_err(|why| self.damage(name, why))?;
        }
        Ok(())
    }

    fn open(&self, name: &str) -> Result<File, String> {
        open(&self.path.join(name), Links::Refused).map_err(|error| unread(&error))
    }

    fn damage(&self, name: &str, why: String) -> Damage {
        Damage { file: self.path.join(name), why }
    }

    fn check_file(&mut self, name: &str) -> Result<(), String> {
        let is = |suffix: &str| name.ends_with(suffix);
        if is(".safetensors") {
            let file = self.open(name)?;
            return self.check_safetensors(&file);
        }
        if is(".index.json") {
            return self.check_index(name);
        }
        if name == super::trainer_state::STATE_FILE {
            return self.json(name).map(drop);
        }
        if [".pt", ".pth", ".bin", ".ckpt", ".pkl"].into_iter().any(is) {
            return check_zip(&self.open(name)?);
        }
        Ok(())
    }

    fn check_safetensors(&mut self, file: &File) -> Result<(), String> {
        let length = file.metadata().map_err(|error| unread(&error))?.len();
        let mut prefix = [0; PREFIX_BYTES as usize];
        file.read_exact_at(&mut prefix, 0).map_err(|_| "is truncated".to_owned())?;
        let header = u64::from_le_bytes(prefix);
        let data = length.checked_sub(PREFIX_BYTES).and_then(|rest| rest.checked_sub(header));
        let data = data.ok_or_else(|| "is truncated".to_owned())?;
        if !self.may_read(header) {
            return Ok(());
        }
        let mut bytes = vec![0; header as usize];
        file.read_exact_at(&mut bytes, PREFIX_BYTES).map_err(|_| "is truncated".to_owned())?;
        let header: serde_json::Map<String, Value> = serde_json::from_slice(&bytes)
            .map_err(|_| "has a header that is not JSON".to_owned())?;
        for (tensor, at) in header.iter().filter(|(name, _)| *name != "__metadata__") {
            let offset = |index: usize| at.get("data_offsets")?.get(index)?.as_u64();
            match (offset(0), offset(1)) {
                (Some(begin), Some(end)) if begin <= end && end <= data => {}
                (Some(begin), Some(end)) if begin <= end => {
                    return Err(format!("is truncated: `{tensor}` ends at byte {end} of {data}"));
                }
                _ => return Err(format!("has no place for `{tensor}`")),
            }
        }
        Ok(())
    }

    /// Every shard that an index names is there.
    fn check_index(&mut self, name: &str) -> Result<(), String> {
        let Some(index) = self.json(name)? else { return Ok(()) };
        let shards = index.get("weight_map").and_then(Value::as_object);
        let mut names: Vec<&str> =
            shards.into_iter().flatten().filter_map(|(_, shard)| shard.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let is_missing = |shard: &&str| !is_file(&self.path.join(shard));
        match names.into_iter().take(ENTRIES_MAX).find(is_missing) {
            Some(shard) => Err(format!("names `{shard}`, which is not there")),
            None => Ok(()),
        }
    }

    /// `None` for one that is too long to be read.
    fn json(&mut self, name: &str) -> Result<Option<Value>, String> {
        let length = self.open(name)?.metadata().map_err(|error| unread(&error))?.len();
        if !self.may_read(length) {
            return Ok(None);
        }
        let bytes =
            read(&self.path.join(name), Links::Refused, length).map_err(|error| unread(&error))?;
        serde_json::from_slice(&bytes).map(Some).map_err(|_| "is not JSON".to_owned())
    }

    fn may_read(&mut self, bytes: u64) -> bool {
        match self.bytes_left.checked_sub(bytes) {
            Some(left) => {
                self.bytes_left = left;
                true
            }
            None => false,
        }
    }
}

/// A file that begins as a zip archive ends as one. Other contents are not known.
fn check_zip(file: &File) -> Result<(), String> {
    let mut begin = [0; ZIP_BEGIN.len()];
    if file.read_exact_at(&mut begin, 0).is_err() || begin != ZIP_BEGIN {
        return Ok(());
    }
    let length = file.metadata().map_err(|error| unread(&error))?.len();
    let mut end = [0; ZIP_END.len()];
    let read = file.read_exact_at(&mut end, length.saturating_sub(ZIP_END_BYTES));
    match read.is_ok() && end == ZIP_END {
        true => Ok(()),
        false => Err("is truncated".to_owned()),
    }
}

fn unread(why: &io::Error) -> String {
    format!("cannot be read: {why}")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    fn safetensors(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        bytes.resize(bytes.len() + data, 1);
        bytes
    }

    const HEADER: &str =
        r#"{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#;

    #[test]
    fn what_reads_back_and_what_does_not() {
        let check = |name: &str, content: &[u8], expected: Option<&str>| {
            let dir = tempfile::tempdir().expect("a directory can be made");
            fs::write(dir.path().join(name), content).expect("a file can be written");
            let why = verify(dir.path()).err().map(|damage| damage.why);
            assert_eq!(why.as_deref(), expected, "{name}");
        };
        let whole = safetensors(HEADER, 16);
        check("model.safetensors", &whole, None);
        check("model.safetensors", b"", Some("is truncated"));
        check("model.safetensors", &whole[..50], Some("is truncated"));
        let short = "is truncated: `w` ends at byte 16 of 15";
        check("model.safetensors", &whole[..whole.len() - 1], Some(short));
        check("model.safetensors", &safetensors("{", 3), Some("has a header that is not JSON"));
        let placeless = safetensors(r#"{"w":{"data_offsets":[9,3]}}"#, 16);
        check("model.safetensors", &placeless, Some("has no place for `w`"));
        let index = br#"{"weight_map":{"w":"model-1.safetensors"}}"#;
        let missing = "names `model-1.safetensors`, which is not there";
        check("model.safetensors.index.json", index, Some(missing));
        check("trainer_state.json", br#"{"global_st"#, Some("is not JSON"));
        check("optimizer.pt", b"PK\x03\x04 half of an archive that ended", Some("is truncated"));
        check("optimizer.pt", b"of another format", None);
    }

    #[test]
    fn every_truncation_of_a_file_of_tensors_is_found() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let (path, whole) = (dir.path().join("model.safetensors"), safetensors(HEADER, 16));
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).expect("a file can be written");
            assert!(verify(dir.path()).is_err(), "{length} of {} bytes", whole.len());
        }
    }

    #[test]
    fn a_shard_that_is_a_pipe_is_missing_and_waits_for_nobody() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let at = |name: &str| dir.path().join(name);
        let index = r#"{"weight_map":{"w":"model-1.safetensors"}}"#;
        fs::write(at("model.safetensors.index.json"), index).expect("it can be written");
        mkfifo(&at("model-1.safetensors"), Mode::S_IRWXU).expect("a FIFO can be made");
        assert!(verify(dir.path()).is_err());
        assert!(verify(&at("model-1.safetensors")).is_err());
    }
}
