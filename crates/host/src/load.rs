//! What something beside jobs takes of the speed of devices: processes that are of no job, heat, a
//! lack of memory. Facts where it matters for a while, and the present figures.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use het_core::{Degradation, DegradationCause, DeviceId, Event, Micro, State};
use het_devices::{DeviceLoad, Discovery, LoadSource, NodeLoad, System};
use het_node::{LiveLeases, ProcessOwner, ProcessorTime, SessionTime};

use crate::external::occupant;

/// Between two readings: processor times are counted in hundredths of a second.
const READ_EVERY: Duration = Duration::from_secs(4);
/// How much of what is known a reading makes: half of the speed gone is told after three.
const WEIGHT: f64 = 0.2;
/// Less than this part of the speed is told.
const DEGRADED: f64 = 0.8;
/// More is as good as all of it.
const RESTORED: f64 = 0.9;
/// A change of what was told, by which it is told again.
const CHANGE: f64 = 0.1;

/// The newest reading, for whoever shows it.
#[derive(Debug, Clone, Default)]
pub struct LatestLoad(Arc<Mutex<NodeLoad>>);

impl LatestLoad {
    pub fn read(&self) -> NodeLoad {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn write(&self, load: NodeLoad) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = load;
    }
}

/// Reads the load of this machine again and again.
#[derive(Debug)]
pub(crate) struct LoadWatch {
    source: LoadSource,
    /// Cores of the CPU sockets.
    sockets: BTreeMap<DeviceId, Vec<u32>>,
    times: ProcessorTime,
    read: Option<Instant>,
    told: Told,
    latest: LatestLoad,
}

impl LoadWatch {
    pub fn open(system: &System, discovery: &Discovery, state: &State) -> Self {
        let left = |id| Some((id, state.degraded(id)?.degradation.left.as_f64()));
        let mean: BTreeMap<DeviceId, f64> =
            state.topology().device_ids().filter_map(left).collect();
        let told = mean.iter().map(|(&id, &left)| (id, (left, None))).collect();
        Self {
            source: LoadSource::open(system, discovery),
            sockets: discovery.cores.clone(),
            times: ProcessorTime::default(),
            read: None,
            told: Told { mean, told },
            latest: LatestLoad::default(),
        }
    }

    pub fn latest(&self) -> LatestLoad {
        self.latest.clone()
    }

    /// What changed for devices since the reading before; nothing where the next is not due.
    pub fn news(&mut self, leases: impl FnOnce() -> LiveLeases) -> Vec<Event> {
        let now = Instant::now();
        let span = self.read.map(|before| now - before);
        if span.is_some_and(|span| span < READ_EVERY) {
            return Vec::new();
        }
        self.read = Some(now);
        let load = self.source.read();
        let sessions = self.times.read(&leases());
        let span = span.unwrap_or_default();
        let degraded = load.devices.iter().map(|(&id, device)| {
            let cores = self.sockets.get(&id);
            let contended = cores.and_then(|cores| contention(device, cores, &sessions, span));
            (id, degradation(device, contended, load.pressure.map_or(0.0, |it| it.memory_full)))
        });
        let news = self.told.news(degraded.collect());
        self.latest.write(load);
        news
    }
}

/// Others' part in the work of a socket.
struct Contention<'a> {
    /// What whoever wants all of its cores gets.
    left: f64,
    /// Who works most there.
    by: Option<&'a SessionTime>,
}

/// Whoever wants all cores of a socket, on which others keep so many busy, gets its fair share.
fn contention<'a>(
    device: &DeviceLoad,
    cores: &[u32],
    sessions: &'a [SessionTime],
    span: Duration,
) -> Option<Contention<'a>> {
    let count = cores.len() as f64;
    let busy = device.busy? * count;
    // A session may have worked on several sockets: each gets its part.
    let here = |session: &SessionTime| {
        let on = session.cores.iter().filter(|core| cores.contains(core)).count();
        let part = on as f64 / session.cores.len().max(1) as f64;
        // What it collected of a process that ended may be of a long time.
        (part * session.time.as_seconds() / span.as_secs_f64().max(1e-3)).min(count)
    };
    let of = |owner: ProcessOwner| sessions.iter().filter(move |session| session.owner == owner);
    let ours: f64 = of(ProcessOwner::Lease).map(here).sum();
    let others = (busy - ours).max(0.0);
    let by = of(ProcessOwner::External).max_by(|a, b| here(a).total_cmp(&here(b)));
    let by = by.filter(|session| here(session) > 0.0);
    Some(Contention { left: count / (count + others), by })
}

/// The worst that takes a part of a device's speed.
fn degradation(
    device: &DeviceLoad,
    contention: Option<Contention<'_>>,
    memory_full: f64,
) -> (f64, Cause) {
    let others = [
        contention.map(|it| (it.left, Cause::Contention { process: it.by.map(|by| by.process) })),
        device.throttled_to.map(|part| (part, Cause::Throttling)),
    ];
    let memory = (1.0 - memory_full, Cause::MemoryPressure);
    let worse = |worst: (f64, Cause), other: (f64, Cause)| match other.0 < worst.0 {
        true => other,
        false => worst,
    };
    others.into_iter().flatten().fold(memory, worse)
}

/// As [`DegradationCause`], but that nobody looks up whose a process is before it is told.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cause {
    Contention { process: Option<u32> },
    Throttling,
    MemoryPressure,
}

impl Cause {
    /// Processes come and go: another one is no other cause.
    fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    fn named(self) -> DegradationCause {
        match self {
            Self::Contention { process } => {
                DegradationCause::Contention { by: process.map(occupant) }
            }
            Self::Throttling => DegradationCause::Throttling,
            Self::MemoryPressure => DegradationCause::MemoryPressure,
        }
    }
}

/// What is left of devices' speeds, and what of it the control loop was told.
#[derive(Debug, Default)]
struct Told {
    /// Over the last readings.
    mean: BTreeMap<DeviceId, f64>,
    /// Devices that were told to be degraded; with the cause, where this process told it.
    told: BTreeMap<DeviceId, (f64, Option<Cause>)>,
}

impl Told {
    fn news(&mut self, read: BTreeMap<DeviceId, (f64, Cause)>) -> Vec<Event> {
        read.into_iter()
            .filter_map(|(device, (left, cause))| self.of(device, left, cause))
            .collect()
    }

    fn of(&mut self, device: DeviceId, left: f64, cause: Cause) -> Option<Event> {
        let mean = self.mean.entry(device).or_insert(1.0);
        *mean += WEIGHT * (left.clamp(0.0, 1.0) - *mean);
        let mean = *mean;
        match self.told.get(&device) {
            None if mean >= DEGRADED => None,
            Some(_) if mean > RESTORED => {
                self.told.remove(&device);
                Some(Event::DeviceRestored { device })
            }
            Some((told, by))
                if (mean - told).abs() < CHANGE && by.is_none_or(|by| by.is_like(cause)) =>
            {
                None
            }
            _ => {
                self.told.insert(device, (mean, Some(cause)));
                let left = Micro::from_f64((mean * 100.0).round() / 100.0)?.max(Micro(10_000));
                let degradation = Degradation { left, cause: cause.named() };
                Some(Event::DeviceDegraded { device, degradation })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use het_core::Millis;
    use het_devices::Clock;

    use super::*;

    fn session(owner: ProcessOwner, process: u32, seconds: u64, cores: &[u32]) -> SessionTime {
        let cores: BTreeSet<u32> = cores.iter().copied().collect();
        SessionTime { time: Millis::seconds(seconds), process, cores, owner }
    }

    #[test]
    fn what_others_work_is_what_is_busy_and_of_no_job() {
        let socket = DeviceLoad { busy: Some(0.75), ..DeviceLoad::default() };
        let sessions = [
            session(ProcessOwner::Lease, 1, 8, &[0, 1]),
            session(ProcessOwner::External, 2, 2, &[2]),
            session(ProcessOwner::External, 3, 2, &[3, 9]),
            session(ProcessOwner::External, 4, 30, &[9]),
        ];
        let span = Duration::from_secs(8);
        let found = contention(&socket, &[0, 1, 2, 3], &sessions, span).expect("it is read");
        // Three cores are busy, one with our work; processes that are gone made the rest.
        assert!((found.left - 4.0 / 6.0).abs() < 1e-9, "{}", found.left);
        assert_eq!(found.by.map(|by| by.process), Some(2));
        let unread = DeviceLoad::default();
        assert!(contention(&unread, &[0], &sessions, span).is_none());
    }

    #[test]
    fn the_worst_cause_is_told() {
        let clock = Some(Clock { mhz: 500, rated_mhz: 1_000 });
        let cool = DeviceLoad { clock, ..DeviceLoad::default() };
        let hot = DeviceLoad { throttled_to: Some(0.5), ..cool };
        assert_eq!(degradation(&cool, None, 0.25), (0.75, Cause::MemoryPressure));
        assert_eq!(degradation(&hot, None, 0.25), (0.5, Cause::Throttling));
        let contended = || Some(Contention { left: 0.25, by: None });
        let cause = Cause::Contention { process: None };
        assert_eq!(degradation(&hot, contended(), 0.25), (0.25, cause));
    }

    #[test]
    fn a_burst_is_not_told_and_a_neighbour_is_after_three_readings() {
        let device = DeviceId(0);
        let mut told = Told::default();
        let mut look = |left: f64| {
            told.of(device, left, Cause::Throttling).map(|event| match event {
                Event::DeviceDegraded { degradation, .. } => degradation.left.0 / 10_000,
                _ => 100,
            })
        };
        assert_eq!([look(0.5), look(0.5)], [None; 2]);
        assert!((0..20).all(|_| look(1.0).is_none()));
        let found: Vec<Option<i64>> = (0..20).map(|_| look(0.5)).collect();
        assert_eq!(found[..4], [None, None, Some(75), None]);
        let found: Vec<i64> = found.into_iter().flatten().collect();
        assert_eq!(found, [75, 63, 53]);
        let found: Vec<i64> = (0..20).filter_map(|_| look(1.0)).collect();
        assert_eq!(found.last(), Some(&100));
        assert!(found.is_sorted(), "{found:?}");
    }
}
