//! Bringing near what a program will read when it starts: onto a disk of this machine, and into
//! memory.

mod copies;
mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use het_core::Launch;
use het_files::{Links, replace};

use crate::process::{Environments, procfs};
use crate::run_dir::copies_path;
pub(crate) use copies::Copies;
pub use copies::{CopyInputs, InputCopies};
use copies::{CopyPaths, HeldCopy};
use files::{InputFile, files_of};

/// Bytes that are read or copied at once.
const BLOCK_BYTES: usize = 1 << 20;
/// Of the memory that is available, the part that is left to others.
const LEFT_PART: u64 = 2;
/// Where Hugging Face's libraries keep models, below a user's home directory.
const HUGGING_FACE: &str = ".cache/huggingface";
/// Of the file that says which copies a lease holds.
const NOTE_BYTES_MAX: u64 = 1 << 20;

/// Copies of inputs, by their places among those of a launch.
#[derive(Debug, Clone, Default)]
pub(crate) struct LocalInputs(BTreeMap<usize, Arc<HeldCopy>>);

/// Reads in the background until it is dropped.
#[derive(Debug)]
pub(crate) struct Reading {
    is_over: Arc<AtomicBool>,
    local: Arc<Mutex<LocalInputs>>,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl Reading {
    /// Of the inputs of a launch; none where none is known, or no thread can be had.
    pub(crate) fn begin(
        launch: &Launch,
        environments: &mut Environments,
        copies: &Copies,
    ) -> Option<Self> {
        if launch.inputs.is_empty() && launch.seen_inputs.is_empty() {
            return None;
        }
        let is_over = Arc::<AtomicBool>::default();
        let local = Arc::<Mutex<LocalInputs>>::default();
        let mut bringing = Bringing {
            inputs: launch.inputs.clone(),
            seen_inputs: launch.seen_inputs.clone(),
            cwd: PathBuf::from(&launch.cwd),
            cache: cache_of(launch, environments),
            // In a container there is nothing but what is mounted there.
            copies: launch.container.is_none().then(|| copies.clone()),
            reader: Reader { is_over: Arc::clone(&is_over), left: room(), seen: BTreeSet::new() },
            local: Arc::clone(&local),
        };
        let thread = thread::Builder::new().name("inputs".to_owned());
        // Also looking for them: a mount may not answer.
        thread.spawn(move || bringing.run()).ok()?;
        Some(Self { is_over, local })
    }

    /// The copies that are whole.
    pub(crate) fn local(&self) -> LocalInputs {
        lock(&self.local).clone()
    }
}

impl LocalInputs {
    /// The inputs of a launch as its program is to open them, one a line: a copy, or what the job
    /// file says.
    pub(crate) fn text(&self, launch: &Launch, fill: impl Fn(&str) -> String) -> String {
        let one = |(at, input): (usize, &String)| match self.0.get(&at) {
            Some(copy) => copy.paths().path.to_string_lossy().into_owned(),
            None => fill(input),
        };
        launch.inputs.iter().enumerate().map(one).collect::<Vec<_>>().join("\n")
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes which copies a lease holds.
    ///
    /// # Errors
    /// When it cannot be noted: the next engine may remove them.
    pub(crate) fn note(&self, lease_dir: &Path) -> io::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let copies: BTreeMap<usize, &CopyPaths> =
            self.0.iter().map(|(&at, copy)| (at, copy.paths())).collect();
        replace(&copies_path(lease_dir), &serde_json::to_vec(&copies)?)
    }

    /// What an earlier engine noted. A program may have changed it.
    pub(crate) fn noted(lease_dir: &Path, copies: &Copies) -> Self {
        let text = het_files::read(&copies_path(lease_dir), Links::Refused, NOTE_BYTES_MAX);
        let noted: Option<BTreeMap<usize, CopyPaths>> =
            text.ok().and_then(|text| serde_json::from_slice(&text).ok());
        let held = |(at, copy)| Some((at, Arc::new(copies.hold_again(copy)?)));
        Self(noted.unwrap_or_default().into_iter().filter_map(held).collect())
    }
}

fn lock(local: &Mutex<LocalInputs>) -> MutexGuard<'_, LocalInputs> {
    local.lock().unwrap_or_else(PoisonError::into_inner)
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

/// A path, or a model of the cache by its name, such as `HuggingFaceTB/SmolLM2-135M`: the files of
/// its main branch, where it has one.
fn found(input: &str, cwd: &Path, cache: Option<&Path>) -> PathBuf {
    let path = cwd.join(input);
    if path.exists() {
        return path;
    }
    let of_cache = cache.map(|cache| cache.join(format!("models--{}", input.replace('/', "--"))));
    let Some(model) = of_cache.filter(|model| model.is_dir()) else { return path };
    let main = het_files::read(&model.join("refs/main"), Links::Followed, 256).ok();
    let main = main.and_then(|text| String::from_utf8(text).ok());
    let snapshot = main.map(|main| model.join("snapshots").join(main.trim()));
    snapshot.filter(|snapshot| snapshot.is_dir()).unwrap_or(model)
}

/// What the thread does.
struct Bringing {
    inputs: Vec<String>,
    seen_inputs: Vec<String>,
    cwd: PathBuf,
    cache: Option<PathBuf>,
    /// None where nothing is copied.
    copies: Option<Copies>,
    reader: Reader,
    local: Arc<Mutex<LocalInputs>>,
}

impl Bringing {
    fn run(&mut self) {
        for at in 0..self.inputs.len() {
            let input = found(&self.inputs[at], &self.cwd, self.cache.as_deref());
            let copies = self.copies.as_ref().filter(|copies| copies.is_wanted(&input));
            // What cannot be copied its program reads where it lies.
            let copy = copies.and_then(|it| it.bring(&input, &self.reader.is_over).ok().flatten());
            if let Some(copy) = copy {
                self.reader.read_all(&copy.paths().path);
                lock(&self.local).0.insert(at, Arc::new(copy));
            }
            // Its program may not look for a copy.
            self.reader.read_all(&input);
        }
        for input in &self.seen_inputs {
            self.reader.read_all(Path::new(input));
        }
    }
}

struct Reader {
    is_over: Arc<AtomicBool>,
    /// Bytes that may still be read.
    left: u64,
    /// Files that were read, by device and number: a cache has several names for each.
    seen: BTreeSet<(u64, u64)>,
}

impl Reader {
    fn read_all(&mut self, input: &Path) {
        if !self.goes_on() {
            return;
        }
        let files = files_of(input).unwrap_or_else(|some| some);
        let mut block = vec![0; BLOCK_BYTES];
        for file in files {
            // What cannot be read now its program will miss itself.
            let _ = self.read(&file, &mut block);
        }
    }

    fn read(&mut self, file: &InputFile, block: &mut [u8]) -> io::Result<()> {
        if !self.seen.insert(file.id) {
            return Ok(());
        }
        let mut opened: fs::File = het_files::open(&file.path, Links::Followed)?;
        while self.goes_on() {
            let bytes = opened.read(block)? as u64;
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

    #[test]
    fn a_directory_is_read_with_what_its_links_lead_to_and_no_further_than_there_is_room() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let model = dir.path().join("model");
        fs::create_dir_all(model.join("snapshot")).expect("it is writable");
        fs::write(dir.path().join("blob"), vec![1; 3_000_000]).expect("it is writable");
        std::os::unix::fs::symlink("../../blob", model.join("snapshot/weights"))
            .expect("a link can be made");
        let left_of = |room: u64, input: &Path| {
            let mut reader = Reader { is_over: Arc::default(), left: room, seen: BTreeSet::new() };
            reader.read_all(input);
            reader.left
        };
        assert_eq!(left_of(10_000_000, &model), 7_000_000);
        assert_eq!(left_of(10_000_000, dir.path()), 7_000_000, "once by each of its names");
        assert_eq!(left_of(1_000_000, &dir.path().join("blob")), 0);
        assert_eq!(left_of(10_000_000, &dir.path().join("missing")), 10_000_000);
        assert_eq!(left_of(10_000_000, Path::new("/dev/zero")), 10_000_000);
    }

    #[test]
    fn an_input_is_a_path_or_a_model_of_the_cache() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let cache = dir.path().join("hub");
        let model = cache.join("models--org--small");
        fs::create_dir_all(&model).expect("it is writable");
        fs::write(dir.path().join("data.txt"), "text").expect("it is writable");
        let check = |input: &str| found(input, dir.path(), Some(&cache));
        assert_eq!(check("data.txt"), dir.path().join("data.txt"));
        assert_eq!(check("org/small"), model);
        assert_eq!(check("org/other"), dir.path().join("org/other"));
        fs::create_dir_all(model.join("snapshots/4f2")).expect("it is writable");
        fs::create_dir(model.join("refs")).expect("it is writable");
        fs::write(model.join("refs/main"), "4f2").expect("it is writable");
        assert_eq!(check("org/small"), model.join("snapshots/4f2"));
    }

    #[test]
    fn what_cannot_be_copied_as_a_whole_is_not_copied() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let model = dir.path().join("model");
        fs::create_dir(&model).expect("it is writable");
        fs::write(model.join("weights"), "weights").expect("it is writable");
        let copies = copies(dir.path());
        let is_copied = || {
            let brought = copies.bring(&model, &AtomicBool::new(false));
            brought.expect("nothing fails").is_some()
        };
        assert!(is_copied());
        for target in ["/tmp", "nothing"] {
            std::os::unix::fs::symlink(target, model.join("shards")).expect("it can be made");
            assert!(!is_copied(), "a link to {target}");
            fs::remove_file(model.join("shards")).expect("it is ours");
        }
        assert!(is_copied());
    }

    #[test]
    fn a_copy_of_which_something_was_removed_is_made_again() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let data = dir.path().join("data.txt");
        fs::write(&data, "text").expect("it is writable");
        let copies = copies(dir.path());
        let first = bring(&copies, &data);
        fs::remove_file(&first.paths().path).expect("it is ours");
        let second = bring(&copies, &data);
        assert_ne!(first.paths(), second.paths());
        assert_eq!(fs::read_to_string(&second.paths().path).expect("it is there"), "text");
    }

    /// Copies in a directory, all inputs of which are copied.
    fn copies(dir: &Path) -> Copies {
        let settings = InputCopies { which: CopyInputs::Always, dir: dir.to_owned() };
        Copies::new(&settings, Path::new("/run/het"))
    }

    fn bring(copies: &Copies, input: &Path) -> HeldCopy {
        let brought = copies.bring(input, &AtomicBool::new(false));
        brought.expect("it can be copied").expect("there is room")
    }

    #[test]
    fn a_copy_is_used_as_long_as_the_input_is_the_same() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let model = dir.path().join("model");
        fs::create_dir_all(model.join("part")).expect("it is writable");
        fs::write(model.join("part/weights"), "first").expect("it is writable");
        let copies = copies(dir.path());
        let first = bring(&copies, &model);
        let copied = |copy: &HeldCopy| {
            fs::read_to_string(copy.paths().path.join("part/weights")).expect("it is there")
        };
        assert_eq!(copied(&first), "first");
        assert_eq!(bring(&copies, &model).paths(), first.paths());
        fs::write(model.join("part/weights"), "second").expect("it is writable");
        let second = bring(&copies, &model);
        assert_eq!((copied(&first), copied(&second)), ("first".to_owned(), "second".to_owned()));
        let file = bring(&copies, &model.join("part/weights"));
        assert!(file.paths().path.ends_with("weights"));
        assert_eq!(fs::read_to_string(&file.paths().path).expect("it is there"), "second");
    }

    #[test]
    fn half_a_copy_is_none() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let data = dir.path().join("data.txt");
        fs::write(&data, "text").expect("it is writable");
        let gave_up = copies(dir.path()).bring(&data, &AtomicBool::new(true));
        assert!(gave_up.expect("nothing fails").is_none());
        let copy = bring(&copies(dir.path()), &data);
        // An engine died while it made one.
        let half = copy.paths().path.with_file_name("../copy-9");
        fs::create_dir(&half).expect("it is writable");
        bring(&copies(dir.path()), &data);
        assert!(!half.exists());
    }

    #[test]
    fn a_directory_of_somebody_else_is_not_written_to() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let data = dir.path().join("data.txt");
        fs::write(&data, "text").expect("it is writable");
        let trap = dir.path().join(format!("heterosis-inputs-{}", nix::unistd::getuid()));
        std::os::unix::fs::symlink("/tmp", &trap).expect("a link can be made");
        let refused = copies(dir.path()).bring(&data, &AtomicBool::new(false));
        assert_eq!(refused.expect_err("it is a link").kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn what_a_lease_holds_is_held_by_the_next_engine() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let data = dir.path().join("data.txt");
        fs::write(&data, "text").expect("it is writable");
        let copy = bring(&copies(dir.path()), &data);
        let path = copy.paths().path.clone();
        let launch = Launch {
            inputs: vec!["org/model".to_owned(), "data.txt".to_owned()],
            ..Launch::default()
        };
        let local = LocalInputs([(1, Arc::new(copy))].into());
        assert_eq!(local.text(&launch, str::to_owned), format!("org/model\n{}", path.display()));
        let lease = dir.path().join("lease-1");
        fs::create_dir(&lease).expect("it is writable");
        local.note(&lease).expect("it is writable");
        let next = copies(dir.path());
        assert_eq!(
            LocalInputs::noted(&lease, &next).text(&launch, str::to_owned),
            local.text(&launch, str::to_owned)
        );
        let elsewhere = format!(r#"{{"0": {{"dir": "{0}", "path": "{0}"}}}}"#, "/etc");
        fs::write(copies_path(&lease), elsewhere).expect("it is writable");
        assert!(LocalInputs::noted(&lease, &next).is_empty());
    }
}
