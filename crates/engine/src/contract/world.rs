//! The loop that the suite plays: it commits plans to a state, submits them, and applies what the
//! engine reports.

use std::collections::BTreeMap;
use std::sync::Arc;

use het_core::{
    Action, Alternative, Bytes, Companions, DeviceId, Domain, Drivers, Event, Generation, Grant,
    HostResources, Isolation, JobId, JobSpec, Launch, LeaseId, Match, Millis, NodeId, Outcome,
    Placement, Plan, PlannedSpeeds, Preemptible, Priority, Rank, RankRule, Selector, Share,
    StageIndex, StageKey, StageKind, StageSpec, StartConditions, State, StopCause, Time, Topology,
};

use super::{GRACE, Subject};
use crate::{Engine, Script};

/// Longest wait for a fact: far more than one takes on a busy machine.
const PATIENCE: Millis = Millis(20_000);

/// What was heard of each lease.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub started: BTreeMap<LeaseId, u32>,
    pub ended: BTreeMap<LeaseId, Vec<Outcome>>,
}

impl Heard {
    pub fn ends(&self) -> usize {
        self.ended.values().map(Vec::len).sum()
    }

    fn take(&mut self, event: &Event) {
        match event {
            Event::StageStarted { lease } => *self.started.entry(*lease).or_default() += 1,
            Event::StageEnded { lease, outcome } => {
                self.ended.entry(*lease).or_default().push(outcome.clone());
            }
            Event::Progressed { lease, .. }
            | Event::Checkpointed { lease, .. }
            | Event::StagePublished { lease } => {
                assert!(!self.ended.contains_key(lease), "a fact came after the end of its lease");
            }
            _ => {}
        }
    }
}

/// An engine, the state that the loop over it has, and what was heard.
pub(super) struct World<'a, S: Subject> {
    subject: &'a S,
    topology: Arc<Topology>,
    pub case: &'static str,
    engine: Option<S::Engine>,
    pub state: State,
    launches: Vec<Launch>,
    pub heard: Heard,
    last: Time,
}

impl<'a, S: Subject> World<'a, S> {
    pub fn new(subject: &'a S, topology: Arc<Topology>, case: &'static str) -> Self {
        let state = State::new(Arc::clone(&topology));
        let (launches, heard, last) = Default::default();
        Self { subject, topology, case, engine: None, state, launches, heard, last }
    }

    /// The same case on another engine.
    pub fn again(&self) -> Self {
        Self::new(self.subject, Arc::clone(&self.topology), self.case)
    }

    /// Submits a job for each script, counted from 1.
    #[must_use]
    pub fn with(mut self, scripts: &[Script]) -> Self {
        let keyed: Vec<_> = (1..).map(key).zip(scripts.iter().copied()).collect();
        let (engine, launches) = self.subject.build(&keyed);
        for (key, launch) in keyed.iter().map(|(key, _)| *key).zip(&launches) {
            let event = Event::JobSubmitted {
                job: key.job,
                spec: Arc::new(job(launch)),
                succeeded: Vec::new(),
                checkpoints: Vec::new(),
            };
            self.state.apply(engine.now(), &event);
        }
        self.last = engine.now();
        let mut engine = engine;
        engine.topology_changed(self.state.topology());
        (self.engine, self.launches) = (Some(engine), launches);
        self
    }

    pub fn engine(&mut self) -> &mut S::Engine {
        self.engine.as_mut().expect("`with` made one")
    }

    /// A start of a job's only stage on the first node; its lease is the job's number in this
    /// suite.
    pub fn start(&self, id: u64, ranks: u32) -> Action {
        self.start_on(id, placement(ranks))
    }

    pub fn start_on(&self, id: u64, placement: Placement) -> Action {
        Action::Start {
            lease: LeaseId(id),
            stage: key(id),
            attempt: 1,
            placement: Arc::new(placement),
            launch: Arc::new(self.launches[id as usize - 1].clone()),
            resume: None,
            reasons: Vec::new(),
        }
    }

    /// A preparation of a job's only stage on the first node, under the lease that [`Self::start`]
    /// gives it.
    pub fn prepare(&self, id: u64) -> Action {
        let Action::Start { lease, stage, attempt, placement, launch, resume, .. } =
            self.start(id, 1)
        else {
            unreachable!("it is a start")
        };
        Action::Prepare { lease, stage, attempt, placement, launch, resume }
    }

    /// A plan that is committed and not submitted.
    pub fn commit(&mut self, actions: Vec<Action>) -> Plan {
        let generation = Generation(self.state.generation().0 + 1);
        let plan = Plan { generation, actions, waits: Vec::new() };
        let now = self.engine().now();
        self.state.apply(now, &Event::PlanCommitted { plan: Arc::new(plan.clone()) });
        plan
    }

    /// A plan that is committed and submitted.
    pub fn act(&mut self, actions: Vec<Action>) -> Plan {
        let plan = self.commit(actions);
        self.engine().submit(&plan);
        plan
    }

    /// Somebody else finds a fact: the engine reports it, and it is committed.
    pub fn report(&mut self, event: &Event) {
        let engine = self.engine.as_mut().expect("`with` made one");
        self.subject.report(engine, event.clone());
        loop {
            let heard = self.overhear();
            self.take(&heard);
            if heard == *event {
                return;
            }
        }
    }

    /// The next fact, without committing it.
    pub fn overhear(&mut self) -> Event {
        let until = self.engine().now() + PATIENCE;
        let case = self.case;
        let fact = self.next_before(until);
        let (at, event) = fact.unwrap_or_else(|| panic!("{case}: nothing happened any more"));
        assert!(at >= self.last, "{case}: time went backwards");
        self.last = at;
        event
    }

    /// The next fact. An engine that somebody wakes may give none before.
    fn next_before(&mut self, until: Time) -> Option<(Time, Event)> {
        loop {
            let fact = self.engine().next_event(Some(until));
            if fact.is_some() || self.engine().now() >= until {
                return fact;
            }
        }
    }

    /// Hears and commits facts until there are as many ends.
    pub fn hear_ends(&mut self, count: usize) {
        while self.heard.ends() < count {
            let event = self.overhear();
            self.take(&event);
        }
    }

    /// Hears and commits facts until a lease runs.
    pub fn hear_start(&mut self, lease: u64) {
        while !self.heard.started.contains_key(&LeaseId(lease)) {
            let event = self.overhear();
            self.take(&event);
        }
    }

    /// Nothing more is reported within a grace.
    pub fn hear_nothing_more(&mut self) {
        let ends = self.heard.ends();
        let until = self.engine().now() + GRACE;
        while let Some((at, event)) = self.next_before(until) {
            assert!(at >= self.last, "{}: time went backwards", self.case);
            self.last = at;
            self.take(&event);
        }
        assert_eq!(self.heard.ends(), ends, "{}: a lease ended twice", self.case);
    }

    fn take(&mut self, event: &Event) {
        self.state.apply(self.last, event);
        self.heard.take(event);
        if let Event::NodesJoined { .. } = event {
            let topology = Arc::clone(self.state.topology());
            self.engine().topology_changed(&topology);
        }
        self.engine().committed();
    }

    /// The loop dies; the next one goes on from what was committed.
    pub fn crash(&mut self) {
        self.crash_to_sleep();
        let state = self.state.clone();
        self.engine().adopt(&state);
    }

    /// The loop dies, and no other takes over yet.
    pub fn crash_to_sleep(&mut self) {
        let engine = self.engine.take().expect("`with` made one");
        self.engine = Some(self.subject.crash(engine));
    }

    pub fn check_ended(&self, lease: u64, is_right: impl Fn(&Outcome) -> bool) {
        let ends = self.heard.ended.get(&LeaseId(lease)).map_or(&[][..], Vec::as_slice);
        let is_right = matches!(ends, [one] if is_right(one));
        assert!(is_right, "{}: lease {lease} ended {ends:?}", self.case);
    }
}

pub(super) fn stop(lease: u64) -> Action {
    Action::Stop { lease: LeaseId(lease), cause: StopCause::User, grace: GRACE, cost: None }
}

pub(super) fn claim(id: u64) -> Action {
    Action::Claim { stage: key(id), placement: Arc::new(placement(1)), reasons: Vec::new() }
}

pub(super) fn unprepare(id: u64) -> Action {
    Action::Unprepare { stage: key(id), lease: LeaseId(id) }
}

pub(super) fn unclaim(id: u64) -> Action {
    Action::Unclaim { stage: key(id) }
}

/// It finished its work.
pub(super) fn finished(outcome: &Outcome) -> bool {
    *outcome == Outcome::Finished
}

/// An end after a stop is `Stopped` or `Failed` (killed), or `Lost` where nobody saw it: the state
/// treats all as a stop.
pub(super) fn stopped(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Stopped | Outcome::Failed(_) | Outcome::Lost)
}

fn key(id: u64) -> StageKey {
    StageKey { job: JobId(id), stage: StageIndex(0) }
}

fn placement(ranks: u32) -> Placement {
    placement_on(NodeId(0), DeviceId(0), ranks)
}

/// Ranks with one core each.
pub(super) fn placement_on(node: NodeId, device: DeviceId, ranks: u32) -> Placement {
    let rank = Rank {
        node,
        grants: vec![Grant { device, share: Share::WHOLE }],
        companions: Vec::new(),
        host: HostResources::NONE,
    };
    Placement { alternative: 0, ranks: vec![rank; ranks as usize] }
}

fn job(launch: &Launch) -> JobSpec {
    let selector = Selector {
        word: "cpu".into(),
        matches: Match::Kind("cpu".into()),
        memory_min: Bytes::ZERO,
        isolation: Isolation::default(),
        drivers: Drivers::Unknown,
    };
    let stage = StageSpec {
        name: "main".into(),
        kind: StageKind::Custom,
        after: Vec::new(),
        follows: Vec::new(),
        alternatives: vec![Alternative { selector, count: 1, launch: Arc::new(launch.clone()) }],
        companions: Companions::default(),
        within: Domain::Any,
        ranks: RankRule::PerNode,
        retries: 0,
        restarts: StageSpec::RESTARTS_DEFAULT,
        profile: "main".into(),
        steps: None,
        preemptible: Preemptible::default(),
        planned: PlannedSpeeds::default(),
    };
    JobSpec {
        name: "contract".into(),
        tenant: "default".into(),
        priority: Priority::Normal,
        stages: vec![stage],
        time_limit: None,
        workdir: "/".to_owned(),
        commit: None,
        start: StartConditions::default(),
        key: None,
    }
}

/// Scripts that are used in many cases.
pub(super) const SHORT: Script = Script::Finish(Millis(20));
