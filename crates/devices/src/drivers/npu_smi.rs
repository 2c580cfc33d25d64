//! Virtual NPUs, as `npu-smi` lists them: the tool of Huawei's driver.
//!
//! Sources for what it prints: Huawei's "npu-smi Command Reference" 25.5 (`info -m`, `info -t
//! info-vnpu`), and outputs that users of Atlas 300I Duo and 800I A2 published. Queries run one
//! after the other, for it does not answer two at once ("Command Reference").

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use het_core::Bytes;

use crate::kernel::files::SystemFiles;
use crate::vnpu;

/// Where the driver puts the tool, beside what the search path has.
const PROGRAMS: [&str; 3] = ["npu-smi", "/usr/local/sbin/npu-smi", "/usr/local/bin/npu-smi"];
/// For one answer; a driver in trouble gives none.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Some kilobytes at most are expected.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// What `npu-smi` says, or why it says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum NpuSmiProbe {
    /// Not queried.
    #[default]
    NotAsked,
    /// The tool is not installed.
    Missing,
    /// The tool is there and does not work.
    Failed { why: String },
    /// Chips that are partitioned into virtual NPUs.
    Found(Vec<PartitionedChip>),
}

/// A chip and the virtual NPUs that it is partitioned into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionedChip {
    /// Of the whole chip; `None` where the tool prints `NA`.
    pub ai_cores: Option<u32>,
    pub memory: Option<Bytes>,
    pub vnpus: Vec<Vnpu>,
}

/// One virtual NPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vnpu {
    /// That of its device node, `/dev/vdavinci100`.
    pub number: u32,
    /// What it was made by, for example `vir10_3c_16g`; `NA` where it was made without one.
    pub template: String,
}

/// Why a query failed.
enum QueryError {
    NotInstalled,
    Failed(String),
}

impl NpuSmiProbe {
    /// Runs the tool if there are nodes of virtual NPUs: it takes some tenths of a second a chip.
    pub(crate) fn load(files: &SystemFiles) -> Self {
        if vnpu::numbers_with_node(files).is_empty() {
            return Self::NotAsked;
        }
        Tool { programs: &PROGRAMS, limit: ANSWER_LIMIT }.probe()
    }
}

struct Tool<'a> {
    /// The first that is installed is it.
    programs: &'a [&'a str],
    /// For each answer.
    limit: Duration,
}

impl Tool<'_> {
    fn probe(&self) -> NpuSmiProbe {
        match self.chips() {
            Ok(chips) => NpuSmiProbe::Found(chips),
            Err(QueryError::NotInstalled) => NpuSmiProbe::Missing,
            Err(QueryError::Failed(why)) => NpuSmiProbe::Failed { why },
        }
    }

    fn chips(&self) -> Result<Vec<PartitionedChip>, QueryError> {
        let mapping = self.query(&["info", "-m"])?;
        let ids = chip_ids(&mapping);
        if ids.is_empty() {
            return Err(QueryError::Failed(message(&mapping, "it knows of no chip")));
        }
        let mut chips = Vec::new();
        let mut whole = String::new();
        for (card, chip) in ids {
            let listing = self.query(&["info", "-t", "info-vnpu", "-i", &card, "-c", &chip])?;
            match PartitionedChip::read(&listing) {
                Some(chip) => chips.push(chip),
                None => whole = listing,
            }
        }
        match chips.is_empty() {
            true => Err(QueryError::Failed(message(&whole, "every chip is whole to it"))),
            false => Ok(chips),
        }
    }

    /// What it prints, whatever it exits with: of an unsupported query it says so.
    fn query(&self, arguments: &[&str]) -> Result<String, QueryError> {
        let failed = |error: io::Error| QueryError::Failed(error.to_string());
        let start = |program: &&str| {
            let mut command = Command::new(program);
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
            match command.stderr(Stdio::null()).spawn() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                other => Some(other),
            }
        };
        let child = self.programs.iter().find_map(start).ok_or(QueryError::NotInstalled)?;
        let mut child = child.map_err(failed)?;
        let Some(stdout) = child.stdout.take() else {
            return Err(QueryError::Failed("it has no output".to_owned()));
        };
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = stdout.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes);
            // The receiver is gone only when the time was up.
            drop(sender.send(read.map(|_| String::from_utf8_lossy(&bytes).into_owned())));
        });
        let answer = receiver.recv_timeout(self.limit);
        // After its answer it has nothing left to do.
        drop(child.kill());
        drop(child.wait());
        let limit_ms = self.limit.as_millis();
        let late = |_| QueryError::Failed(format!("it did not answer within {limit_ms} ms"));
        answer.map_err(late)?.map_err(failed)
    }
}

/// The sentence that the tool prints in the place of a table; `otherwise` where there is none.
fn message(text: &str, otherwise: &str) -> String {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty());
    let sentence = first.filter(|line| !line.starts_with('+'));
    sentence.unwrap_or(otherwise).trim_end_matches('.').to_owned()
}

/// Card and chip of every NPU in what `npu-smi info -m` prints: a row a chip, first the numbers of
/// its card and of it on the card, then one that counts NPUs, or a dash for a controller (`Mcu`).
fn chip_ids(mapping: &str) -> Vec<(String, String)> {
    let number = |word: &str| word.parse::<u32>().is_ok().then(|| word.to_owned());
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let (card, chip) = (number(words.next()?)?, number(words.next()?)?);
        number(words.next()?)?;
        Some((card, chip))
    };
    mapping.lines().filter_map(row).collect()
}

impl PartitionedChip {
    /// What `npu-smi info -t info-vnpu -i ID -c CHIP` prints of a chip; `None` where that lists no
    /// virtual NPU.
    pub fn read(listing: &str) -> Option<Self> {
        let rows = || listing.lines().map(|line| line.trim().trim_matches('|').trim());
        let vnpus: Vec<Vnpu> = rows().filter_map(vnpu_row).collect();
        let (ai_cores, gibibytes) = rows().find_map(resource_row).unwrap_or((None, None));
        let memory = gibibytes.map(|gibibytes| Bytes::gib(u64::from(gibibytes)));
        (!vnpus.is_empty()).then_some(Self { ai_cores, memory, vnpus })
    }
}

/// Virtual NPU, group, container, state, template: `100 | 0 | 000000000000 | 0 | vir10_3c_16g`.
fn vnpu_row(row: &str) -> Option<Vnpu> {
    let fields: Vec<&str> = row.split('|').map(str::trim).collect();
    let [number, _, .., template] = fields.as_slice() else { return None };
    let number = number.parse().ok().filter(|number| vnpu::chip_of(*number).is_some())?;
    Some(Vnpu { number, template: (*template).to_owned() })
}

/// AI cores and memory in GiB, free and all, before what does not matter here: `0/20  0/64  1/7 …`.
fn resource_row(row: &str) -> Option<(Option<u32>, Option<u32>)> {
    let mut pairs = row.split_whitespace().map(|word| word.split_once('/'));
    let (cores, memory) = (pairs.next()??.1, pairs.next()??.1);
    let known = |word: &str| word == "NA" || word.parse::<u32>().is_ok();
    (known(cores) && known(memory)).then(|| (cores.parse().ok(), memory.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tool that does what a script says.
    fn probe(script: &str) -> NpuSmiProbe {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("npu-smi").display().to_string();
        // Written by a process of its own: a file that is open for writing cannot be started.
        let write = "printf '#!/bin/sh\n%s\n' \"$1\" > \"$0\" && chmod +x \"$0\"";
        let written = Command::new("/bin/sh").args(["-c", write, &path, script]).status();
        assert!(written.is_ok_and(|status| status.success()));
        Tool { programs: &["/nowhere/npu-smi", &path], limit: Duration::from_secs(2) }.probe()
    }

    #[test]
    fn every_chip_is_asked_for_its_parts() {
        let found = probe(
            "case \"$*\" in\n\
             'info -m') echo 'NPU ID Chip ID'; echo '5 0 0 Ascend'; echo '5 1 1 Ascend';;\n\
             *'-i 5 -c 1') echo '| 4/8 21/42 |'; echo '| 116 | 0 | 0 | 0 | vir04 |';;\n\
             *) echo 'Total number of vnpu: 0'; exit 255;;\n\
             esac",
        );
        let vnpus = vec![Vnpu { number: 116, template: "vir04".to_owned() }];
        let chip = PartitionedChip { ai_cores: Some(8), memory: Some(Bytes::gib(42)), vnpus };
        assert_eq!(found, NpuSmiProbe::Found(vec![chip]));
    }

    #[test]
    fn a_tool_that_does_not_work_says_why_it_does_not() {
        let check = |script: &str, why: &str| {
            assert_eq!(probe(script), NpuSmiProbe::Failed { why: why.to_owned() }, "{script}");
        };
        check("echo; echo 'dcmi module initialize failed.'", "dcmi module initialize failed");
        check("[ $2 = -m ] && echo 0 0 0 Ascend || echo 'No permission.'", "No permission");
        check("[ $2 = -m ] && echo 0 0 0 Ascend || echo +---+", "every chip is whole to it");
        check("exit 1", "it knows of no chip");
        check("exec sleep 60", "it did not answer within 2000 ms");
        let missing = Tool { programs: &["/nowhere/npu-smi"], limit: ANSWER_LIMIT };
        assert_eq!(missing.probe(), NpuSmiProbe::Missing);
    }

    #[test]
    fn controllers_are_no_chips() {
        let mapping = "\tNPU ID    Chip ID    Chip Logic ID    Chip Name\n\
                       \t0         0          0                Ascend 910B3\n\
                       \t0         1          -                Mcu\n\
                       \t5         1          7                Ascend 310P3\n";
        let found: Vec<String> =
            chip_ids(mapping).iter().map(|(card, chip)| format!("{card}.{chip}")).collect();
        assert_eq!(found, ["0.0", "5.1"]);
        assert_eq!(chip_ids("dcmi module initialize failed. ret is -8005"), []);
    }

    #[test]
    fn a_listing_tells_of_the_chip_and_its_parts() {
        let check = |listing: &str, expected: Option<(Option<u32>, Option<u64>, &str)>| {
            let found = PartitionedChip::read(listing).map(|chip| {
                let rows = chip.vnpus.iter().map(|it| format!("{} {}", it.number, it.template));
                let rows = rows.collect::<Vec<_>>().join(", ");
                (chip.ai_cores, chip.memory.map(|memory| memory.0 >> 30), rows)
            });
            let expected = expected.map(|(cores, gib, rows)| (cores, gib, rows.to_owned()));
            assert_eq!(found, expected, "{listing}");
        };
        check(
            "+----------------------------------------------------------------+\n\
             | Format:Free/Total      NA: Currently, query is not supported.  |\n\
             | AICORE    Memory    AICPU    VPC    VENC    VDEC    JPEGD      |\n\
             |            GB                                                  |\n\
             |================================================================|\n\
             | 0/20      0/32      1/7      1/9    0/0     0/2     NA/NA      |\n\
             | Total number of vnpu: 2                                        |\n\
             |  Vnpu ID  |  Vgroup ID  |  Container ID  |  Status  |  Template |\n\
             |  116      |  0          |  ffffffffffff  |  1       |  vir10_3c_16g  |\n\
             |  117      |  NA         |  000000000000  |  0       |  NA            |\n",
            Some((Some(20), Some(32), "116 vir10_3c_16g, 117 NA")),
        );
        check("NA/NA NA/NA\n 212 | 0 | 0 | 0 | vir04 \n", Some((None, None, "212 vir04")));
        check("| 20/20  60/64  6/6 |\n| Total number of vnpu: 0 |\n", None);
        check("This device does not support querying info-vnpu.\n", None);
    }
}
