//! What jobs, tenants, stages, parameters and variables may be called, and texts that no process
//! can be given.

use super::shape::{JobFile, is_long};
use crate::file::{Entry, Node, Problem, Severity, Tree};

/// Words that commands and figures mean something else by.
pub(super) const RESERVED: [&str; 4] = ["all", "last", "none", "others"];

/// Longest name of a parameter, in bytes.
const PARAM_BYTES_MAX: usize = 63;

/// Names that would be taken for something else, and texts with zero bytes.
pub(super) fn problems(file: &JobFile, tree: &Tree) -> Vec<Problem> {
    let long = is_long(tree);
    let (metadata, spec) =
        if long { (tree.at("/metadata"), tree.at("/spec")) } else { (tree, tree) };
    let mut found = Vec::new();
    let mut check = |at: Option<&Tree>, wrong: Option<&str>| {
        if let (Some(at), Some(wrong)) = (at, wrong) {
            let hint = "give it a name of its own, such as `train-7b`".to_owned();
            found.push(at.problem(wrong.to_owned(), hint));
        }
    };
    check(metadata.get("name"), name_problem(&file.metadata.name).as_deref());
    if let Some(tenant) = &file.metadata.tenant {
        check(metadata.get("tenant"), tenant_problem(tenant).as_deref());
    }
    if long {
        for (row, stage) in file.spec.stages.iter().enumerate() {
            let at = spec.at(&format!("/stages/{row}")).get("name");
            check(at, name_problem(&stage.name).as_deref());
        }
    }
    if let Some(Tree { value: Node::Map(params), .. }) = spec.get("params") {
        found.extend(params.iter().filter_map(param_problem));
    }
    text_problems(&mut found, tree);
    found
}

/// Why a job or a stage may not be called so, beyond what the pattern of its field says.
pub fn name_problem(name: &str) -> Option<String> {
    if RESERVED.contains(&name) {
        return Some(format!("`{name}` is a word of the commands and no name"));
    }
    let digits = name.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| format!("`{name}` would be taken for a number"))
}

/// The same of a tenant: each part between `/` is a name.
pub fn tenant_problem(tenant: &str) -> Option<String> {
    let wrong = |part: &str| {
        if part.is_empty() || part.bytes().all(|byte| byte == b'.') {
            return Some(format!("`{tenant}` has a part that is no name"));
        }
        name_problem(part)
    };
    tenant.split('/').find_map(wrong)
}

fn param_problem(entry: &Entry) -> Option<Problem> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let name = &entry.key;
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    let fits = begins && name.len() <= PARAM_BYTES_MAX && name.bytes().all(is_part);
    let message = format!("`{}` is no name of a parameter", name.escape_debug());
    let hint = "begin with a letter and go on with letters, digits, `_` and `-`".to_owned();
    (!fits).then(|| of_key(entry, message, hint))
}

/// No text of a process has a zero byte in it, and no variable a name without letters or with `=`.
fn text_problems(found: &mut Vec<Problem>, tree: &Tree) {
    let zero = "a text has a zero byte, which no program can be given";
    match &tree.value {
        Node::Text(text) if text.contains('\0') => {
            found.push(tree.problem(zero, "leave it out".to_owned()));
        }
        Node::List(items) => items.iter().for_each(|item| text_problems(found, item)),
        Node::Map(entries) => {
            for entry in entries {
                if entry.key.contains('\0') {
                    found.push(of_key(entry, zero.to_owned(), "leave it out".to_owned()));
                }
                if entry.key == "env"
                    && let Node::Map(variables) = &entry.value.value
                {
                    found.extend(variables.iter().filter_map(variable_problem));
                }
                text_problems(found, &entry.value);
            }
        }
        _ => {}
    }
}

fn variable_problem(entry: &Entry) -> Option<Problem> {
    let wrong = entry.key.is_empty() || entry.key.contains('=');
    let message = format!("`{}` is no name of a variable", entry.key);
    let hint = "a name is not empty and has no `=`".to_owned();
    wrong.then(|| of_key(entry, message, hint))
}

fn of_key(entry: &Entry, message: String, hint: String) -> Problem {
    Problem {
        severity: Severity::Error,
        place: entry.key_place,
        length: entry.key.chars().count().max(1),
        message,
        hint: Some(hint),
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    /// What a file is told, and where.
    #[track_caller]
    fn refused(text: &str, message: &str, place: &str) {
        let problems = parse(text, "job.yaml").map(|_| ()).expect_err("it is refused").to_string();
        assert!(problems.contains(message) && problems.contains(place), "{problems}");
    }

    #[test]
    fn names_are_not_taken_for_anything_else() {
        for name in RESERVED {
            refused(&format!("name: {name}\nrun: [x]"), "is a word of the commands", ":1:7");
        }
        refused("name: \"42\"\nrun: [x]", "would be taken for a number", ":1:7");
        refused("name: a\ntenant: lab/all\nrun: [x]", "is a word of the commands", ":2:9");
        refused("name: a\ntenant: lab//x\nrun: [x]", "has a part that is no name", ":2:9");
        refused("name: a\ntenant: lab/../x\nrun: [x]", "has a part that is no name", ":2:9");
        refused("name: a\nparams: { 'a b': 1 }\nrun: [x]", "no name of a parameter", ":2:11");
        refused("name: a\nparams: { '': 1 }\nrun: [x]", "no name of a parameter", ":2:11");
        refused(
            "apiVersion: heterosis.dev/v1alpha1\nkind: TrainingJob\nmetadata: { name: a }\n\
             spec: { stages: [{ name: '7', run: [x] }] }",
            "would be taken for a number",
            ":4:26",
        );
    }

    #[test]
    fn what_no_process_can_be_given_is_refused_where_it_stands() {
        refused("name: a\nrun: [x, \"a\\0b\"]", "zero byte", ":2:10");
        refused("name: a\nrun: [x]\nenv: { '': x }", "no name of a variable", ":3:8");
        refused("name: a\nrun: [x]\nenv: { 'A=B': x }", "no name of a variable", ":3:8");
        refused("name: a\nrun: [x]\nenv: { A: \"\\0\" }", "zero byte", ":3:11");
    }

    #[test]
    fn usual_names_pass() {
        for (name, tenant) in [("a", "default"), ("last-1", "lab/nlp"), ("7b", "all-hands/2026-q1")]
        {
            let text = format!("name: {name}\ntenant: {tenant}\nrun: [x]\nenv: {{ A: '=' }}");
            parse(&text, "job.yaml").unwrap_or_else(|problems| panic!("{problems}"));
        }
    }
}
