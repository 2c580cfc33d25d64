//! Placeholders of a job file: which there are, and words in braces that are meant as one and are
//! none.
//!
//! Braces mean something in shells and in Python as well, so that not every word in them is taken
//! for a placeholder: one that stands alone as a whole argument is, one that is dotted behind
//! `stage`, and one that is nearly the name of another.

use crate::words::closest;

/// What is filled in at submission and when a process starts.
const NAMES: [&str; 12] = [
    "workdir",
    "checkpoint",
    "rank",
    "world",
    "port",
    "job",
    "array",
    "index",
    "script",
    "node",
    "user",
    "restarts",
];

/// How alike a word has to be to a placeholder to be taken for a misspelt one, of 1.
const ALIKE_MIN: f64 = 0.88;

/// Words in braces that are no placeholders, with what was probably meant.
pub(super) fn unknown(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text;
    let mut before = None;
    while let Some(open) = rest.find('{') {
        before = rest[..open].chars().next_back().or(before.filter(|_| open == 0));
        let behind = &rest[open + 1..];
        rest = behind;
        let Some(close) = behind.find(['{', '}']).filter(|at| behind[*at..].starts_with('}'))
        else {
            before = Some('{');
            continue;
        };
        let word = &behind[..close];
        let is_alone = text.len() == word.len() + 2;
        let is_shells = before.is_some_and(|before| before == '$' || before == '{');
        before = Some('{');
        if is_shells || !is_name(word) || is_known(word) {
            continue;
        }
        let near = closest(word, NAMES.into_iter()).filter(|near| is_alike(word, near));
        let meant = match (near, word.split_once('.')) {
            (Some(near), _) => format!("did you mean `{{{near}}}`?"),
            (None, Some(("stage", _))) => "write `{stage.NAME.output}`".to_owned(),
            (None, _) if is_alone => {
                format!(
                    "there are `{{{}}}`, `{{param.NAME}}` and `{{stage.NAME.output}}`",
                    NAMES.join("}`, `{")
                )
            }
            (None, _) => continue,
        };
        found.push((word.to_owned(), meant));
    }
    found
}

fn is_name(word: &str) -> bool {
    let all = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_.-".contains(c);
    word.starts_with(|c: char| c.is_ascii_lowercase()) && word.chars().all(all)
}

fn is_known(word: &str) -> bool {
    let of_stage = word.strip_prefix("stage.").and_then(|rest| rest.strip_suffix(".output"));
    NAMES.contains(&word) || of_stage.is_some_and(|name| !name.is_empty())
}

fn is_alike(word: &str, name: &str) -> bool {
    let plain = |text: &str| text.replace(['_', '-', '.'], "");
    strsim::jaro_winkler(&plain(word), &plain(name)) >= ALIKE_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[&str]) {
        let words: Vec<String> = unknown(text).into_iter().map(|(word, _)| word).collect();
        assert_eq!(words, expected, "{text}");
    }

    #[test]
    fn what_is_nearly_a_placeholder_is_found() {
        check("{work_dir}/a", &["work_dir"]);
        check("--to={checkpoints}", &["checkpoints"]);
        check("{outdir}", &["outdir"]);
        check("{stage.load}", &["stage.load"]);
        check("{workdir}/{rank} {stage.load.output} {port}", &[]);
    }

    #[test]
    fn braces_of_others_stay() {
        for text in [
            "awk '{print $1}' < a",
            "echo ${ranks} ${workdirs:-x}",
            "python -c 'print(f\"{x}{y.z}\")'",
            "{\"rank\": {rank}}",
            "f'{{ranks}}'",
            "find . -exec rm {} ;",
            "cp a.{txt,md}",
        ] {
            check(text, &[]);
        }
    }
}
