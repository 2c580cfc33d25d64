//! Looks for whole checkpoints below the directories in which the programs of a gang work.
//!
//! It looks at few directories and entries, and says so once where there are more: a stage may work
//! in a directory with a million files. It follows no symbolic link. What was there before is of
//! somebody else, unless it is written again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use het_core::{Checkpoint, LeaseId, Progress};
use het_files::{Entry, Kind, is_directory, list};
use nix::sys::inotify::WatchDescriptor;

use super::directory_watch::DirectoryWatch;
use super::format::{Format, Stamp, Whole};

/// Most levels below a root: `lightning_logs/version_0/checkpoints` in an output directory that is
/// not named.
const DEPTH_MAX: u32 = 4;
/// Most directories that are looked into, of one gang.
const DIRECTORIES_MAX: usize = 256;
/// Most entries that are read at the start, and in one directory later.
const ENTRIES_MAX: usize = 5_000;

/// How far the time of a file may be behind the clock: a tick of the slowest kernel.
const CLOCK_TICK: Duration = Duration::from_millis(10);

/// Directories of other people's files.
const NEVER: [&str; 3] = ["__pycache__", "node_modules", "site-packages"];

/// Where a gang may save.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SearchRoots {
    /// Directories that its words name: what appears there is its own.
    pub(crate) named: Vec<PathBuf>,
    /// Where its programs start: what appears there is its own while no other gang works there.
    pub(crate) cwd: PathBuf,
    /// Where another rule finds what is called `checkpoint-N`.
    pub(crate) declared: Option<PathBuf>,
}

impl SearchRoots {
    pub(crate) fn all(&self) -> Vec<PathBuf> {
        let Self { named, cwd, declared } = self;
        declared.iter().chain(named).chain([cwd]).cloned().collect()
    }
}

#[derive(Debug)]
pub(crate) struct CheckpointSearch {
    lease: LeaseId,
    roots: SearchRoots,
    /// When the gang began.
    since: SystemTime,
    /// Directories that are looked into, with their levels below a root.
    directories: BTreeMap<PathBuf, u32>,
    /// Those among them with too many entries.
    given_up: BTreeSet<PathBuf>,
    /// Where to look when a watched directory has changed.
    watched: BTreeMap<WatchDescriptor, PathBuf>,
    /// Of what was found or is not of this gang.
    known: BTreeMap<PathBuf, Stamp>,
    changed: BTreeSet<PathBuf>,
    is_incomplete: bool,
    is_incompleteness_told: bool,
}

/// How much of what is there is looked at. It is the gang's own if it is not older than that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// For the first time: so many entries in all.
    First,
    /// So many in each directory that has changed.
    Again,
}

impl CheckpointSearch {
    /// Watches from now on for a gang that began at that time.
    pub(crate) fn begin(lease: LeaseId, roots: SearchRoots, since: SystemTime) -> Self {
        Self {
            lease,
            roots,
            since: since - CLOCK_TICK,
            directories: BTreeMap::new(),
            given_up: BTreeSet::new(),
            watched: BTreeMap::new(),
            known: BTreeMap::new(),
            changed: BTreeSet::new(),
            is_incomplete: false,
            is_incompleteness_told: false,
        }
    }

    pub(crate) fn end(&mut self, watch: &mut DirectoryWatch) {
        for descriptor in std::mem::take(&mut self.watched).into_keys() {
            watch.remove(self.lease, descriptor);
        }
    }

    /// These directories have changed.
    pub(crate) fn changed(&mut self, descriptors: &BTreeSet<WatchDescriptor>) {
        let dirs = descriptors.iter().filter_map(|descriptor| self.watched.get(descriptor));
        self.changed.extend(dirs.cloned());
    }

    /// Any may have changed.
    pub(crate) fn any_changed(&mut self) {
        let all = self.directories.keys().filter(|dir| !self.given_up.contains(*dir));
        self.changed.extend(all.cloned());
    }

    /// Some of its directories are not looked into. True once.
    pub(crate) fn take_incomplete(&mut self) -> bool {
        self.is_incomplete && !std::mem::replace(&mut self.is_incompleteness_told, true)
    }

    /// Checkpoints that were completed since the last call, and the progress in their state files.
    pub(crate) fn read(
        &mut self,
        look: Look,
        watch: &mut DirectoryWatch,
    ) -> (Vec<Checkpoint>, Vec<Progress>) {
        let missing =
            self.roots.all().into_iter().filter(|root| !self.directories.contains_key(root));
        let mut dirs: VecDeque<(PathBuf, u32)> = missing.map(|root| (root, 0)).collect();
        let level = |dir: PathBuf| Some((dir.clone(), *self.directories.get(&dir)?));
        dirs.extend(std::mem::take(&mut self.changed).into_iter().filter_map(level));
        let (mut found, mut progress) = (Vec::new(), Vec::new());
        for Whole { path, step, state } in self.look(dirs, look, watch) {
            found.push(Checkpoint { step, path: path.to_string_lossy().into_owned() });
            progress.extend(state.map(|state| state.progress()));
        }
        (found, progress)
    }

    /// Looks into directories, near ones first, and into new ones below them.
    fn look(
        &mut self,
        mut dirs: VecDeque<(PathBuf, u32)>,
        look: Look,
        watch: &mut DirectoryWatch,
    ) -> Vec<Whole> {
        let (mut found, mut entries_left) = (Vec::new(), ENTRIES_MAX);
        while let Some((dir, level)) = dirs.pop_front() {
            if look == Look::Again {
                entries_left = ENTRIES_MAX;
            }
            let is_new = !self.directories.contains_key(&dir);
            if is_new {
                if self.watch(&dir, &dir, watch).is_none() {
                    self.is_incomplete |= is_directory(&dir);
                    continue;
                }
                self.directories.insert(dir.clone(), level);
            }
            let listing = list(&dir, entries_left);
            entries_left -= listing.entries.len();
            if listing.is_cut {
                self.give_up(&dir, watch);
            }
            for Entry { name, path, kind } in listing.entries {
                match Format::of(&name, kind) {
                    Some(format) => found.extend(self.candidate(format, &path, watch)),
                    None if kind == Kind::Directory
                        && level < DEPTH_MAX
                        && !is_avoided(&name)
                        && !self.directories.contains_key(&path) =>
                    {
                        dirs.push_back((path, level + 1));
                    }
                    None => {}
                }
            }
        }
        found
    }

    /// A checkpoint if it is whole, of this gang and not known.
    fn candidate(
        &mut self,
        format: Format,
        path: &Path,
        watch: &mut DirectoryWatch,
    ) -> Option<Whole> {
        let parent = path.parent().unwrap_or(path);
        if matches!(format, Format::Trainer(_)) && self.roots.declared.as_deref() == Some(parent) {
            return None;
        }
        let is_known = |stamp: &Stamp| self.known.get(path) == Some(stamp);
        if format.stamp(path).as_ref().is_some_and(is_known) {
            return None;
        }
        // Before looking inside, so that what is written afterwards is looked at again.
        let inside = self.watch(path, parent, watch);
        let stamp = format.stamp(path)?;
        let is_old = stamp.is_before(self.since);
        let whole = if is_old { None } else { format.read(path) };
        // Half of one is read again.
        if is_old || whole.is_some() {
            self.known.insert(path.to_owned(), stamp);
            inside.into_iter().for_each(|descriptor| self.unwatch(descriptor, watch));
        }
        whole.filter(|_| self.is_named(path) || !watch.is_shared(self.lease))
    }

    fn is_named(&self, path: &Path) -> bool {
        let mut named = self.roots.named.iter().chain(&self.roots.declared);
        named.any(|root| path.starts_with(root))
    }

    /// Watches a directory, at whose changes another is looked into; `None` for a file, where a
    /// directory is gone again, and beyond the most that are watched.
    fn watch(
        &mut self,
        dir: &Path,
        look_into: &Path,
        watch: &mut DirectoryWatch,
    ) -> Option<WatchDescriptor> {
        if self.watched.len() >= DIRECTORIES_MAX {
            return None;
        }
        let descriptor = watch.add(self.lease, dir).ok()?;
        self.watched.entry(descriptor).or_insert_with(|| look_into.to_owned());
        Some(descriptor)
    }

    fn unwatch(&mut self, descriptor: WatchDescriptor, watch: &mut DirectoryWatch) {
        self.watched.remove(&descriptor);
        watch.remove(self.lease, descriptor);
    }

    /// A directory with too many entries is not looked into again.
    fn give_up(&mut self, dir: &Path, watch: &mut DirectoryWatch) {
        self.is_incomplete = true;
        self.given_up.insert(dir.to_owned());
        let into = self.watched.iter().filter(|(_, into)| *into == dir);
        let descriptors: Vec<WatchDescriptor> = into.map(|(&descriptor, _)| descriptor).collect();
        descriptors.into_iter().for_each(|descriptor| self.unwatch(descriptor, watch));
    }
}

/// Hidden directories, and those of other people's files.
fn is_avoided(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with('.') || NEVER.contains(&&*name)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use std::time::UNIX_EPOCH;

    use het_core::Time;
    use tempfile::TempDir;

    use super::*;
    use crate::checkpoint::ChangedDirectories;

    const LEASE: LeaseId = LeaseId(1);

    /// A gang that works in a directory, or below it.
    struct Scene {
        dir: TempDir,
        watch: DirectoryWatch,
        search: Option<CheckpointSearch>,
        /// What the first look found.
        first: Vec<Checkpoint>,
    }

    impl Scene {
        /// With these files of `Trainer` that are there before the gang begins.
        fn before(paths: &[&str]) -> Self {
            let dir = tempfile::tempdir().expect("a temporary directory can be made");
            let watch = DirectoryWatch::new().expect("inotify works");
            let scene = Self { dir, watch, search: None, first: Vec::new() };
            for path in paths {
                scene.save(path);
                scene.set_modified(path, SystemTime::now() - Duration::from_secs(1));
            }
            scene
        }

        fn begin(&mut self, named: &[&str]) {
            self.begin_since(named, SystemTime::now());
        }

        fn begin_since(&mut self, named: &[&str], since: SystemTime) {
            let root = self.dir.path().to_owned();
            let named = named.iter().map(|dir| root.join(dir)).collect();
            let roots = SearchRoots { named, cwd: root.clone(), declared: Some(root.join("ckpt")) };
            self.watch.enter(LEASE, roots.all());
            let mut search = CheckpointSearch::begin(LEASE, roots, since);
            self.first = search.read(Look::First, &mut self.watch).0;
            self.search = Some(search);
        }

        fn save(&self, checkpoint: &str) {
            let path = self.dir.path().join(checkpoint);
            fs::create_dir_all(&path).expect("a directory can be made");
            fs::write(path.join("trainer_state.json"), r#"{"global_step":5}"#).expect("a file");
        }

        fn set_modified(&self, checkpoint: &str, at: SystemTime) {
            let state = self.dir.path().join(checkpoint).join("trainer_state.json");
            let file = fs::File::options().write(true).open(state).expect("it was written");
            file.set_modified(at).expect("its time can be set");
        }

        /// Paths that are found by what the kernel tells, without looking at everything.
        fn found(&mut self) -> Vec<String> {
            let search = self.search.as_mut().expect("it has begun");
            match self.watch.read(Time::ZERO) {
                ChangedDirectories::Of(changed) => {
                    changed.values().for_each(|directories| search.changed(directories));
                }
                ChangedDirectories::Any => search.any_changed(),
            }
            let (found, _) = search.read(Look::Again, &mut self.watch);
            let root = format!("{}/", self.dir.path().display());
            found.iter().map(|found| found.path.replace(&root, "")).collect()
        }
    }

    #[test]
    fn a_checkpoint_is_found_wherever_it_appears_and_once() {
        let mut scene = Scene::before(&["out/checkpoint-5"]);
        scene.begin(&[]);
        assert_eq!(scene.found(), [""; 0], "it was there before");
        for path in ["out/checkpoint-10", "a/b/c/checkpoint-5", "checkpoint-7"] {
            scene.save(path);
            assert_eq!(scene.found(), [path]);
        }
        scene.save("out/checkpoint-5");
        scene.search.as_mut().expect("it has begun").any_changed();
        assert_eq!(scene.found(), ["out/checkpoint-5"], "it was written again");
        assert_eq!(scene.found(), [""; 0]);
    }

    #[test]
    fn it_is_found_when_its_last_file_is_there() {
        let mut scene = Scene::before(&[]);
        scene.begin(&[]);
        let path = scene.dir.path().join("out/checkpoint-5");
        fs::create_dir_all(&path).expect("a directory can be made");
        assert_eq!(scene.found(), [""; 0]);
        fs::write(path.join("trainer_state.json"), r#"{"global_st"#).expect("a file");
        assert_eq!(scene.found(), [""; 0], "half of it is written");
        scene.save("out/checkpoint-5");
        assert_eq!(scene.found(), ["out/checkpoint-5"]);
    }

    #[test]
    fn some_places_are_not_looked_into() {
        let mut scene = Scene::before(&[]);
        scene.begin(&[]);
        scene.save("a/b/c/d/e/checkpoint-5");
        scene.save(".cache/checkpoint-5");
        scene.save("node_modules/checkpoint-5");
        // What another rule finds.
        scene.save("ckpt/checkpoint-5");
        let elsewhere = tempfile::tempdir().expect("a temporary directory can be made");
        std::os::unix::fs::symlink(elsewhere.path(), scene.dir.path().join("link"))
            .expect("a link");
        scene.save("link/checkpoint-5");
        assert_eq!(scene.found(), [""; 0]);
    }

    #[test]
    fn where_others_work_too_only_what_it_names_is_its_own() {
        let mut scene = Scene::before(&[]);
        scene.begin(&["out"]);
        scene.save("one/checkpoint-5");
        assert_eq!(scene.found(), ["one/checkpoint-5"]);
        let other = SearchRoots { cwd: scene.dir.path().to_owned(), ..SearchRoots::default() };
        scene.watch.enter(LeaseId(2), other.all());
        let mut other = CheckpointSearch::begin(LeaseId(2), other, SystemTime::now());
        other.read(Look::First, &mut scene.watch);
        scene.save("one/checkpoint-10");
        scene.save("out/checkpoint-10");
        assert_eq!(scene.found(), ["out/checkpoint-10"]);
        other.end(&mut scene.watch);
        scene.watch.leave(LeaseId(2));
        scene.save("one/checkpoint-15");
        assert_eq!(scene.found(), [""; 0], "it may have been of the other");
    }

    #[test]
    fn one_that_was_taken_over_has_what_appeared_since_it_began() {
        let mut scene = Scene::before(&["out/checkpoint-5"]);
        let began = SystemTime::now() - Duration::from_secs(60);
        scene.begin_since(&[], began);
        assert_eq!(scene.first.iter().map(|found| found.step).collect::<Vec<_>>(), [5]);
        scene.save("out/checkpoint-10");
        scene.set_modified("out/checkpoint-10", UNIX_EPOCH + Duration::from_secs(1));
        assert_eq!(scene.found(), [""; 0], "it is older than the gang");
    }

    #[test]
    fn a_crowded_directory_is_given_up_and_said_once() {
        let mut scene = Scene::before(&[]);
        for index in 0..=ENTRIES_MAX {
            fs::write(scene.dir.path().join(index.to_string()), "").expect("a file");
        }
        scene.begin(&["out"]);
        let search = scene.search.as_mut().expect("it has begun");
        assert!(search.take_incomplete());
        scene.save("out/checkpoint-5");
        assert_eq!(scene.found(), ["out/checkpoint-5"], "it is named");
        assert!(!scene.search.as_mut().expect("it has begun").take_incomplete());
    }
}
