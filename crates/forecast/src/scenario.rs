//! What is played: a cluster, its work, who may have what of it, and what goes wrong.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_control::{Cadence, Retention};
use het_core::{
    DeviceClass, DeviceId, Event, JobId, JobSpec, Name, Quotas, Selector, Share, StageKey,
    StageSpec, Time, Topology, lineage,
};
use het_perf::Rates;
use het_sim::{Fault, StageModel};

/// A cluster, its work, and what goes wrong.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub seed: u64,
    pub topology: Topology,
    /// By arrival; job ids count from 1 in this order.
    pub jobs: Vec<(Time, Arc<JobSpec>)>,
    pub models: BTreeMap<StageKey, Arc<StageModel>>,
    /// What policies are told about speeds.
    pub rates: Rates,
    pub cadence: Cadence,
    /// How many ended jobs the state keeps.
    pub retention: Retention,
    /// What tenants may have, from the beginning on.
    pub quotas: Quotas,
    /// Of an hour of one device, by class, in whatever currency.
    pub prices: BTreeMap<Name, f64>,
    pub faults: Vec<(Time, Fault)>,
    /// Holds, releases and cancels.
    pub words: Vec<(Time, Event)>,
}

impl Scenario {
    /// What users and administrators say, by time.
    pub fn said(&self) -> Vec<(Time, Event)> {
        let quotas = (!self.quotas.is_empty()).then(|| {
            let quotas = Arc::new(self.quotas.clone());
            (Time::ZERO, Event::QuotasSet { quotas })
        });
        let submits = self.jobs.iter().enumerate().map(|(index, (at, spec))| {
            let event = Event::JobSubmitted {
                job: JobId(index as u64 + 1),
                spec: Arc::clone(spec),
                succeeded: Vec::new(),
                checkpoints: Vec::new(),
            };
            (*at, event)
        });
        let words = self.words.iter().cloned();
        let mut rows: Vec<_> = quotas.into_iter().chain(submits).chain(words).collect();
        rows.sort_by_key(|(at, _)| *at);
        rows
    }

    /// The first job of which no shape is within the limits of its tenant, the units of its
    /// smallest shape, and the tenant.
    pub fn beyond_limits(&self) -> Option<(JobId, u32, Name)> {
        if self.quotas.is_empty() {
            return None;
        }
        let capacity = self.topology.units_by_class();
        let most = |tenant: &str, selector: &Selector| -> u32 {
            let classes = self.topology.classes.iter().enumerate();
            let accepted = classes.filter(|(index, _)| {
                let mut devices = self.topology.device_ids();
                let of_class = |id: &DeviceId| self.topology.device(*id).class == *index;
                let one = devices.find(of_class);
                one.is_some_and(|id| selector.accepts(&self.topology, id))
            });
            let of_class = |(index, class): (usize, &DeviceClass)| {
                let limits = lineage(tenant)
                    .filter_map(|name| self.quotas.of(name, class.id.as_str()).limit)
                    .map(Share::whole_units);
                limits.chain([capacity[index]]).min().unwrap_or(0)
            };
            accepted.map(of_class).sum()
        };
        self.jobs.iter().enumerate().find_map(|(index, (_, spec))| {
            let never = |stage: &&StageSpec| {
                let mut shapes = stage.alternatives.iter();
                shapes.all(|shape| most(spec.tenant.as_str(), &shape.selector) < shape.count)
            };
            let stage = spec.stages.iter().find(never)?;
            let units = stage.alternatives.iter().map(|shape| shape.count).min()?;
            Some((JobId(index as u64 + 1), units, spec.tenant.clone()))
        })
    }

    /// When everything is done at the latest, generously: three times the last arrival and the
    /// longest job, and all work together on the cluster.
    pub fn latest_end(&self) -> Time {
        let mut longest: BTreeMap<JobId, f64> = BTreeMap::new();
        let mut device_ms = 0.0;
        for (key, model) in &self.models {
            let ms = model.steps as f64 * model.longest_step_ns() as f64 / 1e6;
            let units = self.jobs.get(key.job.0 as usize - 1).map_or(1, |(_, spec)| {
                spec.stage(key.stage).alternatives.iter().map(|a| a.count).max().unwrap_or(1)
            });
            *longest.entry(key.job).or_default() += ms;
            device_ms += ms * f64::from(units);
        }
        let longest = longest.into_values().fold(0.0, f64::max);
        let units = self.topology.units_by_class().iter().sum::<u32>().max(1);
        let last = self.jobs.iter().map(|(at, _)| at.0).max().unwrap_or(0) as f64;
        Time((3.0 * (last + longest + device_ms / f64::from(units))) as u64)
    }
}
