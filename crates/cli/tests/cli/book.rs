//! The commands of the book do what it says: every line of a `console` block that begins with `$`
//! is run, in order, in a folder and a state directory of its chapter. Blocks with `file=NAME`
//! become that file first.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::Served;

fn chapters() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/src");
    let entries = fs::read_dir(folder).expect("the book is there");
    let paths = entries.map(|entry| entry.expect("it can be read").path());
    let mut chapters: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    chapters.sort();
    chapters
}

/// Fenced blocks: what stands behind the fence, and the text.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut blocks: Vec<(String, String)> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line.strip_prefix("```") {
            Some(word) if !inside => {
                blocks.push((word.to_owned(), String::new()));
                inside = true;
            }
            Some(_) => inside = false,
            None if inside => {
                let (_, block) = blocks.last_mut().expect("it was opened");
                block.push_str(line);
                block.push('\n');
            }
            None => {}
        }
    }
    blocks
}

#[test]
fn the_commands_of_the_book_work() {
    let mut commands = 0;
    for chapter in chapters() {
        let text = fs::read_to_string(&chapter).expect("it is text");
        let served = Served::new();
        for (word, block) in blocks(&text) {
            if let Some((_, name)) = word.split_once("file=") {
                served.0.write(name, &block);
            } else if word == "console" {
                for line in block.lines().filter_map(|line| line.strip_prefix("$ het ")) {
                    // A comment says when it fails.
                    let (command, may_fail) = match line.split_once(" #") {
                        Some((command, _)) => (command, true),
                        None => (line, false),
                    };
                    let words: Vec<&str> = command.split_whitespace().collect();
                    let output = served.run(&words);
                    let errors = String::from_utf8_lossy(&output.stderr);
                    let name = chapter.file_name().expect("a file").display();
                    let is_right = may_fail || output.status.success();
                    assert!(is_right, "{name}: `het {line}`:\n{errors}");
                    commands += 1;
                }
            }
        }
    }
    assert!(commands > 20, "{commands} commands");
}
