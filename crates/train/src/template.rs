//! Chat templates: the Jinja text by which a tokenizer's authors write a conversation.
//!
//! The environment is that of `transformers` (`apply_chat_template`): blocks are trimmed, Python's
//! methods of strings, lists and maps are there, so are `raise_exception` and, for a day that is
//! given, `strftime_now`. A `{% generation %}` block writes what it holds.

use crate::dataset::kinds::{Role, Turn};
use jiff::civil::Date;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value as Json, json};
use std::ops::Range;

const NAME: &str = "chat template";
/// Writes today's date, in the format that it is given.
const NOW: &str = "strftime_now";

#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    /// `bos_token` and the like, as the template names them.
    special: Map<String, Json>,
}

/// A conversation as the model reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    pub text: String,
    /// The bytes that the assistant wrote, what ends its turns included.
    pub answers: Vec<Range<usize>>,
}

type Read<T> = std::result::Result<T, String>;

impl Template {
    /// Refuses a text that is no template by its line. `today` is what the template takes for
    /// today, from midnight on; without it, a template may not ask for it.
    pub fn parse(source: &str, special: Map<String, Json>, today: Option<Date>) -> Read<Self> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| said(&error))?);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |what: String| -> Result<Value, _> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, what))
        });
        if let Some(today) = today {
            let now = today.at(0, 0, 0, 0);
            environment.add_function(NOW, move |format: String| -> Result<String, _> {
                let written = jiff::fmt::strtime::format(&format, now);
                written.map_err(|error| {
                    minijinja::Error::new(ErrorKind::InvalidOperation, error.to_string())
                })
            });
        }
        let added = environment.add_template_owned(NAME, without_generation(source));
        added.map_err(|error| said(&error))?;
        Ok(Self { environment, special })
    }

    /// Whether what it writes may follow from the day.
    pub fn asks_for_today(&self) -> bool {
        let template = self.environment.get_template(NAME);
        template.is_ok_and(|template| template.undeclared_variables(false).contains(NOW))
    }

    fn write(&self, turns: &[Turn], add_generation_prompt: bool) -> Read<String> {
        let messages: Vec<Json> = turns
            .iter()
            .map(|turn| json!({"role": turn.role.name(), "content": turn.content}))
            .collect();
        let mut context = self.special.clone();
        context.insert("messages".into(), json!(messages));
        context.insert("add_generation_prompt".into(), json!(add_generation_prompt));
        for absent in ["tools", "documents"] {
            context.insert(absent.into(), Json::Null);
        }
        let template = self.environment.get_template(NAME).map_err(|error| said(&error))?;
        template.render(Value::from(Serde(&context))).map_err(|error| said(&error))
    }

    /// Writes a conversation and finds the answers in it.
    ///
    /// An answer lies between what stands before it when the assistant is asked for one and the
    /// end of what is written up to it; a template that writes earlier turns otherwise once others
    /// follow is refused.
    pub fn render(&self, turns: &[Turn]) -> Read<Rendered> {
        let text = self.write(turns, false)?;
        let mut answers = Vec::new();
        for (index, turn) in turns.iter().enumerate() {
            if turn.role != Role::Assistant {
                continue;
            }
            let before = self.write(&turns[..index], true)?;
            let through = self.write(&turns[..=index], false)?;
            if !text.starts_with(&before) || !text.starts_with(&through) {
                return Err(format!(
                    "its chat template writes turn {} otherwise than where it is the last one, so \
                     that what is learnt is not what is asked",
                    index + 1
                ));
            }
            answers.push(before.len()..through.len().max(before.len()));
        }
        Ok(Rendered { text, answers })
    }
}

fn said(error: &minijinja::Error) -> String {
    let line = error.line().map_or_else(String::new, |line| format!(" in its line {line}"));
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    format!("the chat template fails{line}: {detail}")
}

/// Replaces the marks around an answer, which only `transformers` knows, by a condition that
/// always holds: what they do to white space stays.
fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        let word = tag.trim_matches(|c: char| "{%}-+".contains(c) || c.is_whitespace());
        match word {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(words: &[(Role, &str)]) -> Vec<Turn> {
        words.iter().map(|&(role, content)| Turn { role, content: content.into() }).collect()
    }

    #[test]
    fn answers_are_found_in_the_whole_conversation() {
        let source = "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>\
                      {%- generation -%}{{ m.content.strip() }}{%- endgeneration -%}</s>\
                      {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
        let special = json!({"bos_token": "<s>"}).as_object().cloned().unwrap_or_default();
        let template = Template::parse(source, special, None).expect("a template");
        let rendered = template
            .render(&turns(&[(Role::User, "a"), (Role::Assistant, " b "), (Role::User, "c")]))
            .expect("it renders");
        assert_eq!(rendered.text, "<s><user>a</s><assistant>b</s><user>c</s>");
        assert_eq!(&rendered.text[rendered.answers[0].clone()], "b</s>");
    }

    #[test]
    fn a_template_that_refuses_or_is_none_says_so() {
        let refuse = |source: &str, says: &str| {
            let turns = turns(&[(Role::User, "a"), (Role::Assistant, "b")]);
            let template = Template::parse(source, Map::new(), None);
            let what = template.and_then(|template| template.render(&turns)).expect_err(says);
            assert!(what.contains(says), "{what}");
        };
        refuse("{% if %}", "fails in its line 1");
        refuse("\n{{ raise_exception('only users') }}", "only users");
        refuse("{{ messages | tojson }}", "tojson");
        let last = "{% for m in messages %}{{ m.content if loop.last else 'x' }}{% endfor %}";
        let turns = turns(&[(Role::Assistant, "a"), (Role::User, "b")]);
        let template = Template::parse(last, Map::new(), None).expect("a template");
        assert!(template.render(&turns).expect_err("turns change").contains("writes turn 1"));
    }

    #[test]
    fn today_is_the_day_that_is_given() {
        let source = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}";
        let parse = |source: &str, today| Template::parse(source, Map::new(), today).expect("one");
        let today = jiff::civil::date(2026, 1, 31);
        let rendered = parse(source, Some(today)).render(&turns(&[(Role::User, "a")]));
        assert_eq!(rendered.expect("it renders").text, "31 Jan 2026");
        assert!(parse(source, None).asks_for_today());
        let names_it = "{# strftime_now #}{% set strftime_now = 1 %}{{ strftime_now }}";
        assert!(!parse(names_it, None).asks_for_today());
    }
}
