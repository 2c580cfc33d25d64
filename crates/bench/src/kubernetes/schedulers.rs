//! The two that are compared, each in a process of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::unistd::{SysconfVar, sysconf};

use crate::server::Server;
use crate::{BenchError, io_at};

/// The `schedulerName` of each.
pub(super) const OURS: &str = "heterosis-bench";
pub(super) const THEIRS: &str = "default-scheduler";

/// Whoever gives pods their nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    Het,
    KubeScheduler,
}

impl Who {
    pub fn scheduler(self) -> &'static str {
        match self {
            Self::Het => OURS,
            Self::KubeScheduler => THEIRS,
        }
    }
}

/// How the two are started.
pub(super) struct Programs<'a> {
    pub het: &'a Path,
    pub kube_scheduler: &'a Path,
    pub kubeconfig: &'a Path,
}

impl Programs<'_> {
    pub fn het(&self, home: &Path) -> Result<Server, BenchError> {
        let kubeconfig = self.kubeconfig.to_string_lossy().into_owned();
        let words = ["--engine", "kubernetes", "--scheduler-name", OURS, "--kubeconfig"];
        let mut arguments: Vec<String> = words.map(str::to_owned).into();
        arguments.push(kubeconfig);
        Server::start(home, self.het, &arguments)
    }

    pub fn start(&self, who: Who, home: &Path) -> Result<Running, BenchError> {
        match who {
            Who::Het => Ok(Running::Het(self.het(home)?)),
            Who::KubeScheduler => {
                let mut scheduler = Command::new(self.kube_scheduler);
                scheduler.arg("--kubeconfig").arg(self.kubeconfig);
                // Its default is fifty requests a second.
                let flags = ["--kube-api-qps=5000", "--kube-api-burst=5000"];
                scheduler.args(flags).args(["--leader-elect=false", "--secure-port=0"]);
                scheduler.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                let child = scheduler.spawn().map_err(io_at(self.kube_scheduler))?;
                Ok(Running::KubeScheduler(Ended(child)))
            }
        }
    }
}

pub(super) enum Running {
    Het(Server),
    KubeScheduler(Ended),
}

/// A process that is killed when this goes.
pub(super) struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Processor time so far, in seconds: of a server and the one that keeps it, together.
    pub fn cpu_s(&self) -> Result<f64, BenchError> {
        match self {
            Self::Het(server) => Ok(cpu_s(server.answering(0)?)? + cpu_s(server.keeper())?),
            Self::KubeScheduler(Ended(child)) => cpu_s(child.id() as i32),
        }
    }
}

/// Fields 14 and 15 of `/proc/PID/stat`, proc(5).
fn cpu_s(pid: i32) -> Result<f64, BenchError> {
    let path = PathBuf::from(format!("/proc/{pid}/stat"));
    let text = fs::read_to_string(&path).map_err(io_at(&path))?;
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    let tick = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    Ok(ticks / tick as f64)
}
