//! What happens to this machine beside jobs: facts for the control loop, from a thread of its own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use het_core::{DeviceId, Event, Occupant, State};
use het_devices::{DeviceMonitor, DeviceObservation, Discovery, System};
use het_node::{EventSender, LiveLeases};

use crate::external::Reported;
use crate::load::{LatestLoad, LoadWatch};

/// Between two samples, unless a driver reports a fault before.
const SAMPLE_EVERY: Duration = Duration::from_secs(2);
/// Between the first sample and the second, which confirms it before anything starts.
const CONFIRM_AFTER: Duration = Duration::from_millis(100);

/// By what processes of jobs are told from others.
#[derive(Debug)]
pub struct OwnProcesses {
    /// For files of live leases.
    pub run_dir: PathBuf,
    /// Whoever starts agents, where jobs run as their users.
    pub supervisor: Option<u32>,
}

impl OwnProcesses {
    pub(crate) fn leases(&self) -> LiveLeases {
        LiveLeases::read(&self.run_dir).with_agents_of(self.supervisor)
    }
}

/// A monitor that runs.
#[derive(Debug)]
pub struct Monitor {
    /// Facts that have to be known before the first decision.
    pub first: Vec<Event>,
    pub repairs: Repairs,
    pub load: LatestLoad,
}

/// Lets the monitor know which devices an operator calls repaired: what fails from then on is
/// reported anew.
#[derive(Debug)]
pub struct Repairs(Sender<DeviceId>);

impl Repairs {
    pub fn observe(&self, event: &Event) {
        if let Event::DeviceRepaired { device } = event {
            // Where no thread samples, none needs to know.
            let _ = self.0.send(*device);
        }
    }
}

/// Samples now, and then for as long as this process lives. Facts after the first go through the
/// event_sender.
pub fn monitor(
    system: &System,
    discovery: &Discovery,
    (state, reserved): (&State, BTreeMap<DeviceId, Occupant>),
    own: OwnProcesses,
    event_sender: EventSender,
) -> Monitor {
    let (tell, repaired) = channel();
    let load = LoadWatch::open(system, discovery, state);
    let latest = load.latest();
    let reported = Reported::new(state, reserved);
    let devices = DeviceMonitor::open(system, discovery);
    let mut sampler = Sampler { devices, reported, load, own, repaired };
    let first = sampler.first();
    let run = move || sampler.run(&event_sender);
    // Without the thread devices are only sampled when a server starts.
    let _ = thread::Builder::new().name("monitor".to_owned()).spawn(run);
    Monitor { first, repairs: Repairs(tell), load: latest }
}

struct Sampler {
    /// None on a machine without devices to monitor.
    devices: Option<DeviceMonitor>,
    reported: Reported,
    load: LoadWatch,
    own: OwnProcesses,
    repaired: Receiver<DeviceId>,
}

impl Sampler {
    fn first(&mut self) -> Vec<Event> {
        // A device that cannot be sampled any more counts as free.
        let mut first = self.sample(None);
        if self.reported.awaits_confirmation() {
            first.extend(self.sample(Some(CONFIRM_AFTER)));
        }
        first
    }

    fn run(mut self, event_sender: &EventSender) {
        loop {
            let news = self.sample(Some(SAMPLE_EVERY));
            let load = self.load.news(|| self.own.leases());
            news.into_iter().chain(load).for_each(|event| event_sender.send(event));
        }
    }

    fn sample(&mut self, pause: Option<Duration>) -> Vec<Event> {
        let observation = match (&mut self.devices, pause) {
            (Some(devices), Some(pause)) => devices.observe_after(pause),
            (Some(devices), None) => devices.observe(),
            (None, pause) => {
                thread::sleep(pause.unwrap_or_default());
                DeviceObservation::default()
            }
        };
        self.repaired.try_iter().for_each(|device| self.reported.repaired(device));
        self.reported.news(&observation, || self.own.leases())
    }
}
