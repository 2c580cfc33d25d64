//! The book: its links lead somewhere, and mdBook builds it. Its commands are run by the tests of
//! the command line.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Of the builder; another may draw pages otherwise.
const MDBOOK: &str = "0.4.52";

/// Relative links of every Markdown file lead to a file, and every chapter is in the summary.
pub fn check() -> Result<()> {
    let mut files = Vec::new();
    for folder in ["", "docs", "crates", "examples", "python"] {
        let depth = if folder.is_empty() { 1 } else { usize::MAX };
        markdown(&crate::root().join(folder), depth, &mut files)?;
    }
    let mut broken = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        // What a chapter that is shown from elsewhere links to lies where it really is.
        let real = file.canonicalize().with_context(|| file.display().to_string())?;
        let folder = real.parent().unwrap_or(Path::new("."));
        for target in targets(&text).filter(|target| !folder.join(target).exists()) {
            broken.push(format!("{}: `{target}` is not there", file.display()));
        }
    }
    let book = crate::root().join("docs/book/src");
    let summary = std::fs::read_to_string(book.join("SUMMARY.md")).context("the summary")?;
    let mut chapters = Vec::new();
    markdown(&book, usize::MAX, &mut chapters)?;
    for chapter in chapters.iter().filter(|path| !path.ends_with("SUMMARY.md")) {
        let name = chapter.strip_prefix(&book).unwrap_or(chapter).display().to_string();
        if !summary.contains(&format!("({name})")) {
            broken.push(format!("docs/book/src/SUMMARY.md: `{name}` is no chapter"));
        }
    }
    if !broken.is_empty() {
        bail!("broken links:\n  {}", broken.join("\n  "));
    }
    println!("book: links of {} files", files.len());
    Ok(())
}

/// Builds it into `target/book`; installs the builder where it is missing.
pub fn build() -> Result<()> {
    let tools = tools()?;
    let program = tools.join("bin/mdbook");
    if !program.exists() {
        let options = ["--no-default-features", "--locked", "--quiet", "--version", MDBOOK];
        let mut install = Command::new(env!("CARGO"));
        install.args(["install", "mdbook"]).args(options).arg("--root").arg(&tools);
        run(install.env_remove("CARGO_TARGET_DIR"), "mdBook cannot be installed")?;
    }
    let folder = crate::root().join("docs/book");
    run(Command::new(program).arg("build").arg(folder), "the book cannot be built")
}

fn run(command: &mut Command, trouble: &'static str) -> Result<()> {
    let status = command.status().context(trouble)?;
    if !status.success() {
        bail!(trouble);
    }
    Ok(())
}

/// Outlives the target folder.
fn tools() -> Result<PathBuf> {
    let of_home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(of_home);
    let cache = cache.context("neither `XDG_CACHE_HOME` nor `HOME` says where to keep tools")?;
    Ok(cache.join("heterosis").join(format!("mdbook-{MDBOOK}")))
}

fn markdown(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let is_markdown = path.extension().is_some_and(|extension| extension == "md");
        if path.is_dir() && depth > 1 {
            markdown(&path, depth - 1, files)?;
        } else if is_markdown && !path.is_dir() {
            files.push(path);
        }
    }
    Ok(())
}

/// Relative targets of links, without their anchors; what stands in code is none.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    let prose = text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !fence && !in_code
    });
    let links = prose.flat_map(|line| line.split("](").skip(1));
    let links = links.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let paths = links.filter(|target| !target.contains("://") && !target.starts_with('#'));
    paths.map(|target| target.split('#').next().unwrap_or(target)).filter(|path| !path.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_and_code_is_none() {
        let text = "[a](a.md) and [b](dir/b.md#part), [c](https://c.org)\n\
                    ```\n[d](d.md)\n```\n[e](#here)";
        assert_eq!(targets(text).collect::<Vec<_>>(), ["a.md", "dir/b.md"]);
    }
}
