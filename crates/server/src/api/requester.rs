//! Who sends a request: a user of this machine, or a token from an address.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use het_core::{Name, Requester};
use het_service::Handle;
use nix::unistd::{Uid, User};

use super::Api;
use super::auth::key_of;
use super::peer::{Peer, token};
use super::refuse::ApiError;
use super::tokens::id_of;

/// The service, for changes on behalf of whoever sent the request: the log says so.
#[derive(Debug)]
pub(super) struct Acting(pub(super) Handle);

/// By what requests are counted.
#[derive(Debug)]
pub(super) struct CountedBy(pub(super) String);

impl FromRequestParts<Api> for CountedBy {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, ApiError> {
        Ok(Self(key_of(parts)))
    }
}

impl FromRequestParts<Api> for Acting {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        let peer = parts.extensions.get::<Peer>().copied();
        let requester = Requester {
            token: match peer {
                Some(Peer::Local(_)) => None,
                _ => token(&parts.headers).map(|token| Name::from(id_of(token))),
            },
            user: match peer {
                Some(Peer::Local(Some(uid))) => Some(user(uid)),
                _ => None,
            },
            address: peer.and_then(Peer::ip).map(|ip| Name::from(ip.to_canonical().to_string())),
        };
        Ok(Self(match requester == Requester::default() {
            true => api.0.service.clone(),
            false => api.0.service.on_behalf_of(requester),
        }))
    }
}

/// A user's name, or the number where it has none.
fn user(uid: u32) -> Name {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| Name::from(uid.to_string()), |user| Name::from(user.name))
}
