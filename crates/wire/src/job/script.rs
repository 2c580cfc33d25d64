//! Scripts that say themselves what they need: `#HET --devices cuda:4`, and the common directives
//! of `#SBATCH`.
//!
//! Directives stand before the first command. Ours win over Slurm's, and what is said beside the
//! script wins over both ([`Short::over`]).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::file::{Place, Problem, Problems, Severity};
use crate::{quantity, words};

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
    /// Indices of an array of jobs, `0-9,20`.
    pub array: Option<String>,
}

/// A script and what its directives say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    pub short: Short,
    /// The words that run the script, from its first line; its path follows.
    pub interpreter: Vec<String>,
    /// Directives of Slurm that mean nothing here.
    pub unused: Vec<String>,
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
        }
    }

    /// The text of a job file for one command. `env` is added to the command's environment.
    pub fn job_file(&self, run: &[String], env: &BTreeMap<String, String>) -> String {
        let mut file = json!({ "name": self.name, "kind": "custom" });
        let texts = [
            ("tenant", &self.tenant),
            ("priority", &self.priority),
            ("time_limit", &self.time_limit),
            ("devices", &self.devices),
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
        if !env.is_empty() {
            file["env"] = json!(env);
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
            _ => return None,
        })
    }
}

const KEYS: &str = "`--name`, `--tenant`, `--priority`, `--time-limit`, `--devices`, `--cores`, \
                    `--memory`, `--retries`, `--notice`, `--grace` and `--array`";

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
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                break;
            }
            reading.line(index + 1, line);
        }
        let short = reading.ours.over(reading.slurm.short());
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
        Ok(Self { short, interpreter, unused: reading.slurm.unused })
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
            let flag = inline.is_none() && words.peek().is_none_or(|next| next.starts_with('-'));
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

/// What `#SBATCH` said so far; counts become devices when all is known.
#[derive(Debug, Default)]
struct Slurm {
    short: Short,
    tasks: Option<u32>,
    cores_a_task: Option<u32>,
    accelerators: Option<(String, u32)>,
    a_task: Option<(String, u32)>,
    memory_mib: Option<u64>,
    memory_a_core_mib: Option<u64>,
    unused: Vec<String>,
}

impl Slurm {
    /// One directive, as sbatch(1) has them.
    fn directive(&mut self, key: &str, value: &str) -> Result<(), (String, String)> {
        match key {
            "-J" | "--job-name" => self.short.name = Some(job_name(value)),
            "-A" | "--account" => self.short.tenant = Some(value.to_lowercase()),
            "-q" | "--qos" if ["urgent", "high", "normal", "low"].contains(&value) => {
                self.short.priority = Some(value.to_owned());
            }
            "-t" | "--time" => self.short.time_limit = time(value)?,
            "-a" | "--array" => self.short.array = Some(value.to_owned()),
            "-n" | "--ntasks" | "--ntasks-per-node" => self.tasks = Some(count(key, value)?),
            "-c" | "--cpus-per-task" => self.cores_a_task = Some(count(key, value)?),
            "-G" | "--gpus" | "--gpus-per-node" => self.accelerators = Some(gpus(key, value)?),
            "--gpus-per-task" => self.a_task = Some(gpus(key, value)?),
            "--gres" => self.accelerators = Some(gres(value)?),
            // All that the node has: nothing is to be kept for it.
            "--mem" => self.memory_mib = Some(mebibytes(key, value)?).filter(|mib| *mib > 0),
            "--mem-per-cpu" => self.memory_a_core_mib = Some(mebibytes(key, value)?),
            "--signal" => self.signal(value)?,
            "-N" | "--nodes" if value != "1" && value != "1-1" => {
                let message = format!("`{key} {value}` asks for several nodes");
                return Err((message, "one machine is one node: ask for `1`".to_owned()));
            }
            "-N" | "--nodes" => {}
            // Whatever was stopped goes on from its newest checkpoint anyhow.
            "--requeue" => {}
            _ => self.unused.push(key.to_owned()),
        }
        Ok(())
    }

    /// `[B:]SIGNAL[@SECONDS]`: sent that long before the end.
    fn signal(&mut self, value: &str) -> Result<(), (String, String)> {
        let value = value.rsplit_once(':').map_or(value, |(_, rest)| rest);
        let (name, seconds) = value.split_once('@').unwrap_or((value, "60"));
        let name = match name {
            "10" => "USR1",
            "12" => "USR2",
            "15" => "TERM",
            name => name.trim_start_matches("SIG"),
        };
        self.short.notice = Some(format!("SIG{name}"));
        self.short.grace = Some(format!("{}s", count("--signal", seconds)?));
        Ok(())
    }

    fn cores(&self) -> u32 {
        self.tasks.unwrap_or(1).saturating_mul(self.cores_a_task.unwrap_or(1))
    }

    fn says_cores(&self) -> bool {
        self.tasks.is_some() || self.cores_a_task.is_some()
    }

    fn accelerators(&self) -> Option<(&str, u32)> {
        let tasks = self.tasks.unwrap_or(1);
        let all = self.accelerators.as_ref().map(|(word, count)| (word.as_str(), *count));
        let a_task = self.a_task.as_ref();
        let a_task = a_task.map(|(word, count)| (word.as_str(), count.saturating_mul(tasks)));
        all.or(a_task).filter(|(_, count)| *count > 0)
    }

    fn devices(&self) -> Option<String> {
        match self.accelerators() {
            Some((word, count)) => Some(format!("{word}:{count}")),
            None => self.says_cores().then(|| format!("cpu:{}", self.cores())),
        }
    }

    fn short(&self) -> Short {
        let beside = self.accelerators().is_some() && self.says_cores();
        let cores = u64::from(self.cores());
        let a_core = self.memory_a_core_mib.map(|mib| mib.saturating_mul(cores));
        let memory = self.memory_mib.or(a_core).map(|mib| format!("{mib}MiB"));
        let cores = beside.then(|| cores.to_string());
        Short { devices: self.devices(), cores, memory, ..self.short.clone() }
    }
}

/// Longest time that is meant: a hundred years.
const TIME_MAX_S: u64 = 100 * 366 * 86_400;

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
            return Err(wrong("how many run at a time is a matter of quotas"));
        }
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong("that is no number"));
        let (first, last, step) = (number(first)?, number(last)?, number(step)?);
        if step == 0 || last < first || (last - first) / step >= ARRAY_MAX as u32 {
            return Err(wrong("it is empty or too long"));
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
        name => name.to_owned(),
    }
}

fn count(key: &str, value: &str) -> Result<u32, (String, String)> {
    let wrong =
        || (format!("`{value}` is no count for `{key}`"), "write a whole number".to_owned());
    value.parse().map_err(|_| wrong())
}

/// `[TYPE:]COUNT`.
fn gpus(key: &str, value: &str) -> Result<(String, u32), (String, String)> {
    let (word, number) = value.rsplit_once(':').unwrap_or(("gpu", value));
    Ok((word.to_lowercase(), count(key, number)?))
}

/// `gpu:2`, `gpu:h100:2`, `npu:8`, `gpu`.
fn gres(value: &str) -> Result<(String, u32), (String, String)> {
    // Others than the first are no devices, such as `tmp:10G`.
    let value = value.split(',').next().unwrap_or_default();
    let parts: Vec<&str> = value.split(':').collect();
    match parts[..] {
        [kind] => Ok((kind.to_lowercase(), 1)),
        [kind, number] => Ok((kind.to_lowercase(), count("--gres", number)?)),
        [_, model, number] => Ok((model.to_lowercase(), count("--gres", number)?)),
        _ => {
            let hint = "write `gpu:2` or `gpu:h100:2`".to_owned();
            Err((format!("`{value}` is no resource for `--gres`"), hint))
        }
    }
}

/// Mebibytes where no unit is given, as Slurm has it; its units are binary.
fn mebibytes(key: &str, value: &str) -> Result<u64, (String, String)> {
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match value[digits.len()..].to_uppercase().as_str() {
        "" | "M" | "MB" => "MiB",
        "K" | "KB" => "KiB",
        "G" | "GB" => "GiB",
        "T" | "TB" => "TiB",
        _ => "?",
    };
    let bytes = quantity::size(&format!("{digits}{unit}"));
    let wrong = || (format!("`{value}` is no size for `{key}`"), "write `64G`".to_owned());
    bytes.map(|bytes| bytes.0 >> 20).ok_or_else(wrong)
}

/// `MINUTES`, `MINUTES:SECONDS`, `HOURS:MINUTES:SECONDS`, `DAYS-HOURS[:MINUTES[:SECONDS]]`.
/// No limit for `0`, `UNLIMITED` and `INFINITE`.
fn time(value: &str) -> Result<Option<String>, (String, String)> {
    if ["0", "UNLIMITED", "INFINITE"].contains(&value.to_uppercase().as_str()) {
        return Ok(None);
    }
    let read = || -> Option<u64> {
        let (days, rest) = match value.split_once('-') {
            Some((days, rest)) => (Some(days.parse::<u64>().ok()?), rest),
            None => (None, value),
        };
        let parts: Option<Vec<u64>> = rest.split(':').map(|part| part.parse().ok()).collect();
        let [hours, minutes, seconds] = match (days, &parts?[..]) {
            (None, &[minutes]) => [0, minutes, 0],
            (None, &[minutes, seconds]) => [0, minutes, seconds],
            (Some(_), &[hours]) => [hours, 0, 0],
            (Some(_), &[hours, minutes]) => [hours, minutes, 0],
            (_, &[hours, minutes, seconds]) => [hours, minutes, seconds],
            _ => return None,
        };
        let parts = [(days.unwrap_or(0), 86_400), (hours, 3_600), (minutes, 60), (seconds, 1)];
        parts.into_iter().try_fold(0_u64, |sum, (count, unit)| {
            sum.checked_add(count.checked_mul(unit)?).filter(|sum| *sum <= TIME_MAX_S)
        })
    };
    match read() {
        Some(seconds @ 1..) => Ok(Some(format!("{seconds}s"))),
        _ => {
            let hint = "write `90`, `1:30:00` or `2-12`".to_owned();
            Err((format!("`{value}` is no time for `--time`"), hint))
        }
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
            time_limit: some("129600s"),
            devices: some("cuda:2 | cpu:8"),
            cores: some("8"),
            memory: some("65536MiB"),
            notice: some("SIGUSR1"),
            grace: some("120s"),
            ..Short::default()
        };
        assert_eq!(script.short, expected);
        assert_eq!(script.interpreter, ["/bin/bash", "-l"]);
        assert_eq!(script.unused, ["-p"]);
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
    fn times_are_slurms() {
        let read = |text: &str| time(text).ok().flatten();
        assert_eq!(read("90"), some("5400s"));
        assert_eq!(read("1:30"), some("90s"));
        assert_eq!(read("1:00:30"), some("3630s"));
        assert_eq!(read("2-12:30"), some("217800s"));
        for endless in ["UNLIMITED", "infinite", "0"] {
            assert_eq!(time(endless), Ok(None));
        }
        for wrong in ["soon", "1:2:3:4", "999999999999999999-0", "18446744073709551615", ""] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
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
        let text = short.job_file(&["true".to_owned()], &BTreeMap::new());
        let file: Value = serde_json::from_str(&text).expect("it is JSON");
        let expected =
            json!({ "name": "a", "kind": "custom", "run": ["true"], "with": { "cores": 4 } });
        assert_eq!(file, expected);
        crate::job::parse(&text, "command line").expect("it is a job file");
    }
}
