//! Parameters of a job file: `params: { lr: 0.1 }`, used as `{param.lr}`.

use super::shape::is_long;
use crate::file::{Node, Problem, Tree};
use crate::words::closest;

const OPEN: &str = "{param.";

/// Bytes that a file may have once its parameters are filled in.
const FILLED_BYTES_MAX: usize = 512 << 10;

/// The parameters that a file declares.
pub(super) fn declared(tree: &Tree) -> Option<&Tree> {
    if is_long(tree) { tree.get("spec")?.get("params") } else { tree.get("params") }
}

/// Fields that are whole numbers: what is filled in there becomes one.
const NUMBERS: [&str; 8] = ["steps", "retries", "batch", "sequence", "rank", "cores", "min", "max"];

/// Fills every `{param.NAME}` of a file.
///
/// # Errors
/// Parameters that are not declared, or have no value.
pub(super) fn fill(tree: &mut Tree) -> Result<(), Vec<Problem>> {
    let params = declared(tree).cloned();
    let mut filling = Filling { params, problems: Vec::new(), bytes_left: FILLED_BYTES_MAX };
    filling.fill_in(tree);
    if filling.problems.is_empty() { Ok(()) } else { Err(filling.problems) }
}

/// A file that is being filled in.
struct Filling {
    params: Option<Tree>,
    problems: Vec<Problem>,
    bytes_left: usize,
}

impl Filling {
    fn fill_in(&mut self, tree: &mut Tree) {
        if let Node::Text(text) = &tree.value
            && text.contains(OPEN)
        {
            match filled(text, self.params.as_ref(), self.bytes_left) {
                Ok(text) => {
                    self.bytes_left = self.bytes_left.saturating_sub(text.len());
                    tree.value = Node::Text(text);
                }
                Err((message, hint)) => self.problems.push(tree.problem(message, hint)),
            }
            return;
        }
        match &mut tree.value {
            Node::List(items) => items.iter_mut().for_each(|item| self.fill_in(item)),
            Node::Map(entries) => {
                let others = entries.iter_mut().filter(|entry| entry.key != "params");
                for entry in others {
                    self.fill_in(&mut entry.value);
                    if let Node::Text(text) = &entry.value.value
                        && NUMBERS.contains(&entry.key.as_str())
                        && let Ok(number) = text.parse::<u64>()
                    {
                        entry.value.value = Node::Number(number.into());
                    }
                }
            }
            _ => {}
        }
    }
}

fn filled(
    text: &str,
    params: Option<&Tree>,
    bytes_max: usize,
) -> Result<String, (String, Option<String>)> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once(OPEN) {
        let Some((name, after)) = behind.split_once('}') else {
            let hint = "close it: `{param.NAME}`".to_owned();
            return Err((format!("`{OPEN}{behind}` has no end"), Some(hint)));
        };
        let value = value_of(name, params)?;
        out.push_str(before);
        match &value.value {
            Node::Text(text) => out.push_str(text),
            _ => out.push_str(&value.to_json().to_string()),
        }
        if out.len() > bytes_max {
            let what =
                format!("the file has more than {FILLED_BYTES_MAX} bytes with its parameters");
            let hint = "name a file that holds what is long".to_owned();
            return Err((what, Some(hint)));
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

fn value_of<'t>(
    name: &str,
    params: Option<&'t Tree>,
) -> Result<&'t Tree, (String, Option<String>)> {
    match params.and_then(|params| params.get(name)) {
        Some(Tree { value: Node::Null, .. }) => {
            let hint = format!("give it one: `--set param.{name}=VALUE`");
            Err((format!("parameter `{name}` has no value"), Some(hint)))
        }
        Some(value) => Ok(value),
        None => {
            let hint = match closest(name, params.iter().flat_map(|params| params.keys())) {
                Some(near) => format!("did you mean `{{param.{near}}}`?"),
                None => format!("declare it: `params: {{ {name}: VALUE }}`"),
            };
            Err((format!("there is no parameter `{name}`"), Some(hint)))
        }
    }
}
