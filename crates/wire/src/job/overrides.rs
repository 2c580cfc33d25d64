//! What is said beside a job file: `--set stages.train.devices=gpu:2`, `--priority high`.
//!
//! Values take the places of those in the tree before it is held against the schema. Where they
//! stand, for messages, is a line behind the file: the words that brought them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::params;
use super::shape::is_long;
use crate::file::{Entry, Node, Place, Problem, Severity, Tree};
use crate::words::closest;

/// Values that one submission may set, and steps of the path of one.
const OVERRIDES_MAX: usize = 256;
const DEPTH_MAX: usize = 16;

/// One value that takes the place of the file's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Override {
    /// Path of the field: `priority`, `env.LR`, `params.lr`, `stages.train.devices`.
    pub key: String,
    /// YAML: `high`, `[python, train.py]`.
    pub value: String,
    /// What messages call it, such as `--priority high`; `--set KEY=VALUE` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
}

impl Override {
    pub fn new(key: &str, value: &str, said: String) -> Self {
        Self { key: key.to_owned(), value: value.to_owned(), said: Some(said) }
    }

    fn said(&self) -> String {
        let said = self.said.clone();
        let said = said.unwrap_or_else(|| format!("--set {}={}", self.key, self.value));
        said.replace(['\n', '\r'], " ")
    }
}

/// The text that problems are shown in: the file, and a line for each override.
pub(super) fn shown(text: &str, overrides: &[Override]) -> String {
    let mut shown = text.to_owned();
    for one in overrides {
        if !shown.ends_with('\n') {
            shown.push('\n');
        }
        shown.push_str("# ");
        shown.push_str(&one.said());
    }
    shown
}

/// Puts the values in their places.
///
/// # Errors
/// Each that names no place.
pub(super) fn apply(
    tree: &mut Tree,
    text: &str,
    overrides: &[Override],
) -> Result<(), Vec<Problem>> {
    let first = text.lines().count().max(1) + 1;
    let mut problems = Vec::new();
    for (index, one) in overrides.iter().enumerate() {
        let place = Place { line: first + index, column: 3 };
        let put = match index < OVERRIDES_MAX {
            true => put(tree, one, place),
            false => Err(("more values are set than may be".to_owned(), None)),
        };
        if let Err((message, hint)) = put {
            let length = one.said().chars().count();
            let severity = Severity::Error;
            problems.push(Problem { severity, place, length, message, hint });
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

type Refused = (String, Option<String>);

fn put(tree: &mut Tree, one: &Override, place: Place) -> Result<(), Refused> {
    let path = path(tree, &one.key)?;
    let value = value(one, &path, place)?;
    let mut at = tree;
    let (last, parents) = path.split_last().ok_or_else(|| no_field(&one.key))?;
    for step in parents {
        at = step.enter(at, place).ok_or_else(|| no_field(&one.key))?;
    }
    match (last, &mut at.value) {
        (Step::Key(key), Node::Map(entries)) => {
            let entry = Entry { key: key.clone(), key_place: place, value };
            match entries.iter_mut().find(|entry| entry.key == *key) {
                Some(old) => *old = entry,
                None => entries.push(entry),
            }
            Ok(())
        }
        _ => Err(no_field(&one.key)),
    }
}

/// A parameter and a variable are the text as it was typed: `1.10` is not 1.1.
fn value(one: &Override, path: &[Step], place: Place) -> Result<Tree, Refused> {
    if ["params", "env"].iter().any(|key| path.contains(&Step::Key((*key).to_owned()))) {
        return Ok(Tree { value: Node::Text(one.value.clone()), place });
    }
    let mut value = Tree::parse(&one.value, "job")
        .map_err(|problem| (format!("the value of `{}`: {}", one.key, problem.message), None))?;
    value.stand_at(place);
    Ok(value)
}

fn no_field(key: &str) -> Refused {
    let hint = "name a field of the file, such as `priority` or `stages.train.devices`".to_owned();
    (format!("`{key}` is no field that can be set"), Some(hint))
}

/// One step from a value to one inside of it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    /// A stage of this name.
    Stage(String),
}

impl Step {
    /// The value inside, which is made where there is none.
    fn enter<'t>(&self, tree: &'t mut Tree, place: Place) -> Option<&'t mut Tree> {
        match (self, &mut tree.value) {
            (Self::Key(key), Node::Map(entries)) => {
                let found = entries.iter().position(|entry| entry.key == *key);
                let index = found.unwrap_or(entries.len());
                if found.is_none() {
                    let value = Tree { value: Node::Map(Vec::new()), place };
                    entries.push(Entry { key: key.clone(), key_place: place, value });
                }
                Some(&mut entries[index].value)
            }
            (Self::Stage(name), Node::List(stages)) => {
                stages.iter_mut().find(|stage| stage.text("name") == Some(name.as_str()))
            }
            _ => None,
        }
    }
}

/// Fields of the whole job, in the long form below `metadata` and `spec`.
const OF_METADATA: [&str; 2] = ["name", "tenant"];
const OF_JOB: [&str; 5] = ["priority", "time_limit", "params", "after", "begin"];

/// Where a key leads in this file.
fn path(tree: &Tree, key: &str) -> Result<Vec<Step>, Refused> {
    let mut parts: Vec<&str> = key.split('.').collect();
    if parts.len() > DEPTH_MAX || parts.iter().any(|part| part.is_empty()) {
        return Err(no_field(key));
    }
    if parts[0] == "param" {
        parts[0] = "params";
    }
    let steps = |parts: &[&str]| -> Vec<Step> {
        parts.iter().map(|part| Step::Key((*part).to_owned())).collect()
    };
    if let ["params", name, ..] = parts[..]
        && params::declared(tree).is_none_or(|params| params.get(name).is_none())
    {
        let names = params::declared(tree).into_iter().flat_map(|params| params.keys());
        let hint = closest(name, names).map(|near| format!("did you mean `{near}`?"));
        return Err((format!("`{name}` is no parameter of the file"), hint));
    }
    if !is_long(tree) {
        return Ok(steps(&parts));
    }
    let below = |head: &str, rest: &[&str]| {
        let mut path = vec![Step::Key(head.to_owned())];
        path.extend(steps(rest));
        Ok(path)
    };
    match parts[..] {
        [head, ..] if OF_METADATA.contains(&head) => below("metadata", &parts),
        [head, ..] if OF_JOB.contains(&head) => below("spec", &parts),
        ["metadata" | "spec", ref rest @ ..] if !rest.is_empty() => path(tree, &rest.join(".")),
        ["stages", name, ref rest @ ..] => {
            let names = || tree.at("/spec/stages").items().filter_map(|stage| stage.text("name"));
            if !names().any(|known| known == name) {
                let hint = closest(name, names()).map(|near| format!("did you mean `{near}`?"));
                return Err((format!("there is no stage `{name}`"), hint));
            }
            let mut path = steps(&["spec", "stages"]);
            path.push(Step::Stage(name.to_owned()));
            path.extend(steps(rest));
            Ok(path)
        }
        ["metadata" | "spec" | "stages" | "apiVersion" | "kind", ..] => Err(no_field(key)),
        _ => {
            let stages: Vec<&str> =
                tree.at("/spec/stages").items().filter_map(|stage| stage.text("name")).collect();
            match stages[..] {
                [only] => {
                    let mut path = steps(&["spec", "stages"]);
                    path.push(Step::Stage(only.to_owned()));
                    path.extend(steps(&parts));
                    Ok(path)
                }
                [first, ..] => Err((
                    format!("`{key}` is of a stage, and the file has {}", stages.len()),
                    Some(format!("name the stage: `--set stages.{first}.{key}=VALUE`")),
                )),
                [] => Err(no_field(key)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::parse_with;

    const LONG: &str = "apiVersion: heterosis.dev/v1alpha1\nkind: TrainingJob\n\
        metadata: { name: two }\nspec:\n  params: { lr: 0.1, data: }\n  stages:\n    \
        - { name: load, run: [cp, '{param.data}'] }\n    \
        - { name: train, run: [train, '--lr={param.lr}'] }\n";

    fn set(key: &str, value: &str) -> Override {
        Override { key: key.to_owned(), value: value.to_owned(), said: None }
    }

    #[test]
    fn values_take_the_places_of_the_files() {
        let overrides = [
            set("priority", "high"),
            set("name", "other"),
            set("stages.train.devices", "gpu:2"),
            set("stages.train.env.A", "1"),
            set("param.data", "/data"),
            set("params.lr", "1e-3"),
        ];
        let job =
            parse_with(LONG, "two.yaml", &overrides, &[]).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(job.file.metadata.name, "other");
        let train = &job.file.spec.stages[1].needs;
        assert_eq!(train.devices.as_deref(), Some("gpu:2"));
        assert_eq!(train.env["A"], "1");
        let words = |index: usize| format!("{:?}", job.file.spec.stages[index].needs.run);
        assert_eq!(words(0), r#"Words(["cp", "/data"])"#);
        assert_eq!(words(1), r#"Words(["train", "--lr=1e-3"])"#);
    }

    #[track_caller]
    fn refused(overrides: &[Override], expected: &str) {
        let text =
            parse_with(LONG, "two.yaml", overrides, &[]).expect_err("it is refused").to_string();
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn what_is_wrong_with_a_value_is_shown_beside_the_file() {
        refused(&[], "parameter `data` has no value");
        let data = set("param.data", "x");
        refused(&[data.clone(), set("devices", "gpu:2")], "`--set stages.load.devices=VALUE`");
        refused(&[data.clone(), set("priority", "hgih")], "# --set priority=hgih");
        refused(&[data.clone(), set("stages.trian.devices", "cpu")], "did you mean `train`?");
        refused(&[data.clone(), set("params.rl", "1")], "is no parameter of the file");
        refused(&[data.clone(), set("spec", "1")], "is no field that can be set");
        let deep = vec!["a"; 30_000].join(".");
        refused(&[data, set(&deep, "1")], "is no field that can be set");
    }

    #[test]
    fn parameters_cannot_make_a_file_endless() {
        let long = "x".repeat(100_000);
        let text = format!(
            "name: a\nparams: {{ a: {long} }}\nrun: [echo, \"{}\"]\n",
            "{param.a}".repeat(1_000)
        );
        let told = parse_with(&text, "a.yaml", &[], &[]).expect_err("it is refused").to_string();
        assert!(told.contains("bytes with its parameters"), "{}", &told[..100]);
    }
}
