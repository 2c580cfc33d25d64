//! Who has which token: a file of hashes, which is read again whenever it changes.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use het_files::replace_private;
use het_service::{Caller, Role};
use het_wire::job::tenant_problem;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// Digits of a hash by which people name a token.
const ID_DIGITS: usize = 8;

/// Why the tokens cannot be used.
#[derive(Debug, Error)]
pub enum TokenError {
    #[error("`{}` cannot be used", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("`{}` is not a list of tokens", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{0}, hint: name a tenant as job files do, such as `lab` or `lab/nlp`")]
    Tenant(String),
    #[error("the system gave no random bytes")]
    Random(#[source] io::Error),
    #[error("no token, or more than one, is called `{id}`, hint: `het server tokens` lists them")]
    Unknown { id: String },
}

/// One token, without the token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRow {
    pub role: Role,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The user of the machine as whom its jobs run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Of 256 random bits, which no dictionary holds: a plain hash is enough.
    sha256: String,
}

impl TokenRow {
    /// What people call it.
    pub fn id(&self) -> &str {
        &self.sha256[..self.sha256.len().min(ID_DIGITS)]
    }
}

/// The list in a file.
#[derive(Debug)]
pub struct Tokens {
    path: PathBuf,
    read: Mutex<Read>,
}

/// What was read last, and how the file looked then.
#[derive(Debug, Default)]
struct Read {
    stamp: Option<(SystemTime, u64)>,
    rows: Vec<TokenRow>,
}

impl Tokens {
    /// The list in a file; nobody has a token where the file is not there.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn open(path: &Path) -> Result<Self, TokenError> {
        rows(path)?;
        Ok(Self { path: path.to_owned(), read: Mutex::default() })
    }

    /// Makes a token and adds it to the list.
    ///
    /// # Errors
    /// When no tenant can be named so, or the file cannot be read or written.
    pub fn add(&self, role: Role, tenant: Option<String>) -> Result<String, TokenError> {
        self.add_for(role, tenant, None)
    }

    /// The same, for jobs that run as a user of the machine.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn add_for(
        &self,
        role: Role,
        tenant: Option<String>,
        user: Option<String>,
    ) -> Result<String, TokenError> {
        if let Some(problem) = tenant.as_deref().and_then(tenant_problem) {
            return Err(TokenError::Tenant(problem));
        }
        let mut bytes = [0; 32];
        let mut random = File::open("/dev/urandom").map_err(TokenError::Random)?;
        io::Read::read_exact(&mut random, &mut bytes).map_err(TokenError::Random)?;
        let token = format!("het_{}", hex(&bytes));
        let row = TokenRow { role, tenant, user, sha256: hash(&token) };
        self.change(|rows| {
            rows.push(row);
            Ok(())
        })?;
        Ok(token)
    }

    /// Takes a token off the list: it opens nothing any more.
    ///
    /// # Errors
    /// When none, or more than one, has an id that begins so, or the file cannot be written.
    pub fn revoke(&self, id: &str) -> Result<(), TokenError> {
        self.change(|rows| {
            let before = rows.len();
            let named = |row: &TokenRow| !id.is_empty() && row.sha256.starts_with(id);
            let count = rows.iter().filter(|row| named(row)).count();
            rows.retain(|row| !named(row));
            match (count, before) {
                (1, _) => Ok(()),
                _ => Err(TokenError::Unknown { id: id.to_owned() }),
            }
        })
    }

    /// All of them.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn list(&self) -> Result<Vec<TokenRow>, TokenError> {
        rows(&self.path)
    }

    /// Whose a token is. A list that cannot be read lets nobody in.
    pub(super) fn caller(&self, token: &str) -> Option<Caller> {
        let hash = hash(token);
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = fs::metadata(&self.path).and_then(|m| Ok((m.modified()?, m.len()))).ok();
        if stamp.is_none() || read.stamp != stamp {
            *read = Read { stamp, rows: rows(&self.path).unwrap_or_default() };
        }
        let row = read.rows.iter().find(|row| row.sha256 == hash)?;
        Some(Caller { role: row.role, tenant: row.tenant.clone(), user: row.user.clone() })
    }

    /// One at a time: two that change it at once must not lose each other's.
    fn change(
        &self,
        change: impl FnOnce(&mut Vec<TokenRow>) -> Result<(), TokenError>,
    ) -> Result<(), TokenError> {
        let trouble = |source| TokenError::Io { path: self.path.clone(), source };
        let lock = self.path.with_extension("lock");
        let lock = OpenOptions::new().create(true).append(true).open(lock).map_err(trouble)?;
        lock.lock().map_err(trouble)?;
        let mut rows = rows(&self.path)?;
        change(&mut rows)?;
        let text = serde_json::to_string_pretty(&rows)
            .map_err(|source| TokenError::Json { path: self.path.clone(), source })?;
        replace_private(&self.path, text.as_bytes()).map_err(trouble)
    }
}

fn rows(path: &Path) -> Result<Vec<TokenRow>, TokenError> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(|source| TokenError::Io { path: path.to_owned(), source })?,
    };
    serde_json::from_str(&text).map_err(|source| TokenError::Json { path: path.to_owned(), source })
}

/// What people call a token.
pub(super) fn id_of(token: &str) -> String {
    let mut id = hash(token);
    id.truncate(ID_DIGITS);
    id
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

    #[test]
    fn a_token_is_kept_as_a_hash_only_and_opens_nothing_once_it_is_revoked() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = dir.path().join("tokens.json");
        let tokens = Tokens::open(&path).expect("none is a list too");
        let tenant = Some("lab".to_owned());
        let token = tokens.add(Role::User, tenant.clone()).expect("it can be written");
        let other = tokens.add(Role::Admin, None).expect("it can be written");
        let text = fs::read_to_string(&path).expect("it can be read");
        assert!(!text.contains(&token));
        assert_eq!(tokens.caller(&token), Some(Caller { role: Role::User, tenant, user: None }));
        assert_eq!(tokens.caller("het_00"), None);
        let id = tokens.list().expect("it can be read")[0].id().to_owned();
        tokens.revoke(&id).expect("it is there");
        assert_eq!(tokens.caller(&token), None);
        assert!(tokens.caller(&other).is_some());
        assert!(matches!(tokens.revoke(&id), Err(TokenError::Unknown { .. })));
        assert!(matches!(tokens.revoke(""), Err(TokenError::Unknown { .. })));
    }
}
