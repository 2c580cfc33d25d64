//! What is to be run, from a command line: a job file, a command, or a script with directives.

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use anstream::eprintln;
use clap::Args;
use het_wire::api::{ArrayPlace, Begin, ScriptText, Submission};
use het_wire::job::script::{Script, Short, indices, is_script, job_name};
use het_wire::job::{BEGIN_HINT, Override, begin};
use jiff::{Timestamp, Zoned};
use owo_colors::OwoColorize;

use crate::environment::Variables;
use crate::fail::{Fail, code};
use crate::snapshot;

/// What a job is to be: of a command or a script all there is to say, of a job file what is to be
/// different.
#[derive(Debug, Args)]
#[command(next_help_heading = "Of the job, or instead of what its file says")]
pub struct ShortArgs {
    /// Devices, for example `cpu:2` or `cuda:1 | cpu:2`.
    #[arg(long)]
    pub devices: Option<String>,
    /// Name of the job; the command's own name if absent.
    #[arg(long)]
    pub name: Option<String>,
    /// Owner of the quota.
    #[arg(long)]
    pub tenant: Option<String>,
    /// `urgent`, `high`, `normal` or `low`.
    #[arg(long)]
    pub priority: Option<String>,
    /// Longest time from the first start to the end, for example `6h`.
    #[arg(long)]
    pub time_limit: Option<String>,
    /// Host cores beside accelerators.
    #[arg(long)]
    pub cores: Option<String>,
    /// Host memory, for example `64GiB`.
    #[arg(long)]
    pub memory: Option<String>,
    /// How often a failed program is started again.
    #[arg(long)]
    pub retries: Option<String>,
    /// Start it only once other jobs have come so far: `41`, `41:ok`, `prepare:any`, `41:fail`,
    /// `41:start+10m`; `,` between those that are all needed, `?` where one is enough.
    #[arg(long, value_name = "JOB[:ok|:fail|:any|:start]")]
    pub after: Vec<String>,
    /// Not before this time: `18:00`, `tomorrow`, `now+1h`, `2026-12-24T18:00`.
    #[arg(long, value_name = "TIME")]
    pub begin: Option<String>,
    /// A field or a parameter of the job file: `stages.train.devices=gpu:2`, `param.lr=0.1`. May
    /// be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Run it in a copy of the files of this directory as they are now: of a git work tree without
    /// what it ignores, else of the directory.
    #[arg(long)]
    pub snapshot: bool,
}

/// What is asked for, before it is known where it will run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    File { text: String, source: String, overrides: Vec<Override> },
    Command { short: Box<Short>, run: Vec<String>, source: String, script: Option<ScriptText> },
}

/// A job file, and all that goes with it into a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobText {
    pub text: String,
    /// What messages call it.
    pub source: String,
    pub overrides: Vec<Override>,
    pub script: Option<ScriptText>,
    /// Its place among jobs that are submitted together.
    pub array: Option<ArrayPlace>,
}

/// Where a job is submitted from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    pub cwd: PathBuf,
    /// Of the files there.
    pub commit: Option<String>,
}

/// Where its programs write, and what they read, as far as the command line says.
#[derive(Debug, Clone, Copy, Default)]
pub struct Files<'a> {
    pub workdir: Option<&'a Path>,
    pub stdin: Option<&'a str>,
}

impl Request {
    pub fn read(file: Option<&Path>, command: &[String], args: &ShortArgs) -> Result<Self, Fail> {
        let Some(path) = file else {
            let Some(program) = command.first() else {
                return Err(Fail::new(code::USAGE, "nothing to run was named")
                    .hint("name a job file or a script, or `--devices cpu:1 -- COMMAND`"));
            };
            refuse_set(args)?;
            let short = Box::new(named(short(args)?, program));
            let source = "command line".to_owned();
            return Ok(Self::Command { short, run: command.to_vec(), source, script: None });
        };
        let text = read_file(path)?;
        let says_directives = |line: &str| line.starts_with("#SBATCH") || line.starts_with("#HET");
        if !is_script(&text) && text.lines().any(says_directives) {
            let text = format!("the first line of `{}` is no `#!`", path.display());
            return Err(Fail::new(code::USAGE, text).hint("begin it with `#!/bin/bash`"));
        }
        if is_script(&text) {
            refuse_set(args)?;
            return script(path, &text, command, args);
        }
        if !command.is_empty() {
            let text = format!("`{}` is a job file, which takes no arguments", path.display());
            return Err(Fail::new(code::USAGE, text)
                .hint("give it parameters instead: `--set param.NAME=VALUE`"));
        }
        let source = path.display().to_string();
        Ok(Self::File { text, source, overrides: overrides(args)? })
    }

    /// The job, where it is one.
    pub fn one(&self) -> Result<JobText, Fail> {
        match self {
            Self::Command { short, .. } if short.array.is_some() => {
                Err(Fail::new(code::USAGE, "an array is many jobs")
                    .hint("queue them with `het submit`"))
            }
            Self::Command { .. } if self.is_held() => {
                Err(Fail::new(code::USAGE, "the script is to be held, and a run begins at once")
                    .hint("queue it with `het submit`"))
            }
            _ => Ok(self.text(None)),
        }
    }

    /// The jobs of the array that is asked for here or in the script, or the one job.
    pub fn members(
        &self,
        array: Option<&str>,
        parallel_max: Option<u32>,
    ) -> Result<Vec<JobText>, Fail> {
        let own = match self {
            Self::Command { short, .. } => short.array.as_deref(),
            Self::File { .. } => None,
        };
        let Some(array) = array.or(own) else {
            if parallel_max.is_some() {
                return Err(Fail::new(code::USAGE, "`--max-parallel` is of an array")
                    .hint("write `--array 0-9 --max-parallel 2`"));
            }
            return Ok(vec![self.text(None)]);
        };
        let wrong = |(what, hint): (String, String)| Fail::new(code::USAGE, what).hint(hint);
        let indices = indices(array).map_err(wrong)?;
        let step = array.rsplit_once(':').and_then(|(_, step)| step.parse().ok()).unwrap_or(1);
        let parallel_max = match parallel_max {
            Some(most) => Some(most),
            None => self.parallel_max()?,
        };
        let [min, max] = [indices.first(), indices.last()].map(|index| index.copied().unwrap_or(0));
        let count = indices.len() as u32;
        let place = |index| ArrayPlace { first: None, index, count, min, max, step, parallel_max };
        Ok(indices.iter().map(|&index| self.text(Some(place(index)))).collect())
    }

    fn parallel_max(&self) -> Result<Option<u32>, Fail> {
        let Self::Command { short, .. } = self else { return Ok(None) };
        let Some(text) = &short.max_parallel else { return Ok(None) };
        text.parse().ok().filter(|most| *most > 0).map(Some).ok_or_else(|| {
            let what = format!("`{text}` is no number of jobs that may run at a time");
            Fail::new(code::USAGE, what).hint("write a number from 1")
        })
    }

    /// Whether it is to begin only once it is released.
    pub fn is_held(&self) -> bool {
        matches!(self, Self::Command { short, .. } if short.hold.is_some())
    }

    /// Which of the submitter's variables it gets, where its script says so.
    pub fn export(&self) -> Option<&str> {
        match self {
            Self::Command { short, .. } => short.export.as_deref(),
            Self::File { .. } => None,
        }
    }

    /// The directory that it names to start in.
    fn chdir(&self) -> Option<&str> {
        match self {
            Self::Command { short, .. } => short.chdir.as_deref(),
            Self::File { .. } => None,
        }
    }

    fn text(&self, array: Option<ArrayPlace>) -> JobText {
        match self {
            Self::File { text, source, overrides } => JobText {
                text: text.clone(),
                source: source.clone(),
                overrides: overrides.clone(),
                script: None,
                array,
            },
            Self::Command { short, run, source, script } => JobText {
                text: short.job_file(run),
                source: source.clone(),
                overrides: Vec::new(),
                script: script.clone(),
                array,
            },
        }
    }
}

/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 256 << 10;

fn read_file(path: &Path) -> Result<String, Fail> {
    let name = path.display();
    let mut bytes = Vec::new();
    let read =
        fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    read.map_err(|error| {
        let missing = error.kind() == io::ErrorKind::NotFound;
        let exit = if missing { code::NOT_FOUND } else { code::USAGE };
        Fail::new(exit, format!("`{name}` cannot be read: {error}"))
            .hint("name a job file or a script, or write `-- COMMAND`")
    })?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Fail::new(code::USAGE, format!("`{name}` has more than 256 KiB"))
            .hint("keep data in files of its own"));
    }
    String::from_utf8(bytes).map_err(|_| {
        Fail::new(code::USAGE, format!("`{name}` is no UTF-8"))
            .hint("convert it: `iconv -f latin1 -t utf8`")
    })
}

fn refuse_set(args: &ShortArgs) -> Result<(), Fail> {
    match args.set.first() {
        None => Ok(()),
        Some(set) => Err(Fail::new(code::USAGE, format!("`--set {set}` is of a job file"))
            .hint("a command and a script take arguments and `--env NAME=VALUE`")),
    }
}

fn script(path: &Path, text: &str, words: &[String], args: &ShortArgs) -> Result<Request, Fail> {
    let source = path.display().to_string();
    let script = Script::read(text, &source)
        .map_err(|problems| Fail::Report { code: code::USAGE, text: problems.to_string() })?;
    if !script.told.is_empty() {
        let told = script.told.join("`, `");
        eprintln!("{} `{source}`: `{told}` is not acted on here", "warning:".yellow());
    }
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let kept = ScriptText { name: name.unwrap_or_default(), text: text.to_owned() };
    let mut short = named(short(args)?.over(script.short), &source);
    if !short.env.is_empty() {
        let here = here()?.to_string_lossy().into_owned();
        short.env.insert("SLURM_SUBMIT_DIR".to_owned(), here);
    }
    let kept_path = ["{script}".to_owned()];
    let run = script.interpreter.into_iter().chain(kept_path).chain(words.iter().cloned());
    Ok(Request::Command {
        short: Box::new(short),
        run: run.collect(),
        source: format!("{source}, as a job file"),
        script: Some(kept),
    })
}

fn short(args: &ShortArgs) -> Result<Short, Fail> {
    Ok(Short {
        name: args.name.clone(),
        tenant: args.tenant.clone(),
        priority: args.priority.clone(),
        time_limit: args.time_limit.clone(),
        devices: args.devices.clone(),
        cores: args.cores.clone(),
        memory: args.memory.clone(),
        retries: args.retries.clone(),
        after: (!args.after.is_empty()).then(|| args.after.join(",")),
        begin: args.begin.as_deref().map(instant).transpose()?,
        ..Short::default()
    })
}

/// What takes the places of a job file's own words.
fn overrides(args: &ShortArgs) -> Result<Vec<Override>, Fail> {
    let after = (!args.after.is_empty()).then(|| args.after.join(","));
    let begin = args.begin.as_deref().map(instant).transpose()?;
    let flags = [
        ("name", "--name", &args.name),
        ("tenant", "--tenant", &args.tenant),
        ("priority", "--priority", &args.priority),
        ("time_limit", "--time-limit", &args.time_limit),
        ("devices", "--devices", &args.devices),
        ("with.cores", "--cores", &args.cores),
        ("with.memory", "--memory", &args.memory),
        ("retries", "--retries", &args.retries),
        ("after", "--after", &after),
        ("begin", "--begin", &begin),
    ];
    let flags = flags.into_iter().filter_map(|(key, flag, value)| {
        let value = value.as_ref()?;
        // Texts of the file stay texts, also where YAML would read a number.
        let text = match key {
            "with.cores" | "retries" => value.clone(),
            _ => serde_json::to_string(value).unwrap_or_default(),
        };
        Some(Ok(Override::new(key, &text, format!("{flag} {value}"))))
    });
    let set = args.set.iter().map(|set| match set.split_once('=') {
        Some((key, value)) => Ok(Override::new(key, value, format!("--set {set}"))),
        None => Err(Fail::new(code::USAGE, format!("`--set {set}` gives no value"))
            .hint("write `--set KEY=VALUE`")),
    });
    flags.chain(set).collect()
}

/// A time as the server understands it anywhere.
fn instant(text: &str) -> Result<String, Fail> {
    let at = begin(text, &Zoned::now()).ok_or_else(|| {
        Fail::new(code::USAGE, format!("`{text}` is no time at which a job can begin"))
            .hint(BEGIN_HINT)
    })?;
    let instant = Timestamp::from_millisecond(at.0 as i64);
    Ok(instant.map_or_else(|_| text.to_owned(), |instant| instant.to_string()))
}

/// Named after its program, and on one core, where nothing else is said.
fn named(short: Short, program: &str) -> Short {
    let stem = Path::new(program).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let otherwise =
        Short { name: Some(job_name(stem)), devices: Some("cpu:1".to_owned()), ..Short::default() };
    short.over(otherwise)
}

fn here() -> Result<PathBuf, Fail> {
    env::current_dir().map_err(|error| Fail::file(Path::new("."), error))
}

/// Where a request is submitted from: this directory, or the one that it names, or a copy of that
/// below `kept`.
pub fn origin(request: &Request, args: &ShortArgs, kept: &Path) -> Result<Origin, Fail> {
    let here = here()?;
    let cwd = request.chdir().map_or_else(|| here.clone(), |dir| here.join(dir));
    let commit = snapshot::commit(&cwd);
    if !args.snapshot {
        return Ok(Origin { cwd, commit });
    }
    let name = format!("snapshot-{}-{}", Timestamp::now().as_millisecond(), std::process::id());
    let cwd = snapshot::copy(&cwd, &kept.join(name))?;
    let commit = commit.or_else(|| Some("a copy of a directory without commits".to_owned()));
    Ok(Origin { cwd, commit })
}

/// What this command reads, for a program to read it instead: a file or a pipe, and no terminal.
pub fn standard_input() -> Option<String> {
    let path = format!("/proc/{}/fd/0", std::process::id());
    let target = fs::read_link(&path).ok()?;
    let is_nothing = io::stdin().is_terminal() || target == Path::new("/dev/null");
    (!is_nothing).then_some(path)
}

/// A submission of a job from a directory.
pub fn submission(
    job: JobText,
    origin: &Origin,
    files: Files<'_>,
    variables: &Variables,
) -> Result<Submission, Fail> {
    let workdir = files.workdir.map(|path| {
        let path = std::path::absolute(path).map_err(|error| Fail::file(path, error))?;
        Ok::<_, Fail>(path.to_string_lossy().into_owned())
    });
    Ok(Submission {
        file: job.text,
        source: job.source,
        cwd: origin.cwd.to_string_lossy().into_owned(),
        path: None,
        environment: variables.others.clone(),
        env: variables.named.clone(),
        workdir: workdir.transpose()?,
        overrides: job.overrides,
        script: job.script,
        stdin: files.stdin.map(str::to_owned),
        commit: origin.commit.clone(),
        array: job.array,
        begin: Begin::Queued,
    })
}
