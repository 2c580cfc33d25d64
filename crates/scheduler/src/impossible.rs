//! Stages that a cluster can never run, and the nearest request that it could.

use std::fmt;
use std::sync::Arc;

use het_core::{
    Bytes, Companions, Drivers, HostResources, Isolation, JobSpec, Match, Name, StageSpec, State,
    Topology,
};
use het_policy::{Pool, place};

/// A stage that a cluster can never run, and what would let it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impossible {
    pub stage: String,
    /// As requested, alternatives joined by ` | `.
    pub request: String,
    pub remedy: Option<Remedy>,
}

/// What would let a stage run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// The nearest request that fits.
    Nearest(String),
    /// Less than this beside the devices, which alone would fit.
    LessBeside(Companions),
    /// Another driver than these, which the program has: the devices are there.
    Driver(Vec<Name>),
    /// A container: the devices are of those that no program can use without.
    Container,
}

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, request, .. } = self;
        write!(f, "stage `{stage}` can never run here: this machine cannot give it `{request}`")?;
        match &self.remedy {
            Some(Remedy::Container) => write!(f, " without a container"),
            Some(Remedy::LessBeside(beside)) => write!(f, " with {}", amounts(*beside)),
            Some(Remedy::Driver(drivers)) => write!(f, ", for its program has {}", words(drivers)),
            Some(Remedy::Nearest(_)) | None => Ok(()),
        }
    }
}

/// `8 cores, 64GiB of memory and 200GiB of scratch`.
fn amounts(
    Companions { cores, host: HostResources { memory, scratch, read, .. } }: Companions,
) -> String {
    let mut parts: Vec<String> =
        (cores > 0).then(|| format!("{cores} cores")).into_iter().collect();
    let amounts = [(memory, "of memory"), (scratch, "of scratch"), (read, "a second read")];
    let asked = amounts.into_iter().filter(|(bytes, _)| *bytes > Bytes::ZERO);
    parts.extend(asked.map(|(bytes, what)| format!("{bytes} {what}")));
    match parts.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

fn words(drivers: &[Name]) -> String {
    let words: Vec<String> = drivers.iter().map(|driver| format!("`{driver}`")).collect();
    match words.as_slice() {
        [] => "no driver that works".to_owned(),
        [only] => format!("only the driver {only}"),
        _ => format!("only the drivers {}", words.join(", ")),
    }
}

impl Impossible {
    pub fn hint(&self) -> String {
        match &self.remedy {
            Some(Remedy::Container) => {
                "they are virtual NPUs, which a program can use in a container only: add \
                 `container: IMAGE` (run by podman; Apptainer cannot show them)"
                    .to_owned()
            }
            Some(Remedy::Driver(_)) => {
                "`het devices` lists the drivers of devices: ask for some that the program \
                 reaches, or name in `drivers` what it has"
                    .to_owned()
            }
            Some(Remedy::LessBeside(_)) => {
                "the devices are there: ask for less beside them; `het topo this` shows cores and \
                 memory, and the server's `--scratch`, or the size of its disk, is all scratch"
                    .to_owned()
            }
            Some(Remedy::Nearest(nearest)) => {
                format!("the nearest request that fits is `devices: \"{nearest}\"`")
            }
            None => "`het devices` lists what this machine has".to_owned(),
        }
    }
}

/// Stages of which no alternative could ever run on this cluster.
pub fn impossible(topology: &Arc<Topology>, spec: &JobSpec) -> Vec<Impossible> {
    let state = State::new(Arc::clone(topology));
    let mut pool = Pool::empty_cluster(&state);
    let stages = spec.stages.iter().filter_map(|stage| {
        if fits(&mut pool, stage) {
            return None;
        }
        let shapes = stage.alternatives.iter();
        let request = shapes.map(|shape| format!("{}:{}", shape.selector.word, shape.count));
        let request = request.collect::<Vec<_>>().join(" | ");
        let remedy = remedy(&mut pool, stage);
        Some(Impossible { stage: stage.name.to_string(), request, remedy })
    });
    stages.collect()
}

/// Whether any alternative of a stage could run.
fn fits(pool: &mut Pool<'_>, stage: &StageSpec) -> bool {
    (0..stage.alternatives.len()).any(|index| place(pool, stage, index).is_ok())
}

fn remedy(pool: &mut Pool<'_>, stage: &StageSpec) -> Option<Remedy> {
    let mut contained = stage.clone();
    for shape in &mut contained.alternatives {
        shape.selector.isolation = Isolation::Container;
    }
    if fits(pool, &contained) {
        return Some(Remedy::Container);
    }
    if fits(pool, &StageSpec { companions: Companions::default(), ..stage.clone() }) {
        return Some(Remedy::LessBeside(stage.companions));
    }
    let mut driven = stage.clone();
    for shape in &mut driven.alternatives {
        shape.selector.drivers = Drivers::Unknown;
    }
    if fits(pool, &driven) {
        let drivers = stage.alternatives.iter().filter_map(|shape| shape.selector.drivers.named());
        let mut drivers: Vec<Name> = drivers.flatten().cloned().collect();
        drivers.sort();
        drivers.dedup();
        return Some(Remedy::Driver(drivers));
    }
    let mut relaxed = stage.clone();
    let mut largest = |relaxed: &mut StageSpec, index: usize| {
        let wanted = relaxed.alternatives[index].count;
        (1..=wanted).rev().find_map(|count| {
            relaxed.alternatives[index].count = count;
            let word = &relaxed.alternatives[index].selector.word;
            let nearest = format!("{word}:{count}");
            place(pool, relaxed, index).ok().map(|_| Remedy::Nearest(nearest))
        })
    };
    let fewer = (0..stage.alternatives.len()).find_map(|index| largest(&mut relaxed, index));
    fewer.or_else(|| {
        let mut any = stage.clone();
        any.alternatives.truncate(1);
        any.alternatives[0].selector.matches = Match::Kind("cpu".into());
        any.alternatives[0].selector.word = "cpu".into();
        largest(&mut any, 0)
    })
}
