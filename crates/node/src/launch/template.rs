//! Placeholders that are left for the engine: `{rank}`, `{world}`, `{checkpoint}`.

/// What the placeholders of one rank stand for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words<'a> {
    pub(crate) rank: u32,
    pub(crate) world: u32,
    /// Path of the checkpoint to start from; empty without one.
    pub(crate) checkpoint: &'a str,
}

/// Replaces every placeholder in one pass, so that a path which looks like one stays as it is.
pub(crate) fn fill(text: &str, words: Words<'_>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        out.push_str(&rest[..open]);
        rest = &rest[open..];
        let (value, length) = if rest.starts_with("{rank}") {
            (words.rank.to_string(), "{rank}".len())
        } else if rest.starts_with("{world}") {
            (words.world.to_string(), "{world}".len())
        } else if rest.starts_with("{checkpoint}") {
            (words.checkpoint.to_owned(), "{checkpoint}".len())
        } else {
            ("{".to_owned(), 1)
        };
        out.push_str(&value);
        rest = &rest[length..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let words = Words { rank: 1, world: 4, checkpoint: "/w/{rank}" };
        assert_eq!(fill(text, words), expected);
    }

    #[test]
    fn placeholders_are_replaced_once() {
        check("--rank={rank}/{world}", "--rank=1/4");
        check("{checkpoint}", "/w/{rank}");
        check("{checkpoint}{world}", "/w/{rank}4");
    }

    #[test]
    fn other_braces_stay() {
        check("{\"rank\": {rank}}", "{\"rank\": 1}");
        check("{ rank } {", "{ rank } {");
        check("é{rank}é", "é1é");
    }
}
