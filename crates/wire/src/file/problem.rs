//! What is wrong with a file, shown where it is wrong.

use std::fmt;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

/// A spot in the text, counted in characters from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Error,
    Warning,
}

/// One thing to mend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub severity: Severity,
    pub place: Place,
    /// Characters to underline.
    pub length: usize,
    pub message: String,
    pub hint: Option<String>,
}

/// All problems of one file, in the order of its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems {
    text: String,
    source: String,
    list: Vec<Problem>,
    /// How many more there are.
    untold: usize,
}

/// Most problems that are told: each costs a look at the whole file.
const TOLD_MAX: usize = 50;

impl Problems {
    pub(crate) fn new(text: &str, source: &str, mut list: Vec<Problem>) -> Self {
        list.sort_by_key(|problem| problem.place);
        list.dedup();
        let untold = list.len().saturating_sub(TOLD_MAX);
        list.truncate(TOLD_MAX);
        Self { text: text.to_owned(), source: source.to_owned(), list, untold }
    }

    pub fn list(&self) -> &[Problem] {
        &self.list
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The byte at which a place stands, clipped to the text.
    fn offset(&self, place: Place) -> usize {
        let mut start = 0;
        for (index, line) in self.text.split_inclusive('\n').enumerate() {
            if index + 1 == place.line {
                let chars = line.char_indices().map(|(byte, _)| byte).nth(place.column - 1);
                return start + chars.unwrap_or(line.trim_end().len());
            }
            start += line.len();
        }
        self.text.trim_end().len()
    }

    fn render(&self, problem: &Problem) -> String {
        let start = self.offset(problem.place);
        let rest = &self.text[start..];
        let line = rest.split('\n').next().unwrap_or_default();
        let span: usize = line.chars().take(problem.length.max(1)).map(char::len_utf8).sum();
        let label = problem.hint.as_ref().map(|hint| format!("hint: {hint}"));
        let mut annotation = AnnotationKind::Primary.span(start..start + span);
        if let Some(label) = &label {
            annotation = annotation.label(label.as_str());
        }
        let level = match problem.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let snippet = Snippet::source(&self.text).path(&self.source).annotation(annotation);
        let report = [level.primary_title(&problem.message).element(snippet)];
        Renderer::plain().render(&report)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.list.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            writeln!(f, "{}", self.render(problem))?;
        }
        match self.untold {
            0 => Ok(()),
            untold => writeln!(f, "\nand {untold} more like these"),
        }
    }
}

impl std::error::Error for Problems {}
