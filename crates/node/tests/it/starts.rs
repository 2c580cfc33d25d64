//! What a process is given.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use het_core::{Checkpoint, Drivers, Elastic, Event, JobId, LeaseId, NodeId, Outcome};
use het_engine::Engine;
use het_node::{Node, NodeError};

use crate::rig::{CPU, GPU, LEASE, Rig, allowed_cores, config, grant, rank};

/// The rows of `env` that the contract names, paths shortened, the port checked and masked.
#[track_caller]
fn contract_rows(rig: &Rig, rank: u32) -> String {
    let prefixes = [
        "MASTER_",
        "WORLD_",
        "RANK",
        "LOCAL_",
        "NODE_RANK",
        "NNODES",
        "PET_",
        "CUDA_",
        "ASCEND_",
        "DS_",
        "OMP_",
        "PYTHONUNBUFFERED",
        "RAYON_",
        "HET_",
        "GREETING",
    ];
    let workdir = rig.dir.path().to_string_lossy().into_owned();
    let mut rows: Vec<String> = rig
        .log(rank)
        .lines()
        .filter(|row| prefixes.iter().any(|prefix| row.starts_with(prefix)))
        .map(|row| match row.split_once("MASTER_PORT=") {
            Some((before, port)) => {
                assert!(port.parse::<u16>().is_ok_and(|port| port > 0), "{row}");
                format!("{before}MASTER_PORT=PORT")
            }
            None => row.replace(&workdir, "WORKDIR"),
        })
        .collect();
    rows.sort();
    rows.join("\n")
}

const DEVICES_1: &str = concat!(
    r#"[{"name":"cuda0","kind":"gpu","driver":"cuda","class":"h100","cores":0},"#,
    r#"{"name":"cuda1","kind":"gpu","driver":"cuda","class":"h100","cores":0}]"#
);
const RANK_1: &str = r#"CUDA_DEVICE_ORDER=PCI_BUS_ID
CUDA_VISIBLE_DEVICES=0,1
GREETING=rank 1 of 2
HET_ATTEMPT=3
HET_CHECKPOINT_DIR=WORKDIR/ckpt
HET_CHECKPOINT_EVERY=3600
HET_DEVICES=DEVICES
HET_JOB=demo
HET_MEAN_TIME_BETWEEN_FAILURES=60812403
HET_NOTICE=WORKDIR/run/lease-1/notice
HET_OUTPUT=WORKDIR/train
HET_PRECISION=bf16
HET_PROGRESS=WORKDIR/run/progress/lease-1
HET_RESUME_FROM=WORKDIR/ckpt/checkpoint-5
HET_STAGE=train
LOCAL_RANK=1
LOCAL_WORLD_SIZE=2
MASTER_ADDR=127.0.0.1
MASTER_PORT=PORT
NNODES=1
NODE_RANK=0
OMP_NUM_THREADS=3
PET_MASTER_ADDR=127.0.0.1
PET_MASTER_PORT=PORT
PET_NNODES=2
PET_NODE_RANK=1
PET_NPROC_PER_NODE=2
PYTHONUNBUFFERED=1
RANK=1
RAYON_NUM_THREADS=3
WORLD_SIZE=2"#;

#[test]
fn the_environment_contract() {
    let mut rig = Rig::new();
    let mut launch = rig.launch("env");
    launch.precision = Some("bf16".into());
    launch.env = BTreeMap::from([
        ("GREETING".to_owned(), "rank {rank} of {world}".to_owned()),
        ("HET_JOB".to_owned(), "forged".to_owned()),
        ("CUDA_VISIBLE_DEVICES".to_owned(), "7".to_owned()),
    ]);
    let path = rig.path("ckpt/checkpoint-5").to_string_lossy().into_owned();
    let ranks = vec![
        rank(&[grant(CPU, 2)], &[]),
        rank(&[grant(GPU, 1), grant(het_core::DeviceId(2), 1)], &[grant(CPU, 3)]),
    ];
    rig.start_with(LEASE, launch, ranks, Some(Checkpoint { step: 5, path }));
    assert_eq!(rig.story().outcome, Outcome::Finished);
    assert_eq!(
        contract_rows(&rig, 1),
        RANK_1.replace("DEVICES=DEVICES", &format!("DEVICES={DEVICES_1}"))
    );
    let rank_0 = contract_rows(&rig, 0);
    let cpu =
        r#"HET_DEVICES=[{"name":"cpu0","kind":"cpu","driver":"cpu","class":"epyc","cores":2}]"#;
    for row in [cpu, "CUDA_VISIBLE_DEVICES=", "RANK=0", "OMP_NUM_THREADS=2"] {
        assert!(rank_0.lines().any(|line| line == row), "no `{row}` in\n{rank_0}");
    }
    assert!(rig.path("train").is_dir(), "the output directory is made");
}

/// Variables that make a framework take its process for one of several, with the port that alone
/// does not, of a stage that may have so many ranks and has one.
#[track_caller]
fn check_ranks(ranks_max: u32, expected: &str) {
    let mut rig = Rig::new();
    let mut launch = rig.launch("env");
    launch.ranks_max = ranks_max;
    rig.start_with(LEASE, launch, vec![rank(&[grant(GPU, 1)], &[])], None);
    rig.story();
    let rows = contract_rows(&rig, 0);
    let names = rows.lines().filter_map(|row| Some(row.split_once('=')?.0));
    let others = ["HET_", "CUDA_", "PYTHON"];
    let names: Vec<&str> =
        names.filter(|name| !others.iter().any(|other| name.starts_with(other))).collect();
    assert_eq!(names.join(" "), expected);
}

#[test]
fn who_can_only_be_one_process_is_told_no_rank() {
    let port = "MASTER_PORT PET_MASTER_PORT PET_NPROC_PER_NODE";
    check_ranks(0, port);
    check_ranks(1, port);
    check_ranks(
        2,
        "LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT NNODES NODE_RANK PET_MASTER_ADDR \
         PET_MASTER_PORT PET_NNODES PET_NODE_RANK PET_NPROC_PER_NODE RANK WORLD_SIZE",
    );
}

#[test]
fn a_stage_that_may_have_other_sizes_is_told_what_its_batch_is_meant_for() {
    let mut rig = Rig::new();
    let mut launch = rig.launch("env");
    launch.elastic = Some(Elastic { reference: 4, batch: None });
    rig.start_with(LEASE, launch, vec![rank(&[grant(GPU, 1)], &[])], None);
    rig.story();
    let rows = contract_rows(&rig, 0);
    for row in ["HET_DEVICE_COUNT=1", "HET_BATCH_DEVICES=4"] {
        assert!(rows.lines().any(|line| line == row), "no `{row}` in\n{rows}");
    }
}

#[test]
fn a_program_is_told_by_which_of_its_drivers_to_use_a_device() {
    let mut rig = Rig::new();
    let mut launch = rig.launch("env");
    launch.drivers = ["vulkan", "cuda"].into_iter().collect::<Drivers>();
    rig.start_with(LEASE, launch, vec![rank(&[grant(GPU, 1)], &[])], None);
    rig.story();
    let rows = contract_rows(&rig, 0);
    // The vendor's variable shows a device to any of its drivers.
    for part in [r#""driver":"vulkan""#, "CUDA_VISIBLE_DEVICES=0"] {
        assert!(rows.contains(part), "no `{part}` in\n{rows}");
    }
}

#[test]
fn without_a_resume_nothing_says_so() {
    let mut rig = Rig::new();
    let mut launch = rig.launch("env; echo \"args $@\"");
    launch.argv.extend(["x".to_owned(), "{rank}/{world}".to_owned()]);
    launch.resume = vec!["--resume".to_owned()];
    rig.start_with(LEASE, launch, vec![rank(&[grant(CPU, 1)], &[])], None);
    rig.story();
    assert!(!rig.log(0).contains("HET_RESUME_FROM"));
    assert!(rig.log(0).contains("args 0/1\n"));
}

#[test]
fn placeholders_and_resume_arguments() {
    let mut rig = Rig::new();
    let mut launch = rig.launch("echo \"args $@\"; [ $PORT = $MASTER_PORT ]");
    launch.argv.extend(["x".to_owned(), "{rank}/{world}".to_owned()]);
    launch.env.insert("PORT".to_owned(), "{port}".to_owned());
    launch.resume = vec!["--resume".to_owned(), "{checkpoint}".to_owned()];
    let resume = Checkpoint { step: 5, path: "/c/checkpoint-5".to_owned() };
    rig.start_with(LEASE, launch, vec![rank(&[grant(CPU, 1)], &[]); 2], Some(resume));
    assert_eq!(rig.story().outcome, Outcome::Finished);
    assert_eq!(rig.log(0), "args 0/2 --resume /c/checkpoint-5\n");
    assert_eq!(rig.log(1), "args 1/2 --resume /c/checkpoint-5\n");
}

#[test]
fn the_users_thread_count_wins() {
    let mut rig = Rig::new();
    let mut launch = rig.launch("echo $OMP_NUM_THREADS $RAYON_NUM_THREADS");
    launch.env.insert("OMP_NUM_THREADS".to_owned(), "1".to_owned());
    rig.start_with(LEASE, launch, vec![rank(&[grant(CPU, 4)], &[])], None);
    rig.story();
    assert_eq!(rig.log(0), "1 4\n");
}

/// What a program of one core that it is pinned to, or not, is told of its threads.
#[track_caller]
fn check_threads(script: &str, pinned: bool, expected: &str) {
    let cores = if pinned { allowed_cores() } else { Vec::new() };
    let mut rig = Rig::with_cores(BTreeMap::from([(CPU, cores)]));
    let launch = rig.launch(&format!("echo ${{OMP_NUM_THREADS-unset}}; {script}"));
    rig.start_with(LEASE, launch, vec![rank(&[grant(CPU, 1)], &[])], None);
    rig.story();
    assert_eq!(rig.log(0).lines().next(), Some(expected), "{script}");
}

#[test]
fn a_program_on_its_own_cores_counts_them_itself() {
    check_threads("true", true, "unset");
    check_threads("true", false, "1");
    check_threads("torchrun --nproc-per-node 2 train.py", true, "unset");
    check_threads("torchrun --nproc-per-node 2 train.py", false, "1");
    check_threads("torchrun --nproc-per-node $N train.py", false, "unset");
}

#[test]
fn a_launcher_that_asks_for_more_than_was_granted_is_refused() {
    let mut rig = Rig::new();
    let mut launch = rig.launch("");
    launch.argv = ["deepspeed", "--num_gpus", "4", "train.py"].map(str::to_owned).to_vec();
    rig.start_with(LEASE, launch, vec![rank(&[grant(GPU, 1)], &[])], None);
    let story = rig.story();
    assert_eq!((story.failure().exit_code, story.started), (126, 0));
    assert!(
        story.failure().message.contains("more than the devices granted (1)"),
        "{:?}",
        story.failure()
    );
}

#[test]
fn both_streams_of_each_rank_go_to_its_own_log() {
    let mut rig = Rig::new();
    rig.run("echo out $RANK; echo err $RANK >&2", 2);
    assert_eq!(rig.log(0), "out 0\nerr 0\n");
    assert_eq!(rig.log(1), "out 1\nerr 1\n");
}

#[test]
fn each_rank_leads_its_own_group() {
    let mut rig = Rig::new();
    rig.run(
        "read -r pid name state parent group session rest </proc/self/stat; \
             echo $(($$ == session))",
        2,
    );
    assert_eq!((rig.log(0), rig.log(1)), ("1\n".to_owned(), "1\n".to_owned()));
}

#[test]
fn ranks_are_pinned_to_different_cores_and_give_them_back() {
    let cores = allowed_cores();
    let mut rig = Rig::with_cores(BTreeMap::from([(CPU, cores.clone())]));
    for lease in 1..=2 {
        let launch = rig.launch("grep Cpus_allowed_list /proc/self/status");
        let ranks = vec![rank(&[grant(CPU, 1)], &[]); cores.len().min(2)];
        let count = ranks.len();
        rig.start_with(LeaseId(lease), launch, ranks, None);
        assert_eq!(rig.story().outcome, Outcome::Finished);
        for (index, core) in cores.iter().take(count).enumerate() {
            let log = rig.log(index as u32);
            let last = log.lines().last().expect("something is printed");
            assert_eq!(last, format!("Cpus_allowed_list:\t{core}"));
        }
    }
}

/// Tries to run a file or a missing one; `mode` is that of the file `script`.
#[track_caller]
fn check_refused(program: &str, mode: u32, code: i32, message: &str) {
    let mut rig = Rig::new();
    let script = rig.path("script");
    fs::write(&script, "#!/no/such/interpreter\n").expect("a file can be written");
    let permissions = fs::Permissions::from_mode(mode);
    fs::set_permissions(&script, permissions).expect("permissions can be set");
    let mut launch = rig.launch("");
    launch.argv = vec![program.to_owned()];
    rig.start_with(LEASE, launch, vec![rank(&[grant(CPU, 1)], &[])], None);
    let story = rig.story();
    assert_eq!((story.failure().exit_code, story.started), (code, 0));
    let told = &story.failure().message;
    assert!(told.starts_with(message) && told.contains("hint: "), "{told}");
}

#[test]
fn programs_that_cannot_be_run() {
    check_refused("torchrn", 0o755, 127, "`torchrn` was not found in PATH");
    check_refused("./missing", 0o755, 127, "`./missing` does not exist");
    check_refused("./script", 0o644, 126, "`./script` is not executable");
    check_refused("./script", 0o755, 126, "the interpreter of `./script` does not exist");
}

#[test]
fn a_missing_directory_to_start_in() {
    let mut rig = Rig::new();
    let mut launch = rig.launch("true");
    launch.cwd = "/no/such/directory".to_owned();
    rig.start_with(LEASE, launch, vec![rank(&[grant(CPU, 1)], &[])], None);
    let story = rig.story();
    assert_eq!(story.failure().exit_code, 126);
    assert!(story.failure().message.contains("`/no/such/directory`"));
}

#[test]
fn a_rank_that_cannot_start_takes_the_others_with_it() {
    let mut rig = Rig::new();
    let mut launch = rig.launch("");
    fs::create_dir(rig.path("bin")).expect("a directory can be made");
    std::os::unix::fs::symlink("/bin/sh", rig.path("bin/0")).expect("a link can be made");
    launch.argv = ["bin/{rank}", "-c", "echo $$ > pid; sleep 60"].map(str::to_owned).to_vec();
    rig.start_with(LEASE, launch, vec![rank(&[grant(CPU, 1)], &[]); 2], None);
    let story = rig.story();
    assert_eq!((story.failure().rank, story.failure().exit_code), (1, 127));
    if let Ok(pid) = fs::read_to_string(rig.path("pid")) {
        assert!(!crate::rig::is_alive(&pid), "rank 0 is killed");
    }
}

#[test]
fn a_placement_on_another_node_is_refused() {
    let mut rig = Rig::new();
    let launch = rig.launch("true");
    let mut elsewhere = rank(&[grant(CPU, 1)], &[]);
    elsewhere.node = NodeId(1);
    rig.start_with(LEASE, launch, vec![elsewhere], None);
    let outcome = rig.story().outcome;
    let told = |reason: &str| reason.contains("not on this machine");
    assert!(matches!(&outcome, Outcome::Refused { reason } if told(reason)), "{outcome:?}");
}

#[test]
fn wrong_core_ids_are_refused() {
    let core = allowed_cores()[0];
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let refused = |device, cores| Node::new(config(BTreeMap::from([(device, cores)]), dir.path()));
    assert!(matches!(refused(GPU, vec![core]), Err(NodeError::NotASocket { .. })));
    assert!(matches!(refused(CPU, vec![1_023_999]), Err(NodeError::ForbiddenCore { .. })));
    assert!(matches!(refused(CPU, vec![core, core]), Err(NodeError::DuplicateCore { .. })));
}

#[test]
fn an_inlet_wakes_the_engine_and_its_end_does_too() {
    let mut rig = Rig::new();
    let event_sender = rig.node.event_sender();
    let before = rig.node.now();
    let sender =
        std::thread::spawn(move || event_sender.send(Event::JobCancelled { job: JobId(4) }));
    let (at, event) = rig.node.next_event(None).expect("the fact arrives");
    assert_eq!(event, Event::JobCancelled { job: JobId(4) });
    assert!(at >= before);
    sender.join().expect("the sender does not fail");
    assert_eq!(rig.node.next_event(None), None, "nothing can happen any more");
}

#[test]
fn the_engine_and_its_inlets_can_move_to_other_threads() {
    fn check<T: Send>() {}
    check::<Node>();
    check::<het_node::EventSender>();
}
