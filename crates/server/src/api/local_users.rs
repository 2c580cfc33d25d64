//! Users of the machine at the server's own socket, where it serves several.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use het_agent::Members;
use het_service::{Caller, Code, Role};
use het_wire::job::tenant_problem;
use nix::unistd::{Gid, Uid, User, geteuid};

use super::refuse::ApiError;

/// How long it is known who is in the group. Asking may reach across a network.
const KNOWN_FOR: Duration = Duration::from_secs(10);

/// Who the users are that the kernel names.
#[derive(Debug)]
pub(crate) struct LocalUsers {
    members: Members,
    known: Mutex<HashMap<u32, (Instant, Option<Caller>)>>,
}

impl LocalUsers {
    pub(super) fn new(members: Members) -> Self {
        Self { members, known: Mutex::default() }
    }

    /// Whose members may connect.
    pub(super) fn group(&self) -> Gid {
        self.members.group()
    }

    /// Root and the server's own user administer; members have a tenant of their own name, and
    /// their jobs run as they.
    ///
    /// # Errors
    /// For anybody else.
    pub(super) fn caller(&self, uid: Option<u32>) -> Result<Caller, ApiError> {
        let stranger = || {
            ApiError::new(Code::NotAllowed, "you are not among the users of this server")
                .hint("ask an administrator to add you to its group")
        };
        let uid = uid.ok_or_else(stranger)?;
        if uid == 0 || uid == geteuid().as_raw() {
            return Ok(Caller::OWNER);
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (since, _)| since.elapsed() < KNOWN_FOR);
        let (_, caller) =
            known.entry(uid).or_insert_with(|| (Instant::now(), self.member(Uid::from_raw(uid))));
        caller.clone().ok_or_else(stranger)
    }

    fn member(&self, uid: Uid) -> Option<Caller> {
        let user = User::from_uid(uid).ok().flatten()?;
        let user = self.members.user(&user.name).ok().filter(|user| user.uid == uid)?;
        let tenant = Some(tenant_of(&user));
        Some(Caller { role: Role::User, tenant, user: Some(user.name) })
    }
}

/// The tenant of a user who names none: of the same name, where a tenant may have it.
pub fn tenant_of(user: &User) -> String {
    match tenant_problem(&user.name) {
        None => user.name.clone(),
        Some(_) => format!("user-{}", user.uid),
    }
}
