//! The directories that a command line names for what a program saves. No I/O.

use super::command_line::Command;

/// Options of Hugging Face's `TrainingArguments`, Lightning's `Trainer` and `ModelCheckpoint`,
/// Accelerate's and DeepSpeed's examples, and Hydra, without dashes and the groups they are in.
const OPTIONS: [&str; 8] = [
    "checkpoint_dir",
    "ckpt_dir",
    "default_root_dir",
    "dirpath",
    "output_dir",
    "project_dir",
    "run.dir",
    "save_dir",
];

/// Their values, as far as they are told: `--output_dir X`, `--output-dir=X`, `output_dir=X`,
/// `--trainer.default_root_dir=X`.
pub(super) fn output_directories(argv: &[String]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for command in Command::all(argv) {
        let words = command.words();
        for (at, word) in words.iter().enumerate() {
            let value = match word.split_once('=') {
                Some((name, value)) => is_option(name).then_some(value),
                None if word.starts_with('-') && is_option(word) => words.get(at + 1).copied(),
                None => None,
            };
            let value = value.map(|value| value.trim_matches(['"', '\'']));
            // What a shell fills in is not known.
            let is_told = |value: &&str| !value.is_empty() && !value.contains(['$', '`']);
            found.extend(value.filter(is_told).map(str::to_owned));
        }
    }
    found
}

fn is_option(name: &str) -> bool {
    let name = name.trim_start_matches(['-', '+']).replace('-', "_");
    let is_last = |option: &str| {
        let group = name.strip_suffix(option);
        group.is_some_and(|group| group.is_empty() || group.ends_with('.'))
    };
    OPTIONS.iter().any(|option| is_last(option))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_line_names() {
        let check = |text: &str, expected: &[&str]| {
            let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
            assert_eq!(output_directories(&words), expected, "{text}");
            let line = ["/bin/sh", "-c", text].map(str::to_owned);
            assert_eq!(output_directories(&line), expected, "{text}");
        };
        check("python t.py --output_dir out", &["out"]);
        check("torchrun t.py --output-dir=/data/out --lr 1", &["/data/out"]);
        check("python t.py output_dir=out hydra.run.dir=logs", &["out", "logs"]);
        check("python t.py --trainer.default_root_dir \"out\"", &["out"]);
        check("python t.py --output_dir $OUT", &[]);
        check("python t.py --output_dir", &[]);
        check("python t.py --other_output_dir out output_dir", &[]);
    }
}
