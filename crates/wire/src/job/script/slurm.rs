//! What `#SBATCH` directives mean here: every option of sbatch(1) is acted on, is of no consequence
//! on one machine, is told not to be acted on, or is refused.

mod values;

use std::collections::BTreeMap;

use values::{Refused, count, dependency, gpus, gres, mebibytes, models, pattern, time};

use super::{Short, job_name};
use crate::quantity;

/// Options that make no difference here: they are about several nodes, or about what sbatch itself
/// prints.
const WITHOUT_CONSEQUENCE: &[&str] = &[
    "--contiguous",
    "--delay-boot",
    "-m",
    "--distribution",
    "--gres-flags",
    "--ignore-pbs",
    "-k",
    "--no-kill",
    "--comment",
    "--parsable",
    "-Q",
    "--quiet",
    "-s",
    "--oversubscribe",
    "--spread-job",
    "--switches",
    "--use-min-nodes",
    "-v",
    "--verbose",
    "--wait-all-nodes",
    "--wckey",
];

/// Options that change what happens around a job and not what it does; they are told.
const TOLD: &[&str] =
    &["--mail-type", "--mail-user", "-p", "--partition", "--prefer", "--profile", "--acctg-freq"];

/// Options that take no value.
const FLAGS: &[&str] = &[
    "--contiguous",
    "--ignore-pbs",
    "--parsable",
    "-Q",
    "--quiet",
    "-s",
    "--oversubscribe",
    "--spread-job",
    "--use-min-nodes",
    "-v",
    "--verbose",
    "-H",
    "--hold",
    "--requeue",
    "--no-requeue",
    "-W",
    "--wait",
    "-O",
    "--overcommit",
    "--reboot",
    "--test-only",
];

/// Options that are refused, and what to do instead.
const REFUSED: &[(&[&str], &str)] = &[
    (&["--exclusive"], "ask for the cores, memory and devices that it needs"),
    (&["--no-requeue"], "a job that was stopped is started again here: remove the line"),
    (&["-w", "--nodelist", "-x", "--exclude", "-F", "--nodefile"], "name devices, not nodes"),
    (&["-L", "--licenses", "--reservation"], "there are none here: remove the line"),
    (&["--deadline", "--time-min"], "give a `--time` that it surely ends in"),
    (&["-W", "--wait"], "say `het submit --wait`"),
    (&["--test-only"], "say `het submit --hold`, and ask `het explain`"),
    (
        &["--tmp"],
        "scratch space is limited, not reserved: say `with: { scratch: … }` in a job file",
    ),
    (&["-O", "--overcommit"], "ask for as many cores as it has tasks"),
    (&["--uid", "--gid", "--get-user-env"], "submit it as the user that it is to run as"),
    (&["--export-file"], "say `--export=NAME=VALUE,…`, or `het submit --env NAME=VALUE`"),
    (&["--ntasks-per-gpu", "--ntasks-per-socket", "--ntasks-per-core"], "say `--ntasks`"),
    (&["--gpus-per-socket"], "say `--gpus`"),
    (&["--priority"], "say `#HET --priority high`"),
];

/// What `#SBATCH` said so far; counts become devices when all is known.
#[derive(Debug, Default)]
pub(super) struct Slurm {
    short: Short,
    /// Whether there was any directive.
    pub(super) is_used: bool,
    /// The job's name as it was written.
    name: Option<String>,
    tasks: Option<u32>,
    tasks_a_node: Option<u32>,
    cores_a_task: Option<u32>,
    cores_a_device: Option<u32>,
    accelerators: Option<(String, u32)>,
    a_task: Option<(String, u32)>,
    /// Words of which each is a model that will do.
    models: Vec<String>,
    memory_mib: Option<u64>,
    memory_a_core_mib: Option<u64>,
    memory_a_device_mib: Option<u64>,
    variables: BTreeMap<String, String>,
    /// Told not to be acted on.
    pub(super) told: Vec<String>,
}

/// Whether an option takes no value, so that the next word is another option.
pub(super) fn is_flag(key: &str) -> bool {
    FLAGS.contains(&key) || (key == "--exclusive")
}

impl Slurm {
    /// One directive, as sbatch(1) has them.
    pub(super) fn directive(&mut self, key: &str, value: &str) -> Result<(), Refused> {
        self.is_used = true;
        if WITHOUT_CONSEQUENCE.contains(&key) {
            return Ok(());
        }
        if TOLD.contains(&key) {
            self.told.push(key.to_owned());
            if key == "-p" || key == "--partition" {
                self.set_variable("SLURM_JOB_PARTITION", value);
            }
            return Ok(());
        }
        if let Some((_, hint)) = REFUSED.iter().find(|(keys, _)| keys.contains(&key)) {
            return Err((format!("`{key}` means nothing here"), (*hint).to_owned()));
        }
        if value.is_empty() && !is_flag(key) && is_known(key) {
            return Err((format!("`{key}` has no value"), format!("write `{key} VALUE`")));
        }
        match key {
            "-n" | "--ntasks" | "--ntasks-per-node" | "-c" | "--cpus-per-task"
            | "--cpus-per-gpu" | "--mincpus" | "-G" | "--gpus" | "--gpus-per-node"
            | "--gpus-per-task" | "--gres" | "-C" | "--constraint" | "-N" | "--nodes" => {
                self.devices_directive(key, value)
            }
            "--mem" | "--mem-per-cpu" | "--mem-per-gpu" => self.memory_directive(key, value),
            _ => self.job_directive(key, value),
        }
    }

    fn job_directive(&mut self, key: &str, value: &str) -> Result<(), Refused> {
        match key {
            "-J" | "--job-name" => {
                self.name = Some(value.to_owned());
                self.short.name = Some(job_name(value));
            }
            "-A" | "--account" => {
                self.set_variable("SLURM_JOB_ACCOUNT", value);
                self.short.tenant = Some(value.to_lowercase());
            }
            "-q" | "--qos" => {
                self.set_variable("SLURM_JOB_QOS", value);
                match ["urgent", "high", "normal", "low"].contains(&value) {
                    true => self.short.priority = Some(value.to_owned()),
                    false => self.told.push(key.to_owned()),
                }
            }
            "--nice" => match value.parse::<i64>().unwrap_or(100) {
                ..0 => {
                    return Err((
                        "`--nice` cannot raise a priority".to_owned(),
                        "say `#HET --priority high`".to_owned(),
                    ));
                }
                0 => {}
                1.. => self.short.priority = Some("low".to_owned()),
            },
            "-t" | "--time" => self.short.time_limit = time(value)?,
            "-a" | "--array" => self.array(value),
            "-d" | "--dependency" => {
                self.set_variable("SLURM_JOB_DEPENDENCY", value);
                self.short.after = Some(dependency(value)?);
            }
            "--kill-on-invalid-dep" if value == "yes" => {}
            "--kill-on-invalid-dep" => {
                let hint = "a job whose dependency cannot be met is cancelled here".to_owned();
                return Err((format!("`{key}={value}` means nothing here"), hint));
            }
            "-b" | "--begin" => self.short.begin = Some(value.to_owned()),
            "-H" | "--hold" => self.short.hold = Some("true".to_owned()),
            "-D" | "--chdir" => self.short.chdir = Some(value.to_owned()),
            "-i" | "--input" => self.short.stdin = Some(pattern(key, value)?),
            "-o" | "--output" => self.short.stdout = Some(pattern(key, value)?),
            "-e" | "--error" => self.short.stderr = Some(pattern(key, value)?),
            "--open-mode" if ["append", "truncate"].contains(&value) => {
                self.short.open_mode = Some(value.to_owned());
            }
            "--export" => self.short.export = Some(value.to_owned()),
            "--signal" => self.signal(value)?,
            // Whatever was stopped goes on from its newest checkpoint anyhow.
            "--requeue" => {}
            _ => {
                let hint = "remove it, or say what it is to do with `#HET`".to_owned();
                return Err((format!("`{key}` is no option that is known here"), hint));
            }
        }
        Ok(())
    }

    fn devices_directive(&mut self, key: &str, value: &str) -> Result<(), Refused> {
        match key {
            "-n" | "--ntasks" => self.tasks = Some(count(key, value)?),
            "--ntasks-per-node" => self.tasks_a_node = Some(count(key, value)?),
            "-c" | "--cpus-per-task" => self.cores_a_task = Some(count(key, value)?),
            "--mincpus" => {
                let least = count(key, value)?;
                self.cores_a_task = Some(self.cores_a_task.unwrap_or(1).max(least));
            }
            "--cpus-per-gpu" => self.cores_a_device = Some(count(key, value)?),
            "-G" | "--gpus" => {
                self.set_variable("SLURM_GPUS", value);
                self.accelerators = Some(gpus(key, value)?);
            }
            "--gpus-per-node" => {
                self.set_variable("SLURM_GPUS_PER_NODE", value);
                self.accelerators = Some(gpus(key, value)?);
            }
            "--gpus-per-task" => {
                self.set_variable("SLURM_GPUS_PER_TASK", value);
                self.a_task = Some(gpus(key, value)?);
            }
            "--gres" => self.accelerators = gres(value)?,
            "-C" | "--constraint" => self.models = models(value)?,
            _ if value == "1" || value == "1-1" => {}
            _ => {
                let message = format!("`{key} {value}` asks for several nodes");
                return Err((message, "one machine is one node: ask for `1`".to_owned()));
            }
        }
        Ok(())
    }

    fn memory_directive(&mut self, key: &str, value: &str) -> Result<(), Refused> {
        let mib = mebibytes(key, value)?;
        match key {
            // All that the node has: nothing is to be kept for it.
            "--mem" => self.memory_mib = Some(mib).filter(|mib| *mib > 0),
            "--mem-per-cpu" => self.memory_a_core_mib = Some(mib),
            _ => self.memory_a_device_mib = Some(mib),
        }
        Ok(())
    }

    /// `INDICES[%N]`.
    fn array(&mut self, value: &str) {
        let (indices, parallel_max) = value.split_once('%').unzip();
        self.short.array = Some(indices.unwrap_or(value).to_owned());
        self.short.max_parallel = parallel_max.map(str::to_owned);
    }

    /// `B:SIGNAL[@SECONDS]`: sent to the script that long before its time is over.
    fn signal(&mut self, value: &str) -> Result<(), Refused> {
        let to_script = ["B:", "RB:", "BR:"].iter().find_map(|prefix| value.strip_prefix(prefix));
        let Some(said) = to_script else {
            let hint = format!("write `B:{value}` and trap it in the script");
            let message = format!("`--signal={value}` is for programs that `srun` starts");
            return Err((message, hint));
        };
        let (name, seconds) = said.split_once('@').unwrap_or((said, "60"));
        let name = match name {
            "1" => "HUP",
            "2" => "INT",
            "10" => "USR1",
            "12" => "USR2",
            "15" => "TERM",
            name => name.trim_start_matches("SIG"),
        };
        if !["HUP", "INT", "USR1", "USR2", "TERM"].contains(&name) {
            let hint = "name `HUP`, `INT`, `USR1`, `USR2` or `TERM`".to_owned();
            return Err((format!("`{name}` is no signal that a script can be told by"), hint));
        }
        self.short.notice = Some(format!("SIG{name}"));
        self.short.grace = Some(format!("{}s", count("--signal", seconds)?));
        Ok(())
    }

    fn set_variable(&mut self, name: &str, value: impl ToString) {
        self.variables.insert(name.to_owned(), value.to_string());
    }

    fn task_count(&self) -> u32 {
        self.tasks.or(self.tasks_a_node).unwrap_or(1)
    }

    fn cores(&self) -> u32 {
        let of_tasks = self.task_count().saturating_mul(self.cores_a_task.unwrap_or(1));
        match (self.cores_a_device, self.accelerators()) {
            (Some(cores), Some((_, count))) => of_tasks.max(cores.saturating_mul(count)),
            _ => of_tasks,
        }
    }

    fn says_cores(&self) -> bool {
        let counts = [self.tasks, self.tasks_a_node, self.cores_a_task, self.cores_a_device];
        counts.iter().any(Option::is_some)
    }

    fn accelerators(&self) -> Option<(&str, u32)> {
        let all = self.accelerators.as_ref().map(|(word, count)| (word.as_str(), *count));
        let a_task = self.a_task.as_ref();
        let tasks = self.task_count();
        let a_task = a_task.map(|(word, count)| (word.as_str(), count.saturating_mul(tasks)));
        all.or(a_task).filter(|(_, count)| *count > 0)
    }

    pub(super) fn devices(&self) -> Option<String> {
        match self.accelerators() {
            Some((word, count)) if self.models.is_empty() => Some(format!("{word}:{count}")),
            Some((_, count)) => {
                let words = self.models.iter().map(|model| format!("{model}:{count}"));
                Some(words.collect::<Vec<_>>().join(" | "))
            }
            None => self.says_cores().then(|| format!("cpu:{}", self.cores())),
        }
    }

    /// What stands against the directives as a whole.
    pub(super) fn problems(&self) -> Vec<Refused> {
        let mut found = Vec::new();
        let mut refuse = |what: &str, hint: &str| found.push((what.to_owned(), hint.to_owned()));
        let devices = "say which devices it needs, such as `--gpus=1`";
        if self.accelerators().is_none() {
            if !self.models.is_empty() {
                refuse("`--constraint` is of no device here", devices);
            }
            if self.memory_a_device_mib.is_some() || self.cores_a_device.is_some() {
                refuse("`--mem-per-gpu` and `--cpus-per-gpu` are of no device here", devices);
            }
        }
        let memory = [self.memory_mib, self.memory_a_core_mib, self.memory_a_device_mib];
        if memory.iter().flatten().count() > 1 {
            let hint = "keep one of `--mem`, `--mem-per-cpu` and `--mem-per-gpu`";
            refuse("its memory is given twice", hint);
        }
        found
    }

    /// What it all comes to; `stem` is the name of the script.
    pub(super) fn short(&self, stem: &str) -> Short {
        if !self.is_used {
            return Short::default();
        }
        let beside = self.accelerators().is_some() && self.says_cores();
        let a_core = self.memory_a_core_mib.map(|mib| mib.saturating_mul(self.cores().into()));
        let devices = self.accelerators().map_or(0, |(_, count)| count);
        let a_device = self.memory_a_device_mib.map(|mib| mib.saturating_mul(devices.into()));
        let memory = self.memory_mib.or(a_core).or(a_device).map(|mib| format!("{mib}MiB"));
        let name = self.short.name.clone().unwrap_or_else(|| job_name(stem));
        let files = |text: &Option<String>| text.as_ref().map(|text| text.replace("%x", &name));
        let default = match self.short.array {
            Some(_) => "slurm-{array}_{index}.out",
            None => "slurm-{job}.out",
        };
        Short {
            devices: self.devices(),
            cores: beside.then(|| self.cores().to_string()),
            memory,
            stdout: files(&self.short.stdout).or_else(|| Some(default.to_owned())),
            stderr: files(&self.short.stderr),
            stdin: files(&self.short.stdin),
            time_limit: self.limit_before_the_notice(),
            env: self.environment(&name),
            name: Some(name),
            ..self.short.clone()
        }
    }

    /// The signal comes before the time is over, not once it is.
    fn limit_before_the_notice(&self) -> Option<String> {
        let limit = self.short.time_limit.as_deref().and_then(quantity::duration)?;
        let grace = self.short.grace.as_deref().and_then(quantity::duration);
        let seconds = limit.0.saturating_sub(grace.map_or(0, |grace| grace.0)) / 1_000;
        Some(format!("{}s", seconds.max(1)))
    }

    /// The variables that scripts read. Placeholders are filled in for each job and process.
    fn environment(&self, name: &str) -> BTreeMap<String, String> {
        let mut variables = self.variables.clone();
        let mut set = |name: &str, value: String| variables.insert(name.to_owned(), value);
        for (name, value) in [
            ("SLURM_JOB_ID", "{job}"),
            ("SLURM_JOBID", "{job}"),
            ("SLURM_JOB_NODELIST", "{node}"),
            ("SLURM_NODELIST", "{node}"),
            ("SLURMD_NODENAME", "{node}"),
            ("SLURM_RESTART_COUNT", "{restarts}"),
            ("SLURM_JOB_NUM_NODES", "1"),
            ("SLURM_NNODES", "1"),
            ("SLURM_NODEID", "0"),
            ("SLURM_PROCID", "0"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_CLUSTER_NAME", "heterosis"),
            ("SLURM_SUBMIT_HOST", "{node}"),
            ("SLURM_JOB_USER", "{user}"),
        ] {
            set(name, value.to_owned());
        }
        for (name, value) in [
            ("SLURM_JOB_PARTITION", "default"),
            ("SLURM_JOB_ACCOUNT", "default"),
            ("SLURM_JOB_QOS", "normal"),
        ] {
            let said = self.variables.get(name).cloned();
            set(name, said.unwrap_or_else(|| value.to_owned()));
        }
        set("SLURM_JOB_NAME", self.name.clone().unwrap_or_else(|| name.to_owned()));
        let cores = self.cores().to_string();
        set("SLURM_CPUS_ON_NODE", cores.clone());
        set("SLURM_JOB_CPUS_PER_NODE", cores);
        set("SLURM_TASKS_PER_NODE", self.task_count().to_string());
        if let Some(tasks) = self.tasks.or(self.tasks_a_node) {
            set("SLURM_NTASKS", tasks.to_string());
            set("SLURM_NPROCS", tasks.to_string());
        }
        let counts = [
            ("SLURM_NTASKS_PER_NODE", self.tasks_a_node.map(u64::from)),
            ("SLURM_CPUS_PER_TASK", self.cores_a_task.map(u64::from)),
            ("SLURM_CPUS_PER_GPU", self.cores_a_device.map(u64::from)),
            ("SLURM_GPUS_ON_NODE", self.accelerators().map(|(_, count)| count.into())),
            ("SLURM_MEM_PER_NODE", self.memory_mib),
            ("SLURM_MEM_PER_CPU", self.memory_a_core_mib),
            ("SLURM_MEM_PER_GPU", self.memory_a_device_mib),
        ];
        for (name, count) in counts {
            if let Some(count) = count {
                set(name, count.to_string());
            }
        }
        variables
    }
}

/// Whether an option is acted on at all.
fn is_known(key: &str) -> bool {
    const KNOWN: &[&str] = &[
        "-J",
        "--job-name",
        "-A",
        "--account",
        "-q",
        "--qos",
        "-t",
        "--time",
        "-a",
        "--array",
        "-d",
        "--dependency",
        "-b",
        "--begin",
        "-D",
        "--chdir",
        "-i",
        "--input",
        "-o",
        "--output",
        "-e",
        "--error",
        "--open-mode",
        "--export",
        "--signal",
        "-n",
        "--ntasks",
        "-c",
        "--ntasks-per-node",
        "--cpus-per-task",
        "--cpus-per-gpu",
        "--mincpus",
        "-G",
        "--gpus",
        "--gpus-per-node",
        "--gpus-per-task",
        "--gres",
        "-C",
        "--constraint",
        "-N",
        "--nodes",
        "--mem",
        "--mem-per-cpu",
        "--mem-per-gpu",
    ];
    KNOWN.contains(&key)
}

/// What is said of a script that calls it.
pub(super) const SRUN: (&str, &str) = (
    "`srun` starts nothing here",
    "start the program itself: it sees all devices of the job, and `torchrun` starts a process for \
     each",
);

/// Words that stand before a command.
const BEFORE_COMMANDS: [&str; 8] = ["!", "do", "else", "exec", "if", "then", "time", "while"];

/// Whether a line of a script starts a program by `srun`: as a command, not as another's argument.
pub(super) fn calls_srun(line: &str) -> bool {
    let line = line.trim_start();
    let is_before = |word: &&str| BEFORE_COMMANDS.contains(word) || word.contains('=');
    let calls = |command: &str| {
        let word = command.split_whitespace().find(|word| !is_before(word)).unwrap_or_default();
        word == "srun" || word.ends_with("/srun")
    };
    !line.starts_with('#') && line.split([';', '&', '|', '(']).any(calls)
}
