//! Start conditions: a job may ask for devices once they are met, and is given up only when they
//! cannot be.

use het_core::{Dependency, DependencyCondition, DependencyRule, JobId, Time};

use super::{Oracle, Shadow, Status};

/// How far a job came, as far as others may wait for that.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Course {
    pub started: Option<Time>,
    /// When it ended, and whether it succeeded.
    pub ended: Option<(Time, bool)>,
}

impl Oracle {
    pub(super) fn eligible(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let start = job.spec.start.clone();
        let met = |on: &Dependency| self.is_met(on);
        let dependencies = &start.dependencies;
        let ready = match dependencies.rule {
            _ if dependencies.on.is_empty() => true,
            DependencyRule::All => dependencies.on.iter().all(met),
            DependencyRule::Any => dependencies.on.iter().any(met),
        };
        if !ready {
            self.blame(4, format!("job {id} is eligible before those that it depends on"));
        }
        if start.begin.is_some_and(|begin| self.now < begin) {
            self.blame(4, format!("job {id} is eligible before its time"));
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.eligible = true;
        }
        if let Some(array) = start.array
            && let Some(parallel_max) = array.parallel_max
        {
            let is_member = |job: &&Shadow| {
                let of = job.spec.start.array.map(|member| member.array);
                of == Some(array.array) && job.eligible && !job.is_over()
            };
            let running = self.jobs.values().filter(is_member).count();
            if running > parallel_max as usize {
                self.blame(4, format!("{running} of array {} may run at a time", array.array));
            }
        }
    }

    pub(super) fn dependency_failed(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let dependencies = job.spec.start.dependencies.clone();
        let cannot = |on: &Dependency| self.cannot_be_met(on);
        let hopeless = match dependencies.rule {
            DependencyRule::All => dependencies.on.iter().any(cannot),
            DependencyRule::Any => dependencies.on.iter().all(cannot),
        };
        if !hopeless {
            self.blame(4, format!("job {id} is given up, but what it waits for may come"));
        }
        self.with_job(id, Shadow::end_what_is_idle);
        self.follow_course(id);
    }

    /// Notes how far a job came.
    pub(super) fn follow_course(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let course = self.courses.entry(id).or_default();
        if job.stages.iter().any(|stage| stage.attempts > 0) {
            course.started.get_or_insert(self.now);
        }
        if job.is_over() {
            let succeeded = job.stages.iter().all(|stage| stage.status == Status::Succeeded);
            course.ended.get_or_insert((self.now, succeeded));
        }
    }

    fn is_met(&self, on: &Dependency) -> bool {
        let course = self.courses.get(&on.job).copied().unwrap_or_default();
        let at = match on.condition {
            DependencyCondition::Started => course.started.or(course.ended.map(|(at, _)| at)),
            DependencyCondition::Ended => course.ended.map(|(at, _)| at),
            DependencyCondition::Succeeded => {
                course.ended.filter(|(_, succeeded)| *succeeded).map(|(at, _)| at)
            }
            DependencyCondition::Failed => {
                course.ended.filter(|(_, succeeded)| !succeeded).map(|(at, _)| at)
            }
        };
        at.is_some_and(|at| at + on.delay <= self.now)
    }

    fn cannot_be_met(&self, on: &Dependency) -> bool {
        // Who depends on a job that was forgotten waits for what nobody can know.
        if !self.jobs.contains_key(&on.job) {
            return true;
        }
        let course = self.courses.get(&on.job).copied().unwrap_or_default();
        match (on.condition, course.ended) {
            (DependencyCondition::Succeeded, Some((_, succeeded))) => !succeeded,
            (DependencyCondition::Failed, Some((_, succeeded))) => succeeded,
            _ => false,
        }
    }
}

impl Shadow {
    pub(super) fn is_over(&self) -> bool {
        self.stages.iter().all(|stage| stage.is_over())
    }
}
