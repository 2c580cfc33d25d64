//! The suite that every engine passes, for agents that run beside the test: as its own user.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use het_agent::{Agents, Patience, Programs, SpawnAgents, SpawnError, Users, serve};
use het_core::{CheckpointSpec, Event, Launch, Millis, StageKey};
use het_engine::Script;
use het_engine::contract::{Subject, check_all, this_node};
use het_node::{
    Config, ControlGroups, DeviceAccess, Heartbeat, Node, NodeSettings, RunMode, wall_time,
};

const PROGRAMS: Programs =
    Programs { visible_env: |_, _| Vec::new(), container_access: |_, _, _| Ok(Vec::new()) };

/// Agents as threads of this process.
#[derive(Debug)]
struct Threads;

impl SpawnAgents for Threads {
    fn spawn(&self, _: &str) -> Result<UnixStream, SpawnError> {
        let (server, agent) = UnixStream::pair()?;
        thread::spawn(move || serve(agent, PROGRAMS));
        Ok(server)
    }

    fn set_access(&self, _: &str, _: &DeviceAccess) -> Result<(), SpawnError> {
        Ok(())
    }

    fn end_all(&self, _: &str) -> Result<(), SpawnError> {
        Ok(())
    }
}

struct OfUsers<'a> {
    workdir: &'a Path,
    built: Cell<u32>,
    /// Of the engine that was built last.
    dir: RefCell<PathBuf>,
}

impl Subject for OfUsers<'_> {
    type Engine = Agents;

    fn build(&self, scripts: &[(StageKey, Script)]) -> (Agents, Vec<Launch>) {
        self.built.set(self.built.get() + 1);
        let dir = self.workdir.join(self.built.get().to_string());
        std::fs::create_dir_all(dir.join("users/ada")).expect("it is writable");
        let launches = scripts.iter().map(|(_, script)| launch(&dir, script)).collect();
        *self.dir.borrow_mut() = dir;
        (agents(&self.dir.borrow()), launches)
    }

    fn crash(&self, engine: Agents) -> Agents {
        engine.detach();
        agents(&self.dir.borrow())
    }

    fn report(&self, engine: &mut Agents, event: Event) {
        engine.event_sender().send(event);
    }
}

fn agents(dir: &Path) -> Agents {
    let found = Arc::new(this_node());
    let config = Config {
        found: Arc::clone(&found),
        cores: BTreeMap::new(),
        visible_env: PROGRAMS.visible_env,
        container_access: PROGRAMS.container_access,
        device_nodes: BTreeMap::new(),
        run_dir: dir.join("run"),
        begins_at: wall_time(),
        control_groups: ControlGroups::Off,
        settings: NodeSettings::default(),
        mode: RunMode::Embedded,
        device_holds: None,
        heartbeat: Heartbeat::default(),
        quarantined: BTreeSet::new(),
    };
    let users = Users {
        spawner: Arc::new(Threads),
        found,
        dir: dir.join("users"),
        kept: dir.join("kept"),
        settings: NodeSettings::default(),
        patience: Patience::default(),
    };
    Agents::new(Node::new(config).expect("it fits"), Some(users))
}

fn launch(dir: &Path, script: &Script) -> Launch {
    let seconds = |span: &Millis| span.as_seconds();
    let text = match script {
        Script::Finish(after) => {
            format!("sleep {}; echo '{{\"done\":true}}' >> $HET_PROGRESS", seconds(after))
        }
        Script::UntilNotice => "trap 'exit 0' TERM; sleep 60 & wait".to_owned(),
        Script::Deaf => "trap '' TERM; sleep 60".to_owned(),
        Script::Fail(after, code) => {
            let after = seconds(after);
            format!("[ ${{RANK:-0}} = 0 ] && {{ sleep {after}; exit {code}; }}; exec sleep 60")
        }
    };
    Launch {
        job: "demo".into(),
        stage: "main".into(),
        cwd: dir.display().to_string(),
        workdir: dir.join("users/ada/work").display().to_string(),
        argv: ["/bin/sh", "-c", &text].map(str::to_owned).to_vec(),
        checkpoint: Some(CheckpointSpec {
            dir: dir.join("users/ada/ckpt").display().to_string(),
            every: None,
            notice: "SIGTERM".into(),
            grace: Millis(10_000),
        }),
        user: Some("ada".into()),
        ..Launch::default()
    }
}

#[test]
fn agents_keep_the_contract() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    check_all(&OfUsers { workdir: dir.path(), built: Cell::new(0), dir: RefCell::default() });
}
