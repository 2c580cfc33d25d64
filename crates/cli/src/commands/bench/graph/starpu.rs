//! StarPU on the same graphs: a program of ours, compiled where its headers are.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

const SOURCE: &str = include_str!("../../../../../../benches/starpu_graph.c");

/// Its default, and the fastest for empty tasks.
pub const SCHEDULER: &str = "lws";

/// Versions that the program is known to compile with, as `pkg-config` names them.
const PACKAGES: [&str; 2] = ["starpu-1.3", "starpu-1.4"];

pub struct Starpu {
    dir: TempDir,
    program: PathBuf,
}

impl Starpu {
    /// Compiles the program; where that can't be done, why.
    pub fn built() -> Result<Self, String> {
        let dir =
            tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
        let flags = PACKAGES.iter().find_map(|package| {
            let told = Command::new("pkg-config").args(["--cflags", "--libs", package]).output();
            let told = told.ok().filter(|told| told.status.success())?;
            Some(String::from_utf8_lossy(&told.stdout).into_owned())
        });
        let flags = flags.ok_or("`pkg-config` does not know it")?;
        let (source, program) =
            (dir.path().join("starpu_graph.c"), dir.path().join("starpu_graph"));
        std::fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
        let mut compiler = Command::new("cc");
        compiler.arg("-O2").arg(&source).arg("-o").arg(&program).args(flags.split_whitespace());
        success(compiler.output(), "`cc`")?;
        Ok(Self { dir, program })
    }

    /// Microseconds a task.
    pub fn run(&self, shape: &str, tasks: u32, workers: u16) -> Result<f64, String> {
        let mut program = Command::new(&self.program);
        program.args([shape, &tasks.to_string(), "1"]);
        program.env("STARPU_SCHED", SCHEDULER).env("STARPU_NCPU", workers.to_string());
        // What it measures of the machine stays out of the user's home.
        program.env("STARPU_SILENT", "1").env("STARPU_HOME", self.dir.path());
        let told = success(program.output(), "the program on StarPU")?;
        let text = String::from_utf8_lossy(&told.stdout);
        let figure = text.lines().next().and_then(|line| line.trim().parse().ok());
        figure.ok_or_else(|| format!("the program on StarPU printed `{}`", text.trim()))
    }
}

fn success(output: io::Result<Output>, what: &str) -> Result<Output, String> {
    let output = output.map_err(|error| format!("{what} does not start: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(format!("{what} ended with {}: {last}", output.status))
}
