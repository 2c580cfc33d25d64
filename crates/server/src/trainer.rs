//! What the installed trainer can compute with, for jobs that leave that to it.

use std::sync::{Arc, Mutex, PoisonError};

use het_core::{Drivers, Topology};
use het_host::{Trainer, TrainerFault, TrainerVersion};
use het_wire::job::{self, TrainingJob};

/// The installed trainer and its last answer. It is asked again when another version of it is
/// installed, and when the machine has other devices.
#[derive(Debug, Default)]
pub struct TrainerDrivers {
    last: Mutex<Option<Answer>>,
}

#[derive(Debug)]
struct Answer {
    version: TrainerVersion,
    topology: Arc<Topology>,
    drivers: Drivers,
}

/// The answer as a job's resolution takes it; empty for a job that has no use for it.
#[derive(Debug, Clone, Default)]
pub struct AskedTrainer {
    known: Option<(String, Drivers)>,
    /// Why there is no answer, where there should be one.
    pub fault: Option<String>,
}

impl AskedTrainer {
    pub fn trainer(&self) -> Option<job::Trainer<'_>> {
        let (program, drivers) = self.known.as_ref()?;
        Some(job::Trainer { program, drivers })
    }
}

/// Who is to be asked for the drivers of a job's programs.
#[derive(Debug)]
pub(crate) enum Whom {
    Nobody,
    Installed(Trainer),
    /// A program of the job is the trainer, and none is installed.
    Missing,
}

impl Whom {
    pub fn of(file: &TrainingJob) -> Self {
        match Trainer::installed() {
            Some(it) if file.asks_trainer(&it.program().to_string_lossy()) => Self::Installed(it),
            None if file.asks_trainer(job::TRAINER) => Self::Missing,
            Some(_) | None => Self::Nobody,
        }
    }
}

impl TrainerDrivers {
    /// Asks the trainer, where a job needs its answer, and waits for that; nobody else asks
    /// meanwhile.
    pub fn asked_for(&self, job: &TrainingJob, topology: &Arc<Topology>) -> AskedTrainer {
        self.asked(Whom::of(job), topology)
    }

    pub(crate) fn asked(&self, whom: Whom, topology: &Arc<Topology>) -> AskedTrainer {
        let trainer = match whom {
            Whom::Nobody => return AskedTrainer::default(),
            // Any program can compute on cores.
            Whom::Missing if topology.accelerators().next().is_none() => {
                return AskedTrainer::default();
            }
            Whom::Missing => {
                let told = "there is no `het-train` beside `het` to ask for its drivers: its \
                            stages may be given devices that it has no driver for; install it \
                            there, or say in the job file which `drivers` the program has";
                return AskedTrainer { known: None, fault: Some(told.to_owned()) };
            }
            Whom::Installed(trainer) => trainer,
        };
        match self.drivers(&trainer, topology) {
            Ok(drivers) => {
                let program = trainer.program().to_string_lossy().into_owned();
                AskedTrainer { known: Some((program, drivers)), fault: None }
            }
            Err(fault) => {
                let told = format!(
                    "{fault}: its stages may be given devices that it has no driver for; {}",
                    fault.hint()
                );
                AskedTrainer { known: None, fault: Some(told) }
            }
        }
    }

    fn drivers(
        &self,
        trainer: &Trainer,
        topology: &Arc<Topology>,
    ) -> Result<Drivers, TrainerFault> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let version = trainer.version().ok();
        let is_same = |answer: &&Answer| {
            version.as_ref() == Some(&answer.version) && Arc::ptr_eq(&answer.topology, topology)
        };
        if let Some(answer) = last.as_ref().filter(is_same) {
            return Ok(answer.drivers.clone());
        }
        let listed = trainer.drivers()?;
        let works = listed.iter().filter(|driver| driver.starts);
        let drivers: Drivers = works.map(|driver| driver.name.as_str()).collect();
        *last = version.map(|version| Answer {
            version,
            topology: Arc::clone(topology),
            drivers: drivers.clone(),
        });
        Ok(drivers)
    }
}
