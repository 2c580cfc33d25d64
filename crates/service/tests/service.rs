//! The service over an engine and a store that are no machine's: changes are durable when they are
//! acknowledged, questions see them, and no question keeps the loop from its turns.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{self, Context};

use het_control::{Controller, Log, LogError, Past};
use het_core::{Event, JobEnd, JobId, LeaseId, Millis, Plan, Priority, State, Time, Topology};
use het_engine::{Engine, Fake, Script, Waker};
use het_perf::Rates;
use het_policy::by_name;
use het_service::calls::{self, Operation};
use het_service::report::Detail;
use het_service::{
    Caller, Code, Handle, MakeSnapshot, MemoryStore, Selection, Service, ServiceError, Setup,
    Store, Unavailable, Which,
};
use het_testkit::build;
use het_wire::api::{Begin, JobRow};
use het_wire::report::RunReport;
use het_wire::text::Lang;
use tokio::runtime::{Builder, Runtime};

/// The fake engine, as an engine of real time blocks: until it is woken or something is due.
struct Blocking {
    fake: Fake,
    woken: Arc<(Mutex<bool>, std::sync::Condvar)>,
}

impl Blocking {
    fn new(fake: Fake) -> Self {
        Self { fake, woken: Arc::default() }
    }
}

impl Engine for Blocking {
    fn adopt(&mut self, state: &State) {
        self.fake.adopt(state);
    }

    fn topology_changed(&mut self, topology: &Arc<Topology>) {
        self.fake.topology_changed(topology);
    }

    fn submit(&mut self, plan: &Plan) {
        self.fake.submit(plan);
    }

    fn next_event(&mut self, until: Option<Time>) -> Option<(Time, Event)> {
        if let Some(event) = self.fake.next_event(until) {
            return Some(event);
        }
        if until.is_none() {
            let (woken, bell) = &*self.woken;
            let mut woken = woken.lock().expect("nobody panics with it");
            while !*woken {
                woken = bell.wait(woken).expect("nobody panics with it");
            }
            *woken = false;
        }
        None
    }

    fn waker(&mut self) -> Waker {
        let woken = Arc::clone(&self.woken);
        Waker::new(move || {
            *woken.0.lock().expect("nobody panics with it") = true;
            woken.1.notify_one();
        })
    }

    fn now(&self) -> Time {
        self.fake.now()
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().build().expect("a runtime")
}

fn controller<L: Log>(scripts: &[(u64, Script)], log: L) -> Controller<Blocking, L> {
    let topology = Arc::new(build::topology(&[(&[("gpu", 2)], 4)]));
    let scripts = scripts.iter().map(|(job, script)| (build::key(*job, 0), *script));
    let engine = Blocking::new(Fake::new(scripts));
    let policy = by_name("fifo").expect("the table has it");
    Controller::new(State::new(topology), Rates::default(), policy, engine, log)
}

fn start(scripts: &[(u64, Script)]) -> Service<Blocking> {
    let setup = Setup { ended_max: 10, ..Setup::default() };
    Service::start(controller(scripts, MemoryStore::default()), setup).expect("threads")
}

/// Submits a job for both GPUs.
async fn submit(service: &Handle, priority: Priority) -> JobId {
    let stage = build::stage("main", vec![build::alternative("gpu", 2)]);
    let spec = build::job(priority, vec![stage]);
    let id = service.new_job_id();
    let submitted = calls::submit(service, id, Arc::new(spec), Begin::default()).await;
    submitted.expect("the loop runs");
    id
}

fn end(service: Service<Blocking>) -> Result<(), ServiceError> {
    service.handle.stop_soon();
    service.join().1
}

async fn state_of(service: &Handle, id: JobId) -> &'static str {
    let state = service.query(move |replica| {
        let job = replica.state().job(id).expect("it was submitted");
        job.state(replica.state().leases()).word()
    });
    state.await.expect("the replica answers")
}

#[test]
fn a_question_after_a_change_sees_the_change() {
    let service = start(&[(1, Script::UntilNotice), (2, Script::UntilNotice)]);
    runtime().block_on(async {
        let handle = &service.handle;
        let first = submit(handle, Priority::Normal).await;
        let second = submit(handle, Priority::Normal).await;
        assert_eq!(
            (state_of(handle, first).await, state_of(handle, second).await),
            ("running", "queued")
        );
        calls::operate(handle, second, Operation::Hold).await.expect("it has not ended");
        assert_eq!(state_of(handle, second).await, "held");
        let row = calls::find(handle, &Caller::OWNER, &second.to_string()).expect("it is there");
        assert_eq!(row.state, "held");
        calls::operate(handle, second, Operation::Cancel).await.expect("it has not ended");
        let again = calls::operate(handle, second, Operation::Hold).await;
        assert_eq!(again.map_err(|error| error.code), Err(Code::Conflict));
    });
    end(service).expect("it was asked to end");
}

#[test]
fn questions_are_answered_while_the_loop_decides_and_the_other_way_round() {
    let service = start(&[(1, Script::UntilNotice)]);
    runtime().block_on(async {
        let handle = &service.handle;
        let id = submit(handle, Priority::Normal).await;
        // A question that never ends until it is let go.
        let (let_go, wait) = channel::<()>();
        let (begin, begun) = channel();
        let asking = handle.clone();
        let mut question = pin!(asking.query(move |_| {
            begin.send(()).expect("the test listens");
            wait.recv().is_ok()
        }));
        let mut context = Context::from_waker(task::Waker::noop());
        assert!(question.as_mut().poll(&mut context).is_pending(), "nobody let it go");
        begun.recv().expect("the replica asks");
        for _ in 0..100 {
            calls::operate(handle, id, Operation::Hold).await.expect("the loop goes on");
            calls::operate(handle, id, Operation::Release).await.expect("the loop goes on");
        }
        let_go.send(()).expect("it waits");
        assert_eq!(question.await, Ok(true));
    });
    end(service).expect("it was asked to end");
}

#[test]
fn a_question_that_panics_spoils_only_its_own_answer() {
    let service = start(&[]);
    runtime().block_on(async {
        let spoiled = service.handle.query(|_| -> u32 { panic!("a defect of a question") }).await;
        assert_eq!(spoiled, Err(Unavailable::Gone));
        assert_eq!(service.handle.query(|replica| replica.sequence()).await, Ok(0));
    });
    end(service).expect("it was asked to end");
}

#[test]
fn explanations_and_previews_are_made_of_the_replica() {
    let service = start(&[(1, Script::UntilNotice), (2, Script::UntilNotice)]);
    runtime().block_on(async {
        let handle = &service.handle;
        let low = submit(handle, Priority::Low).await;
        let normal = submit(handle, Priority::Low).await;
        let told = calls::explain(handle, normal, (Lang::En, Detail::Reasons)).await;
        let told = told.expect("it is live");
        assert_eq!((told.id, told.stages[0].state.as_str()), (normal.0, "queued"));
        let asked = |id| calls::preview_preemption(handle, id, Lang::En);
        let runs = &asked(low).await.expect("the replica answers")[0];
        assert_eq!((runs.outlook.as_str(), runs.victim, runs.preemptor), ("goes_on", None, None));
        let waits = &asked(normal).await.expect("the replica answers")[0];
        assert_eq!((waits.outlook.as_str(), waits.victim), ("waits", None));
        assert_eq!(waits.reasons, told.stages[0].wait_reasons);
        let refused = calls::preempt(handle, low).await;
        assert_eq!(refused.map_err(|error| error.code), Err(Code::Conflict));
    });
    end(service).expect("it was asked to end");
}

/// A store whose archive can be read, on a disk that fails while it is told to.
#[derive(Default)]
struct Recorder {
    inner: MemoryStore,
    fails: Arc<AtomicBool>,
    /// Room that is kept for facts, which a full disk takes while it is given up.
    reserve: Reserve,
    archived: Arc<Mutex<Vec<u64>>>,
    snapshots: Arc<Mutex<Vec<u64>>>,
}

#[derive(Default, PartialEq)]
enum Reserve {
    #[default]
    None,
    Kept,
    Released,
}

impl Recorder {
    fn check(&self) -> Result<(), LogError> {
        match self.fails.load(Ordering::SeqCst) && self.reserve != Reserve::Released {
            true => Err(LogError(Box::new(std::io::Error::from(std::io::ErrorKind::StorageFull)))),
            false => Ok(()),
        }
    }
}

impl Log for Recorder {
    fn append(&mut self, batch: &[(Time, Event)]) -> Result<(), LogError> {
        self.check()?;
        self.inner.append(batch)
    }
}

impl Store for Recorder {
    type Snapshot = u64;

    fn length(&self) -> u64 {
        self.inner.length()
    }

    fn keep_row(&mut self, _: &JobRow) {}

    fn drop_row(&mut self, _: JobId) {}

    fn archive(&mut self, report: &RunReport) {
        self.archived.lock().expect("nobody panics with it").push(report.id);
    }

    fn is_archived(&self, _: JobId) -> bool {
        false
    }

    fn due_snapshot(&self) -> Option<MakeSnapshot<u64>> {
        let length = self.length();
        Some(Box::new(move |past: Past| {
            let live = past.state.jobs().len() as u64;
            assert!(live <= length);
            live
        }))
    }

    fn put_snapshot(&mut self, snapshot: u64) {
        self.snapshots.lock().expect("nobody panics with it").push(snapshot);
    }

    fn mend(&mut self) -> Result<(), LogError> {
        if self.reserve == Reserve::Released {
            self.reserve = Reserve::Kept;
        }
        self.check()
    }

    fn release_reserve(&mut self) {
        if self.reserve == Reserve::Kept {
            self.reserve = Reserve::Released;
        }
    }
}

#[test]
fn an_end_is_archived_and_snapshots_are_of_the_state_after_their_batch() {
    let store = Recorder::default();
    let (archived, snapshots) = (Arc::clone(&store.archived), Arc::clone(&store.snapshots));
    let control = controller(&[(1, Script::Finish(Millis(5)))], store);
    let service = Service::start(control, Setup::default()).expect("threads");
    runtime().block_on(async {
        let id = submit(&service.handle, Priority::Normal).await;
        while state_of(&service.handle, id).await != "succeeded" {
            service.handle.ready().await.expect("the loop runs");
        }
        while snapshots.lock().expect("nobody panics with it").last() != Some(&1) {
            service.handle.ready().await.expect("the loop runs");
        }
        let everything = Selection { after: 0, limit: 10, which: Which::All };
        assert!(service.handle.jobs().list(&everything, |_| true).is_empty(), "none is to stay");
    });
    assert_eq!(*archived.lock().expect("nobody panics with it"), [1]);
    end(service).expect("it was asked to end");
}

#[test]
fn a_disk_that_cannot_be_written_stops_changes_and_nothing_else_until_it_can() {
    let store = Recorder::default();
    let fails = Arc::clone(&store.fails);
    let control = controller(&[(1, Script::UntilNotice)], store);
    let setup = Setup { ended_max: 10, ..Setup::default() };
    let service = Service::start(control, setup).expect("threads");
    runtime().block_on(async {
        let handle = &service.handle;
        let first = submit(handle, Priority::Normal).await;
        fails.store(true, Ordering::SeqCst);
        let held = calls::operate(handle, first, Operation::Hold).await;
        assert_eq!(held.map_err(|error| error.code), Err(Code::InsufficientStorage));
        let why = handle.storage_trouble().expect("it is known");
        assert!(why.contains("could not be written"), "{why}");
        assert!(matches!(handle.ready().await, Err(Unavailable::Unwritable(_))));
        assert!(calls::room(handle, "default", usize::MAX).is_err(), "nothing is taken on");
        let question = handle.query(move |replica| {
            let job = replica.state().job(first).expect("it is there");
            (job.held, job.end)
        });
        assert_eq!(question.await, Ok((false, None)), "what is not durable is not shown");
        fails.store(false, Ordering::SeqCst);
        while handle.storage_trouble().is_some() {
            tokio::task::yield_now().await;
        }
        calls::operate(handle, first, Operation::Hold).await.expect("the loop goes on");
        let held = handle.query(move |replica| replica.state().job(first).map(|job| job.held));
        assert_eq!(held.await, Ok(Some(true)));
    });
    end(service).expect("it was asked to end");
}

#[test]
fn an_end_is_recorded_however_often_a_full_disk_was_tried_before() {
    let store = Recorder { reserve: Reserve::Kept, ..Recorder::default() };
    let fails = Arc::clone(&store.fails);
    // The disk is tried after 100 and 300 ms of the engine's time.
    let mut control = controller(&[(1, Script::Finish(Millis(400)))], store);
    let stage = build::stage("main", vec![build::alternative("gpu", 2)]);
    control.accept(build::submitted(1, build::job(Priority::Normal, vec![stage])));
    control.turn(None).expect("the log can be written");
    fails.store(true, Ordering::SeqCst);
    let setup = Setup { ended_max: 10, ..Setup::default() };
    let service = Service::start(control, setup).expect("threads");
    runtime().block_on(async {
        while state_of(&service.handle, JobId(1)).await != "succeeded" {
            tokio::task::yield_now().await;
        }
        assert!(service.handle.storage_trouble().is_some(), "the disk is still full");
        fails.store(false, Ordering::SeqCst);
    });
    end(service).expect("it was asked to end");
}

#[test]
fn a_service_whose_disk_cannot_be_written_can_be_ended() {
    let store = Recorder::default();
    store.fails.store(true, Ordering::SeqCst);
    let (sender, seen) = channel();
    let observer = Box::new(move |_: &_, batch: &[(Time, Event)]| {
        sender.send(batch.len()).expect("the test listens");
    });
    let setup = Setup { observers: vec![observer], ..Setup::default() };
    let service = Service::start(controller(&[], store), setup).expect("threads");
    runtime().block_on(async {
        assert!(service.handle.storage_trouble().is_some(), "it is found out at the start");
        service.handle.stop().await.expect("the loop hears");
    });
    service.join().1.expect("it was asked to end");
    assert_eq!(seen.iter().count(), 0, "observers are let go when the loop has ended");
}

#[test]
fn a_new_loop_goes_on_from_what_an_old_one_left() {
    let mut control = controller(&[(1, Script::UntilNotice)], MemoryStore::default());
    let stage = build::stage("main", vec![build::alternative("gpu", 2)]);
    control.accept(build::submitted(1, build::job(Priority::Normal, vec![stage])));
    control.turn(None).expect("the log can be written");
    let state = control.state().clone();
    let mut engine = control.into_engine();
    engine.adopt(&state);
    let policy = by_name("fifo").expect("the table has it");
    let control = Controller::new(state, Rates::default(), policy, engine, MemoryStore::default());
    let service = Service::start(control, Setup::default()).expect("threads");
    runtime().block_on(async {
        while state_of(&service.handle, JobId(1)).await != "running" {
            service.handle.ready().await.expect("the loop runs");
        }
        calls::operate(&service.handle, JobId(1), Operation::Cancel).await.expect("it runs");
        let ended = || {
            service.handle.query(|replica| {
                let leases: Vec<LeaseId> = replica.state().leases().keys().copied().collect();
                (leases, replica.state().jobs()[&JobId(1)].end.map(|(_, end)| end))
            })
        };
        while ended().await != Ok((Vec::new(), Some(JobEnd::Cancelled))) {
            service.handle.ready().await.expect("the loop runs");
        }
    });
    end(service).expect("it was asked to end");
}
