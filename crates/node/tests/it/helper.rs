//! The Python helper in real gangs: what a script hears and says through it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use het_core::{Checkpoint, Millis, Outcome};
use het_testkit::has_python;

use crate::rig::Rig;

/// Ranks that take steps at their own paces, and note the step after which they were to stop. They
/// begin when all of them listen.
const SCRIPT: &str = "
import os, pathlib, time, heterosis
job = heterosis.job()
for step in range(100000):
    time.sleep(0.0005 * (1 + job.rank * step % 5))
    if step == 20:
        job.progress(step=step, loss=1.0)
    if job.should_stop(step):
        pathlib.Path(f'stopped-{job.rank}').write_text(str(step))
        os.makedirs(job.checkpoint_dir / f'mine-{step}', exist_ok=True)
        job.saved(step, job.checkpoint_dir / f'mine-{step}')
        job.leave()
    if step == 0:
        pathlib.Path(f'here-{job.rank}').touch()
        while not all(os.path.exists(f'here-{other}') for other in range(job.world)):
            time.sleep(0.001)
";

/// Gangs that are stopped at different instants.
const GANGS: usize = 3;
const RANKS: usize = 4;

/// Outside a job: a forked worker is ended by SIGTERM as ever, while the script itself is asked.
const ALONE: &str = "
import multiprocessing, os, signal, time, heterosis
job = heterosis.job()
assert not job.should_stop(0)
job.progress(step=1)
worker = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))
worker.start()
worker.terminate()
worker.join(20)
assert worker.exitcode == -signal.SIGTERM, worker.exitcode
os.kill(os.getpid(), signal.SIGTERM)
assert job.should_stop(1)
job.leave()
";

/// Whatever the number of ranks, each sample is seen once an epoch, the steps are the same, and
/// what the parts count adds up; accumulation follows the number of devices.
const BATCHES: &str = "
import heterosis
for samples, batch in [(10, 3), (64, 8), (7, 100), (1, 1), (96, 16)]:
    orders = set()
    for world in (1, 2, 3, 4, 8):
        ranks = [
            heterosis.Batches(samples, batch=batch, epochs=2, rank=rank, world=world)
            for rank in range(world)
        ]
        seen = []
        for step in range(len(ranks[0])):
            whole = ranks[0].all(step)
            assert 0 < len(whole) <= batch
            assert sorted(sum((rank.own(step) for rank in ranks), [])) == sorted(whole)
            weights = [
                rank.weight(step, part) for rank in ranks for part in rank.micro(step, 2)
            ]
            assert abs(sum(weights) / world - 1) < 1e-9
            seen += whole
        half = len(seen) // 2
        assert sorted(seen[:half]) == sorted(seen[half:]) == list(range(samples))
        orders.add(tuple(seen))
    assert len(orders) == 1
job = lambda devices: heterosis.Job({'HET_DEVICE_COUNT': str(devices), 'HET_BATCH_DEVICES': '4'})
assert [job(devices).accumulation(4) for devices in (1, 2, 4, 8, 16)] == [16, 8, 4, 2, 1]
assert heterosis.Job({}).accumulation(3) == 3
try:
    job(3).accumulation(4)
    raise SystemExit('no whole number')
except ValueError:
    pass
";

#[test]
fn ranks_stop_after_the_same_step() {
    if !has_python() {
        return;
    }
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python");
    let package = package.display();
    for _ in 0..GANGS {
        let mut rig = Rig::new();
        fs::write(rig.path("train.py"), SCRIPT).expect("the rig is writable");
        let run = "PYTHONDONTWRITEBYTECODE=1 exec python3 train.py";
        rig.start(&format!("PYTHONPATH={package} {run}"), RANKS);
        rig.await_step(20);
        rig.stop(Millis(60_000));
        let story = rig.story();
        assert_eq!(story.outcome, Outcome::Stopped);
        let steps: Vec<String> =
            (0..RANKS).map(|rank| rig.read(&format!("stopped-{rank}"))).collect();
        assert!(steps.iter().all(|step| *step == steps[0]), "{steps:?}");
        let step: u64 = steps[0].parse().expect("a number");
        let path = rig.path(&format!("ckpt/mine-{step}")).to_string_lossy().into_owned();
        assert_eq!(story.checkpoints, [Checkpoint { step, path }]);
        let Rig { node, dir, .. } = rig;
        drop(node);
        assert!(!dir.path().join("run").exists(), "nothing is left in it");
    }
}

fn run_alone(script: &str) -> Output {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python");
    let mut python = Command::new("python3");
    python.args(["-c", script]).env("PYTHONPATH", package).env("PYTHONDONTWRITEBYTECODE", "1");
    python.output().expect("it can be started")
}

#[test]
fn batches_are_the_same_at_any_number_of_ranks() {
    if !has_python() {
        return;
    }
    let ended = run_alone(BATCHES);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn a_batch_goes_to_where_it_counts_most_and_each_sample_is_dealt_once_an_epoch() {
    if !has_python() {
        return;
    }
    let ended = run_alone(include_str!("adaptive_batches.py"));
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn without_a_job_a_script_is_asked_by_a_signal_and_its_workers_end() {
    if !has_python() {
        return;
    }
    let ended = run_alone(ALONE);
    assert_eq!(ended.status.code(), Some(75), "{}", String::from_utf8_lossy(&ended.stderr));
}
