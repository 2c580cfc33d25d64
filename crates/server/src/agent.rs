//! The process of one user that runs this user's jobs.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use het_agent::{BecomeError, Programs, become_user, serve};
use het_node::name_process;
use thiserror::Error;

/// As `ps` shows it.
const NAME: &std::ffi::CStr = c"het-agent";

/// Why an agent ended before its server did.
#[derive(Debug, Error)]
pub enum AgentFailure {
    #[error(transparent)]
    Become(#[from] BecomeError),
    #[error("standard input is no connection to a server")]
    Input(#[source] io::Error),
    #[error(transparent)]
    Agent(#[from] het_agent::AgentError),
}

/// Becomes this user and serves whoever is at the other end of standard input. To be called first,
/// while the process has one thread.
///
/// # Errors
/// When not all rights but the user's can be given up, or it cannot serve.
pub fn agent_main(user: &str) -> Result<(), AgentFailure> {
    become_user(user, None)?;
    het_node::forbid_core_dumps();
    name_process(NAME);
    het_node::raise_descriptor_limit();
    let server = io::stdin().as_fd().try_clone_to_owned().map_err(AgentFailure::Input)?;
    let programs = Programs {
        visible_env: het_devices::visible_devices,
        container_access: het_devices::container_access,
    };
    Ok(serve(UnixStream::from(server), programs)?)
}
