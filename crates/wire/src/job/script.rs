//! Scripts that say themselves what they need: `#HET --devices cuda:4`, and the common directives
//! of `#SBATCH`.
//!
//! Directives stand before the first command. Ours win over Slurm's, and what is said beside the
//! script wins over both ([`Short::over`]).

mod slurm;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use super::names::name_problem;
use crate::file::{Place, Problem, Problems, Severity};
use crate::words;
use slurm::{Slurm, calls_srun};

/// What a job of one command says beside its command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Short {
    pub name: Option<String>,
    pub tenant: Option<String>,
    pub priority: Option<String>,
    pub time_limit: Option<String>,
    pub devices: Option<String>,
    /// Host cores and memory beside the devices.
    pub cores: Option<String>,
    pub memory: Option<String>,
    pub retries: Option<String>,
    /// Signal of the preemption notice, and the time from it to the kill.
    pub notice: Option<String>,
    pub grace: Option<String>,
    /// Indices of an array of jobs, `0-9,20`, and how many of them may run at a time.
    pub array: Option<String>,
    pub max_parallel: Option<String>,
    /// What it waits for, and not before when it begins.
    pub after: Option<String>,
    pub begin: Option<String>,
    /// `true` to begin only once it is released.
    pub hold: Option<String>,
    /// Where it starts, and the files that it reads and writes.
    pub chdir: Option<String>,
    pub stdin: Option<String>,
    pub stdout: Option<String>,
    pub stderr: Option<String>,
    /// `append` or `truncate`.
    pub open_mode: Option<String>,
    /// Which of the submitter's variables it gets, as `--export` of sbatch(1) has it.
    pub export: Option<String>,
    /// Further variables.
    pub env: BTreeMap<String, String>,
}

/// A script and what its directives say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    pub short: Short,
    /// The words that run the script, from its first line; its path follows.
    pub interpreter: Vec<String>,
    /// Directives of Slurm that are not acted on, which changes nothing about what the job does.
    pub told: Vec<String>,
}

impl Short {
    /// What this says, and where it says nothing what the other does.
    pub fn over(self, other: Self) -> Self {
        Self {
            name: self.name.or(other.name),
            tenant: self.tenant.or(other.tenant),
            priority: self.priority.or(other.priority),
            time_limit: self.time_limit.or(other.time_limit),
            devices: self.devices.or(other.devices),
            cores: self.cores.or(other.cores),
            memory: self.memory.or(other.memory),
            retries: self.retries.or(other.retries),
            notice: self.notice.or(other.notice),
            grace: self.grace.or(other.grace),
            array: self.array.or(other.array),
            max_parallel: self.max_parallel.or(other.max_parallel),
            after: self.after.or(other.after),
            begin: self.begin.or(other.begin),
            hold: self.hold.or(other.hold),
            chdir: self.chdir.or(other.chdir),
            stdin: self.stdin.or(other.stdin),
            stdout: self.stdout.or(other.stdout),
            stderr: self.stderr.or(other.stderr),
            open_mode: self.open_mode.or(other.open_mode),
            export: self.export.or(other.export),
            env: other.env.into_iter().chain(self.env).collect(),
        }
    }

    /// The text of a job file for one command.
    pub fn job_file(&self, run: &[String]) -> String {
        let mut file = json!({ "name": self.name, "kind": "custom" });
        let texts = [
            ("tenant", &self.tenant),
            ("priority", &self.priority),
            ("time_limit", &self.time_limit),
            ("devices", &self.devices),
            ("after", &self.after),
            ("begin", &self.begin),
            ("stdin", &self.stdin),
        ];
        for (key, value) in texts {
            set(&mut file[key], value.as_deref().map(Value::from));
        }
        file["run"] = json!(run);
        let number = |text: &String| text.parse::<u32>().map_or(json!(text), Value::from);
        set(&mut file["with"]["cores"], self.cores.as_ref().map(number));
        set(&mut file["with"]["memory"], self.memory.as_deref().map(Value::from));
        set(&mut file["checkpoint"]["notice"], self.notice.as_deref().map(Value::from));
        set(&mut file["checkpoint"]["grace"], self.grace.as_deref().map(Value::from));
        set(&mut file["retries"], self.retries.as_ref().map(number));
        let files = [("stdout", &self.stdout), ("stderr", &self.stderr), ("mode", &self.open_mode)];
        for (key, value) in files {
            set(&mut file["logs"][key], value.as_deref().map(Value::from));
        }
        if !self.env.is_empty() {
            file["env"] = json!(self.env);
        }
        // JSON is YAML, and quotes everything that needs quotes.
        serde_json::to_string_pretty(&without_nothing(file)).expect("plain data becomes JSON")
    }

    fn slot(&mut self, key: &str) -> Option<&mut Option<String>> {
        Some(match key {
            "name" => &mut self.name,
            "tenant" => &mut self.tenant,
            "priority" => &mut self.priority,
            "time-limit" => &mut self.time_limit,
            "devices" => &mut self.devices,
            "cores" => &mut self.cores,
            "memory" => &mut self.memory,
            "retries" => &mut self.retries,
            "notice" => &mut self.notice,
            "grace" => &mut self.grace,
            "array" => &mut self.array,
            "max-parallel" => &mut self.max_parallel,
            "after" => &mut self.after,
            "begin" => &mut self.begin,
            "chdir" => &mut self.chdir,
            "stdin" => &mut self.stdin,
            "stdout" => &mut self.stdout,
            "stderr" => &mut self.stderr,
            "open-mode" => &mut self.open_mode,
            _ => return None,
        })
    }
}

const KEYS: &str = "`--name`, `--tenant`, `--priority`, `--time-limit`, `--devices`, `--cores`, \
                    `--memory`, `--retries`, `--notice`, `--grace`, `--array`, `--max-parallel`, \
                    `--after`, `--begin`, `--chdir`, `--stdin`, `--stdout`, `--stderr` and \
                    `--open-mode`";

fn set(place: &mut Value, value: Option<Value>) {
    *place = value.unwrap_or(Value::Null);
}

fn without_nothing(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().map(|(key, value)| (key, without_nothing(value)));
            kept.filter(|(_, value)| !value.is_null() && *value != json!({})).collect()
        }
        other => other,
    }
}

/// Whether a file is a script rather than a job file.
pub fn is_script(text: &str) -> bool {
    text.starts_with("#!")
}

impl Script {
    /// Reads the directives of a script. `source` names it in messages.
    ///
    /// # Errors
    /// Every directive that cannot be meant, with its line.
    pub fn read(text: &str, source: &str) -> Result<Self, Problems> {
        let mut reading = Reading::default();
        let is_comment = |line: &str| line.trim().is_empty() || line.trim().starts_with('#');
        let head = text.lines().take_while(|line| is_comment(line)).count();
        for (index, line) in text.lines().take(head).enumerate() {
            reading.line(index + 1, line);
        }
        let commands: Vec<&str> = text.lines().skip(head).collect();
        for (message, hint) in reading.slurm.problems() {
            reading.problems.push(problem(1, text.lines().next().unwrap_or("#"), message, hint));
        }
        if let Some((at, line)) = commands.iter().enumerate().find(|(_, line)| calls_srun(line))
            && reading.slurm.is_used
        {
            let (message, hint) = slurm::SRUN;
            let (message, hint) = (message.to_owned(), hint.to_owned());
            reading.problems.push(problem(head + at + 1, line, message, hint));
        }
        if text.lines().next().is_some_and(|first| text[first.len()..].starts_with("\r\n")) {
            let hint = "convert it, for example with `dos2unix`".to_owned();
            let message = "its lines end as on Windows".to_owned();
            reading.problems.push(problem(1, "#!", message, hint));
        }
        let stem = Path::new(source).file_stem().and_then(|stem| stem.to_str());
        let short = reading.ours.over(reading.slurm.short(stem.unwrap_or_default()));
        if !reading.problems.is_empty() {
            return Err(Problems::new(text, source, reading.problems));
        }
        let first = text.lines().next().unwrap_or_default().trim_start_matches("#!");
        let interpreter: Vec<String> = first.split_whitespace().map(str::to_owned).collect();
        // `env -S` splits what the kernel gives it as one word.
        let is_split =
            matches!(&interpreter[..], [env, s, ..] if env.ends_with("/env") && s == "-S");
        let kept = |(at, word)| (!is_split || at != 1).then_some(word);
        let interpreter = interpreter.into_iter().enumerate().filter_map(kept).collect();
        Ok(Self { short, interpreter, told: reading.slurm.told })
    }
}

#[derive(Debug, Default)]
struct Reading {
    ours: Short,
    slurm: Slurm,
    problems: Vec<Problem>,
}

impl Reading {
    fn line(&mut self, number: usize, line: &str) {
        let said = |word| line.strip_prefix(word).filter(|rest| rest.starts_with([' ', '\t']));
        let ours = said("#HET");
        let Some(rest) = ours.or_else(|| said("#SBATCH")) else { return };
        let Some(words) = shlex::split(rest) else {
            let hint = "close every quote".to_owned();
            return self.problems.push(problem(number, line, "a quote is open".into(), hint));
        };
        let mut words = words.iter().map(String::as_str).peekable();
        while let Some(word) = words.next() {
            let (key, inline) = split(word);
            let ends = words.peek().is_none_or(|next| next.starts_with('-'));
            let is_flag = ours.is_none() && slurm::is_flag(key);
            let flag = inline.is_none() && (ends || is_flag);
            let value =
                if flag { "" } else { inline.unwrap_or_else(|| words.next().unwrap_or("")) };
            let before = self.devices();
            let taken = match ours {
                Some(_) => self.our(key, value),
                None => self.slurm.directive(key, value),
            };
            let taken = taken.and_then(|()| match self.devices() {
                devices if devices == before => Ok(()),
                devices => check_devices(devices.as_deref().unwrap_or("cpu:1")),
            });
            if let Err((message, hint)) = taken {
                self.problems.push(problem(number, line, message, hint));
            }
        }
    }

    fn devices(&self) -> Option<String> {
        self.ours.devices.clone().or_else(|| self.slurm.devices())
    }

    fn our(&mut self, key: &str, value: &str) -> Result<(), (String, String)> {
        let slot = key.strip_prefix("--").and_then(|key| self.ours.slot(key));
        match slot {
            Some(_) if value.is_empty() => {
                Err((format!("`{key}` has no value"), format!("write `{key}=VALUE`")))
            }
            Some(slot) => {
                *slot = Some(value.to_owned());
                Ok(())
            }
            None => Err((format!("there is no directive `{key}`"), format!("there are {KEYS}"))),
        }
    }
}

/// Device words are looked at where they stand; the rest is looked at in the job file.
fn check_devices(devices: &str) -> Result<(), (String, String)> {
    match words::alternatives(devices, &[]) {
        Ok(_) => Ok(()),
        Err((_, error)) => Err((error.to_string(), error.hint())),
    }
}

/// `--key=value`, `--key`, `-kvalue`, `-k`.
fn split(word: &str) -> (&str, Option<&str>) {
    if let Some((key, value)) = word.split_once('=') {
        return (key, Some(value));
    }
    let is_short = word.starts_with('-') && !word.starts_with("--");
    match word.char_indices().nth(2) {
        Some((at, _)) if is_short => (&word[..at], Some(&word[at..])),
        _ => (word, None),
    }
}

fn problem(line: usize, text: &str, message: String, hint: String) -> Problem {
    let place = Place { line, column: 1 };
    let length = text.chars().count();
    Problem { severity: Severity::Error, place, length, message, hint: Some(hint) }
}

/// Jobs that one array may have.
const ARRAY_MAX: usize = 10_000;

/// The indices of an array: `0-9`, `1,3,5`, `0-100:10`.
///
/// # Errors
/// What is wrong with it, and what to write.
pub fn indices(text: &str) -> Result<Vec<u32>, (String, String)> {
    let wrong = |what: &str| {
        (format!("`{text}` is no array: {what}"), "write `0-9`, `1,3,5` or `0-100:10`".to_owned())
    };
    let mut found = BTreeSet::new();
    for part in text.split(',') {
        if part.contains('%') {
            return Err(wrong("how many run at a time is for `--max-parallel` to say"));
        }
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong("that is no number"));
        let (first, last, step) = (number(first)?, number(last)?, number(step)?);
        if step == 0 || last < first || (last - first) / step >= ARRAY_MAX as u32 {
            return Err(wrong("it is empty or has more than 10,000 jobs"));
        }
        found.extend((first..=last).step_by(step as usize));
    }
    if found.len() > ARRAY_MAX {
        return Err(wrong("it has more than 10,000 jobs"));
    }
    Ok(found.into_iter().collect())
}

/// A name as jobs have them here.
pub fn job_name(text: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = text.chars().map(keep).collect();
    match name.trim_matches('-') {
        "" => "command".to_owned(),
        name if name_problem(name).is_some() => format!("command-{name}"),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn read(text: &str) -> Script {
        Script::read(text, "train.sh").unwrap_or_else(|problems| panic!("{problems}"))
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn ours_win_over_slurms() {
        let script = read(
            "#!/bin/bash -l\n#SBATCH --job-name=\"My Run\" # of today\n#SBATCH -G h100:4 -c 8\n\
             #SBATCH --mem=64G -t 1-12 -p long --signal=B:USR1@120\n\n\
             #HET --devices 'cuda:2 | cpu:8'\n#HET --priority high\n\
             python train.py\n#SBATCH --nodes=9\n",
        );
        let expected = Short {
            name: some("my-run"),
            priority: some("high"),
            time_limit: some("129480s"),
            devices: some("cuda:2 | cpu:8"),
            cores: some("8"),
            memory: some("65536MiB"),
            notice: some("SIGUSR1"),
            grace: some("120s"),
            stdout: some("slurm-{job}.out"),
            env: script.short.env.clone(),
            ..Short::default()
        };
        assert_eq!(script.short, expected);
        assert_eq!(script.interpreter, ["/bin/bash", "-l"]);
        assert_eq!(script.told, ["-p"]);
    }

    #[test]
    fn tasks_and_their_cores_are_cores() {
        let script = read("#!/bin/sh\n#SBATCH --ntasks=4 --cpus-per-task=2 --mem-per-cpu=2G\n");
        assert_eq!(script.short.devices, some("cpu:8"));
        assert_eq!(script.short.memory, some("16384MiB"));
        let script = read("#!/bin/sh\n#SBATCH --gpus-per-task=1 -n 4\n");
        assert_eq!((script.short.devices, script.short.cores), (some("gpu:4"), some("4")));
        assert_eq!(read("#!/bin/sh\n#SBATCH --gres=npu:8\n").short.devices, some("npu:8"));
    }

    #[test]
    fn what_cannot_be_meant_is_shown_where_it_stands() {
        let text = "#!/bin/sh\n#SBATCH --nodes=2\n#HET --gpu 4\n#HET --devices\n#SBATCH -c many\n\
                    #HET\t--devices=gpus:4\n  # indented\n#HET --name=after";
        let problems = Script::read(text, "train.sh").expect_err("it is full of errors");
        let lines: Vec<usize> = problems.list().iter().map(|problem| problem.place.line).collect();
        assert_eq!(lines, [2, 3, 4, 5, 6]);
        assert!(problems.to_string().contains("one machine is one node"), "{problems}");
    }

    #[test]
    fn arrays_are_ranges_lists_and_strides() {
        assert_eq!(indices("0-2,7"), Ok(vec![0, 1, 2, 7]));
        assert_eq!(indices("5,0-10:5"), Ok(vec![0, 5, 10]));
        for text in ["", "a", "3-1", "0-3:0", "1-4%2", "0-10000", "0-9999,20000"] {
            assert!(indices(text).is_err(), "{text}");
        }
        assert_eq!(indices("0-9999").map(|all| all.len()), Ok(10_000));
    }

    #[test]
    fn a_job_file_says_only_what_was_said() {
        let short = Short { name: some("a"), cores: some("4"), ..Short::default() };
        let text = short.job_file(&["true".to_owned()]);
        let file: Value = serde_json::from_str(&text).expect("it is JSON");
        let expected =
            json!({ "name": "a", "kind": "custom", "run": ["true"], "with": { "cores": 4 } });
        assert_eq!(file, expected);
        crate::job::parse(&text, "command line").expect("it is a job file");
    }
}
