//! The glossary, held against the code: what it names exists, and retired words are no names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

const GLOSSARY: &str = "docs/glossary.md";
const RETIRED: &str = "## Retired words";

/// Records that are stored or sent keep their words for as long as somebody may read them.
const KEEPS_WORDS: &str = "crates/wire/";

/// What may stand before the name of a definition.
const DEFINITIONS: [&str; 6] = ["struct ", "enum ", "trait ", "fn ", "mod ", "type "];

pub fn check() -> Result<()> {
    let root = crate::root();
    let text = std::fs::read_to_string(root.join(GLOSSARY)).context(GLOSSARY)?;
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(root.join("crates")).context("the crates")? {
        collect(&entry.context("a crate")?.path().join("src"), &mut sources)?;
    }
    let wrong = faults(&text, &sources);
    if !wrong.is_empty() {
        bail!("{GLOSSARY} and the code differ:\n  {}", wrong.join("\n  "));
    }
    println!("glossary: {} terms", names(&text).len());
    Ok(())
}

/// Every Rust file below a folder, with its path from the root and its text.
fn collect(folder: &Path, sources: &mut Vec<(String, String)>) -> Result<()> {
    for entry in std::fs::read_dir(folder).context("a folder of sources")? {
        let path: PathBuf = entry.context("a source")?.path();
        if path.is_dir() {
            collect(&path, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(crate::root()).unwrap_or(&path).display().to_string();
            sources.push((name, std::fs::read_to_string(&path).context("a source")?));
        }
    }
    Ok(())
}

/// One sentence for each name that the code does not have, and for each retired word that it has.
fn faults(glossary: &str, sources: &[(String, String)]) -> Vec<String> {
    let defined: BTreeSet<&str> = sources.iter().flat_map(|(_, text)| definitions(text)).collect();
    let missing = names(glossary).into_iter().filter(|name| !defined.contains(name.as_str()));
    let missing = missing.map(|name| format!("`{name}` is defined nowhere"));
    let retired = retired(glossary);
    let used = sources.iter().filter(|(path, _)| !path.starts_with(KEEPS_WORDS));
    let used = used.flat_map(|(path, text)| {
        let retired = &retired;
        text.lines().enumerate().flat_map(move |(row, line)| {
            let words = words(line).into_iter().filter(|word| retired.contains(word.as_str()));
            words.map(move |word| format!("{path}:{}: `{word}` is a retired word", row + 1))
        })
    });
    missing.chain(used).collect()
}

/// The names in backticks of the last column of all tables but that of retired words.
fn names(glossary: &str) -> Vec<String> {
    let terms = glossary.split(RETIRED).next().unwrap_or_default();
    let rows = terms.lines().filter_map(|line| line.strip_suffix('|')?.rsplit('|').next());
    rows.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

fn retired(glossary: &str) -> BTreeSet<&str> {
    let rows = glossary.split_once(RETIRED).map_or("", |(_, rows)| rows).lines();
    let first = rows.filter_map(|row| Some(row.strip_prefix("| ")?.split_once(" |")?.0));
    first.filter(|word| !word.starts_with("---") && *word != "word").collect()
}

fn definitions(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| {
        DEFINITIONS.iter().filter_map(move |word| {
            let (before, name) = line.split_once(word)?;
            let is_word = before.is_empty() || before.ends_with([' ', ')']);
            let end = name.find(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
            is_word.then(|| &name[..end.unwrap_or(name.len())])
        })
    })
}

/// The parts of all names in a line of code, in lower case; no texts and no comments.
fn words(line: &str) -> Vec<String> {
    let code = line.split("//").next().unwrap_or_default();
    let code: String = code.split('"').step_by(2).collect::<Vec<_>>().join(" ");
    let mut spaced = String::new();
    let mut was_lower = false;
    for letter in code.chars() {
        if letter.is_uppercase() && was_lower {
            spaced.push(' ');
        }
        was_lower = letter.is_lowercase();
        spaced.extend(letter.to_lowercase());
    }
    let words = spaced.split(|letter: char| !letter.is_alphanumeric());
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GLOSSARY: &str = "| term | meaning | in the code |\n| --- | --- | --- |\n\
                            | plan | actions | `Plan`, `plan` |\n## Retired words\n\n\
                            | word | is now |\n| --- | --- |\n| floor | loop |\n";

    fn of(path: &str, text: &str) -> Vec<String> {
        let defined = "pub struct Plan;\npub(crate) fn plan() {}\n".to_owned();
        faults(GLOSSARY, &[("a.rs".to_owned(), defined), (path.to_owned(), text.to_owned())])
    }

    #[test]
    fn a_name_that_is_defined_nowhere_is_told() {
        assert_eq!(of("b.rs", "struct Other;"), [""; 0]);
        let found = faults(GLOSSARY, &[("b.rs".to_owned(), "struct Plan;".to_owned())]);
        assert_eq!(found, ["`plan` is defined nowhere"]);
    }

    #[test]
    fn a_retired_word_is_no_part_of_a_name() {
        let told = ["b.rs:1: `floor` is a retired word"];
        assert_eq!(of("b.rs", "let old_floor = 1;"), told);
        assert_eq!(of("b.rs", "struct OldFloor;"), told);
        assert_eq!(of("b.rs", "let floored = \"floor\"; // floor"), [""; 0]);
        assert_eq!(of("crates/wire/b.rs", "let floor = 1;"), [""; 0]);
    }

    #[test]
    fn the_glossary_of_this_repository_holds() {
        check().expect("docs/glossary.md and the crates");
    }
}
