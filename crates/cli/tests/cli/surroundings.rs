//! What a job runs with: variables, directory, standard input, files, scripts and copies, with a
//! server and without one.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::{Sandbox, Served};

/// Both ways in which a command can be run.
fn both(check: impl Fn(&Sandbox)) {
    check(&Sandbox::new());
    let served = Served::new();
    served.submit("true");
    check(&served.0);
}

fn output(mut command: Command) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = command.output().expect("het starts");
    let told = String::from_utf8_lossy(&stderr).into_owned();
    (status.code(), format!("{}{told}", String::from_utf8_lossy(&stdout)))
}

fn said(sandbox: &Sandbox, words: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = sandbox.het(words);
    command.envs(variables.iter().copied()).stderr(Stdio::null());
    let output = command.output().expect("het starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const SHOW: [&str; 3] = ["sh", "-c", "echo $MINE/$RANK/$TMUX/$HET_TOKEN/$ADDED"];

#[test]
fn programs_get_the_variables_of_who_submits_them() {
    both(|sandbox| {
        let mine = [("MINE", "1"), ("RANK", "3"), ("TMUX", "t"), ("HET_TOKEN", "s")];
        let run = |more: &[&str]| {
            said(sandbox, &[&["run", "-q"], more, &["--"], &SHOW[..]].concat(), &mine)
        };
        assert_eq!(run(&[]), "1////\n");
        assert_eq!(run(&["--env", "ADDED=a b", "--env", "TMUX"]), "1//t//a b\n");
        assert_eq!(run(&["--clean-env"]), "////\n");
        let (code, told) = output(sandbox.het(&["run", "--env", "NOWHERE", "--", "true"]));
        assert_eq!(code, Some(2), "{told}");
    });
}

/// Every file below a directory.
fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| match entry.path() {
            path if path.is_dir() => files(&path),
            path => vec![path],
        })
        .collect()
}

#[test]
fn variables_are_kept_for_their_owner_alone_and_told_nobody() {
    let served = Served::new();
    const SECRET: &str = "only-between-us";
    let words =
        ["submit", "--wait", "--env", "KEY", "--", "sh", "-c", "[ $KEY = only-between-us ]"];
    let mut submit = served.0.het(&words);
    submit.env("KEY", SECRET);
    let (code, told) = output(submit);
    assert_eq!(code, Some(0), "{told}");
    let answers = [
        &["describe", "1", "-o", "json"][..],
        &["explain", "1", "-o", "json"],
        &["ps", "--all", "-o", "json"],
        &["export"],
    ];
    for words in answers {
        let (_, told) = output(served.0.het(words));
        // Its command names it; its variables do not.
        assert!(told.matches(SECRET).count() <= told.matches("[ $KEY = ").count(), "{told}");
    }
    let home = served.0.path().join("home");
    let holders: Vec<_> = files(&home)
        .into_iter()
        .filter(|path| {
            let text = fs::read(path).unwrap_or_default();
            let needle = format!("KEY={SECRET}");
            text.windows(needle.len()).any(|part| part == needle.as_bytes())
        })
        .collect();
    assert_eq!(holders.len(), 1, "{holders:?}");
    let mode = fs::metadata(&holders[0]).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn what_a_run_reads_its_program_reads() {
    both(|sandbox| {
        let mut command = sandbox.het(&["run", "-q", "--", "cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("het starts");
        let mut input = child.stdin.take().expect("it is piped");
        input.write_all(b"one\ntwo").expect("it is read");
        drop(input);
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "one\ntwo");
        sandbox.write("words.txt", "from a file\n");
        sandbox.write("job.yaml", "name: reads\nrun: [cat]\ndevices: cpu:1\nstdin: words.txt\n");
        assert_eq!(
            said(sandbox, &["run", "-q", "--follow", "job.yaml"], &[]).lines().next(),
            Some("from a file")
        );
    });
}

#[test]
fn a_script_is_kept_and_its_output_goes_where_it_says() {
    let served = Served::new();
    let script = |word: &str| {
        format!(
            "#!/bin/sh\n#SBATCH --job-name=kept --output=out/%x-%5j.txt --error=err.txt --hold\n\
             echo {word} in $PWD for $SLURM_SUBMIT_DIR; echo wrong >&2\n"
        )
    };
    fs::create_dir(served.0.path().join("out")).expect("the sandbox is writable");
    served.0.write("kept.sh", &script("before"));
    assert_eq!(served.code(&["submit", "kept.sh"]), Some(0));
    served.0.write("kept.sh", &script("after"));
    assert_eq!(served.code(&["release", "kept"]), Some(0));
    assert_eq!(served.code(&["wait", "kept"]), Some(0));
    let here = fs::canonicalize(served.0.path()).expect("it is there");
    let expected = format!("before in {0} for {0}\n", here.display());
    assert_eq!(served.0.read("out/kept-00001.txt"), expected);
    assert_eq!(served.0.read("err.txt"), "wrong\n");
    let logs = served.run(&["logs", "kept"]);
    assert!(String::from_utf8_lossy(&logs.stdout).contains("before in"), "logs find it");
    served.0.write("lost.sh", "#!/bin/sh\n#SBATCH -o nowhere/%j.txt\ntrue\n");
    assert_eq!(served.code(&["submit", "--wait", "lost.sh"]), Some(126));
}

#[test]
fn a_snapshot_runs_what_was_there() {
    let served = Served::new();
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(served.0.path()).args(["-c", "user.name=a", "-c", "user.email=a@b"]);
        let output = git.args(words).output().expect("git is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    served.0.write("data.txt", "first\n");
    served.0.write(".gitignore", "home\nignored\n");
    served.0.write("ignored", "");
    git(&["init", "-q"]);
    git(&["add", "data.txt", ".gitignore"]);
    git(&["commit", "-qm", "one"]);
    let head = git(&["rev-parse", "HEAD"]);
    let words = ["submit", "--snapshot", "--hold", "--name", "copy", "--", "sh", "-c"];
    let script = "cat data.txt; ls ignored";
    assert_eq!(served.code(&[&words[..], &[script]].concat()), Some(0));
    served.0.write("data.txt", "second\n");
    assert_eq!(served.code(&["release", "copy"]), Some(0));
    assert_eq!(served.code(&["wait", "copy"]), Some(2), "nothing is there that git ignores");
    let logs = served.run(&["logs", "copy"]).stdout;
    assert!(String::from_utf8_lossy(&logs).starts_with("first\n"));
    assert_eq!(served.json(&["describe", "copy"])["commit"], head);
    let changed = served.json(&["submit", "-o", "json", "--", "true"])["id"].to_string();
    assert_eq!(
        served.json(&["describe", &changed])["commit"],
        format!("{head} and uncommitted changes")
    );
}

#[test]
fn what_is_said_beside_a_job_file_wins() {
    both(|sandbox| {
        let file = "name: train\nparams: { lr: 0.1, data: }\npriority: low\n\
                    run: [echo, '{param.lr}', '{param.data}', '{job}']\ndevices: npu:9\n";
        sandbox.write("train.yaml", file);
        let run = ["run", "-q", "--follow", "train.yaml", "--devices", "cpu:1"];
        let set = ["--set", "param.data=x", "--set", "params.lr=1.10", "--priority", "high"];
        let said = said(sandbox, &[&run[..], &set].concat(), &[]);
        assert!(said.starts_with("1.10 x "), "{said}");
        let (code, told) = output(sandbox.het(&["run", "train.yaml"]));
        assert!(code == Some(2) && told.contains("parameter `data` has no value"), "{told}");
        let wrong = ["run", "train.yaml", "--set", "param.data=x", "--priority", "hihg"];
        let (code, told) = output(sandbox.het(&wrong));
        assert!(code == Some(2) && told.contains("# --priority hihg"), "{told}");
    });
}
