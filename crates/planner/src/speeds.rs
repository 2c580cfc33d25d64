//! Planned speeds: what the planner expects of every gang that a stage may become, in each domain
//! of a cluster. Worked out once, when a job is submitted, and kept in its specification.

mod network;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use het_core::{
    Alternative, Bytes, DeviceClass, DeviceId, Domain, Index, JobSpec, Micro, Name, Planned,
    PlannedSpeeds, Speeds, StageSpec, Topology, TrainingFiles,
};
use het_parallel::{
    Batch, KnownModel, Pool, Problem, Request, known_model, known_models, pool_of_class, search,
};
use het_perf::training::{DeviceFigures, Optimizer, Precision, Tuning};
use het_wire::calibration::CalibrationFile;
use het_wire::catalogue;
use het_wire::job::{JobFile, PrecisionFile, TrainsFile, TuningFile};
use het_wire::text::{self, Lang};
use het_wire::topology::{Reach, reaches};

use network::Network;

/// Rank of adapters where nothing is said.
const RANK: u32 = 16;

/// Gangs of a job that are planned, in each domain: a job file may name many, and a search takes
/// milliseconds to seconds. Those beyond go without a planned speed.
const GANGS_MAX: usize = 32;

static MODELS: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| known_models().iter().map(|model| model.name).collect());

/// The models whose training can be planned.
pub fn models() -> &'static [&'static str] {
    &MODELS
}

/// Calibrations by the class that they were measured on.
pub type Measured = BTreeMap<String, CalibrationFile>;

/// Plans the stages of a job that say what they train: keeps the speeds in `spec`, and returns a
/// sentence for each gang that lacks memory. What was measured of a class takes the place of its
/// catalogue figures.
pub fn plan(
    file: &JobFile,
    topology: &Topology,
    measured: &Measured,
    spec: &mut JobSpec,
) -> Vec<String> {
    let mut warnings = Vec::new();
    if !file.spec.stages.iter().any(|shape| shape.needs.trains.is_some()) {
        return warnings;
    }
    let index = Index::of(topology);
    let ground = Ground { topology, index, reaches: reaches(topology), measured };
    for (stage, shape) in spec.stages.iter_mut().zip(&file.spec.stages) {
        let Some(trains) = &shape.needs.trains else { continue };
        let Some(model) = known_model(&trains.model) else { continue };
        stage.planned = ground.speeds(stage, model, trains);
        warnings.extend(too_large(stage, &trains.model));
    }
    warnings
}

/// One sentence for each gang that lacks memory.
fn too_large(stage: &StageSpec, model: &str) -> Vec<String> {
    let rows = stage.planned.iter();
    let lacking = rows.filter_map(|(class, units, planned)| match planned {
        Planned::Runs(_) => None,
        Planned::Lacks(bytes) => Some((class, units, bytes)),
    });
    let sentence = |(class, units, bytes): (&Name, u32, Bytes)| {
        let lacks = text::lacks(Lang::En, class, units, bytes);
        format!("stage `{}` trains `{model}`: {lacks}", stage.name)
    };
    lacking.map(sentence).collect()
}

/// What planning goes by, for all gangs of a job.
struct Ground<'a> {
    topology: &'a Topology,
    index: Index,
    /// By class.
    reaches: Vec<Reach>,
    measured: &'a Measured,
}

impl Ground<'_> {
    /// Every gang of the stage on every class that will do.
    fn speeds(&self, stage: &StageSpec, model: KnownModel, trains: &TrainsFile) -> PlannedSpeeds {
        let topology = self.topology;
        let gangs: BTreeSet<(usize, u32)> = stage
            .alternatives
            .iter()
            .flat_map(|one| classes(topology, one).into_iter().map(|class| (class, one.count)))
            .collect();
        let mut planned = PlannedSpeeds::of(files(model, trains));
        for (class, units) in gangs.into_iter().take(GANGS_MAX) {
            let Some(gang) = Gang::of(self, class, units) else { continue };
            if let Some(says) = gang.plan(model, trains, stage.within) {
                planned.insert(topology.classes[class].id.clone(), units, says);
            }
        }
        planned
    }
}

/// Classes of which an alternative accepts a device.
fn classes(topology: &Topology, alternative: &Alternative) -> Vec<usize> {
    let accepts = |class: &usize| {
        let of_class = |id: &DeviceId| topology.device(*id).class == *class;
        let mut devices = topology.device_ids().filter(of_class);
        devices.any(|id| alternative.selector.accepts(topology, id))
    };
    (0..topology.classes.len()).filter(accepts).collect()
}

/// So many devices of a class of a cluster.
struct Gang<'a> {
    class: &'a DeviceClass,
    units: u32,
    figures: DeviceFigures,
    measured: Option<&'a CalibrationFile>,
    network: Network,
    /// Whether it matters which of them stand in a node.
    links_differ: bool,
}

impl<'a> Gang<'a> {
    /// `None` for cores, of which the planner knows nothing, and for classes without figures.
    fn of(ground: &'a Ground<'_>, index: usize, units: u32) -> Option<Self> {
        let class = &ground.topology.classes[index];
        let known = catalogue::figures(class.id.as_str()).filter(|_| class.kind != "cpu")?;
        let peaks = [known.fp32_tflops, known.bf16_tflops, known.fp8_tflops];
        let figures = DeviceFigures::known(peaks, known.memory, known.memory_gbps)?;
        let measured = ground.measured.get(class.id.as_str());
        let network = Network::of(ground.topology, index, ground.reaches[index]);
        let of_class = ground.topology.devices.iter().filter(|device| device.class == index);
        let mut nodes = of_class.map(|device| device.node);
        let interconnects = &ground.index.interconnects;
        let links_differ = nodes.any(|node| !interconnects[node.index()].is_uniform());
        Some(Self { class, units, figures, measured, network, links_differ })
    }

    /// What the planner says of it in each domain that may hold it, up to the widest that the stage
    /// accepts. In a wider one it never stands.
    fn plan(&self, model: KnownModel, trains: &TrainsFile, widest: Domain) -> Option<Planned> {
        let mut by_domain = [None; Domain::ALL.len()];
        let mut last: Option<(Interconnect, Result<Micro, Bytes>)> = None;
        for domain in Domain::ALL.into_iter().filter(|domain| *domain <= widest) {
            let Some(interconnect) = self.interconnect(domain) else { continue };
            let says = match last {
                Some((same, says)) if same == interconnect => says,
                _ => self.steps_per_second(model, trains, interconnect)?,
            };
            last = Some((interconnect, says));
            by_domain[domain as usize] = Some(says);
        }
        let mut found = by_domain.iter().flatten();
        match found.clone().find_map(|says| says.ok()) {
            Some(best) => {
                // A domain that cannot hold it has the speed of the next that can.
                let mut speed = best;
                let speeds = by_domain.map(|says| {
                    speed = says.and_then(Result::ok).unwrap_or(speed);
                    speed
                });
                let exchange = self.exchange(model, trains, best).unwrap_or_default();
                Speeds::new(speeds).map(|speeds| Planned::Runs(speeds.exchanging(exchange)))
            }
            None => found.find_map(|says| says.err()).map(Planned::Lacks),
        }
    }

    /// Of a step inside a node, the part in which its devices exchange: by so much it is longer
    /// where their links have half of what the best have. `None` where links do not differ.
    fn exchange(&self, model: KnownModel, trains: &TrainsFile, best: Micro) -> Option<Micro> {
        if self.units < 2 || !self.links_differ {
            return None;
        }
        let halved = Interconnect { links_part: 0.5, ..self.interconnect(Domain::Node)? };
        let slower = self.steps_per_second(model, trains, halved)?.ok()?;
        Micro::from_f64(best.as_f64() / slower.as_f64() - 1.0)
    }

    /// How the gang stands in a domain of this size and no smaller one; `None` where it cannot.
    fn interconnect(&self, domain: Domain) -> Option<Interconnect> {
        let Network { node, joined, .. } = self.network;
        if domain != Domain::Node && (self.units == 1 || !self.network.wider.contains(&domain)) {
            return None;
        }
        let held_by = |together| {
            let (network_gbps, links_part) = (None, 1.0);
            let held = Interconnect { together, network_gbps, links_part };
            (self.units <= together).then_some(held)
        };
        match domain {
            Domain::Node => held_by(node),
            Domain::Rack if self.units <= joined => held_by(joined),
            _ => {
                // One that fits a node stands apart at best in halves.
                let together = node.max(joined).min(self.units.div_ceil(2)).max(1);
                let default = self.pool().machine.island.network_gbps;
                let network_gbps = self.network.gbps(domain, default);
                Some(Interconnect { together, network_gbps, links_part: 1.0 })
            }
        }
    }

    fn pool(&self) -> Pool {
        let Self { class, .. } = self;
        let mut pool =
            pool_of_class(class.id.as_str(), class.vendor.as_str(), self.figures, self.units);
        if let Some(measured) = self.measured {
            let efficiency = &mut pool.machine.efficiency;
            *efficiency = efficiency.slowed(measured.factors.to_array(), measured.error);
        }
        Pool { host_memory: self.network.host_memory, ..pool }
    }

    /// Optimiser steps per second, or what a device lacks; `None` where the planner has no answer.
    fn steps_per_second(
        &self,
        model: KnownModel,
        trains: &TrainsFile,
        interconnect: Interconnect,
    ) -> Option<Result<Micro, Bytes>> {
        let mut pool = self.pool();
        let island = &mut pool.machine.island;
        island.devices_per_node = interconnect.together;
        island.network_gbps = interconnect.network_gbps.unwrap_or(island.network_gbps);
        island.link_gbps *= interconnect.links_part;
        match search(&request(model, trains, pool)) {
            Ok(ranking) => {
                let best = ranking.candidates.first()?;
                Some(Ok(Micro::from_f64(1.0 / best.step.total_s)?.max(Micro(1))))
            }
            Err(Problem::FitsNowhere(shortfall)) => Some(Err(shortfall.lacks)),
            Err(_) => None,
        }
    }
}

/// How the devices of a gang are joined.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Interconnect {
    /// Devices that are joined by more than the network.
    together: u32,
    /// GB/s a device, one direction; that of the class where none is needed.
    network_gbps: Option<f64>,
    /// Of the links inside a node that are usual for the class.
    links_part: f64,
}

fn request(model: KnownModel, trains: &TrainsFile, pool: Pool) -> Request {
    let mut shape = model.shape;
    if let Some(sequence) = trains.sequence {
        shape.sequence = sequence;
        shape.attention_span = sequence;
    }
    let mut request = Request::new(shape, vec![pool], Batch::exactly(trains.batch));
    request.keep = 1;
    request.choices.precisions = vec![precision(trains)];
    request.choices.tunings = vec![tuning(trains)];
    request
}

fn precision(trains: &TrainsFile) -> Precision {
    match trains.precision {
        PrecisionFile::Fp32 => Precision::Fp32,
        PrecisionFile::Fp16 => Precision::Fp16,
        PrecisionFile::Bf16 => Precision::Bf16,
        PrecisionFile::Fp8 => Precision::Fp8,
    }
}

fn tuning(trains: &TrainsFile) -> Tuning {
    let rank = trains.rank.unwrap_or(RANK);
    match trains.tuning {
        TuningFile::Full => Tuning::Full,
        TuningFile::Lora => Tuning::Lora { rank },
        TuningFile::Qlora => Tuning::Qlora { rank },
    }
}

/// The weights as they are stored; of what is trained also its state in Adam.
fn files(model: KnownModel, trains: &TrainsFile) -> TrainingFiles {
    let width = u64::from(precision(trains).weight_bytes());
    let all = model.shape.parameters();
    let trained = match tuning(trains) {
        Tuning::Full => all,
        adapters => u64::from(model.shape.layers) * adapters.trainable_parameters(&model.shape),
    };
    let state = u64::from(Optimizer::Adam.state_bytes());
    TrainingFiles {
        weights: Bytes(all.saturating_mul(width)),
        checkpoint: Bytes(trained.saturating_mul(width + state)),
    }
}

#[cfg(test)]
mod tests;
