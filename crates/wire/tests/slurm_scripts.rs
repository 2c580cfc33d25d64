//! What scripts written for Slurm mean here: each of `slurm/*.sh` says it itself, in lines that
//! begin with `# means:`, `# refused:`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use het_wire::job::parse;
use het_wire::job::script::{Script, Short};

fn scripts() -> Vec<(String, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slurm");
    let entries = fs::read_dir(dir).expect("the scripts are there");
    let mut scripts: Vec<(String, String)> = entries
        .map(|entry| {
            let path = entry.expect("it can be listed").path();
            let name = path.file_name().expect("it has a name").to_string_lossy().into_owned();
            (name, fs::read_to_string(&path).expect("it can be read"))
        })
        .collect();
    scripts.sort();
    scripts
}

fn lines<'a>(text: &'a str, word: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.strip_prefix(word)).map(str::trim).collect()
}

/// What a script comes to, a line a fact.
fn meaning(script: &Script) -> Vec<String> {
    let Short {
        name,
        tenant,
        priority,
        time_limit,
        devices,
        cores,
        memory,
        retries,
        notice,
        grace,
        array,
        max_parallel,
        after,
        begin,
        hold,
        chdir,
        stdin,
        stdout,
        stderr,
        open_mode,
        export,
        env: _,
    } = script.short.clone();
    let facts = [
        ("name", name),
        ("tenant", tenant),
        ("priority", priority),
        ("time_limit", time_limit),
        ("devices", devices),
        ("cores", cores),
        ("memory", memory),
        ("retries", retries),
        ("notice", notice),
        ("grace", grace),
        ("array", array),
        ("max_parallel", max_parallel),
        ("after", after),
        ("begin", begin),
        ("hold", hold),
        ("chdir", chdir),
        ("stdin", stdin),
        ("stdout", stdout),
        ("stderr", stderr),
        ("open_mode", open_mode),
        ("export", export),
    ];
    let facts = facts.into_iter().filter_map(|(key, value)| Some(format!("{key} = {}", value?)));
    let told = script.told.iter().map(|option| format!("told {option}"));
    facts.chain(told).collect()
}

#[test]
fn scripts_mean_what_they_say_or_are_refused() {
    let scripts = scripts();
    assert!(scripts.len() >= 30, "there are {}", scripts.len());
    for (name, text) in scripts {
        let refused = lines(&text, "# refused:");
        match (Script::read(&text, &name), refused.is_empty()) {
            (Ok(script), true) => {
                let (variables, facts): (Vec<&str>, Vec<&str>) =
                    lines(&text, "# means:").into_iter().partition(|line| line.starts_with("env "));
                let mut found = meaning(&script);
                let mut expected: Vec<String> = facts.into_iter().map(str::to_owned).collect();
                found.sort();
                expected.sort();
                assert_eq!(found, expected, "{name}");
                let env: BTreeMap<String, String> = script.short.env.clone();
                for line in variables {
                    let (key, value) = line["env ".len()..].split_once(" = ").expect("KEY = VALUE");
                    assert_eq!(env.get(key).map(String::as_str), Some(value), "{name}: {key}");
                }
                let file = script.short.job_file(&["bash".to_owned(), name.clone()]);
                parse(&file, &name).unwrap_or_else(|problems| panic!("{name}: {problems}"));
            }
            (Err(problems), false) => {
                let told = problems.to_string();
                assert_eq!(problems.list().len(), refused.len(), "{name}: {told}");
                for what in refused {
                    assert!(told.contains(what), "{name}: {what} is not in\n{told}");
                }
            }
            (Ok(script), false) => panic!("{name} is accepted: {:?}", meaning(&script)),
            (Err(problems), true) => panic!("{name} is refused: {problems}"),
        }
    }
}
