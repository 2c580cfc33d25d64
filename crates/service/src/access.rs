//! Who asks, and who may ask for what: one table, everything that is not in it is refused.

use serde::{Deserialize, Serialize};

use crate::{CallError, Code};

/// What somebody is trusted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Looks at jobs of the own tenant.
    Viewer,
    /// Also submits and changes them.
    User,
    /// Looks at and changes everybody's jobs, and takes devices out of service.
    Operator,
    /// Everything.
    Admin,
}

impl Role {
    pub const ALL: [Self; 4] = [Self::Viewer, Self::User, Self::Operator, Self::Admin];
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    ReadJobs,
    SubmitJobs,
    ChangeJobs,
    /// Devices, version, metrics.
    ReadServer,
    /// Every event with all that jobs were submitted with.
    ReadLog,
    ReadQuotas,
    SetQuotas,
    ServeDevices,
    StopServer,
}

impl Verb {
    pub const ALL: [Self; 9] = [
        Self::ReadJobs,
        Self::SubmitJobs,
        Self::ChangeJobs,
        Self::ReadServer,
        Self::ReadLog,
        Self::ReadQuotas,
        Self::SetQuotas,
        Self::ServeDevices,
        Self::StopServer,
    ];

    fn word(self) -> &'static str {
        match self {
            Self::ReadJobs => "look at these jobs",
            Self::SubmitJobs => "submit jobs here",
            Self::ChangeJobs => "change these jobs",
            Self::ReadServer => "look at the server",
            Self::ReadLog => "read the log",
            Self::ReadQuotas => "look at quotas",
            Self::SetQuotas => "set quotas",
            Self::ServeDevices => "take devices out of service or back",
            Self::StopServer => "stop the server",
        }
    }
}

/// Whose thing it is that a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Of the caller's tenant or one below it.
    Own,
    Others,
}

/// Role → what it may do with its own, and with what is others'.
const TABLE: &[(Role, &[Verb], &[Verb])] = &[
    (Role::Viewer, &[Verb::ReadJobs, Verb::ReadServer, Verb::ReadQuotas], &[Verb::ReadServer]),
    (
        Role::User,
        &[Verb::ReadJobs, Verb::SubmitJobs, Verb::ChangeJobs, Verb::ReadServer, Verb::ReadQuotas],
        &[Verb::ReadServer],
    ),
    (
        Role::Operator,
        &[
            Verb::ReadJobs,
            Verb::SubmitJobs,
            Verb::ChangeJobs,
            Verb::ReadServer,
            Verb::ReadQuotas,
            Verb::ServeDevices,
        ],
        &[Verb::ReadJobs, Verb::ChangeJobs, Verb::ReadServer, Verb::ReadQuotas, Verb::ServeDevices],
    ),
    (Role::Admin, &Verb::ALL, &Verb::ALL),
];

/// Whether a role may do something.
pub fn may(role: Role, verb: Verb, whose: Whose) -> bool {
    TABLE.iter().any(|(row, own, others)| {
        *row == role
            && match whose {
                Whose::Own => own.contains(&verb),
                Whose::Others => others.contains(&verb),
            }
    })
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub role: Role,
    /// Whose jobs are the caller's own; everybody's where there is none.
    pub tenant: Option<String>,
    /// The user of the machine as whom this caller's jobs run, where that is not the server.
    pub user: Option<String>,
}

impl Caller {
    /// Whoever can open the server's own socket.
    pub const OWNER: Self = Self { role: Role::Admin, tenant: None, user: None };

    pub fn whose(&self, tenant: &str) -> Whose {
        let Some(own) = &self.tenant else { return Whose::Own };
        let below = || tenant.strip_prefix(own.as_str()).is_some_and(|rest| rest.starts_with('/'));
        if tenant == own || below() { Whose::Own } else { Whose::Others }
    }

    pub fn may(&self, verb: Verb, tenant: &str) -> bool {
        may(self.role, verb, self.whose(tenant))
    }

    /// # Errors
    /// When the table does not have it.
    pub fn check(&self, verb: Verb, tenant: &str) -> Result<(), CallError> {
        if self.may(verb, tenant) { Ok(()) } else { Err(refusal(verb)) }
    }

    /// Whether it may be done with anything at all.
    ///
    /// # Errors
    /// When the table has it neither for its own nor for what is others'.
    pub fn check_ever(&self, verb: Verb) -> Result<(), CallError> {
        let ever = [Whose::Own, Whose::Others].iter().any(|&whose| may(self.role, verb, whose));
        if ever { Ok(()) } else { Err(refusal(verb)) }
    }

    /// The same for what belongs to nobody in particular.
    ///
    /// # Errors
    /// When the table does not have it.
    pub fn check_server(&self, verb: Verb) -> Result<(), CallError> {
        self.check(verb, "")
    }
}

fn refusal(verb: Verb) -> CallError {
    CallError::new(Code::NotAllowed, format!("you may not {}", verb.word()))
        .hint("ask an administrator for a token of another role or tenant")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(tenant: &str) -> Caller {
        Caller { role: Role::User, tenant: Some(tenant.to_owned()), user: None }
    }

    #[test]
    fn a_tenant_owns_what_is_below_it() {
        assert_eq!(caller("lab").whose("lab"), Whose::Own);
        assert_eq!(caller("lab").whose("lab/nlp"), Whose::Own);
        assert_eq!(caller("lab").whose("lab2"), Whose::Others);
        assert_eq!(caller("lab/nlp").whose("lab"), Whose::Others);
    }

    #[test]
    fn a_lower_role_never_may_more() {
        let rank = |role: Role| Role::ALL.iter().position(|other| *other == role);
        for (low, high) in Role::ALL.iter().zip(&Role::ALL[1..]) {
            assert!(rank(*low) < rank(*high));
            for verb in Verb::ALL {
                for whose in [Whose::Own, Whose::Others] {
                    let allowed = !may(*low, verb, whose) || may(*high, verb, whose);
                    assert!(allowed, "{low:?} may {verb:?}, {high:?} may not");
                }
            }
        }
    }

    #[test]
    fn others_things_are_for_operators() {
        let jobs = [Verb::ReadJobs, Verb::SubmitJobs, Verb::ChangeJobs];
        for verb in jobs {
            assert!(!may(Role::Viewer, verb, Whose::Others));
            assert!(!may(Role::User, verb, Whose::Others));
        }
    }
}
