//! Launchers: programs that start the processes of a job themselves. How many they start, and what
//! they have to be told in words because they heed no variable: the port at which their processes
//! meet, and the devices that were granted. No I/O.
//!
//! A launcher inside a script is not seen. It finds its variables there as everybody does.

use std::ops::Range;

use super::command_line::{Command, Edit, edited};

/// A launcher, with the options that are read or given here.
#[derive(Debug)]
struct Launcher {
    /// Programs, by file name.
    programs: &'static [&'static str],
    /// The same as modules, of `python -m`.
    modules: &'static [&'static str],
    /// What has to follow the program.
    subcommand: Option<&'static str>,
    /// Options with the number of processes on this machine.
    processes: &'static [&'static str],
    /// How many it starts where no option says so.
    default: Default,
    /// The option that is given a free port, unless one of `port_is_set` is there.
    port: Option<&'static str>,
    port_is_set: &'static [&'static str],
    choice: Choice,
}

/// How many processes a launcher starts where its words do not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Default {
    /// A configuration file says.
    Unknown,
    /// One for each accelerator that it sees, or one.
    EachDevice,
}

/// How a launcher chooses devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// It takes those that are visible.
    Visible,
    /// An option with numbers, which takes the place of the variable.
    Numbers(&'static str),
    /// `--num_gpus`, `--include` and `--exclude`, which count all devices of the machine. Without
    /// them the variable is read, but only numbers are understood there.
    DeepSpeed,
}

/// Sources: PyTorch 2.9 `torch/distributed/run.py`, Accelerate 1.15 `commands/launch.py`,
/// DeepSpeed 0.19 `launcher/runner.py`.
const LAUNCHERS: &[Launcher] = &[
    Launcher {
        programs: &["torchrun"],
        modules: &["torch.distributed.run", "torch.distributed.launch"],
        subcommand: None,
        processes: &["--nproc-per-node", "--nproc_per_node"],
        default: Default::EachDevice,
        // `PET_MASTER_PORT` says it.
        port: None,
        port_is_set: &[],
        choice: Choice::Visible,
    },
    Launcher {
        programs: &["accelerate-launch"],
        modules: &["accelerate.commands.launch"],
        subcommand: None,
        ..ACCELERATE
    },
    ACCELERATE,
    Launcher {
        programs: &["deepspeed", "deepspeed.pt", "ds"],
        modules: &["deepspeed.launcher.runner"],
        subcommand: None,
        processes: &["--num_gpus", "--num_accelerators"],
        default: Default::EachDevice,
        port: Some("--master_port"),
        port_is_set: &["--master_port", "--hostfile", "-H", "--launcher", "--num_nodes"],
        choice: Choice::DeepSpeed,
    },
];

const ACCELERATE: Launcher = Launcher {
    programs: &["accelerate"],
    modules: &[],
    subcommand: Some("launch"),
    processes: &["--num_processes", "--num-processes"],
    default: Default::Unknown,
    port: Some("--main_process_port"),
    port_is_set: &[
        "--main_process_port",
        "--main-process-port",
        "--main_process_ip",
        "--main-process-ip",
        "--config_file",
        "--config-file",
        "--num_machines",
        "--num-machines",
    ],
    choice: Choice::Numbers("--gpu_ids"),
};

/// How many processes a program starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Processes {
    /// Nothing is known of it: it may be one process, or a script with a launcher inside.
    Unseen,
    /// It is a launcher, and divides the cores itself where it is not told how.
    Unsaid,
    /// A launcher that starts so many.
    Count(u32),
}

/// How many processes an `argv` starts that is granted so many accelerators.
pub(super) fn processes(argv: &[String], accelerators: usize) -> Processes {
    let commands = Command::all(argv);
    let Some(call) = commands.iter().find_map(Call::find) else { return Processes::Unseen };
    call.processes(accelerators)
}

/// Whether a program looks for devices before any script of a user's begins: one that is started
/// before it has devices would find none.
pub(crate) fn counts_devices(argv: &[String]) -> bool {
    let commands = Command::all(argv);
    let calls = commands.iter().filter_map(Call::find);
    let mut counts = calls.map(|call| {
        let processes = call.option(call.launcher.processes).map(|given| given.value);
        call.launcher.choice == Choice::DeepSpeed || matches!(processes, Some("gpu" | "auto"))
    });
    counts.any(|counts| counts)
}

/// The threads of each process of a program with so many cores; `None` to leave it to the program.
/// One that is pinned to its cores counts them itself, and so does a launcher, also in a script: a
/// variable would only take that from them.
pub(super) fn threads(cores: u32, pinning: Pinning, processes: Processes) -> Option<u32> {
    match (pinning, processes) {
        _ if cores == 0 => None,
        (Pinning::ToItsCores, _) | (Pinning::None, Processes::Unsaid) => None,
        (Pinning::None, Processes::Count(count)) => Some((cores / count.max(1)).max(1)),
        (Pinning::None, Processes::Unseen) => Some(cores),
    }
}

/// Where the process of a rank may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pinning {
    ToItsCores,
    /// Also on cores that are not its own.
    None,
}

/// The devices that a rank is granted, as its launcher has to name them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Granted<'a> {
    /// Values of its variable.
    pub(super) visible: Vec<&'a str>,
    /// Numbers among the devices of the machine; `None` where they have none.
    pub(super) numbers: Option<Vec<u32>>,
}

/// An `argv` in which launchers are told their port and their devices. `None` for the devices of a
/// rank without accelerators, or with such that no launcher chooses.
///
/// # Errors
/// Why a launcher cannot be kept to its devices, and what to do.
pub(super) fn told<'a>(
    argv: Vec<String>,
    port: u16,
    granted: impl FnOnce() -> Option<Granted<'a>>,
) -> Result<Vec<String>, String> {
    let commands = Command::all(&argv);
    if !commands.iter().any(|command| Call::find(command).is_some()) {
        drop(commands);
        return Ok(argv);
    }
    let granted = granted();
    let edits = commands.into_iter().map(|command| {
        let edits = match Call::find(&command) {
            Some(call) => call.edits(port, granted.as_ref())?,
            None => Vec::new(),
        };
        Ok((command, edits))
    });
    let edits: Result<Vec<_>, String> = edits.collect();
    Ok(edited(&argv, &edits?))
}

/// An `argv` that is meant for `reference` devices, in which launchers are told to start as many
/// processes as `units` devices can have: one at least.
pub(super) fn scaled(argv: Vec<String>, (units, reference): (u32, u32)) -> Vec<String> {
    let commands = Command::all(&argv).into_iter().map(|command| {
        let edit = Call::find(&command).and_then(|call| call.scaled(units, reference));
        (command, edit.into_iter().collect())
    });
    edited(&argv, &commands.collect::<Vec<_>>())
}

/// A launcher in a command.
#[derive(Debug, Clone, Copy)]
struct Call<'a> {
    launcher: &'static Launcher,
    words: &'a [&'a str],
    /// Of the first of its options among the words.
    from: usize,
    /// Behind the last one: of its script.
    to: usize,
}

/// An option of a call: its words, and its value.
#[derive(Debug, Clone)]
struct Given<'a> {
    words: Range<usize>,
    value: &'a str,
}

impl<'a> Call<'a> {
    fn find(command: &'a Command<'_>) -> Option<Self> {
        let words = command.words();
        let (launcher, from) = (0..words.len()).find_map(|at| {
            let launcher = LAUNCHERS.iter().find(|launcher| launcher.is_at(words, at))?;
            Some((launcher, at + 1 + usize::from(launcher.subcommand.is_some())))
        })?;
        // What follows the script, or the module that takes its place, is not for the launcher.
        let is_script = |word: &&str| word.ends_with(".py") || ["-m", "--module"].contains(word);
        let length = words[from..].iter().position(is_script);
        let to = length.map_or(words.len(), |length| from + length);
        Some(Self { launcher, words, from, to })
    }

    /// The option of one of these names that is given last, as `NAME VALUE` or `NAME=VALUE`.
    fn option(&self, names: &[&str]) -> Option<Given<'a>> {
        (self.from..self.to).rev().find_map(|at| {
            let word = self.words[at];
            let (name, inline) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            if !names.contains(&name) {
                return None;
            }
            Some(match inline {
                Some(value) => Given { words: at..at + 1, value },
                None => {
                    let next = self.words[..self.to].get(at + 1).copied();
                    Given { words: at..at + 1 + usize::from(next.is_some()), value: next? }
                }
            })
        })
    }

    fn processes(&self, accelerators: usize) -> Processes {
        let each_device = Processes::Count((accelerators as u32).max(1));
        match self.option(self.launcher.processes) {
            Some(given) => match given.value {
                "gpu" | "auto" if accelerators > 0 => each_device,
                value => value.parse().map_or(Processes::Unsaid, Processes::Count),
            },
            None if self.launcher.default == Default::EachDevice => each_device,
            None => Processes::Unsaid,
        }
    }

    fn scaled(&self, units: u32, reference: u32) -> Option<Edit> {
        let Given { words, value } = self.option(self.launcher.processes)?;
        let scaled = u64::from(value.parse::<u32>().ok()?) * u64::from(units);
        let processes = (scaled / u64::from(reference.max(1))).max(1);
        let by = vec![self.launcher.processes[0].to_owned(), processes.to_string()];
        Some(Edit { words, by })
    }

    /// In the order of their words.
    fn edits(&self, port: u16, granted: Option<&Granted<'_>>) -> Result<Vec<Edit>, String> {
        let mut edits = match granted {
            Some(granted) => self.devices(granted)?,
            None => Vec::new(),
        };
        edits.extend(self.port(port));
        edits.sort_by_key(|edit| (edit.words.start, edit.words.end));
        Ok(edits)
    }

    fn port(&self, port: u16) -> Option<Edit> {
        let option = self.launcher.port?;
        let is_set = self.option(self.launcher.port_is_set).is_some();
        (!is_set).then(|| Edit {
            words: self.from..self.from,
            by: vec![option.to_owned(), port.to_string()],
        })
    }

    fn devices(&self, granted: &Granted<'_>) -> Result<Vec<Edit>, String> {
        match self.launcher.choice {
            Choice::Visible => Ok(Vec::new()),
            Choice::Numbers(option) => self.numbers(option, granted),
            Choice::DeepSpeed => self.deepspeed(granted),
        }
    }

    /// The numbers of an option count the granted devices, as they do for a program that sees no
    /// others.
    fn numbers(&self, option: &str, granted: &Granted<'_>) -> Result<Vec<Edit>, String> {
        let Some(Given { words, value }) = self.option(&[option]) else { return Ok(Vec::new()) };
        if value == "all" {
            return Ok(Vec::new());
        }
        let chosen = chosen(&granted.visible, value, &format!("{option} {value}"))?;
        Ok(vec![Edit { words, by: vec![option.to_owned(), chosen.join(",")] }])
    }

    fn deepspeed(&self, granted: &Granted<'_>) -> Result<Vec<Edit>, String> {
        if self.option(&["--hostfile", "-H"]).is_some() {
            return Ok(Vec::new());
        }
        let Some(numbers) = &granted.numbers else {
            return Err(
                "`deepspeed` cannot be told which devices it was granted, hint: start the \
                        program with `torchrun`, which takes the visible ones"
                    .to_owned(),
            );
        };
        let mut chosen_numbers = numbers.clone();
        let mut edits = Vec::new();
        if let Some(Given { words, value }) = self.option(self.launcher.processes) {
            chosen_numbers = first(numbers, value)?;
            edits.push(Edit { words, by: Vec::new() });
        }
        for option in ["--include", "-i", "--exclude", "-e"] {
            let Some(Given { words, value }) = self.option(&[option]) else { continue };
            let told = format!("{option} {value}");
            let slots = match value.trim_matches(['\'', '"']).split_once(':') {
                Some(("localhost", slots)) => chosen(numbers, slots, &told)?,
                None if value == "localhost" => numbers.clone(),
                _ => {
                    return Err(format!(
                        "`deepspeed {told}` names other machines, hint: name \
                                         devices of `localhost`"
                    ));
                }
            };
            match option {
                "--include" | "-i" => chosen_numbers = slots,
                _ => chosen_numbers.retain(|number| !slots.contains(number)),
            }
            edits.push(Edit { words, by: Vec::new() });
        }
        let list: Vec<String> = chosen_numbers.iter().map(u32::to_string).collect();
        let by = vec!["--include".to_owned(), format!("localhost:{}", list.join(","))];
        edits.push(Edit { words: self.from..self.from, by });
        Ok(edits)
    }
}

impl Launcher {
    fn is_at(&self, words: &[&str], at: usize) -> bool {
        let name = words[at].rsplit('/').next().unwrap_or(words[at]);
        let is_module = at > 0 && words[at - 1] == "-m" && self.modules.contains(&words[at]);
        let follows = words.get(at + 1).copied();
        let is_program = self.programs.contains(&name)
            && self.subcommand.is_none_or(|expected| follows == Some(expected));
        is_program || is_module
    }
}

/// The first granted devices, as many as an option says.
fn first(numbers: &[u32], value: &str) -> Result<Vec<u32>, String> {
    let count = value.parse::<i64>().unwrap_or(-1);
    match usize::try_from(count) {
        // Negative for all.
        Err(_) => Ok(numbers.to_vec()),
        Ok(count) if count <= numbers.len() => Ok(numbers[..count].to_vec()),
        Ok(count) => Err(format!(
            "`deepspeed` is to start {count} processes, which is more than the devices granted \
             ({}), hint: ask for {count} `devices`, or leave the number out",
            numbers.len()
        )),
    }
}

/// The granted devices at these places, `0,2`.
fn chosen<T: Clone>(granted: &[T], places: &str, told: &str) -> Result<Vec<T>, String> {
    let at = |place: &str| granted.get(place.trim().parse::<usize>().ok()?).cloned();
    let chosen: Option<Vec<T>> = places.split(',').map(at).collect();
    chosen.ok_or_else(|| {
        let count = granted.len();
        format!(
            "`{told}` names devices that are not granted, hint: those that are count from 0 to {}",
            count.saturating_sub(1)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn line(text: &str) -> Vec<String> {
        ["/bin/sh", "-c", text].map(str::to_owned).to_vec()
    }

    #[test]
    fn how_many_processes_a_program_starts() {
        let check = |text: &str, accelerators: usize, expected: Processes| {
            assert_eq!(processes(&argv(text), accelerators), expected, "{text}");
            assert_eq!(processes(&line(text), accelerators), expected, "{text}");
        };
        let count = Processes::Count;
        check("python train.py --nproc_per_node 4", 4, Processes::Unseen);
        check("torchrun --nproc-per-node 4 train.py", 0, count(4));
        check("torchrun --nproc_per_node=4 train.py --nproc_per_node=9", 0, count(4));
        check("/opt/venv/bin/torchrun --nproc-per-node gpu train.py", 8, count(8));
        check("torchrun --nproc-per-node cpu train.py", 0, Processes::Unsaid);
        check("torchrun --nproc-per-node $N train.py", 2, Processes::Unsaid);
        check("torchrun train.py", 8, count(8));
        check("torchrun train.py", 0, count(1));
        check("python3 -u -m torch.distributed.run --nproc-per-node 2 -m train", 0, count(2));
        check("numactl -N 0 torchrun --nproc-per-node 2 train.py", 0, count(2));
        check("accelerate launch --cpu --num_processes 2 train.py", 0, count(2));
        check("accelerate launch train.py --num_processes 3", 2, Processes::Unsaid);
        check("accelerate config", 2, Processes::Unseen);
        check("python -m accelerate.commands.launch --num_processes=2 t.py", 0, count(2));
        check("deepspeed --num_gpus 2 train.py", 4, count(2));
        check("deepspeed train.py", 4, count(4));
    }

    #[test]
    fn a_launcher_starts_as_many_processes_as_there_are_devices_for() {
        let check = |text: &str, sizes: (u32, u32), expected: &str| {
            assert_eq!(scaled(argv(text), sizes), argv(expected), "{text}");
        };
        check("torchrun --nproc_per_node=4 t.py", (2, 4), "torchrun --nproc-per-node 2 t.py");
        check("torchrun --nproc-per-node 2 t.py", (8, 4), "torchrun --nproc-per-node 4 t.py");
        check("torchrun --nproc-per-node 2 t.py", (1, 4), "torchrun --nproc-per-node 1 t.py");
        check("torchrun --nproc-per-node auto t.py", (1, 4), "torchrun --nproc-per-node auto t.py");
        check("torchrun t.py --nproc-per-node 4", (1, 4), "torchrun t.py --nproc-per-node 4");
        check("deepspeed --num_gpus 4 t.py", (2, 4), "deepspeed --num_gpus 2 t.py");
        let line = |text: &str| ["sh", "-c", text].map(str::to_owned).to_vec();
        let told = scaled(line("cd x && accelerate launch --num-processes 8 t.py | tee l"), (4, 8));
        assert_eq!(told, line("cd x && accelerate launch --num_processes 4 t.py | tee l"));
    }

    #[test]
    fn threads_of_a_program_that_could_use_the_cores_of_others() {
        let check = |cores, processes, expected| {
            assert_eq!(threads(cores, Pinning::None, processes), expected, "{cores} {processes:?}");
            assert_eq!(threads(cores, Pinning::ToItsCores, processes), None);
        };
        check(0, Processes::Count(2), None);
        check(8, Processes::Count(3), Some(2));
        check(2, Processes::Count(4), Some(1));
        check(8, Processes::Unsaid, None);
        check(8, Processes::Unseen, Some(8));
    }

    /// What becomes of a command with port 7000 and devices 2 and 5 of the machine.
    fn with_devices(argv: Vec<String>) -> Result<Vec<String>, String> {
        let granted =
            || Some(Granted { visible: vec!["GPU-a", "GPU-b"], numbers: Some(vec![2, 5]) });
        told(argv, 7000, granted)
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(with_devices(argv(text)), Ok(argv(expected)));
        assert_eq!(with_devices(line(text)), Ok(line(expected)));
    }

    #[test]
    fn launchers_are_told_their_port() {
        check("torchrun --nproc-per-node 2 t.py", "torchrun --nproc-per-node 2 t.py");
        let given = "accelerate launch --main_process_port 9 t.py";
        check(given, given);
        check(
            "accelerate launch --num_processes 2 t.py",
            "accelerate launch --main_process_port 7000 --num_processes 2 t.py",
        );
        let granted = || None;
        let alone = told(argv("deepspeed --num_gpus 2 t.py"), 7000, granted);
        assert_eq!(alone, Ok(argv("deepspeed --master_port 7000 --num_gpus 2 t.py")));
        assert_eq!(
            told(argv("deepspeed -H hosts t.py"), 7000, || None),
            Ok(argv("deepspeed -H hosts t.py"))
        );
    }

    #[test]
    fn launchers_that_choose_devices_are_kept_to_the_granted_ones() {
        let all = "deepspeed --include localhost:2,5 --master_port 7000 t.py --num_gpus 1";
        check("deepspeed t.py --num_gpus 1", all);
        check("deepspeed --num_gpus 2 t.py --num_gpus 1", all);
        check(
            "deepspeed --num_gpus=1 --master_port 9 t.py",
            "deepspeed --include localhost:2 --master_port 9 t.py",
        );
        check(
            "deepspeed --include localhost:1 t.py",
            "deepspeed --include localhost:5 --master_port 7000 t.py",
        );
        check(
            "deepspeed --exclude=localhost:0 t.py",
            "deepspeed --include localhost:5 --master_port 7000 t.py",
        );
        check(
            "accelerate launch --main_process_port 9 --gpu_ids 1 t.py",
            "accelerate launch --main_process_port 9 --gpu_ids GPU-b t.py",
        );
    }

    #[test]
    fn devices_that_were_not_granted_are_refused() {
        let check = |text: &str, expected: &str| {
            let why = with_devices(argv(text)).expect_err("it asks for what it has not");
            assert!(why.contains(expected) && why.contains("hint: "), "{why}");
        };
        check(
            "deepspeed --num_gpus 4 t.py",
            "4 processes, which is more than the devices granted (2)",
        );
        check("deepspeed --include localhost:7 t.py", "not granted");
        check("deepspeed --include worker-1:0 t.py", "other machines");
        check("accelerate launch --gpu_ids 0,2 t.py", "not granted");
        let granted = || Some(Granted { visible: vec!["MIG-a"], numbers: None });
        let why = told(argv("deepspeed t.py"), 7000, granted).expect_err("it knows no such device");
        assert!(why.contains("torchrun"), "{why}");
    }

    #[test]
    fn every_launcher_of_a_line_is_told() {
        check_line(
            "deepspeed a.py && cd b; deepspeed b.py",
            "deepspeed --include localhost:2,5 --master_port 7000 a.py && cd b; \
             deepspeed --include localhost:2,5 --master_port 7000 b.py",
        );
    }

    #[track_caller]
    fn check_line(text: &str, expected: &str) {
        assert_eq!(with_devices(line(text)), Ok(line(expected)));
    }
}
