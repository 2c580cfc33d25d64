//! Generates pairs of a request in words and the Heterosis job file it asks for, and reads them
//! and other [`kinds`] of training data as [`records`].
//!
//! Every key of the answer can be read off the request, and the same seed writes the same bytes.

pub mod kinds;
pub mod records;
pub mod words;

use crate::error::{Error, IoContext, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::Path;
use words::Style;

pub const TRAIN_FILE: &str = "train.jsonl";
pub const HELD_OUT_FILE: &str = "heldout.jsonl";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Example {
    pub request: String,
    pub job: String,
}

/// `count` examples of one half of the data, each valid.
pub fn generate(style: &Style, count: usize, seed: u64) -> Vec<Example> {
    let mut draw = Draw(ChaCha8Rng::seed_from_u64(seed));
    (0..count).map(|_| example(style, &mut draw)).collect()
}

/// Writes `train.jsonl` and `heldout.jsonl`.
pub fn write(directory: &Path, train: usize, held_out: usize, seed: u64) -> Result<()> {
    std::fs::create_dir_all(directory).at("create", directory)?;
    let halves = [
        (TRAIN_FILE, generate(&words::TRAINING, train, seed.wrapping_mul(2))),
        (HELD_OUT_FILE, generate(&words::HELD_OUT, held_out, seed.wrapping_mul(2) + 1)),
    ];
    for (name, examples) in halves {
        let mut text = String::new();
        for example in &examples {
            let line = serde_json::to_string(example).expect("two strings always serialise");
            text.push_str(&line);
            text.push('\n');
        }
        let path = directory.join(name);
        std::fs::write(&path, text).at("write", &path)?;
    }
    Ok(())
}

/// Reads a file that [`write()`] wrote.
pub fn read(path: &Path) -> Result<Vec<Example>> {
    let wrong = |what: String| Error::Corpus { path: path.to_owned(), what };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let examples: Vec<Example> = lines
        .map(|(index, line)| {
            serde_json::from_str(line)
                .map_err(|error| wrong(format!("line {} is broken: {error}", index + 1)))
        })
        .collect::<Result<_>>()?;
    if examples.is_empty() {
        return Err(wrong("it holds no examples".into()));
    }
    Ok(examples)
}

struct Draw(ChaCha8Rng);

impl Draw {
    fn below(&mut self, count: usize) -> usize {
        ((u64::from(self.0.next_u32()) * count as u64) >> 32) as usize
    }

    fn of<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    fn percent(&mut self, share: usize) -> bool {
        self.below(100) < share
    }
}

fn example(style: &Style, draw: &mut Draw) -> Example {
    let name = format!("{}-{}", draw.of(&words::SUBJECTS), draw.of(&words::TASKS));
    let run = command(draw);
    let (device_words, devices) = devices(style, draw);
    let mut clauses = Vec::new();
    let mut optional = [const { None }; 4];
    if draw.percent(40) {
        let tenant = *draw.of(&words::TENANTS);
        clauses.push(draw.of(style.tenant).replace("{tenant}", tenant));
        optional[0] = Some(format!("tenant: {tenant}\n"));
    }
    if draw.percent(50) {
        let priority = *draw.of(&words::PRIORITIES);
        clauses.push(draw.of(style.priority).replace("{priority}", priority));
        optional[1] = Some(format!("priority: {priority}\n"));
    }
    if draw.percent(60) {
        let (spoken, written) = *draw.of(&words::INTERVALS);
        clauses.push(draw.of(style.checkpoint).replace("{time}", spoken));
        optional[2] = Some(format!("checkpoint: {written}\n"));
    }
    if draw.percent(40) {
        let (spoken, written) = *draw.of(&words::LIMITS);
        clauses.push(draw.of(style.time_limit).replace("{time}", spoken));
        optional[3] = Some(format!("time_limit: {written}\n"));
    }
    let [tenant, priority, checkpoint, time_limit] = optional.map(Option::unwrap_or_default);
    let rest = shuffled(clauses, draw).into_iter().fold(String::new(), |mut rest, clause| {
        let _ = write!(rest, ", {clause}");
        rest
    });
    let request = draw
        .of(style.patterns)
        .replace("{rest}", &rest)
        .replace("{devices}", &device_words)
        .replace("{run}", &run)
        .replace("{name}", &name);
    let job = format!(
        "name: {name}\n{tenant}{priority}run: {run}\ndevices: \"{devices}\"\n\
         {checkpoint}{time_limit}"
    );
    Example { request, job }
}

fn command(draw: &mut Draw) -> String {
    let launcher = *draw.of(&words::LAUNCHERS);
    let extension = if launcher == "bash" { "sh" } else { "py" };
    let mut run = format!("{launcher} {}.{extension}", draw.of(&words::SCRIPTS));
    if draw.percent(40) {
        run = format!("{run} {}", draw.of(&words::FLAGS));
    }
    run
}

/// What is asked for, in words and in the job form.
fn devices(style: &Style, draw: &mut Draw) -> (String, String) {
    let (first_words, first) = some_devices(draw);
    if draw.percent(50) {
        return (first_words, first);
    }
    let word = |form: &str| form.split(':').next().map(str::to_owned);
    let (second_words, second) = loop {
        let second = some_devices(draw);
        if word(&second.1) != word(&first) {
            break second;
        }
    };
    let spoken = draw.of(style.either);
    let spoken = spoken.replace("{first}", &first_words).replace("{second}", &second_words);
    (spoken, format!("{first} | {second}"))
}

fn some_devices(draw: &mut Draw) -> (String, String) {
    let (word, one, several) = *draw.of(&words::DEVICES);
    let (count, spelled) = *draw.of(&words::COUNTS);
    let number = match (count, draw.percent(25)) {
        (1, true) => "a single".to_owned(),
        (_, true) => spelled.to_owned(),
        (_, false) => count.to_string(),
    };
    let noun = if count == 1 { one } else { several };
    let mut spoken = format!("{number} {noun}");
    let mut written = format!("{word}:{count}");
    if matches!(word, "gpu" | "npu") && draw.percent(40) {
        let floor = draw.of(&words::FLOORS_GIB);
        let _ = write!(spoken, " with at least {floor} GiB");
        let _ = write!(written, ":{floor}GiB");
    }
    (spoken, written)
}

fn shuffled(mut items: Vec<String>, draw: &mut Draw) -> Vec<String> {
    for last in (1..items.len()).rev() {
        items.swap(last, draw.below(last + 1));
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_examples() {
        let first = generate(&words::TRAINING, 50, 7);
        assert_eq!(first, generate(&words::TRAINING, 50, 7));
        assert_ne!(first, generate(&words::TRAINING, 50, 8));
    }

    #[test]
    fn training_and_held_out_wordings_are_disjoint() {
        let (train, held_out) = (&words::TRAINING, &words::HELD_OUT);
        let pairs = [
            (train.patterns, held_out.patterns),
            (train.either, held_out.either),
            (train.checkpoint, held_out.checkpoint),
            (train.time_limit, held_out.time_limit),
            (train.priority, held_out.priority),
            (train.tenant, held_out.tenant),
        ];
        for (train, held_out) in pairs {
            assert!(held_out.iter().all(|wording| !train.contains(wording)));
        }
    }

    #[test]
    fn every_generated_job_is_accepted() {
        for style in [&words::TRAINING, &words::HELD_OUT] {
            for example in generate(style, 500, 3) {
                if let Err(problems) = het_wire::job::parse(&example.job, "generated.yaml") {
                    panic!("{}\n{problems}", example.job);
                }
            }
        }
    }
}
