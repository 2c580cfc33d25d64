//! How frameworks save: the names of their checkpoints, and what a whole one contains.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use het_files::{Kind, Links, head, is_file, kind, tail};

use super::tracker::step_of;
use super::trainer_state::{STATE_FILE, TrainerState};

/// What Accelerate writes after the model and its optimisers.
const RANDOM_STATES: &str = "random_states_0.pkl";
/// What DeepSpeed writes last, with the name of the checkpoint beside it.
const LATEST: &str = "latest";
/// A file of every checkpoint of DeepSpeed.
const MODEL_STATES: &str = "mp_rank_00_model_states.pt";

/// How much of a file's beginning may contain its step.
const HEAD_BYTES: u64 = 4_096;
/// The last record of a zip archive, which PyTorch's files are: its signature and its length
/// (APPNOTE 6.3.10, section 4.3.16).
const ZIP_END: &[u8] = b"PK\x05\x06";
const ZIP_END_BYTES: u64 = 22;

/// What may be a checkpoint, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// `checkpoint-N` of Hugging Face `Trainer`.
    Trainer(u64),
    /// `checkpoint_N`, `step_N` and `epoch_N`, as Accelerate and its examples name directories.
    Accelerate(u64),
    /// A `.ckpt` file of Lightning.
    Lightning,
    /// The file in which DeepSpeed names its newest checkpoint.
    DeepSpeed,
}

/// A whole checkpoint.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) path: PathBuf,
    pub(super) step: u64,
    /// How far its program says it is.
    pub(super) state: Option<TrainerState>,
}

/// Identifies what is in a file: another content has another stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    modified: (i64, i64),
    bytes: u64,
    inode: u64,
}

impl Format {
    pub(super) fn of(name: &OsStr, kind: Kind) -> Option<Self> {
        let name = name.to_str()?;
        match kind {
            Kind::Directory => {
                let numbered = |prefix| name.strip_prefix(prefix)?.parse().ok();
                let accelerate = ["checkpoint_", "step_", "epoch_"].into_iter().find_map(numbered);
                step_of(name).map(Self::Trainer).or_else(|| accelerate.map(Self::Accelerate))
            }
            Kind::File if name == LATEST => Some(Self::DeepSpeed),
            Kind::File => name.ends_with(".ckpt").then_some(Self::Lightning),
            Kind::Link | Kind::Other => None,
        }
    }

    /// The file that is written last.
    fn marker(self, path: &Path) -> PathBuf {
        match self {
            Self::Trainer(_) => path.join(STATE_FILE),
            Self::Accelerate(_) => path.join(RANDOM_STATES),
            Self::Lightning | Self::DeepSpeed => path.to_owned(),
        }
    }

    /// When it was last completed; `None` while its last file is missing.
    pub(super) fn stamp(self, path: &Path) -> Option<Stamp> {
        let (kind, metadata) = kind(&self.marker(path)).ok()?;
        (kind == Kind::File).then(|| Stamp::of(&metadata))
    }

    /// The checkpoint, if it is one and whole.
    pub(super) fn read(self, path: &Path) -> Option<Whole> {
        let marker = self.marker(path);
        let whole = |path: &Path, step, state| Whole { path: path.to_owned(), step, state };
        match self {
            Self::Trainer(step) => {
                // Half a file is not JSON.
                let state = TrainerState::read(path)?;
                Some(whole(path, step, Some(state)))
            }
            Self::Accelerate(step) => is_whole_zip(&marker)?.then(|| whole(path, step, None)),
            Self::Lightning => {
                let step = lightning_step(path)?;
                is_whole_zip(path)?.then(|| whole(path, step, None))
            }
            Self::DeepSpeed => {
                let tag = head(path, Links::Refused, HEAD_BYTES).ok()?;
                let tag = str::from_utf8(&tag).ok()?.trim();
                let is_name = !tag.is_empty() && !tag.contains('/') && tag != "..";
                let path = path.with_file_name(is_name.then_some(tag)?);
                is_file(&path.join(MODEL_STATES)).then(|| whole(&path, last_number(tag), None))
            }
        }
    }
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Self { modified, bytes: metadata.size(), inode: metadata.ino() }
    }

    pub(super) fn is_before(&self, time: SystemTime) -> bool {
        let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.modified < (since_epoch.as_secs() as i64, since_epoch.subsec_nanos().into())
    }
}

/// It was written to its end: whoever is killed in the middle leaves a file without one.
fn is_whole_zip(path: &Path) -> Option<bool> {
    let end = tail(path, Links::Refused, ZIP_END_BYTES).ok()?;
    Some(end.len() as u64 == ZIP_END_BYTES && end.starts_with(ZIP_END))
}

/// The step of a checkpoint of Lightning, which begins with it. Other files may have the same
/// suffix, and have none.
fn lightning_step(path: &Path) -> Option<u64> {
    const KEY: &[u8] = b"global_step";
    let head = head(path, Links::Refused, HEAD_BYTES).ok()?;
    let at = head.windows(KEY.len()).position(|window| window == KEY)?;
    pickled_number(&head[at + KEY.len()..])
}

/// The number that follows in a pickle (protocol 2 and later), perhaps after the memo of what
/// stands before it: opcodes of `pickletools`.
fn pickled_number(bytes: &[u8]) -> Option<u64> {
    let bytes = match bytes {
        [b'q', _, rest @ ..] | [b'r', _, _, _, _, rest @ ..] | [0x94, rest @ ..] => rest,
        other => other,
    };
    match *bytes {
        [b'K', a, ..] => Some(a.into()),
        [b'M', a, b, ..] => Some(u16::from_le_bytes([a, b]).into()),
        [b'J', a, b, c, d, ..] => u64::try_from(i32::from_le_bytes([a, b, c, d])).ok(),
        _ => None,
    }
}

/// The number at the end of a name, `global_step500`; 0 without one.
fn last_number(name: &str) -> u64 {
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    name[name.len() - digits..].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn names_of_checkpoints() {
        let check = |name: &str, kind, expected: Option<Format>| {
            assert_eq!(Format::of(OsStr::new(name), kind), expected, "{name}");
        };
        check("checkpoint-500", Kind::Directory, Some(Format::Trainer(500)));
        check("checkpoint-500", Kind::File, None);
        check("tmp-checkpoint-500", Kind::Directory, None);
        check("checkpoint_3", Kind::Directory, Some(Format::Accelerate(3)));
        check("step_20", Kind::Directory, Some(Format::Accelerate(20)));
        check("epoch_x", Kind::Directory, None);
        check("last.ckpt", Kind::File, Some(Format::Lightning));
        check("latest", Kind::File, Some(Format::DeepSpeed));
    }

    #[test]
    fn numbers_in_pickles() {
        let check = |bytes: &[u8], expected| assert_eq!(pickled_number(bytes), expected);
        check(b"q\x02K\x0aX", Some(10));
        check(b"q\x02M\x2c\x01X", Some(300));
        check(b"\x94J\x00\x00\x01\x00.", Some(65_536));
        check(b"r\x00\x01\x00\x00K\x05", Some(5));
        check(b"J\xff\xff\xff\xff", None);
        check(b"q", None);
        check(b"N", None);
    }

    /// What is read of a file of Lightning with this content.
    #[track_caller]
    fn check_lightning(content: &[u8], expected: Option<u64>) {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = dir.path().join("a.ckpt");
        fs::write(&path, content).expect("it can be written");
        assert_eq!(Format::Lightning.read(&path).map(|whole| whole.step), expected);
    }

    #[test]
    fn half_a_file_is_no_checkpoint() {
        let head = b"PK\x03\x04..}q\x00(X\x0b\x00\x00\x00global_stepq\x02K\x0a";
        let end = [ZIP_END, &[0; 18]].concat();
        check_lightning(&[&head[..], &end].concat(), Some(10));
        check_lightning(&[&head[..], &[0; 40]].concat(), None);
        check_lightning(head, None);
        check_lightning(&end, None);
    }

    #[test]
    fn deepspeed_names_its_newest() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = dir.path().join(LATEST);
        let check = |tag: &str, expected: Option<u64>| {
            fs::write(&path, tag).expect("it can be written");
            assert_eq!(Format::DeepSpeed.read(&path).map(|whole| whole.step), expected, "{tag}");
        };
        let saved = dir.path().join("global_step40");
        fs::create_dir(&saved).expect("a directory can be made");
        check("global_step40", None);
        fs::write(saved.join(MODEL_STATES), "").expect("it can be written");
        check("global_step40", Some(40));
        check("../global_step40", None);
        check("", None);
    }
}
