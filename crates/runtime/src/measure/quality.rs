//! How long schedulers' runs of the same graphs are, beside HEFT and what nothing can beat.

use std::sync::Arc;

use crate::drivers::dummy::Noise;
use crate::schedulers::SchedulerKind;
use crate::{Bounds, Machine, Scheduler, schedulers};

use super::graphs::Workload;

/// One graph on one machine with one noise, over seeds.
#[derive(Debug, Clone, PartialEq)]
pub struct Quality {
    /// Means over seeds, in nanoseconds.
    pub heft: f64,
    /// HEFT that knows every duration before.
    pub heft_foreseen: f64,
    /// Of the same seed's HEFT, the greatest.
    pub worst_foreseen_of_heft: f64,
    /// Of each scheduler.
    pub schedulers: Vec<SchedulerQuality>,
    /// Means of the bounds of what tasks took.
    pub bounds: Bounds,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SchedulerQuality {
    pub name: &'static str,
    /// Mean over seeds, in nanoseconds.
    pub makespan: f64,
    /// Of the same seed's HEFT, the greatest.
    pub worst_of_heft: f64,
}

impl Quality {
    /// How much of what HEFT loses by not knowing durations a makespan has made good; `None` where
    /// it loses nothing.
    pub fn gap_closed(&self, makespan: f64) -> Option<f64> {
        let gap = self.heft - self.heft_foreseen;
        (gap > 0.001 * self.heft).then(|| (self.heft - makespan) / gap)
    }
}

fn heft() -> Box<dyn Scheduler> {
    Box::new(schedulers::Heft::default())
}

/// # Errors
/// What the runtime refuses.
pub fn quality(
    workload: &Workload,
    machine: &Arc<Machine>,
    kinds: &[SchedulerKind],
    noises: &[Noise],
) -> Result<Quality, String> {
    let count = noises.len().max(1) as f64;
    let none = |kind: &SchedulerKind| SchedulerQuality {
        name: kind.name,
        makespan: 0.0,
        worst_of_heft: 0.0,
    };
    let mut one = Quality {
        heft: 0.0,
        heft_foreseen: 0.0,
        worst_foreseen_of_heft: 0.0,
        schedulers: kinds.iter().map(none).collect(),
        bounds: Bounds::default(),
    };
    for noise in noises {
        let own = workload.makespan(machine, heft(), *noise)?;
        let (foreseen, bounds) = workload.foreseen_makespan(machine, heft, *noise)?;
        one.heft += own / count;
        one.heft_foreseen += foreseen / count;
        one.worst_foreseen_of_heft = one.worst_foreseen_of_heft.max(foreseen / own);
        one.bounds.area += bounds.area / count;
        one.bounds.critical_path += bounds.critical_path / count;
        one.bounds.assignment += bounds.assignment / count;
        for (kind, row) in kinds.iter().zip(&mut one.schedulers) {
            let makespan = workload.makespan(machine, (kind.make)(), *noise)?;
            row.makespan += makespan / count;
            row.worst_of_heft = row.worst_of_heft.max(makespan / own);
        }
    }
    Ok(one)
}
