//! The placeholders that the engine fills in: `{rank}`, `{world}`, `{port}`, `{checkpoint}`.

/// Values of the placeholders for one rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placeholders<'a> {
    pub(crate) rank: u32,
    pub(crate) world: u32,
    /// A free port.
    pub(crate) port: u16,
    /// Path of the checkpoint to resume from; empty without one.
    pub(crate) checkpoint: &'a str,
}

/// Replaces every placeholder in one pass, so that a path that contains one stays unchanged.
pub(crate) fn fill(text: &str, values: Placeholders<'_>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        out.push_str(&rest[..open]);
        rest = &rest[open..];
        let (value, length) = if rest.starts_with("{rank}") {
            (values.rank.to_string(), "{rank}".len())
        } else if rest.starts_with("{world}") {
            (values.world.to_string(), "{world}".len())
        } else if rest.starts_with("{port}") {
            (values.port.to_string(), "{port}".len())
        } else if rest.starts_with("{checkpoint}") {
            (values.checkpoint.to_owned(), "{checkpoint}".len())
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
        let values = Placeholders { rank: 1, world: 4, port: 29500, checkpoint: "/w/{rank}" };
        assert_eq!(fill(text, values), expected);
    }

    #[test]
    fn placeholders_are_replaced_once() {
        check("--rank={rank}/{world}", "--rank=1/4");
        check("--port={port}", "--port=29500");
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
