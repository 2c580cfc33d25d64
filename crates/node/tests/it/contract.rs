//! The suite that every engine passes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use het_core::{Event, Launch, StageKey};
use het_engine::Script;
use het_engine::contract::{Subject, check_all, this_node};
use het_node::{Config, Node};

use crate::rig;

struct Shell<'a> {
    workdir: &'a Path,
    built: Cell<u32>,
    /// Of the engine that was built last.
    run_dir: RefCell<PathBuf>,
}

impl Subject for Shell<'_> {
    type Engine = Node;

    fn build(&self, scripts: &[(StageKey, Script)]) -> (Node, Vec<Launch>) {
        self.built.set(self.built.get() + 1);
        let workdir = self.workdir.join(self.built.get().to_string());
        std::fs::create_dir(&workdir).expect("it is writable");
        let launches = scripts.iter().map(|(_, script)| rig::launch(&workdir, &text(script)));
        let launches = launches.collect();
        *self.run_dir.borrow_mut() = workdir.join("run");
        (node(&self.run_dir.borrow()), launches)
    }

    fn crash(&self, engine: Node) -> Node {
        engine.abandon();
        node(&self.run_dir.borrow())
    }

    fn report(&self, engine: &mut Node, event: Event) {
        engine.event_sender().send(event);
    }
}

fn node(run_dir: &Path) -> Node {
    let config = rig::config(BTreeMap::new(), run_dir);
    Node::new(Config { found: Arc::new(this_node()), ..config }).expect("the rig fits")
}

/// A program says that it is done: nobody notes exit codes here after a crash.
fn text(script: &Script) -> String {
    let seconds = |span: &het_core::Millis| span.as_seconds();
    match script {
        Script::Finish(after) => {
            format!("sleep {}; echo '{{\"done\":true}}' >> $HET_PROGRESS", seconds(after))
        }
        Script::UntilNotice => "trap 'exit 0' TERM; sleep 60 & wait".to_owned(),
        Script::Deaf => "trap '' TERM; sleep 60".to_owned(),
        Script::Fail(after, code) => {
            let after = seconds(after);
            format!("[ ${{RANK:-0}} = 0 ] && {{ sleep {after}; exit {code}; }}; exec sleep 60")
        }
    }
}

#[test]
fn the_node_keeps_the_contract() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    check_all(&Shell { workdir: dir.path(), built: Cell::new(0), run_dir: RefCell::default() });
}
