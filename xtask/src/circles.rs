//! Circles of modules inside a crate: siblings that use each other, at whatever level.
//!
//! A reference from one module to another counts between the two siblings that hold them, and a
//! name that a parent re-exports counts for the child that has it. Parents and children may use
//! each other. Tests at the end of a file do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Crates that still have some; one that has none any more must go from here.
const NOT_YET: &[&str] = &[];

/// A module by the names of those that hold it and its own; the crate is the empty path.
type Module = Vec<String>;

/// References between the children of a module, each with the file of one that does.
type Siblings = BTreeMap<String, BTreeMap<String, Module>>;

pub fn check() -> Result<()> {
    let mut wrong = Vec::new();
    let mut crates = 0;
    for entry in std::fs::read_dir(crate::root().join("crates")).context("the crates")? {
        let folder = entry.context("a crate")?.path();
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let found = circles(&read(&folder.join("src"))?);
        crates += 1;
        match (found.is_empty(), NOT_YET.contains(&name.as_str())) {
            (true, false) | (false, true) => {}
            (true, true) => wrong.push(format!("`{name}` has none: take it from `NOT_YET`")),
            (false, false) => wrong.extend(found.into_iter().map(|row| format!("{name}: {row}"))),
        }
    }
    if !wrong.is_empty() {
        wrong.sort();
        bail!("circles of modules:\n  {}", wrong.join("\n  "));
    }
    println!("circles: {crates} crates, {} with some", NOT_YET.len());
    Ok(())
}

/// The text of every module, without its tests.
fn read(source: &Path) -> Result<BTreeMap<Module, String>> {
    let mut modules = BTreeMap::new();
    let mut folders = vec![(source.to_path_buf(), Module::new())];
    while let Some((folder, module)) = folders.pop() {
        for entry in std::fs::read_dir(&folder).context("a folder of sources")? {
            let path = entry.context("a source")?.path();
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let child = [module.as_slice(), std::slice::from_ref(&stem)].concat();
            if path.is_dir() {
                folders.push((path, child));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let is_root = module.is_empty() && (stem == "lib" || stem == "main");
                let text = std::fs::read_to_string(&path).context("a source")?;
                let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
                modules.insert(if is_root { Module::new() } else { child }, code.to_owned());
            }
        }
    }
    Ok(modules)
}

/// Each circle of siblings, in words.
fn circles(modules: &BTreeMap<Module, String>) -> Vec<String> {
    let crates = Crate::new(modules);
    let mut by_parent: BTreeMap<Module, Siblings> = BTreeMap::new();
    for (module, text) in modules {
        for path in paths(text) {
            let Some(target) = crates.resolve(module, &path) else { continue };
            let common = module.iter().zip(&target).take_while(|(a, b)| a == b).count();
            let (Some(from), Some(to)) = (module.get(common), target.get(common)) else { continue };
            let siblings = by_parent.entry(module[..common].to_vec()).or_default();
            siblings
                .entry(from.clone())
                .or_default()
                .entry(to.clone())
                .or_insert_with(|| module.clone());
        }
    }
    let mut found = Vec::new();
    for (parent, siblings) in &by_parent {
        let mut seen = BTreeSet::new();
        for start in siblings.keys() {
            if seen.contains(start) {
                continue;
            }
            let circle: Vec<&String> = siblings
                .keys()
                .filter(|other| reaches(siblings, start, other) && reaches(siblings, other, start))
                .collect();
            seen.extend(circle.iter().copied().cloned());
            if circle.len() > 1 {
                found.push(told(parent, siblings, &circle));
            }
        }
    }
    found
}

/// Whether following references leads from one to the other.
fn reaches(siblings: &Siblings, from: &str, to: &str) -> bool {
    let mut open = vec![from];
    let mut seen = BTreeSet::new();
    while let Some(next) = open.pop() {
        for name in siblings.get(next).into_iter().flat_map(BTreeMap::keys) {
            if name == to {
                return true;
            }
            if seen.insert(name) {
                open.push(name);
            }
        }
    }
    false
}

fn told(parent: &Module, siblings: &Siblings, circle: &[&String]) -> String {
    let uses = circle.iter().flat_map(|&from| {
        let used = siblings[from].iter().filter(|(to, _)| circle.contains(to));
        used.map(move |(to, file)| format!("{from} uses {to} in {}", file.join("::")))
    });
    let uses: Vec<String> = uses.collect();
    format!(
        "{}{}",
        parent.iter().map(|name| format!("{name}::")).collect::<String>(),
        uses.join("; ")
    )
}

/// What its modules are, and which names they have of their children.
struct Crate<'a> {
    modules: &'a BTreeMap<Module, String>,
    reexports: BTreeMap<(Module, String), Vec<String>>,
}

impl<'a> Crate<'a> {
    fn new(modules: &'a BTreeMap<Module, String>) -> Self {
        let mut reexports = BTreeMap::new();
        for (module, text) in modules {
            for path in uses(text, "pub") {
                if let [.., name] = path.as_slice() {
                    reexports.insert((module.clone(), name.clone()), path);
                }
            }
        }
        Self { modules, reexports }
    }

    /// The module that a path leads to; `None` for what is not of this crate.
    fn resolve(&self, from: &Module, path: &[String]) -> Option<Module> {
        let mut at = match path.first()?.as_str() {
            "crate" => Module::new(),
            "self" | "super" => from.clone(),
            child if self.is_module(from, child) => from.clone(),
            _ => return None,
        };
        for segment in path {
            match segment.as_str() {
                "crate" | "self" => {}
                "super" => drop(at.pop()),
                child if self.is_module(&at, child) => at.push(child.to_owned()),
                name => {
                    let known = self.reexports.get(&(at.clone(), name.to_owned()));
                    let deeper = known.filter(|path| *path != &[name.to_owned()]);
                    return deeper.and_then(|path| self.resolve(&at, path)).or(Some(at));
                }
            }
        }
        Some(at)
    }

    fn is_module(&self, parent: &Module, name: &str) -> bool {
        self.modules.contains_key(&[parent.as_slice(), &[name.to_owned()]].concat())
    }
}

/// Every path that begins with `crate`, `super` or in a `use`.
fn paths(text: &str) -> Vec<Vec<String>> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = code.collect::<Vec<_>>().join("\n");
    let mut found = uses(&code, "");
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let end = code[at..].find(|c: char| !(c.is_alphanumeric() || "_:".contains(c)));
            let path = &code[at..end.map_or(code.len(), |end| at + end)];
            found.push(
                path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect(),
            );
        }
    }
    found
}

/// The paths of all `use` declarations whose line begins so.
fn uses(text: &str, visibility: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("use ") {
        let line = rest[..at].rsplit('\n').next().unwrap_or_default();
        let is_declaration = line.is_empty() || line.starts_with("pub");
        rest = &rest[at + 4..];
        if is_declaration && line.starts_with(visibility) {
            let tree = rest.split(';').next().unwrap_or_default();
            expand(&[], tree.trim(), &mut found);
        }
    }
    found
}

/// Takes `a::{b, c::d}` apart.
fn expand(before: &[String], tree: &str, found: &mut Vec<Vec<String>>) {
    let Some(brace) = tree.find('{') else {
        let name = tree.split(" as ").next().unwrap_or_default();
        let parts = name.split("::").map(|part| part.trim().to_owned());
        found.push(before.iter().cloned().chain(parts).filter(|part| !part.is_empty()).collect());
        return;
    };
    let outside = tree[..brace].split("::").map(|part| part.trim().to_owned());
    let before: Vec<String> =
        before.iter().cloned().chain(outside).filter(|part| !part.is_empty()).collect();
    let inside = tree[brace + 1..].trim_end().trim_end_matches('}');
    let (mut depth, mut begins) = (0, 0);
    for (at, letter) in inside.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&before, inside[begins..at].trim(), found);
                begins = at + 1;
            }
            _ => {}
        }
    }
    let last = inside[begins..].trim();
    if !last.is_empty() {
        expand(&before, last, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(modules: &[(&str, &str)]) -> Vec<String> {
        let module = |path: &str| -> Module {
            path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect()
        };
        circles(&modules.iter().map(|(path, text)| (module(path), (*text).to_owned())).collect())
    }

    #[test]
    fn siblings_that_use_each_other_are_told_with_where() {
        let found = of(&[
            ("", "mod a;\nmod b;\nmod c;\npub use b::Thing;\n"),
            ("a", "use crate::Thing;\n"),
            ("b", "use std::fmt;\nuse crate::c::{Other, deep::{Nested, self}};\n"),
            ("c", "fn one() { crate::a::two() }\n"),
        ]);
        assert_eq!(found, ["a uses b in a; b uses c in b; c uses a in c"]);
    }

    #[test]
    fn parents_and_children_may_use_each_other() {
        let found = of(&[
            ("", "mod a;\nuse a::One;\n"),
            ("a", "mod b;\nmod c;\nuse b::Two;\n"),
            ("a::b", "use super::One;\nuse super::c::Three;\n"),
            ("a::c", "// use super::b::Two;\n"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn no_crate_has_circles_but_those_that_are_listed() {
        check().expect("the crates of this repository");
    }
}
