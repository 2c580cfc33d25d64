//! Who asks, and who may ask for what: one table, everything that is not in it is refused.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::Api;
use super::refuse::{ApiError, Code};

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
}

impl Caller {
    /// Whoever can open the server's own socket.
    pub const OWNER: Self = Self { role: Role::Admin, tenant: None };

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
    pub fn check(&self, verb: Verb, tenant: &str) -> Result<(), ApiError> {
        if self.may(verb, tenant) {
            return Ok(());
        }
        Err(ApiError::new(Code::NotAllowed, format!("this token may not {}", verb.word()))
            .hint("ask an administrator for one of another role or tenant"))
    }

    /// The same for what belongs to nobody in particular.
    ///
    /// # Errors
    /// When the table does not have it.
    pub fn check_server(&self, verb: Verb) -> Result<(), ApiError> {
        self.check(verb, "")
    }
}

/// Through which door a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// A socket that only its owner can open.
    Own,
    /// The network: a token says who it is.
    Network,
}

impl FromRequestParts<Api> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        if parts.extensions.get::<Door>() == Some(&Door::Own) {
            return Ok(Self::OWNER);
        }
        let value = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = value.and_then(|value| value.strip_prefix("Bearer "));
        let caller = token.and_then(|token| api.0.tokens.caller(token));
        caller.ok_or_else(|| {
            ApiError::new(Code::NoToken, "no valid token came with the request")
                .hint("send `Authorization: Bearer TOKEN`; `het server token` makes one")
        })
    }
}

/// Why the tokens cannot be used.
#[derive(Debug, Error)]
pub enum TokenError {
    #[error("`{}` cannot be used", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("`{}` is not a list of tokens", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("the system gave no random bytes")]
    Random(#[source] io::Error),
}

/// One token, without the token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct TokenRow {
    role: Role,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    /// Of 256 random bits, which no dictionary holds: a plain hash is enough.
    sha256: String,
}

/// Who has which token; only hashes are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens(Vec<TokenRow>);

impl Tokens {
    /// Reads a list of tokens; none where the file is not there.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            text => text.map_err(|source| TokenError::Io { path: path.to_owned(), source })?,
        };
        let rows = serde_json::from_str(&text);
        rows.map(Self).map_err(|source| TokenError::Json { path: path.to_owned(), source })
    }

    /// Makes a token and adds it to the list in a file.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn add(path: &Path, role: Role, tenant: Option<String>) -> Result<String, TokenError> {
        let mut tokens = Self::read(path)?;
        let mut bytes = [0; 32];
        let mut random = fs::File::open("/dev/urandom").map_err(TokenError::Random)?;
        io::Read::read_exact(&mut random, &mut bytes).map_err(TokenError::Random)?;
        let token = format!("het_{}", hex(&bytes));
        tokens.0.push(TokenRow { role, tenant, sha256: hash(&token) });
        let text = serde_json::to_string_pretty(&tokens.0)
            .map_err(|source| TokenError::Json { path: path.to_owned(), source })?;
        let written = crate::home::write_private(path, text.as_bytes());
        written.map_err(|source| TokenError::Io { path: path.to_owned(), source })?;
        Ok(token)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn caller(&self, token: &str) -> Option<Caller> {
        let hash = hash(token);
        let row = self.0.iter().find(|row| row.sha256 == hash)?;
        Some(Caller { role: row.role, tenant: row.tenant.clone() })
    }
}

fn hash(token: &str) -> String {
    hex(&Sha256::digest(token.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(tenant: &str) -> Caller {
        Caller { role: Role::User, tenant: Some(tenant.to_owned()) }
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

    #[test]
    fn a_token_is_kept_as_a_hash_only() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = dir.path().join("tokens.json");
        let tenant = Some("lab".to_owned());
        let token = Tokens::add(&path, Role::User, tenant.clone()).expect("it can be written");
        let text = fs::read_to_string(&path).expect("it can be read");
        assert!(!text.contains(&token));
        let tokens = Tokens::read(&path).expect("it can be read");
        assert_eq!(tokens.caller(&token), Some(Caller { role: Role::User, tenant }));
        assert_eq!(tokens.caller("het_00"), None);
    }
}
