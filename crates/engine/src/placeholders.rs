//! The placeholders of a launch that engines fill in: `{rank}`, `{world}`, `{port}`,
//! `{checkpoint}`, `{node}`, `{user}`, `{restarts}`.

/// Values of the placeholders for one rank.
#[derive(Debug, Clone, Copy)]
pub struct Placeholders<'a> {
    pub rank: u32,
    pub world: u32,
    /// A free port.
    pub port: u16,
    /// Path of the checkpoint to resume from; empty without one.
    pub checkpoint: &'a str,
    /// Name of the node that the rank runs on.
    pub node: &'a str,
    /// Whom it runs as; the placeholder stays where nobody knows.
    pub user: Option<&'a str>,
    /// How often the stage was started before.
    pub restarts: u32,
}

impl Placeholders<'_> {
    fn get(&self, name: &str) -> Option<String> {
        Some(match name {
            "rank" => self.rank.to_string(),
            "world" => self.world.to_string(),
            "port" => self.port.to_string(),
            "checkpoint" => self.checkpoint.to_owned(),
            "node" => self.node.to_owned(),
            "user" => self.user?.to_owned(),
            "restarts" => self.restarts.to_string(),
            _ => return None,
        })
    }
}

/// Replaces every placeholder in one pass, so that a path that contains one stays unchanged.
pub fn fill(text: &str, values: Placeholders<'_>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        out.push_str(&rest[..open]);
        rest = &rest[open..];
        let name = rest[1..].split_once('}').map_or("", |(name, _)| name);
        let (value, length) = match values.get(name) {
            Some(value) => (value, name.len() + 2),
            None => ("{".to_owned(), 1),
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
        let (checkpoint, node) = ("/w/{rank}", "host");
        let user = Some("eve");
        let values =
            Placeholders { rank: 1, world: 4, port: 29500, checkpoint, node, user, restarts: 2 };
        assert_eq!(fill(text, values), expected);
    }

    #[test]
    fn placeholders_are_replaced_once() {
        check("--rank={rank}/{world}", "--rank=1/4");
        check("--port={port}", "--port=29500");
        check("{checkpoint}", "/w/{rank}");
        check("{checkpoint}{world}", "/w/{rank}4");
        check("{node}-{restarts}-{user}", "host-2-eve");
    }

    #[test]
    fn other_braces_stay() {
        check("{\"rank\": {rank}}", "{\"rank\": 1}");
        check("{ rank } {", "{ rank } {");
        check("é{rank}é", "é1é");
    }
}
