//! Texts of others, as they may go to a terminal.

use std::borrow::Cow;

use serde_json::Value;

/// Characters that turn the direction of what follows (Unicode, UAX #9): text would not be read as
/// it is.
const TURNING: [char; 12] = [
    '\u{61c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}',
    '\u{2066}', '\u{2067}', '\u{2068}', '\u{2069}',
];

/// The text with what a terminal would obey written out, such as `\u{1b}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match is_obeyed(character) {
            true => shown.extend(character.escape_unicode()),
            false => shown.push(character),
        }
    }
    Cow::Owned(shown)
}

/// The same of every text in a value, names of fields included.
pub fn make_printable(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(shown) = printable(text) {
                *text = shown;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(make_printable),
        Value::Object(fields) => {
            if fields.keys().any(|name| name.contains(is_obeyed)) {
                let shown = |(name, value): (String, Value)| (printable(&name).into_owned(), value);
                *fields = std::mem::take(fields).into_iter().map(shown).collect();
            }
            fields.values_mut().for_each(make_printable);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn is_obeyed(character: char) -> bool {
    let is_text = ['\n', '\t'].contains(&character);
    character.is_control() && !is_text || TURNING.contains(&character)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_written_out() {
        let hostile = "a\u{1b}]0;title\u{7}b\u{9b}31mc\u{202e}d";
        assert_eq!(printable(hostile), "a\\u{1b}]0;title\\u{7}b\\u{9b}31mc\\u{202e}d");
        assert_eq!(printable("第 1 行\n\tλ ✔"), "第 1 行\n\tλ ✔");
        let mut value = json!({ "a\u{1b}": ["\r"], "b": 1 });
        make_printable(&mut value);
        assert_eq!(value, json!({ "a\\u{1b}": ["\\u{d}"], "b": 1 }));
    }
}
