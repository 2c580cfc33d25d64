//! How long programs take to start and to save, as it was measured.

use std::collections::BTreeMap;

use het_core::{Bytes, Millis, Name, StageSpec};

use super::{Rates, Seen};

/// Time of a save, for a program of which none was measured yet. Tens of seconds are cited for
/// fine-tuning in Ray Train and Slurm practice.
pub const SAVE_DEFAULT: Millis = Millis::seconds(10);

/// Loading model and checkpoint, likewise: the median base-model load in the Alibaba GenAI 2026
/// data is 22.7 s.
pub const LOAD_DEFAULT: Millis = Millis::seconds(23);

/// What storage gives one job, bytes per second: 20 Gb/s, as it was for MT-NLG. Faster ones make
/// little difference beside the times above.
const STORAGE_BYTES_PER_S: f64 = 2.5e9;

/// Time of a save of a program of which none was measured yet: as is usual, or what its files take.
fn save_assumed(spec: &StageSpec) -> Millis {
    SAVE_DEFAULT.max(spec.planned.files.map_or(Millis::ZERO, |files| storing(files.checkpoint)))
}

/// The same of a start.
fn load_assumed(spec: &StageSpec) -> Millis {
    LOAD_DEFAULT.max(spec.planned.files.map_or(Millis::ZERO, |files| storing(files.weights)))
}

fn storing(bytes: Bytes) -> Millis {
    Millis((bytes.0 as f64 / STORAGE_BYTES_PER_S * 1e3) as u64)
}

/// What stopping a running stage and starting it again takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopTimes {
    /// From the notice to the end of a gang that saves.
    pub save: Millis,
    /// From a start to the first step.
    pub load: Millis,
}

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timed {
    Save,
    Load,
}

impl Timed {
    pub const ALL: [Self; 2] = [Self::Save, Self::Load];

    pub fn word(self) -> &'static str {
        match self {
            Self::Save => "save",
            Self::Load => "load",
        }
    }
}

/// Seconds that a program took, by number of devices.
pub(super) type Times = BTreeMap<(Timed, u32), Seen>;

fn of(times: &Times, timed: Timed) -> impl Iterator<Item = (u32, &Seen)> {
    times.range((timed, 0)..=(timed, u32::MAX)).map(|((_, units), seen)| (*units, seen))
}

/// On so many devices, or on the nearest number that was seen.
fn at(times: &Times, timed: Timed, units: u32) -> Option<Millis> {
    let (_, seen) = of(times, timed).min_by_key(|(size, _)| size.abs_diff(units))?;
    Some(Millis((seen.reported * 1e3) as u64))
}

/// On any number of them.
fn mean(times: &Times, timed: Timed) -> Option<Millis> {
    let all = of(times, timed).map(|(_, seen)| (seen.moments.count() as f64, seen.reported));
    let (count, sum) = all.fold((0.0, 0.0), |(n, s), (count, mean)| (n + count, s + count * mean));
    (count > 0.0).then(|| Millis((sum / count * 1e3) as u64))
}

impl Rates {
    /// Learns how long a program took to save, or from a start to its first step.
    pub fn observe_time(&mut self, profile: &Name, timed: Timed, units: u32, took: Millis) {
        if self.restarts.contains_key(profile) {
            return;
        }
        let times = self.times.entry(profile.clone()).or_default();
        let is_news = match times.get_mut(&(timed, units)) {
            Some(seen) => seen.add(took.as_seconds()),
            None => {
                times.insert((timed, units), Seen::first(took.as_seconds()));
                true
            }
        };
        if is_news {
            self.revise(profile);
        }
    }

    /// States how long `profile` takes from a start to its first step. It is not learned then.
    pub fn declare_restart(&mut self, profile: &Name, pause: Millis) {
        self.restarts.insert(profile.clone(), pause);
    }

    /// From a start, or a start elsewhere, to the first step.
    pub fn restart(&self, spec: &StageSpec) -> Millis {
        self.restart_known(&spec.profile).unwrap_or_else(|| load_assumed(spec))
    }

    /// The same, if anybody declared or measured it.
    pub fn restart_known(&self, profile: &Name) -> Option<Millis> {
        let declared = self.restarts.get(profile).copied();
        declared.or_else(|| mean(self.times.get(profile)?, Timed::Load))
    }

    /// What a stop and a start on so many devices take: as declared or measured, else what is
    /// usual, and at the least what its files take.
    pub fn stop_times(&self, spec: &StageSpec, units: u32) -> StopTimes {
        let measured = |timed| self.measured_time(&spec.profile, timed, units);
        let declared = self.restarts.get(&spec.profile).copied();
        StopTimes {
            save: measured(Timed::Save).unwrap_or_else(|| save_assumed(spec)),
            load: declared.or_else(|| measured(Timed::Load)).unwrap_or_else(|| load_assumed(spec)),
        }
    }

    /// One of the two as it was measured, on so many devices or the nearest number.
    pub fn measured_time(&self, profile: &Name, timed: Timed, units: u32) -> Option<Millis> {
        at(self.times.get(profile)?, timed, units)
    }
}
