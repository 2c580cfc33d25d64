//! Reading what a program will read when it starts, so that it finds that in memory.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use het_core::Launch;
use het_files::{Kind, Links};

use crate::process::{Environments, procfs};

/// Entries of directories that are read.
const ENTRIES_MAX: usize = 10_000;
/// Bytes that are read at once.
const BLOCK_BYTES: usize = 1 << 20;
/// Of the memory that is available, the part that is left to others.
const LEFT_PART: u64 = 2;
/// Where Hugging Face's libraries keep models, below a user's home directory.
const HUGGING_FACE: &str = ".cache/huggingface";

/// Reads in the background until it is dropped.
#[derive(Debug)]
pub(crate) struct Reading {
    is_over: Arc<AtomicBool>,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl Reading {
    /// Of the inputs of a launch; none where it names none, or no thread can be had.
    pub(crate) fn begin(launch: &Launch, environments: &mut Environments) -> Option<Self> {
        if launch.inputs.is_empty() {
            return None;
        }
        let cache = cache_of(launch, environments);
        let (inputs, cwd) = (launch.inputs.clone(), PathBuf::from(&launch.cwd));
        let is_over = Arc::<AtomicBool>::default();
        let reader = Reader { is_over: Arc::clone(&is_over), left: room(), seen: BTreeSet::new() };
        let thread = thread::Builder::new().name("inputs".to_owned());
        // Also looking for them: a mount may not answer.
        let found = move |input: &String| found(input, &cwd, cache.as_deref());
        thread.spawn(move || reader.read_all(inputs.iter().map(found).collect())).ok()?;
        Some(Self { is_over })
    }
}

/// Bytes that may be read.
fn room() -> u64 {
    procfs::memory_available().unwrap_or_default() / LEFT_PART
}

/// Where its user has models: `$HF_HUB_CACHE`, below `$HF_HOME`, or below the home directory.
fn cache_of(launch: &Launch, environments: &mut Environments) -> Option<PathBuf> {
    let given = environments.of(launch.environment.as_deref()).ok()?;
    let of_job = |name: &str| launch.env.get(name).map(String::as_str);
    let named = |name: &str| of_job(name).or_else(|| given.get(name)).map(PathBuf::from);
    let home = || Some(Path::new(given.get("HOME")?).join(HUGGING_FACE));
    let below = || Some(named("HF_HOME").or_else(home)?.join("hub"));
    named("HF_HUB_CACHE").or_else(below)
}

/// A path, or a model of the cache by its name, such as `HuggingFaceTB/SmolLM2-135M`.
fn found(input: &str, cwd: &Path, cache: Option<&Path>) -> PathBuf {
    let path = cwd.join(input);
    if path.exists() {
        return path;
    }
    let of_cache = cache.map(|cache| cache.join(format!("models--{}", input.replace('/', "--"))));
    of_cache.filter(|model| model.is_dir()).unwrap_or(path)
}

struct Reader {
    is_over: Arc<AtomicBool>,
    /// Bytes that may still be read.
    left: u64,
    /// Files that were read, by device and number: a cache has several names for each.
    seen: BTreeSet<(u64, u64)>,
}

impl Reader {
    fn read_all(mut self, paths: Vec<PathBuf>) {
        // A directory may be named by a link; those inside are not followed.
        let named = paths.iter().filter_map(|path| path.canonicalize().ok());
        let mut paths: VecDeque<PathBuf> = named.collect();
        let (mut entries, mut block) = (0, vec![0; BLOCK_BYTES]);
        while let Some(path) = paths.pop_front().filter(|_| self.goes_on()) {
            match het_files::kind(&path) {
                Ok((Kind::Directory, _)) => {
                    let listing = het_files::list(&path, ENTRIES_MAX - entries);
                    entries += listing.entries.len();
                    paths.extend(listing.entries.into_iter().map(|entry| entry.path));
                }
                // What cannot be read now its program will miss itself.
                Ok(_) => drop(self.read(&path, &mut block)),
                Err(_) => {}
            }
        }
    }

    /// A cache has links to its files.
    fn read(&mut self, path: &Path, block: &mut [u8]) -> io::Result<()> {
        let mut file: File = het_files::open(path, Links::Followed)?;
        let metadata = file.metadata()?;
        if !self.seen.insert((metadata.dev(), metadata.ino())) {
            return Ok(());
        }
        while self.goes_on() {
            let bytes = file.read(block)? as u64;
            if bytes == 0 {
                break;
            }
            self.left = self.left.saturating_sub(bytes);
        }
        Ok(())
    }

    fn goes_on(&self) -> bool {
        self.left > 0 && !self.is_over.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(left: u64) -> Reader {
        Reader { is_over: Arc::default(), left, seen: BTreeSet::new() }
    }

    #[test]
    fn a_directory_is_read_with_what_its_links_lead_to_and_no_further_than_there_is_room() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let model = dir.path().join("model");
        std::fs::create_dir_all(model.join("snapshot")).expect("it is writable");
        std::fs::write(dir.path().join("blob"), vec![1; 3_000_000]).expect("it is writable");
        std::os::unix::fs::symlink("../../blob", model.join("snapshot/weights"))
            .expect("a link can be made");
        let mut file = reader(10_000_000);
        file.read(&model.join("snapshot/weights"), &mut vec![0; BLOCK_BYTES]).expect("it is there");
        assert_eq!(file.left, 7_000_000);
        let mut short = reader(1_000_000);
        short.read(&dir.path().join("blob"), &mut vec![0; BLOCK_BYTES]).expect("it is there");
        assert_eq!(short.left, 0);
        reader(10_000_000).read_all(vec![model, dir.path().join("missing"), "/dev/zero".into()]);
    }

    #[test]
    fn an_input_is_a_path_or_a_model_of_the_cache() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let cache = dir.path().join("hub");
        let model = cache.join("models--org--small");
        std::fs::create_dir_all(&model).expect("it is writable");
        std::fs::write(dir.path().join("data.txt"), "text").expect("it is writable");
        let check = |input: &str| found(input, dir.path(), Some(&cache));
        assert_eq!(check("data.txt"), dir.path().join("data.txt"));
        assert_eq!(check("org/small"), model);
        assert_eq!(check("org/other"), dir.path().join("org/other"));
    }
}
