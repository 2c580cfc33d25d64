//! `cargo xtask api-test`: schemathesis sends a real server what its OpenAPI document allows and
//! what it does not, and holds every answer against that document.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result, bail};

use crate::installed;

/// Another version finds other things: it is changed on purpose.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";
/// Requests that are made up for each operation, beside those that cover its parameters.
const EXAMPLES: &str = "200";
/// Streams never end, and a server that was stopped answers nothing more.
const LEFT_OUT: [&str; 2] = ["/api/v1/watch", "/api/v1/server/stop"];

/// A server in a home of its own, which ends with this.
struct Server {
    het: PathBuf,
    home: PathBuf,
    process: Child,
}

pub fn run() -> Result<()> {
    let target = crate::target();
    let Some(schemathesis) = schemathesis(&target.join("api-test"))? else { return Ok(()) };
    let het = target.join("debug/het");
    if !het.exists() {
        bail!("`{}` is not built: `cargo build --package het-cli`", het.display());
    }
    let port = crate::free_port()?;
    let (server, token) = Server::start(het, port)?;
    // Something to ask for.
    let submitted = server.het(&["submit", "--name", "seed", "--begin", "now+1d", "--", "true"]);
    expect(submitted?, "a job cannot be submitted")?;
    let config = server.home.join("schemathesis.toml");
    fs::write(&config, "[parameters]\njob = \"seed\"\n")?;
    let mut command = Command::new(schemathesis);
    command.arg("--config-file").arg(&config).arg("run");
    command.arg(format!("http://127.0.0.1:{port}/openapi.json"));
    command.args(["--header", &format!("Authorization: Bearer {token}")]);
    command.args(["--phases", "coverage,fuzzing", "--max-examples", EXAMPLES, "--seed", "1"]);
    command.args(["--generation-database", "none", "--no-color", "--continue-on-failure"]);
    command.args(["--warnings", "off", "--request-timeout", "10"]);
    // What a job file or a priority may say is beyond the document: such texts are refused.
    command.args(["--exclude-checks", "positive_data_acceptance"]);
    for path in LEFT_OUT {
        command.args(["--exclude-path", path]);
    }
    let status = command.current_dir(&server.home).status().context("schemathesis starts")?;
    if !status.success() {
        bail!("answers do not follow the document of the interface");
    }
    Ok(())
}

/// Where it is installed; `None` where it cannot be, which is said.
fn schemathesis(dir: &Path) -> Result<Option<PathBuf>> {
    let environment = dir.join("environment");
    let mut create = Command::new("python3");
    create.args(["-m", "venv", "--clear"]).arg(&environment);
    let mut install = Command::new(environment.join("bin/pip"));
    install.args(["install", "--quiet", SCHEMATHESIS]);
    let is_there = installed::is_there("api-test", SCHEMATHESIS, dir, &mut [create, install])?;
    Ok(is_there.then(|| environment.join("bin/schemathesis")))
}

impl Server {
    /// On a port of this machine, and a token for it.
    fn start(het: PathBuf, port: u16) -> Result<(Self, String)> {
        let home = std::env::temp_dir().join(format!("het-api-test-{}", std::process::id()));
        fs::create_dir_all(&home)?;
        let token = expect(
            command(&het, &home, &["server", "token", "--role", "admin"]).output()?,
            "no token",
        )?;
        let address = format!("127.0.0.1:{port}");
        let mut process = command(&het, &home, &["server", "--listen", &address]);
        let mut process = process.stderr(Stdio::piped()).spawn()?;
        // Its first words are where it serves.
        let said = process.stderr.as_mut().context("it has an output")?.read(&mut [0; 64]);
        let server = Self { het, home, process };
        if said? == 0 {
            bail!("the server does not start");
        }
        Ok((server, token.trim().to_owned()))
    }

    fn het(&self, arguments: &[&str]) -> Result<Output> {
        Ok(command(&self.het, &self.home, arguments).output()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Where it cannot be stopped, what follows ends it.
        if !self.het(&["server", "stop"]).is_ok_and(|output| output.status.success()) {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.home);
    }
}

fn command(het: &Path, home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(het);
    command.args(arguments).current_dir(home);
    command.env("HET_HOME", home.join("home")).env("HET_LOCK_DIR", home.join("locks"));
    command.env_remove("HET_SERVER").env_remove("HET_TOKEN");
    command
}

fn expect(output: Output, what: &str) -> Result<String> {
    if !output.status.success() {
        bail!("{what}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
