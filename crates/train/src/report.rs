//! The page about a finished run: what computed and how fast, its losses as a picture, and what
//! the model wrote before and after.

use crate::curve::Curve;
use crate::error::Result;
use crate::whole;
use std::fmt::Write;
use std::path::{Path, PathBuf};

pub const FILE: &str = "report.html";

/// What a model wrote for one prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    pub prompt: String,
    /// By the weights that the run began with.
    pub before: String,
    pub after: String,
}

impl Sample {
    /// What is shown of it: a model that ends at once has written nothing.
    pub fn rows(&self) -> [(&'static str, &str); 3] {
        let written = [("before", &self.before), ("after", &self.after)];
        let [before, after] = written.map(|(name, text)| match text.trim().is_empty() {
            true => (name, "(nothing)"),
            false => (name, text.as_str()),
        });
        [("prompt", self.prompt.as_str()), before, after]
    }
}

#[derive(Debug)]
pub struct Page<'a> {
    pub title: &'a str,
    /// Names and values, in order.
    pub facts: &'a [(&'a str, String)],
    pub losses: &'a Curve,
    /// Held-out losses after steps
    pub held_out: &'a [(u64, f64)],
    /// The last step of `losses`
    pub step: u64,
    pub samples: &'a [Sample],
}

impl Page<'_> {
    /// Writes the page beside the result; it needs no other file.
    pub fn write(&self, output: &Path) -> Result<PathBuf> {
        let path = output.join(FILE);
        whole::write(&path, self.html().as_bytes())?;
        Ok(path)
    }

    fn html(&self) -> String {
        let title = escaped(self.title);
        let mut facts = String::new();
        for (name, value) in self.facts {
            let _ = write!(facts, "<tr><th>{}</th><td>{}</td></tr>", escaped(name), escaped(value));
        }
        let mut samples = String::new();
        for sample in self.samples {
            let rows = sample.rows().map(|(name, text)| {
                format!("<tr><th>{name}</th><td><pre>{}</pre></td></tr>", escaped(text))
            });
            let _ = write!(samples, "<table>{}</table>", rows.concat());
        }
        if !samples.is_empty() {
            samples.insert_str(0, "<h2>What it writes</h2>");
        }
        format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\
             <style>body{{font:15px sans-serif;max-width:48em;margin:2em auto}}\
             h1{{overflow-wrap:anywhere}}\
             th{{text-align:left;vertical-align:top;padding-right:1em;font-weight:600}}\
             pre{{white-space:pre-wrap;margin:0}}table{{margin-bottom:1.5em}}</style>\
             <h1>{title}</h1><table>{facts}</table><h2>Loss</h2>{}{samples}</html>\n",
            self.losses.svg(self.step, self.held_out)
        )
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_model_writes_is_text_on_the_page() {
        let text = |text: &str| text.to_owned();
        let samples =
            [Sample { prompt: text("a < b"), before: text("<script>"), after: text(" ") }];
        let facts = [("driver", text("cpu"))];
        let losses = Curve::default();
        let page = Page {
            title: "adapter",
            facts: &facts,
            losses: &losses,
            held_out: &[],
            step: 0,
            samples: &samples,
        };
        let html = page.html();
        assert!(html.contains("<th>driver</th><td>cpu</td>"), "{html}");
        assert!(html.contains("<pre>&lt;script&gt;</pre>"), "{html}");
        assert!(!html.contains("<script>"), "{html}");
        assert!(html.contains("<pre>(nothing)</pre>"), "{html}");
    }
}
