//! Faults of real programs mend themselves: each job draws one, and all end without anybody.
//!
//! `HET_FAULT_RUNS=200 cargo test -p het-cli --test cli faults` plays more than a CI run does.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use het_lab::Draw;
use serde_json::{Value, json};

use crate::support::{Sandbox, Served, serve_declared};

/// Jobs in a CI run.
const RUNS: u64 = 12;

const STEPS: u64 = 40;

/// It trains for `$STEPS` steps, saves every `$EVERY` of them, goes on from `--resume PATH`, and
/// undergoes `$FAULT` after step `$AT`, once. A checkpoint that is cut off cannot be read.
const TRAINER: &str = r#"
step=0
if [ "$1" = --resume ]; then
  [ "$(tail -n 1 "$2/weights")" = end ] || { echo "$2 is cut off" >&2; exit 3; }
  step=$(head -n 1 "$2/weights")
fi
echo "$step" >> "$NOTES/starts"
while [ "$step" -lt "$STEPS" ]; do
  step=$((step + 1))
  echo "$step" >> "$NOTES/steps"
  echo "{\"step\":$step,\"total\":$STEPS}" >> "$HET_PROGRESS"
  sleep 0.04
  if [ $((step % EVERY)) = 0 ]; then
    mkdir "$HET_CHECKPOINT_DIR/tmp-checkpoint-$step"
    printf '%s\nend\n' "$step" > "$HET_CHECKPOINT_DIR/tmp-checkpoint-$step/weights"
    : > "$HET_CHECKPOINT_DIR/tmp-checkpoint-$step/state.json"
    rm -rf "$HET_CHECKPOINT_DIR/checkpoint-$step"
    mv "$HET_CHECKPOINT_DIR/tmp-checkpoint-$step" "$HET_CHECKPOINT_DIR/checkpoint-$step"
  fi
  if [ "$step" = "$AT" ] && mkdir "$NOTES/fault" 2> /dev/null; then
    case $FAULT in
      killed) kill -KILL $$ ;;
      terminated) kill -TERM $$ ;;
      corrupt)
        echo "$step" > "$HET_CHECKPOINT_DIR/checkpoint-$((step / EVERY * EVERY))/weights"
        kill -KILL $$ ;;
      hang) trap '' TERM; while :; do sleep 1000; done ;;
      device) : > "$BROKEN/$PHOTONS"; kill -KILL $$ ;;
    esac
  fi
done
echo '{"done":true}' >> "$HET_PROGRESS"
"#;

/// A device is well unless a fault broke it; programs without one have nothing to check.
const CHECK: &str = "#!/bin/sh\n[ -z \"$PHOTONS\" ] || [ ! -e \"$BROKEN/$PHOTONS\" ]\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Killed,
    Terminated,
    Corrupt,
    Hang,
    Device,
}

impl Fault {
    const ALL: [Self; 5] =
        [Self::Killed, Self::Terminated, Self::Corrupt, Self::Hang, Self::Device];

    fn word(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Terminated => "terminated",
            Self::Corrupt => "corrupt",
            Self::Hang => "hang",
            Self::Device => "device",
        }
    }

    /// Most attempts that it costs, the last included: a corrupt checkpoint fails one more, and
    /// each device that is found to be broken may.
    fn attempts_max(self, devices: u64) -> u64 {
        match self {
            Self::Killed | Self::Terminated | Self::Hang => 2,
            Self::Corrupt => 3,
            Self::Device => 2 + devices,
        }
    }
}

struct Run {
    fault: Fault,
    every: u64,
    id: u64,
    notes: PathBuf,
}

fn submit(served: &Served, broken: &Path, seed: u64) -> Run {
    let mut draw = Draw::new(seed, 0);
    let fault = Fault::ALL[(seed % 5) as usize];
    let every = draw.between(4, 8);
    // Two checkpoints are there, the program has reported for a while, and something is left to do.
    let at = draw.between(STEPS / 2, STEPS - 2);
    let notes = served.0.path().join(format!("notes-{seed}"));
    fs::create_dir(&notes).expect("a directory can be made");
    let devices = if fault == Fault::Device { "gpu:1" } else { "cpu:1" };
    let stage = json!({
        "name": format!("{}-{seed}", fault.word()), "kind": "train", "devices": devices,
        "run": ["sh", served.0.path().join("trainer.sh")],
        "resume": ["--resume", "{checkpoint}"], "checkpoint": { "every": "1s" }, "stall": "2s",
        "env": {
            "NOTES": notes, "FAULT": fault.word(), "AT": at.to_string(), "BROKEN": broken,
            "STEPS": STEPS.to_string(), "EVERY": every.to_string(),
        },
    });
    let file = served.0.write(&format!("job-{seed}.yaml"), &stage.to_string());
    let submitted = served.json(&["submit", &file.to_string_lossy()]);
    Run { fault, every, id: submitted["id"].as_u64().expect("an id"), notes }
}

fn lines(path: &Path) -> Vec<u64> {
    let text = fs::read_to_string(path).expect("the program ran");
    text.lines().map(|line| line.parse().expect("a number")).collect()
}

fn check(served: &Served, run: &Run, devices: u64) {
    let report = served.json(&["describe", &run.id.to_string()]);
    let stage = &report["stages"][0];
    let told = format!("{:?}: {report:#}", run.fault);
    assert_eq!(report["state"], "succeeded", "{told}");
    let attempts = stage["attempts"].as_u64().expect("a number");
    assert!((2..=run.fault.attempts_max(devices)).contains(&attempts), "{told}");
    let (starts, steps) = (lines(&run.notes.join("starts")), lines(&run.notes.join("steps")));
    assert_eq!(starts.len(), 2, "{told}");
    assert!(starts[1] > 0, "it went on from a checkpoint: {starts:?} {told}");
    let again = steps.len() as u64 - STEPS;
    let corrupt = u64::from(run.fault == Fault::Corrupt);
    assert!(again <= run.every * (1 + corrupt), "{again} steps again, {told}");
}

#[test]
fn jobs_mend_themselves() {
    let runs = std::env::var("HET_FAULT_RUNS").ok().and_then(|text| text.parse().ok());
    let runs: u64 = runs.unwrap_or(RUNS);
    let sandbox = Sandbox::new();
    sandbox.write("trainer.sh", TRAINER);
    let check_file = sandbox.write("check.sh", CHECK);
    fs::set_permissions(&check_file, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let broken = sandbox.path().join("broken");
    fs::create_dir(&broken).expect("a directory can be made");
    let devices = runs / 5 + 2;
    let health_check = ["--health-check", &*check_file.to_string_lossy()].map(str::to_owned);
    let served = serve_declared(sandbox, devices, &health_check);
    let all: Vec<Run> = (1..=runs).map(|seed| submit(&served, &broken, seed)).collect();
    let ids: Vec<String> = all.iter().map(|run| run.id.to_string()).collect();
    let words: Vec<&str> = ["wait", "--timeout", "20m"].into_iter().collect();
    let words = [words, ids.iter().map(String::as_str).collect()].concat();
    let waited = served.code(&words);
    let told = || -> Value { served.json(&["ps"]) };
    assert_eq!(waited, Some(0), "{:#}", told());
    all.iter().for_each(|run| check(&served, run, devices));
    let faults = |fault| all.iter().filter(|run| run.fault == fault).count();
    eprintln!("{runs} runs: {:?}", Fault::ALL.map(|fault| (fault, faults(fault))));
}

/// It hangs on the first photon alone.
const HANGS_ON_ONE: &str = r#"
for step in 1 2 3 4; do
  echo "{\"step\":$step}" >> "$HET_PROGRESS"
  sleep 0.05
done
if [ "$PHOTONS" = 0 ]; then
  while :; do sleep 1000; done
fi
echo "$PHOTONS"
"#;

#[test]
fn a_device_on_which_programs_hang_twice_is_suspected() {
    let served = serve_declared(Sandbox::new(), 2, &[]);
    let program = served.0.write("hangs.sh", HANGS_ON_ONE);
    let submit = |name: &str| {
        let stage = json!({
            "name": name, "devices": "gpu:1", "run": ["sh", program], "stall": "1s",
        });
        let file = served.0.write(&format!("{name}.yaml"), &stage.to_string());
        served.json(&["submit", &file.to_string_lossy()])["id"].as_u64().expect("an id").to_string()
    };
    let state_of = |row: usize| {
        let devices = served.json(&["devices"]);
        let items = devices["items"].as_array().expect("a list");
        let photons: Vec<&Value> = items.iter().filter(|item| item["class"] == "photon").collect();
        photons[row]["state"].as_str().expect("a word").to_owned()
    };
    let first = submit("first");
    assert_eq!(served.code(&["wait", "--timeout", "10m", &first]), Some(0));
    let report = served.json(&["describe", &first]);
    assert_eq!(
        report["stages"][0]["attempts"], 3,
        "twice where it hung, then elsewhere: {report:#}"
    );
    assert_eq!((&*state_of(0), &*state_of(1)), ("suspected", "up"));
    let second = submit("second");
    assert_eq!(served.code(&["wait", "--timeout", "10m", &second]), Some(0));
    assert_eq!(served.json(&["describe", &second])["stages"][0]["attempts"], 1);
    assert_eq!(served.code(&["devices", "undrain", "gpu0"]), Some(0));
    assert_eq!(state_of(0), "up");
}
