//! The suite that every engine passes.

use std::collections::BTreeMap;
use std::path::Path;

use het_core::{Launch, StageKey};
use het_engine::Script;
use het_engine::contract::{Subject, check_all};
use het_node::Node;

use crate::rig;

struct Shell<'a> {
    workdir: &'a Path,
}

impl Subject for Shell<'_> {
    type Engine = Node;

    fn build(&self, scripts: &[(StageKey, Script)]) -> (Node, Vec<Launch>) {
        let launches = scripts.iter().map(|(_, script)| rig::launch(self.workdir, &text(script)));
        let config = rig::config(BTreeMap::new(), &self.workdir.join("run"));
        (Node::new(config).expect("the rig fits"), launches.collect())
    }
}

fn text(script: &Script) -> String {
    let seconds = |span: &het_core::Millis| span.as_seconds();
    match script {
        Script::Finish(after) => format!("sleep {}", seconds(after)),
        Script::UntilNotice => "trap 'exit 0' TERM; sleep 60 & wait".to_owned(),
        Script::Deaf => "trap '' TERM; sleep 60".to_owned(),
        Script::Fail(after, code) => {
            let after = seconds(after);
            format!("[ $RANK = 0 ] && {{ sleep {after}; exit {code}; }}; exec sleep 60")
        }
    }
}

#[test]
fn the_node_keeps_the_contract() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    check_all(&Shell { workdir: dir.path() });
}
