//! Tokens for callers across the network.

use anstream::{eprintln, println};
use het_server::api::{Role, TokenError, TokenRow, Tokens, tenant_of};
use nix::unistd::User;
use serde_json::json;

use super::RoleWord;
use crate::fail::{Fail, code};
use crate::local::{open_server_home, server_home};
use crate::output::{self, Column, Form, Shown};

pub(super) fn token(
    role: RoleWord,
    tenant: Option<String>,
    user: Option<String>,
) -> Result<u8, Fail> {
    let role = match role {
        RoleWord::Viewer => Role::Viewer,
        RoleWord::User => Role::User,
        RoleWord::Operator => Role::Operator,
        RoleWord::Admin => Role::Admin,
    };
    let tenant = match &user {
        // Not everybody's jobs: this caller is one of the users.
        Some(name) => tenant.or(Some(tenant_of(&known_user(name)?))),
        None => tenant,
    };
    let token = own_tokens()?.add_for(role, tenant, user).map_err(Fail::from_error)?;
    println!("{token}");
    let home = server_home()?;
    eprintln!("it is shown once, and opens the server of `{}` from now on", home.root().display());
    Ok(code::OK)
}

/// A user as whom jobs could run. Whether it is a member is looked up whenever one starts.
fn known_user(name: &str) -> Result<User, Fail> {
    let user = User::from_name(name).map_err(|errno| Fail::new(code::FAILED, errno.to_string()))?;
    let why = match user {
        _ if !server_home()?.is_shared() => "this server runs jobs as its own user only".to_owned(),
        None => format!("there is no user `{name}`"),
        Some(user) if user.uid.is_root() => "jobs never run as root".to_owned(),
        Some(user) => return Ok(user),
    };
    Err(Fail::new(code::USAGE, why))
}

const TOKEN_COLUMNS: &[Column] = &[
    Column("ID", "id", Shown::Always),
    Column("ROLE", "role", Shown::Always),
    Column("TENANT", "tenant", Shown::Always),
    Column("USER", "user", Shown::Wide),
];

pub(super) fn tokens(form: Form) -> Result<u8, Fail> {
    let rows = own_tokens()?.list().map_err(Fail::from_error)?;
    let item = |row: &TokenRow| {
        let TokenRow { role, tenant, user, .. } = row;
        json!({ "id": row.id(), "role": role, "tenant": tenant, "user": user })
    };
    output::list("TokenList", &rows.iter().map(item).collect::<Vec<_>>(), TOKEN_COLUMNS, form);
    Ok(code::OK)
}

pub(super) fn revoke(id: &str) -> Result<u8, Fail> {
    match own_tokens()?.revoke(id) {
        Err(error @ TokenError::Unknown { .. }) => {
            Err(Fail::new(code::NOT_FOUND, error.to_string()))
        }
        revoked => revoked.map(|()| code::OK).map_err(Fail::from_error),
    }
}

fn own_tokens() -> Result<Tokens, Fail> {
    let home = open_server_home()?;
    Tokens::open(&home.tokens()).map_err(Fail::from_error)
}
