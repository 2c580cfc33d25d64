//! The words of a command line, whether it is a list of words or a line for the shell, and changes
//! to it. No I/O.

use std::ops::Range;

/// What begins another command in a line for the shell.
const SEPARATORS: [char; 7] = [';', '&', '|', '\n', '(', ')', '`'];

/// A simple command: a program with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Command<'a> {
    words: Vec<&'a str>,
    /// Where each word lies in the line; none for a list of words.
    spans: Option<Vec<Range<usize>>>,
}

/// Words of a command that others take the place of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Edit {
    /// Empty to insert before a word. None begins at the first word.
    pub(super) words: Range<usize>,
    /// Without blanks or anything else that a shell interprets.
    pub(super) by: Vec<String>,
}

impl<'a> Command<'a> {
    /// The commands of an `argv`: of `sh -c LINE` those in the line, else the whole.
    pub(super) fn all(argv: &'a [String]) -> Vec<Self> {
        match argv {
            [shell, option, line, ..] if is_shell(shell) && option == "-c" => of_line(line),
            _ => {
                let words = argv.iter().map(String::as_str).collect();
                vec![Self { words, spans: None }]
            }
        }
    }

    pub(super) fn words(&self) -> &[&'a str] {
        &self.words
    }
}

/// The `argv` of these commands with each one's edits, in the order of their words.
pub(super) fn edited(argv: &[String], commands: &[(Command<'_>, Vec<Edit>)]) -> Vec<String> {
    let mut argv = argv.to_vec();
    let edits =
        commands.iter().flat_map(|(command, edits)| edits.iter().map(move |e| (command, e)));
    let edits: Vec<_> = edits.collect();
    // From the end, so that what stands before stays where it is.
    for (command, edit) in edits.into_iter().rev() {
        match &command.spans {
            None => drop(argv.splice(edit.words.clone(), edit.by.iter().cloned())),
            Some(spans) => {
                let from = spans[edit.words.start - 1].end;
                let to = spans[edit.words.end - 1].end;
                let by: String = edit.by.iter().flat_map(|word| [" ", word]).collect();
                argv[2].replace_range(from..to, &by);
            }
        }
    }
    argv
}

fn is_shell(program: &str) -> bool {
    let name = program.rsplit('/').next().unwrap_or(program);
    ["sh", "bash", "dash"].contains(&name)
}

/// The simple commands of a line. Words keep their quotes: what they mean is for the shell to say.
fn of_line(line: &str) -> Vec<Command<'_>> {
    let mut commands = Vec::new();
    let mut spans = Vec::new();
    let mut rest = 0;
    while rest < line.len() {
        let text = &line[rest..];
        let blank = text.starts_with([' ', '\t']) || text.starts_with("\\\n");
        if blank {
            rest += if text.starts_with('\\') { 2 } else { 1 };
        } else if text.starts_with('#') {
            rest += text.find('\n').unwrap_or(text.len());
        } else if text.starts_with(SEPARATORS) {
            commands.extend(command(line, std::mem::take(&mut spans)));
            rest += 1;
        } else {
            let length = word_length(text);
            spans.push(rest..rest + length);
            rest += length;
        }
    }
    commands.extend(command(line, spans));
    commands
}

fn command(line: &str, spans: Vec<Range<usize>>) -> Option<Command<'_>> {
    let words = spans.iter().map(|span| &line[span.clone()]).collect();
    (!spans.is_empty()).then_some(Command { words, spans: Some(spans) })
}

/// The length of the word that a text begins with, in bytes: at least one character.
fn word_length(text: &str) -> usize {
    let mut quote = None;
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match (quote, character) {
            (None, '\'' | '"') => quote = Some(character),
            (Some(open), _) if character == open => quote = None,
            (None | Some('"'), '\\') => {
                let next = characters.next();
                if quote.is_none() && next.is_some_and(|(_, next)| next == '\n') {
                    return at;
                }
            }
            (None, _) if at > 0 && is_end(character) => return at,
            _ => {}
        }
    }
    text.len()
}

fn is_end(character: char) -> bool {
    [' ', '\t'].contains(&character) || SEPARATORS.contains(&character)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str) -> Vec<String> {
        ["/bin/sh", "-c", line].map(str::to_owned).to_vec()
    }

    #[track_caller]
    fn check(line: &str, expected: &[&[&str]]) {
        let argv = shell(line);
        let commands = Command::all(&argv);
        let words: Vec<&[&str]> = commands.iter().map(Command::words).collect();
        assert_eq!(words, expected, "{line}");
    }

    #[test]
    fn a_line_is_its_commands() {
        check("torchrun train.py", &[&["torchrun", "train.py"]]);
        check(
            "cd a && torchrun  t.py; b|c",
            &[&["cd", "a"], &["torchrun", "t.py"], &["b"], &["c"]],
        );
        check("torchrun \\\n  --a 1 \\\n  t.py", &[&["torchrun", "--a", "1", "t.py"]]);
        check("torchrun\\\n t.py", &[&["torchrun", "t.py"]]);
        check("# torchrun 1\na # b\nc#d", &[&["a"], &["c#d"]]);
        check("a 'b; c' \"d|'e\" f\\ g é", &[&["a", "'b; c'", "\"d|'e\"", "f\\ g", "é"]]);
        check("a \"b\\\" c\" 'open d", &[&["a", "\"b\\\" c\"", "'open d"]]);
        check(" \n ", &[]);
        check("\\", &[&["\\"]]);
    }

    #[test]
    fn words_are_replaced_where_they_stand() {
        let edits = [
            Edit { words: 1..1, by: vec!["--port".to_owned(), "7".to_owned()] },
            Edit { words: 2..4, by: Vec::new() },
            Edit { words: 5..6, by: vec!["z".to_owned()] },
        ];
        let line = "cd d && run  -a -n 4 'b  c' x # y";
        let argv = shell(line);
        let command = Command::all(&argv).remove(1);
        let told = edited(&argv, &[(command, edits.to_vec())]);
        assert_eq!(told[2], "cd d && run --port 7  -a 'b  c' z # y");
        let argv: Vec<String> = ["run", "-a", "-n", "4", "b  c", "x"].map(str::to_owned).to_vec();
        let command = Command::all(&argv).remove(0);
        let told = edited(&argv, &[(command, edits.to_vec())]);
        assert_eq!(told, ["run", "--port", "7", "-a", "b  c", "z"]);
    }
}
