//! What is to be run, from a command line: a job file, a command, or a script with directives.

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs, io};

use anstream::eprintln;
use clap::Args;
use het_wire::api::{Begin, Submission};
use het_wire::job::script::{Script, Short, indices, is_script, job_name};
use owo_colors::OwoColorize;

use crate::fail::{Fail, code};

/// What a command or a script has instead of a job file.
#[derive(Debug, Args)]
#[command(next_help_heading = "Of a command or a script")]
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
}

/// What a job of an array finds its index in, and where scripts written for Slurm look for it.
const INDEX_NAMES: [&str; 2] = ["HET_ARRAY_INDEX", "SLURM_ARRAY_TASK_ID"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    File { text: String, source: String },
    Command { short: Box<Short>, run: Vec<String>, source: String },
}

/// The text of a job file, and what messages call it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobText {
    pub text: String,
    pub source: String,
}

/// One job of those that were asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its index, in an array.
    pub index: Option<u32>,
    pub job: JobText,
}

impl Request {
    pub fn read(file: Option<&Path>, command: &[String], args: &ShortArgs) -> Result<Self, Fail> {
        let Some(path) = file else {
            let Some(program) = command.first() else {
                return Err(Fail::new(code::USAGE, "nothing to run was named")
                    .hint("name a job file or a script, or `--devices cpu:1 -- COMMAND`"));
            };
            let short = Box::new(named(short(args), program));
            let source = "command line".to_owned();
            return Ok(Self::Command { short, run: command.to_vec(), source });
        };
        let text = fs::read_to_string(path).map_err(|error| {
            let missing = error.kind() == io::ErrorKind::NotFound;
            let exit = if missing { code::NOT_FOUND } else { code::USAGE };
            Fail::new(exit, format!("`{}` cannot be read: {error}", path.display()))
                .hint("name a job file, such as `examples/finetune.yaml`")
        })?;
        if is_script(&text) {
            return script(path, &text, command, args);
        }
        if short(args) != Short::default() || !command.is_empty() {
            let text =
                format!("`{}` is a job file, which says itself what it needs", path.display());
            return Err(Fail::new(code::USAGE, text)
                .hint("write it there, or name a script or a command instead"));
        }
        Ok(Self::File { text, source: path.display().to_string() })
    }

    /// The job, where it is one.
    pub fn one(&self) -> Result<JobText, Fail> {
        match self {
            Self::Command { short, .. } if short.array.is_some() => {
                Err(Fail::new(code::USAGE, "an array is many jobs")
                    .hint("queue them with `het submit`"))
            }
            _ => Ok(self.text(None)),
        }
    }

    /// The jobs of the array that is asked for here or in the script, or the one job.
    pub fn members(&self, array: Option<&str>) -> Result<Vec<Member>, Fail> {
        let own = match self {
            Self::Command { short, .. } => short.array.as_deref(),
            Self::File { .. } => None,
        };
        let Some(array) = array.or(own) else {
            return Ok(vec![Member { index: None, job: self.text(None) }]);
        };
        if matches!(self, Self::File { .. }) {
            return Err(Fail::new(code::USAGE, "an array is of a command or a script")
                .hint("write `het submit --array 0-9 -- COMMAND`"));
        }
        let indices = indices(array);
        let indices = indices.map_err(|(what, hint)| Fail::new(code::USAGE, what).hint(hint))?;
        let member = |index| Member { index: Some(index), job: self.text(Some(index)) };
        Ok(indices.into_iter().map(member).collect())
    }

    fn text(&self, index: Option<u32>) -> JobText {
        match self {
            Self::File { text, source } => JobText { text: text.clone(), source: source.clone() },
            Self::Command { short, run, source } => {
                let mut short = short.as_ref().clone();
                let mut env = BTreeMap::new();
                if let Some(index) = index {
                    short.name = short.name.map(|name| format!("{name}-{index}"));
                    env.extend(INDEX_NAMES.map(|name| (name.to_owned(), index.to_string())));
                }
                let text = short.job_file(run, &env);
                JobText { text, source: source.clone() }
            }
        }
    }
}

fn script(path: &Path, text: &str, words: &[String], args: &ShortArgs) -> Result<Request, Fail> {
    let source = path.display().to_string();
    let script = Script::read(text, &source)
        .map_err(|problems| Fail::Report { code: code::USAGE, text: problems.to_string() })?;
    if !script.unused.is_empty() {
        let unused = script.unused.join("`, `");
        eprintln!("{} `{source}`: `{unused}` means nothing here", "warning:".yellow());
    }
    let absolute = std::path::absolute(path).map_err(|error| Fail::file(path, error))?;
    let absolute = absolute.to_string_lossy().into_owned();
    let run = script.interpreter.iter().chain([&absolute]).chain(words).cloned().collect();
    let short = Box::new(named(short(args).over(script.short), &source));
    Ok(Request::Command { short, run, source: format!("{source}, as a job file") })
}

fn short(args: &ShortArgs) -> Short {
    Short {
        name: args.name.clone(),
        tenant: args.tenant.clone(),
        priority: args.priority.clone(),
        time_limit: args.time_limit.clone(),
        devices: args.devices.clone(),
        cores: args.cores.clone(),
        memory: args.memory.clone(),
        retries: args.retries.clone(),
        ..Short::default()
    }
}

/// Named after its program, and on one core, where nothing else is said.
fn named(short: Short, program: &str) -> Short {
    let stem = Path::new(program).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let otherwise =
        Short { name: Some(job_name(stem)), devices: Some("cpu:1".to_owned()), ..Short::default() };
    short.over(otherwise)
}

/// A submission of a job from this directory.
pub fn submission(job: JobText, workdir: Option<&Path>) -> Result<Submission, Fail> {
    let cwd = env::current_dir().map_err(|error| Fail::file(Path::new("."), error))?;
    let workdir = workdir.map(|path| {
        let path = std::path::absolute(path).map_err(|error| Fail::file(path, error))?;
        Ok::<_, Fail>(path.to_string_lossy().into_owned())
    });
    Ok(Submission {
        file: job.text,
        source: job.source,
        cwd: cwd.to_string_lossy().into_owned(),
        path: Some(path_with_companions()),
        workdir: workdir.transpose()?,
        begin: Begin::Queued,
    })
}

/// `PATH` with the directory of this program first, so that the `het-train` installed beside it is
/// found.
pub fn path_with_companions() -> String {
    let path = env::var("PATH").unwrap_or_default();
    let beside = env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_path_buf()));
    match beside {
        Some(dir) => format!("{}:{path}", dir.display()),
        None => path,
    }
}
