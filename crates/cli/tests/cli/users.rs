//! A server of several users, started by root, and what one of them cannot do to another, to the
//! server or to root. Without root, or users to run as, nothing here can be shown.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::yield_now;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Group, Pid, User, geteuid};

use crate::commands::wait_for;
use crate::hostile::{PROGRAMS, end_healthy, healthy, hold_nobody_up, see_it_end, see_it_go_on};
use crate::support::Sandbox;

/// As whom the server runs, whose members may submit, two members and a stranger: every Debian has
/// them, and none has anything to do.
const SERVER: &str = "daemon";
const GROUP: &str = "nogroup";
const MEMBERS: [&str; 2] = ["nobody", "_apt"];
const STRANGER: &str = "games";

/// A server of several users that is stopped at the end, with all that it runs.
struct Team {
    root: Sandbox,
    /// Whose job is attacked.
    ada: Sandbox,
    /// Who attacks.
    eve: Sandbox,
    stranger: Sandbox,
}

impl Team {
    /// None where this machine does not let us start one.
    #[expect(clippy::print_stderr, reason = "a test that shows nothing says so")]
    fn start() -> Option<Self> {
        let user = |name| User::from_name(name).ok().flatten();
        let group = Group::from_name(GROUP).ok().flatten();
        let users = [MEMBERS[0], MEMBERS[1], STRANGER].map(user);
        let ([Some(ada), Some(eve), Some(stranger)], Some(group), true) =
            (users, group, geteuid().is_root() && user(SERVER).is_some())
        else {
            eprintln!("SKIPPED: not root, or without the users and the group that this needs");
            return None;
        };
        if [&ada, &eve].iter().any(|user| user.gid != group.gid) {
            eprintln!("SKIPPED: `{GROUP}` is not the group of `{MEMBERS:?}`");
            return None;
        }
        // Where it was built, users may not reach it.
        let root = Sandbox::with_program(|dir| {
            let path = dir.join("het");
            // By a program of its own: a file that this process has open for writing could not be
            // executed as long as a child of another test's has it too.
            let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_het")).arg(&path).status();
            assert!(copied.expect("it starts").success(), "there is room for it");
            path
        });
        let mode = fs::Permissions::from_mode(0o711);
        fs::set_permissions(root.path(), mode).expect("it is ours");
        for user in [&ada, &eve, &stranger] {
            let home = root.path().join(format!("home-of-{}", user.name));
            fs::create_dir(&home).expect("it is ours");
            chown(&home, Some(user.uid.as_raw()), None).expect("root may");
        }
        let [ada, eve, stranger] = [ada, eve, stranger].map(|user| root.of(&user));
        let team = Self { root, ada, eve, stranger };
        team.start_server();
        Some(team)
    }

    fn start_server(&self) {
        let arguments = ["server", "--run-as", SERVER, "--members", GROUP];
        let mut server = self.root.het(&arguments);
        server.env("HET_LOCK_DIR", self.root.path().join("lock"));
        server.env("SECRET_OF_ROOT", "hunter2");
        let server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        drop(server.expect("the server can be started"));
        wait_for("the server", || self.root.code(&["ps"]) == Some(0));
    }

    /// The processes of the server and of its parent.
    fn server(&self) -> (i32, i32) {
        let server = self.root.json(&["server", "status"])["pid"].as_i64().expect("a number");
        let keeper = parent(server as i32).expect("it runs");
        (server as i32, keeper)
    }

    fn agent_of(&self, user: &str) -> Option<i32> {
        let uid = User::from_name(user).expect("users can be read").expect("there is one").uid;
        let (_, keeper) = self.server();
        processes().find(|process| {
            let text = |name| fs::read_to_string(format!("/proc/{process}/{name}"));
            let line = format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}");
            parent(*process) == Some(keeper)
                && text("comm").is_ok_and(|name| name.trim() == "het-agent")
                && text("status").is_ok_and(|status| status.contains(&line))
        })
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.root.run(&["cancel", "all"]);
        self.root.run(&["wait", "--timeout", "30s", "all"]);
        self.root.run(&["server", "stop"]);
    }
}

fn processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").expect("it can be read").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn parent(process: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:\t"))?.trim().parse().ok()
}

/// What nobody but its owner, its server or root may do, by name: one that succeeds says so.
/// `$H` is the state directory; `$ADA` her program, `$ADA_AGENT` its supervisor, `$ADA_DIR` what
/// she owns there; `$OWN` the attacker's name, `$AGENT` the attacker's agent.
const ATTEMPTS: &[(&str, &str)] = &[
    ("read-store", "head -c1 $H/server/events.redb"),
    ("read-tokens", "cat $H/server/tokens.json"),
    ("list-server", "ls $H/server"),
    ("list-home", "ls $H"),
    ("list-users", "ls $H/users"),
    ("own-socket", "echo > $H/server/socket"),
    ("plant-in-home", "touch $H/planted"),
    ("plant-socket", "rm -f $H/socket || mv $H/socket $H/other"),
    ("plant-user", "mkdir $H/users/mallory"),
    ("plant-link", "mv $H/users/$OWN $H/users/other && ln -s /etc $H/users/$OWN"),
    ("move-others", "mv $ADA_DIR $H/users/mine"),
    ("open-state", "chmod 777 $H || chmod 777 $H/users || chmod 777 $ADA_DIR"),
    ("list-others", "ls $ADA_DIR"),
    ("read-others-log", "cat $ADA_DIR/jobs/$JOB/logs/*/*/*"),
    ("read-others-output", "cat $ADA_DIR/jobs/$JOB/secret"),
    ("read-others-variables", "cat $ADA_DIR/kept/*"),
    ("read-others-environment", "cat /proc/$ADA/environ"),
    ("read-others-memory", "exec 3<>/proc/$ADA/mem"),
    ("read-others-files", "ls -l /proc/$ADA/fd/"),
    ("stop-others", "kill -STOP $ADA"),
    ("end-others", "kill -9 $ADA"),
    ("end-others-agent", "kill -9 $ADA_AGENT"),
    ("others-agent-memory", "exec 3</proc/$ADA_AGENT/mem"),
    ("end-server", "kill -9 $SERVER"),
    ("server-memory", "exec 3</proc/$SERVER/mem"),
    ("server-environment", "cat /proc/$SERVER/environ"),
    ("server-files", "ls -l /proc/$SERVER/fd/"),
    ("end-keeper", "kill -9 $KEEPER"),
    ("keeper-memory", "exec 3</proc/$KEEPER/mem"),
    ("keeper-environment", "cat /proc/$KEEPER/environ"),
    ("agent-memory", "exec 3</proc/$AGENT/mem"),
    ("agent-environment", "cat /proc/$AGENT/environ"),
    ("agent-files", "ls -l /proc/$AGENT/fd/"),
    ("agent-working-directory", "ls /proc/$AGENT/cwd/"),
    ("become-root", "setpriv --reuid 0 true"),
    ("become-ada", "setpriv --reuid $ADA_UID true"),
    ("become-by-agent", "$HET __agent $ADA_NAME </dev/null"),
    ("become-by-server", "$HET server --run-as $ADA_NAME --members nogroup"),
    ("keep-groups", "[ \"$(id -G)\" != 65534 ]"),
    ("read-shadow", "cat /etc/shadow"),
    ("secret-of-root", "env | grep -q SECRET_OF_ROOT"),
    ("capabilities", "grep -q 'Cap[EP]..:.*[1-9a-f]' /proc/self/status"),
];

/// What the server is asked by whoever may not, each with what it says then.
fn questions(job: &str) -> Vec<Vec<String>> {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    [
        format!("cancel {job}"),
        format!("hold {job}"),
        format!("preempt {job}"),
        format!("set {job} --priority low"),
        "server stop".to_owned(),
        "server backup stolen".to_owned(),
        "devices drain cpu0".to_owned(),
    ]
    .iter()
    .map(|text| words(text))
    .collect()
}

/// The attempts as one script, after what they are told.
fn script(team: &Team, job: u64, ada: i32) -> String {
    let (server, keeper) = team.server();
    let agent = |name| team.agent_of(name).unwrap_or_else(|| panic!("no agent of {name}"));
    let uid = User::from_name(MEMBERS[0]).expect("users can be read").expect("there is one").uid;
    let root = team.root.path().display();
    let mut text = format!(
        "H={root}/home; HET={root}/het; OWN={own}; ADA_DIR=$H/users/{name}; JOB={job}; ADA={ada}; \
         ADA_AGENT={ada_agent}; AGENT={agent}; SERVER={server}; KEEPER={keeper}; \
         ADA_NAME={name}; ADA_UID={uid}\n",
        own = MEMBERS[1],
        name = MEMBERS[0],
        ada_agent = agent(MEMBERS[0]),
        agent = agent(MEMBERS[1]),
    );
    for (name, attempt) in ATTEMPTS {
        text += &format!("( {attempt} ) >/dev/null 2>&1 && echo 'GOT {name}'\n");
    }
    text + "echo tried\n"
}

#[test]
fn a_user_gets_at_nothing_of_others() {
    let Some(team) = Team::start() else { return };
    let job = team.ada.submit(
        "echo $$ > $HET_OUTPUT/../pid; echo x > $HET_OUTPUT/../secret; \
                               export TOKEN=hunter2; while :; do sleep 0.1; done",
    );
    let pid = team.ada.workdir(job).join("pid");
    let mut program = None;
    wait_for("her program", || {
        program = fs::read_to_string(&pid).ok().and_then(|text| text.trim().parse().ok());
        program.is_some()
    });
    // The attacker has an agent too.
    let first = team.eve.submit("true");
    assert_eq!(see_it_end(&team.eve, first), "succeeded");
    let script = script(&team, job, program.expect("it was told"));
    let (server, keeper) = team.server();

    let direct = team.eve.command("sh").args(["-c", &script]).output().expect("it starts");
    assert_eq!(String::from_utf8_lossy(&direct.stdout), "tried\n");
    let within = team.eve.submit(&script);
    assert_eq!(see_it_end(&team.eve, within), "succeeded");
    let logs = team.eve.run(&["logs", &within.to_string()]);
    assert_eq!(String::from_utf8_lossy(&logs.stdout), "tried\n");

    for question in questions(&job.to_string()) {
        let words: Vec<&str> = question.iter().map(String::as_str).collect();
        let told = team.eve.run(&words);
        assert_ne!(told.status.code(), Some(0), "{words:?}: {told:?}");
    }
    for asked in ["describe", "explain", "ps"] {
        let words: &[&str] = if asked == "ps" { &[asked, "--all"] } else { &[asked, "1"] };
        let told = team.eve.run(words);
        let text = String::from_utf8_lossy(&told.stdout);
        assert!(!text.contains("hunter2") && !text.contains("HET_OUTPUT"), "{text}");
    }
    assert_eq!(team.server(), (server, keeper));
    assert!(Path::new(&format!("/proc/{}", program.expect("it was told"))).exists());
    assert_eq!(team.ada.json(&["describe", "1"])["state"], "running");
}

#[test]
fn what_others_submitted_is_in_nobodys_reach_by_its_path() {
    let Some(team) = Team::start() else { return };
    team.ada.write("secret.sh", "#!/bin/sh\necho hunter2\n");
    let job = team.ada.json(&["submit", "secret.sh"])["id"].as_u64();
    let job = job.expect("an id");
    assert_eq!(see_it_end(&team.ada, job), "succeeded");
    let logs = team.ada.run(&["logs", &job.to_string()]);
    assert_eq!(String::from_utf8_lossy(&logs.stdout), "hunter2\n");

    let kept = team.root.path().join("home/server/kept");
    let entries = fs::read_dir(kept).expect("root may").flatten();
    let script = entries.map(|entry| entry.path().join("secret.sh")).find(|path| path.exists());
    let script = script.expect("it is kept").display().to_string();
    let words = ["submit", "-o", "json", "--", "sh", "-c", "cat \"$0\"; true", &script];
    let read = team.eve.json(&words)["id"].as_u64().expect("an id");
    assert_eq!(see_it_end(&team.eve, read), "succeeded");
    let logs = team.eve.run(&["logs", &read.to_string()]);
    assert!(!String::from_utf8_lossy(&logs.stdout).contains("hunter2"), "{logs:?}");

    // Nor is what only root may read, by a link that root looks through.
    let log = team.ada.workdir(job).join("logs");
    let made = team
        .ada
        .command("sh")
        .current_dir(log)
        .args([
            "-c",
            "rm */*/*; ln -s /etc/shadow a; \
        cd */*; ln -s /etc/shadow rank-0.log",
        ])
        .status();
    assert!(made.expect("it can be run").success());
    let told = team.root.run(&["logs", &job.to_string()]);
    assert!(told.stdout.is_empty() && told.status.code() != Some(0), "{told:?}");

    let workdir = team.ada.workdir(job).display().to_string();
    assert_eq!(team.eve.code(&["submit", "--workdir", &workdir, "--", "true"]), Some(2));
}

#[test]
fn who_may_submit_and_as_whom() {
    let Some(team) = Team::start() else { return };
    let refused = |sandbox: &Sandbox, words: &[&str]| {
        let told = sandbox.run(words);
        assert_ne!(told.status.code(), Some(0), "{words:?}: {told:?}");
        String::from_utf8_lossy(&told.stderr).into_owned()
    };
    let told = refused(&team.root, &["submit", "--", "id"]);
    assert!(told.contains("jobs run as users here"), "{told}");
    let told = refused(&team.stranger, &["ps"]);
    assert!(told.contains("somebody else's"), "{told}");
    team.eve.write("other.yaml", "name: other\ntenant: nobody\nrun: [id]\n");
    refused(&team.eve, &["submit", "other.yaml"]);

    // What its user cannot enter or make, the job cannot have.
    let ended = |words: &[&str]| {
        let words = [&["submit", "-o", "json"], words, &["--", "true"]].concat();
        let told = team.eve.run(&words);
        let job: serde_json::Value = match told.status.success() {
            true => serde_json::from_slice(&told.stdout).expect("it was submitted"),
            false => return "refused".to_owned(),
        };
        see_it_end(&team.eve, job["id"].as_u64().expect("an id"))
    };
    let of_ada = team.root.path().join("home-of-nobody/made");
    let of_server = team.root.path().join("home/jobs/made");
    for path in [&of_ada, &of_server] {
        let path = path.to_string_lossy().into_owned();
        assert_ne!(ended(&["--workdir", &path]), "succeeded", "{path}");
    }
    assert!(!of_ada.exists() && !of_server.exists());
    assert_ne!(ended(&["--chdir", "/root"]), "succeeded");

    // Each user removes the own files.
    let jobs: Vec<u64> = (0..2).map(|_| team.eve.submit("true")).collect();
    jobs.iter().for_each(|&job| assert_eq!(see_it_end(&team.eve, job), "succeeded"));
    assert_eq!(team.eve.code(&["prune", "--keep", "0"]), Some(0));
    assert!(!team.eve.workdir(jobs[0]).exists() && team.eve.workdir(jobs[1]).exists());

    // A token stands for somebody, and never for root.
    let token = |user| team.root.code(&["server", "token", "--role", "user", "--user", user]);
    assert_eq!(token(MEMBERS[0]), Some(0));
    for user in ["root", "no-such-user"] {
        assert_ne!(token(user), Some(0), "{user}");
    }
    let tokens = team.root.path().join("home/server/tokens.json");
    let owner = User::from_name(SERVER).expect("users can be read").expect("there is one").uid;
    assert_eq!(fs::metadata(tokens).expect("it is there").uid(), owner.as_raw());
}

/// Opens connections at the socket until the server keeps no more, says so, and holds them until
/// its input ends.
const CONNECTIONS: &str = "\
import socket, sys
kept = []
while len(kept) < 2000:
    one = socket.socket(socket.AF_UNIX)
    one.connect(sys.argv[1])
    one.settimeout(0.2)
    kept.append(one)
    try:
        if len(kept) > 200 and one.recv(1) == b'':
            break
    except TimeoutError:
        pass
print('full', flush=True)
sys.stdin.read()
";

#[test]
fn connections_of_a_user_take_no_places_from_others() {
    let Some(team) = Team::start() else { return };
    let mut greedy = team.eve.command("python3");
    let socket = team.root.path().join("home/socket");
    let greedy = greedy.arg("-c").arg(CONNECTIONS).arg(socket);
    let mut greedy = greedy.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python");
    let mut said = String::new();
    let output = BufReader::new(greedy.stdout.take().expect("it is a pipe"));
    output.take(5).read_line(&mut said).expect("it says so");
    assert_eq!(said, "full\n");
    assert_eq!(team.ada.code(&["ps"]), Some(0));
    assert_ne!(team.eve.code(&["ps"]), Some(0), "every place is taken");
    drop(greedy.stdin.take());
    assert!(greedy.wait().expect("it ends").success());
    wait_for("a place", || team.eve.code(&["ps"]) == Some(0));
}

/// What a user can do to the own agent, whose files and signals are the user's.
const AGAINST_AGENTS: &[(&str, &str)] = &[
    ("agent-killed", "kill -9 $(pgrep -u $(id -u) -x het-agent); sleep 0.3; exit 3"),
    ("agent-stopped", "kill -STOP $(pgrep -u $(id -u) -x het-agent); sleep 0.3; exit 3"),
    ("agent-flooded", "for s in 1 2 10 12 14 15 17; do pkill -$s -u $(id -u) -x het-agent; done"),
    (
        "lock-held",
        "exec 9<$W/../..; (flock 9; touch $W/ready; sleep 600) & sleep 0.2; \
        pkill -9 -u $(id -u) -x het-agent; wait",
    ),
    ("run-gone", "cd $W/../..; rm -rf run; sleep 0.2"),
    (
        "run-link",
        "cd $W/../..; rm -rf run; ln -s /usr/share run; \
        pkill -9 -u $(id -u) -x het-agent; sleep 0.2",
    ),
    (
        "kept-fifo",
        "cd $W/../..; rm -rf kept; mkfifo kept; pkill -9 -u $(id -u) -x het-agent; sleep 0.2",
    ),
    (
        "kept-file",
        "cd $W/../..; rm -rf kept; : > kept; pkill -9 -u $(id -u) -x het-agent; sleep 0.2",
    ),
    (
        "jobs-link",
        "cd $W/../..; mv jobs gone; ln -s /usr/share jobs; sleep 0.2; \
        pkill -9 -u $(id -u) -x het-agent; sleep 0.2",
    ),
    (
        "jobs-file",
        "cd $W/../..; rm -rf jobs; : > jobs; pkill -9 -u $(id -u) -x het-agent; sleep 0.2",
    ),
    ("everything-gone", "cd $W/../..; rm -rf * .??*; pkill -9 -u $(id -u) -x het-agent; sleep 0.2"),
    ("not-to-be-entered", "chmod 000 $W/../..; pkill -9 -u $(id -u) -x het-agent; sleep 0.2"),
];

/// Puts right what an attack did to the attacker's own directory.
fn put_right(eve: &Sandbox) {
    let workdir = eve.workdir(1);
    let dir = workdir.ancestors().nth(2).expect("it is the user's");
    let changed = eve.command("chmod").arg("750").arg(dir).status();
    assert!(changed.expect("it can be run").success());
}

#[test]
fn what_a_user_does_to_the_own_agent_is_nobody_elses_trouble() {
    let Some(team) = Team::start() else { return };
    let job = healthy(&team.ada);
    let before = team.server();
    hold_nobody_up(&team.eve, PROGRAMS);
    for program in AGAINST_AGENTS {
        hold_nobody_up(&team.eve, &[*program]);
        put_right(&team.eve);
    }
    assert_eq!(team.server(), before, "neither died");
    see_it_go_on(&team.ada, job);
    let last = team.eve.submit("exit 0");
    assert_eq!(see_it_end(&team.eve, last), "succeeded", "who attacked can work again");
    team.root.run(&["server", "stop"]);
    team.start_server();
    end_healthy(&team.ada, job);
}

#[test]
fn jobs_of_users_go_on_whoever_is_killed() {
    let Some(team) = Team::start() else { return };
    let jobs = [(&team.ada, healthy(&team.ada)), (&team.eve, healthy(&team.eve))];
    let agents = |team: &Team| MEMBERS.map(|name| team.agent_of(name));
    for (user, job) in jobs {
        see_it_go_on(user, job);
    }
    for round in 0..6 {
        let (server, keeper) = team.server();
        let [ada, eve] = agents(&team).map(|agent| agent.expect("it runs"));
        let victims: &[i32] = match round {
            0 => &[server],
            1 => &[ada],
            2 => &[server, ada, eve],
            // A server without a supervisor could start nothing: it ends.
            3 => &[keeper],
            4 => &[ada, eve],
            _ => &[keeper, server, ada, eve],
        };
        for victim in victims {
            let _ = kill(Pid::from_raw(*victim), Signal::SIGKILL);
        }
        if victims.contains(&keeper) {
            while Path::new(&format!("/proc/{server}/fd")).exists() {
                yield_now();
            }
            team.start_server();
        } else {
            wait_for("the server", || team.root.code(&["ps"]) == Some(0));
        }
        for (user, job) in jobs {
            see_it_go_on(user, job);
        }
    }
    for (user, job) in jobs {
        end_healthy(user, job);
        let told = user.json(&["describe", &job.to_string()]);
        assert_eq!(told["stages"][0]["attempts"], 1, "{told}");
    }
}
