//! What no compiler says: leftovers, overlong lines, files too long for one story, crates that do
//! not say what they know.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

const COLUMNS_MAX: usize = 100;
const LINES_MAX: usize = 900;

/// Assembled from halves, so that this file does not find itself.
const LEFTOVERS: &[(&str, &str)] = &[
    ("TO", "DO"),
    ("FIX", "ME"),
    ("todo", "!("),
    ("unimplemented", "!("),
    ("dbg", "!("),
    ("#[ig", "nore"),
    ("#[allow(dead", "_code)]"),
];

pub fn check() -> Result<()> {
    let root = crate::root();
    let files = tracked(&root)?;
    let mut wrong = Vec::new();
    for file in &files {
        let Ok(text) = fs::read_to_string(root.join(file)) else { continue };
        wrong.extend(problems(file, &text));
    }
    if !wrong.is_empty() {
        bail!("untidy:\n  {}", wrong.join("\n  "));
    }
    println!("tidy: {} files", files.len());
    Ok(())
}

pub fn tracked(root: &Path) -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"])
        .current_dir(root)
        .output()
        .context("git does not start")?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(str::to_owned).collect())
}

fn problems(file: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let at = format!("{file}:{}", index + 1);
        if line.chars().count() > COLUMNS_MAX && !line.contains("://") {
            found.push(format!("{at}: longer than {COLUMNS_MAX} columns"));
        }
        for (head, tail) in LEFTOVERS {
            if line.contains(&format!("{head}{tail}")) {
                found.push(format!("{at}: `{head}{tail}` is left over"));
            }
        }
    }
    if text.lines().count() > LINES_MAX {
        found.push(format!("{file}: longer than {LINES_MAX} lines"));
    }
    if file.starts_with("crates/") && file.ends_with("src/lib.rs") && !says_what_it_knows(text) {
        found.push(format!("{file}: does not begin with what it knows and must never know"));
    }
    found
}

fn says_what_it_knows(text: &str) -> bool {
    let header: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
    let header = header.join(" ").to_lowercase();
    header.contains("know") && header.contains("never")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        check().expect("nothing is left over");
    }

    #[test]
    fn a_leftover_and_a_long_line_are_found() {
        let text = format!("// {}{} later\n{}\n", "TO", "DO", "x".repeat(101));
        assert_eq!(problems("a.rs", &text).len(), 2);
    }
}
