//! Small clusters and queues drawn as text, so that a policy's test reads like the sentence it
//! tests.
//!
//! ```text
//! node h100 h100 cpu:8        a node with two accelerators and a socket of eight cores
//! 10s job 1 low h100:2        at 10 s, job 1 asks for two h100 (alternatives: `h100:2|cpu:4`)
//! 10s job 2 low h100 lab/nlp  the same for a tenant
//! 10s job 2 low h100 lab last not preemptible (`for:600`: not for its first 600 s)
//! 10s job 2 low h100 lab never-saves  its program does not save (`steps:90`: it makes 90 steps)
//! 10s job 3 low gpu@container in a container, where it may have a `vnpu` too
//! 0s quota lab 2 h100 4 8     a tenant's weight, and of a class its quota and limit (`-`: none)
//! 20s run                     a round is held and its plan committed
//! 30s lost n0                 a node disappears
//! 30s ends 1                  the running stage of job 1 finishes
//! 30s stopped 1               it stops on notice
//! 40s yields 1 2              somebody wants it to make room for job 2
//! 40s saved 1 7               it completes the checkpoint of step 7
//! ```

use std::sync::Arc;

use het_core::{
    Action, Checkpoint, ClassQuota, Event, JobId, JobSpec, LeaseId, Millis, NodeId, Outcome,
    Placement, Plan, Preemptible, Priority, Quota, Share, StageIndex, StageKey, StageSpec, State,
    StopCause, Time, Topology,
};
use het_perf::Rates;
use het_policy::{Cache, Cadence, Policy, View, by_name};
use het_scheduler::{Proposal, propose};

use crate::build;

/// What a policy would do now, with nothing remembered.
///
/// # Panics
/// On an unknown policy, or a plan with findings.
pub fn proposed(state: &State, rates: &Rates, policy: &str) -> Plan {
    let view = View { state, rates, now: state.now(), cadence: Cadence::default() };
    let policy = by_name(policy).expect("it is a policy");
    let Proposal { plan, findings, .. } = propose(&view, policy, &mut Cache::default());
    assert_eq!(findings, [], "{plan:?}");
    plan
}

/// Plays a scene under the named policy and returns the committed plans, one line an action.
///
/// # Panics
/// On a line it cannot read, an unknown policy, or a plan with findings.
pub fn play(policy: &str, rates: &Rates, scene: &str) -> String {
    let policy = by_name(policy).expect("the scene names a policy of the table");
    let lines = scene.lines().map(str::trim).filter(|line| !line.is_empty());
    let (nodes, events): (Vec<&str>, Vec<&str>) = lines.partition(|line| line.starts_with("node"));
    let mut player = Player {
        state: State::new(Arc::new(read_cluster(&nodes))),
        policy,
        cache: Cache::default(),
        rates,
        told: String::new(),
    };
    for line in events {
        player.line(line);
    }
    player.told
}

fn read_cluster(lines: &[&str]) -> Topology {
    let mut nodes: Vec<(Vec<(&str, u32)>, u32)> = Vec::new();
    for line in lines {
        let mut accelerators: Vec<(&str, u32)> = Vec::new();
        let mut cores = 0;
        for word in line.split_whitespace().skip(1) {
            match word.split_once(':') {
                Some(("cpu", count)) => cores = number(count),
                _ => match accelerators.iter_mut().find(|(known, _)| *known == word) {
                    Some((_, count)) => *count += 1,
                    None => accelerators.push((word, 1)),
                },
            }
        }
        nodes.push((accelerators, cores));
    }
    let rows: Vec<(&[(&str, u32)], u32)> =
        nodes.iter().map(|(accelerators, cores)| (accelerators.as_slice(), *cores)).collect();
    build::topology(&rows)
}

fn number<N: std::str::FromStr>(text: &str) -> N {
    text.parse().unwrap_or_else(|_| panic!("`{text}` is not a number"))
}

/// By a word behind the tenant of a job.
fn change(stage: &mut StageSpec, word: &str) {
    match word.split_once(':').unwrap_or((word, "")) {
        ("last", _) => stage.preemptible = Preemptible::Never,
        ("for", seconds) => {
            stage.preemptible = Preemptible::After(Millis::seconds(number(seconds)));
        }
        ("steps", steps) => stage.steps = Some(number(steps)),
        ("never-saves", _) => {
            for alternative in &mut stage.alternatives {
                Arc::make_mut(&mut alternative.launch).checkpoint = None;
            }
        }
        _ => panic!("a job is not `{word}`"),
    }
}

struct Player<'a> {
    state: State,
    policy: &'static dyn Policy,
    cache: Cache,
    rates: &'a Rates,
    told: String,
}

impl Player<'_> {
    fn line(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let seconds = words[0].strip_suffix('s').unwrap_or_else(|| panic!("no time in `{line}`"));
        let at = Time::ZERO + Millis::seconds(number(seconds));
        match &words[1..] {
            ["run"] => self.decide(at),
            ["job", id, priority, request] => {
                self.submit(at, (number(id), priority), request, ("team", &[]));
            }
            ["job", id, priority, request, tenant, words @ ..] => {
                self.submit(at, (number(id), priority), request, (tenant, words));
            }
            ["quota", tenant, weight, class, own, limit] => {
                let share = |word: &str| (word != "-").then(|| Share::units(number(word)));
                let of = ClassQuota { entitled: share(own), limit: share(limit) };
                self.quota(at, tenant, number(weight), class, of);
            }
            ["lost", node] => {
                let node = NodeId(number(node.trim_start_matches('n')));
                self.state.apply(at, &Event::NodeLost { node });
                for lease in self.leases_on(node) {
                    self.end(at, lease, Outcome::Lost);
                }
            }
            ["ends", id] => self.end(at, self.lease(number(id)), Outcome::Finished),
            ["stopped", id] => self.end(at, self.lease(number(id)), Outcome::Stopped),
            ["yields", id, to] => {
                let preemptor = StageKey { job: JobId(number(to)), stage: StageIndex(0) };
                let lease = self.lease(number(id));
                self.state.apply(at, &Event::StageYields { lease, preemptor });
            }
            ["saved", id, step] => {
                let lease = self.lease(number(id));
                let checkpoint = Checkpoint { step: number(step), path: String::new() };
                self.state.apply(at, &Event::Checkpointed { lease, checkpoint });
            }
            _ => panic!("a scene has no line `{line}`"),
        }
    }

    fn quota(&mut self, at: Time, tenant: &str, weight: u32, class: &str, of: ClassQuota) {
        let mut quotas = (**self.state.quotas()).clone();
        let new = || Quota::new(weight);
        let quota = quotas.tenants.entry(tenant.into()).or_insert_with(new);
        quota.classes.insert(class.into(), of);
        self.state.apply(at, &Event::QuotasSet { quotas: Arc::new(quotas) });
    }

    fn submit(
        &mut self,
        at: Time,
        (id, priority): (u64, &str),
        request: &str,
        (tenant, words): (&str, &[&str]),
    ) {
        let priority = Priority::ALL
            .into_iter()
            .find(|known| known.word() == priority)
            .unwrap_or_else(|| panic!("`{priority}` is no priority"));
        let alternatives = request.split('|').map(|part| {
            let (word, count) = part.split_once(':').unwrap_or((part, "1"));
            build::alternative(word, number(count))
        });
        let mut stage = build::stage("train", alternatives.collect());
        words.iter().for_each(|word| change(&mut stage, word));
        let job = JobSpec { tenant: tenant.into(), ..build::job(priority, vec![stage]) };
        self.state.apply(at, &build::submitted(id, job));
    }

    fn decide(&mut self, at: Time) {
        let view =
            View { state: &self.state, rates: self.rates, now: at, cadence: Cadence::default() };
        let proposal = propose(&view, self.policy, &mut self.cache);
        assert_eq!(proposal.findings, [], "the plan breaks a law");
        self.tell(at, &proposal.plan);
        for event in proposal.into_events() {
            self.state.apply(at, &event);
            let Event::PlanCommitted { plan } = event else { continue };
            for action in &plan.actions {
                if let Action::Start { lease, .. } = action {
                    self.state.apply(at, &Event::StageStarted { lease: *lease });
                }
            }
        }
    }

    fn lease(&self, job: u64) -> LeaseId {
        let of_job = |key: StageKey| key.job == JobId(job);
        let found = self.state.leases().iter().find(|(_, lease)| of_job(lease.stage));
        *found.unwrap_or_else(|| panic!("job {job} does not run")).0
    }

    fn leases_on(&self, node: NodeId) -> Vec<LeaseId> {
        let leases = self.state.leases().iter();
        leases.filter(|(_, lease)| lease.placement.uses_node(node)).map(|(&id, _)| id).collect()
    }

    fn end(&mut self, at: Time, lease: LeaseId, outcome: Outcome) {
        self.state.apply(at, &Event::StageEnded { lease, outcome });
    }

    fn tell(&mut self, at: Time, plan: &Plan) {
        let seconds = at.0 / 1_000;
        for action in &plan.actions {
            let line = self.sentence(action);
            self.told.push_str(&format!("{seconds}s {line}\n"));
        }
    }

    fn sentence(&self, action: &Action) -> String {
        match action {
            Action::Start { stage, placement, resume, .. } => {
                let from = resume.as_ref().map(|c| format!(" from step {}", c.step));
                let place = self.devices(placement);
                format!("start {} on {place}{}", stage.job, from.unwrap_or_default())
            }
            Action::Stop { lease, cause, .. } => {
                let job = self.state.leases()[lease].stage.job;
                match cause {
                    StopCause::Priority { preemptor } => {
                        format!("stop {job} for {}", preemptor.job)
                    }
                    StopCause::Reclaim { preemptor } => {
                        format!("reclaim {job} for {}", preemptor.job)
                    }
                    StopCause::Shrink { preemptor } => {
                        format!("shrink {job} for {}", preemptor.job)
                    }
                    other => format!("stop {job}: {}", other.word()),
                }
            }
            Action::Claim { stage, placement, .. } => {
                format!("claim for {} on {}", stage.job, self.devices(placement))
            }
            Action::Unclaim { stage } => format!("unclaim {}", stage.job),
            Action::Prepare { stage, placement, .. } => {
                let node = self.state.topology().node(placement.ranks[0].node);
                format!("prepare {} on {}", stage.job, node.name)
            }
            Action::Unprepare { stage, .. } => format!("unprepare {}", stage.job),
        }
    }

    fn devices(&self, placement: &Placement) -> String {
        let topology = self.state.topology();
        let names = placement.devices().map(|grant| {
            let device = topology.device(grant.device);
            let node = &topology.node(device.node).name;
            match grant.share.whole_units() {
                1 if topology.class_of(grant.device).kind != "cpu" => {
                    format!("{node}/{}", device.name)
                }
                units => format!("{node}/{}:{units}", device.name),
            }
        });
        names.collect::<Vec<_>>().join(" ")
    }
}
