//! What a caller is told of jobs that are not its own: quantities, and numbers of jobs inside
//! sentences, but no names. Every answer passes through here before it is sent.

use het_core::JobId;
use het_wire::api::{
    Backup, Change, DeviceList, DeviceRow, EventPage, JobList, JobLogs, JobRow, PreemptionList,
    PreemptionRow, QuotaList, ServerInfo, ServerStopped, StoreCheck, Submitted,
};
use het_wire::report::{
    BlockerReport, ExplanationReport, HolderReport, OccupiedReport, RunReport, StopReport,
};

use crate::{Caller, Verb, Whose, may};

/// Who looks, and how to find out whose a job is.
#[derive(Clone, Copy)]
pub struct Viewer<'a> {
    caller: &'a Caller,
    tenant_of: &'a dyn Fn(JobId) -> Option<String>,
}

/// How a job stands to who looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sight {
    Shown,
    Hidden,
    /// Nothing is kept of it any more: its number says nothing, its name may be another's.
    Gone,
}

impl std::fmt::Debug for Viewer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Viewer").field("caller", self.caller).finish_non_exhaustive()
    }
}

impl<'a> Viewer<'a> {
    /// `tenant_of` gives the tenant of every job of which anything is kept.
    pub fn new(caller: &'a Caller, tenant_of: &'a dyn Fn(JobId) -> Option<String>) -> Self {
        Self { caller, tenant_of }
    }

    /// Whether everybody's jobs and processes are shown.
    fn sees_all(&self) -> bool {
        self.caller.tenant.is_none() || may(self.caller.role, Verb::ReadJobs, Whose::Others)
    }

    fn sight(&self, job: u64) -> Sight {
        match (self.tenant_of)(JobId(job)) {
            _ if self.sees_all() => Sight::Shown,
            None => Sight::Gone,
            Some(tenant) if self.caller.may(Verb::ReadJobs, &tenant) => Sight::Shown,
            Some(_) => Sight::Hidden,
        }
    }

    /// The tenant as figures name it: all whose jobs are hidden are one.
    pub fn label<'t>(&self, tenant: &'t str) -> &'t str {
        if self.caller.may(Verb::ReadJobs, tenant) { tenant } else { OTHERS }
    }
}

/// What figures call all tenants together whose jobs are hidden; no tenant may be named so.
pub const OTHERS: &str = "others";

/// An answer, without what names others' jobs.
pub trait Redact: Sized {
    /// `None` where the whole answer is of a job that is hidden.
    #[must_use]
    fn redacted(self, viewer: &Viewer<'_>) -> Option<Self>;
}

/// Answers that are of no job.
macro_rules! of_no_job {
    ($($answer:ty)*) => {
        $(impl Redact for $answer {
            fn redacted(self, _: &Viewer<'_>) -> Option<Self> {
                Some(self)
            }
        })*
    };
}

// A submission is answered to its submitter.
of_no_job!(Backup ServerInfo ServerStopped StoreCheck Submitted);

impl Redact for EventPage {
    fn redacted(self, viewer: &Viewer<'_>) -> Option<Self> {
        viewer.caller.may(Verb::ReadLog, "").then_some(self)
    }
}

impl Redact for JobRow {
    fn redacted(self, viewer: &Viewer<'_>) -> Option<Self> {
        viewer.caller.may(Verb::ReadJobs, &self.tenant).then_some(self)
    }
}

impl Redact for JobList {
    fn redacted(mut self, viewer: &Viewer<'_>) -> Option<Self> {
        self.items.retain(|row| viewer.caller.may(Verb::ReadJobs, &row.tenant));
        Some(self)
    }
}

impl Redact for Change {
    fn redacted(self, viewer: &Viewer<'_>) -> Option<Self> {
        Some(Self { job: self.job.redacted(viewer)?, ..self })
    }
}

impl Redact for QuotaList {
    fn redacted(mut self, viewer: &Viewer<'_>) -> Option<Self> {
        self.items.retain(|row| viewer.caller.may(Verb::ReadQuotas, &row.tenant));
        Some(self)
    }
}

impl Redact for JobLogs {
    fn redacted(self, viewer: &Viewer<'_>) -> Option<Self> {
        viewer.caller.may(Verb::ReadJobs, &self.tenant).then_some(self)
    }
}

impl Redact for RunReport {
    fn redacted(mut self, viewer: &Viewer<'_>) -> Option<Self> {
        if !viewer.caller.may(Verb::ReadJobs, &self.tenant) {
            return None;
        }
        let stops = self.stages.iter_mut().flat_map(|stage| &mut stage.stops);
        stops.for_each(|stop| redact_stop(stop, viewer));
        if !viewer.sees_all() {
            // It may be an operator's.
            self.requests.iter_mut().for_each(|request| request.address = None);
        }
        Some(self)
    }
}

impl Redact for ExplanationReport {
    fn redacted(mut self, viewer: &Viewer<'_>) -> Option<Self> {
        if viewer.sight(self.id) == Sight::Hidden {
            return None;
        }
        for stage in &mut self.stages {
            stage.stops.iter_mut().for_each(|stop| redact_stop(stop, viewer));
            stage.blockers.iter_mut().for_each(|blocker| redact_blocker(blocker, viewer));
        }
        Some(self)
    }
}

impl Redact for PreemptionList {
    fn redacted(mut self, viewer: &Viewer<'_>) -> Option<Self> {
        if self.items.iter().any(|row| viewer.sight(row.id) == Sight::Hidden) {
            return None;
        }
        self.items = self.items.into_iter().map(|row| redact_preemption(row, viewer)).collect();
        Some(self)
    }
}

impl Redact for DeviceRow {
    fn redacted(self, viewer: &Viewer<'_>) -> Option<Self> {
        // Who sits at the machine and what they run there is for those who look after it.
        let occupant = self.occupant.filter(|_| viewer.sees_all());
        Some(Self { occupant, ..self })
    }
}

impl Redact for DeviceList {
    fn redacted(self, viewer: &Viewer<'_>) -> Option<Self> {
        let items = self.items.into_iter().filter_map(|row| row.redacted(viewer)).collect();
        Some(Self { items, ..self })
    }
}

fn redact_stop(stop: &mut StopReport, viewer: &Viewer<'_>) {
    let Some(preemptor) = stop.preemptor else { return };
    match viewer.sight(preemptor) {
        Sight::Shown => {}
        Sight::Hidden => (stop.preemptor, stop.preemptor_name) = (None, None),
        Sight::Gone => stop.preemptor_name = None,
    }
}

fn redact_preemption(row: PreemptionRow, viewer: &Viewer<'_>) -> PreemptionRow {
    let shown = |job: &u64| viewer.sight(*job) == Sight::Shown;
    let victim = row.victim.filter(shown);
    let preemptor = row.preemptor.filter(shown).zip(row.preemptor_stage.clone());
    let victim_stage = victim.and(row.victim_stage.clone());
    PreemptionRow { victim, victim_stage, ..row }.for_preemptor(preemptor)
}

/// Holders that are hidden become one row of their units, who uses a device beside all jobs none.
fn redact_blocker(blocker: &mut BlockerReport, viewer: &Viewer<'_>) {
    let is_shown =
        |holder: &HolderReport| holder.job.is_none_or(|job| viewer.sight(job) == Sight::Shown);
    let (mut shown, hidden): (Vec<_>, Vec<_>) =
        std::mem::take(&mut blocker.held_by).into_iter().partition(is_shown);
    let units = hidden.iter().map(|holder| holder.units).sum();
    if units > 0 {
        shown.push(HolderReport { job: None, name: None, stage: None, units });
    }
    blocker.held_by = shown;
    if !viewer.sees_all() {
        let nobody = |row: &mut OccupiedReport| row.by = None;
        blocker.occupied.iter_mut().for_each(nobody);
    }
}
