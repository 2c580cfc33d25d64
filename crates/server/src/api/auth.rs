//! Who is asking.

use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;
use het_service::{Caller, Code};
use tokio::time::sleep;

use super::Api;
use super::peer::{Peer, token};
use super::refuse::ApiError;

use super::tokens::id_of;

pub use het_service::{Verb, Whose, may};

/// The listener through which a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listener {
    /// A socket that only its owner can open.
    Socket,
    /// The network: a token says who it is.
    Network,
}

/// The caller of a request.
#[derive(Debug)]
pub struct Auth(pub Caller);

impl FromRequestParts<Api> for Auth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        if let Some(known) = parts.extensions.get::<Caller>() {
            return Ok(Self(known.clone()));
        }
        if parts.extensions.get::<Listener>() == Some(&Listener::Socket) {
            return match (&api.0.local_users, parts.extensions.get::<Peer>()) {
                (None, _) => Ok(Self(Caller::OWNER)),
                (Some(users), Some(Peer::Local(uid))) => users.caller(*uid).map(Self),
                (Some(users), _) => users.caller(None).map(Self),
            };
        }
        let caller = token(&parts.headers).and_then(|token| api.0.tokens.caller(token));
        caller.map(Self).ok_or_else(|| {
            ApiError::new(Code::NoToken, "no valid token came with the request")
                .hint("send `Authorization: Bearer TOKEN`; `het server token` makes one")
        })
    }
}

/// By what requests are counted: the token, or on the socket the user.
pub(super) fn key_of(parts: &Parts) -> String {
    match (parts.extensions.get::<Listener>(), parts.extensions.get::<Peer>()) {
        (Some(Listener::Socket), Some(Peer::Local(Some(uid)))) => format!("user {uid}"),
        (Some(Listener::Socket), _) => "socket".to_owned(),
        _ => token(&parts.headers).map(id_of).unwrap_or_default(),
    }
}

/// How often it is looked at whether the token of an open stream is still good.
const TOKEN_LOOK: Duration = Duration::from_secs(1);

/// What an answer that goes on for long rests on: the token that it was asked for with, or nothing
/// where none was needed.
#[derive(Debug)]
pub struct Standing(Option<(String, Caller)>);

impl FromRequestParts<Api> for Standing {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        let Auth(caller) = Auth::from_request_parts(parts, api).await?;
        if parts.extensions.get::<Listener>() == Some(&Listener::Socket) {
            return Ok(Self(None));
        }
        Ok(Self(token(&parts.headers).map(|token| (token.to_owned(), caller))))
    }
}

impl Standing {
    /// Waits until the token is taken back, or stands for another caller.
    pub(super) async fn ended(self, api: Api) {
        let Some((token, caller)) = self.0 else { return std::future::pending().await };
        while api.0.tokens.caller(&token).as_ref() == Some(&caller) {
            sleep(TOKEN_LOOK).await;
        }
    }
}

/// Lets a request pass whose caller may do this with anything at all: whoever may not is refused
/// before any of its body is read. What exactly a request is about is for its handler to check.
pub async fn authorised(
    State((api, verb)): State<(Api, Verb)>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    let Auth(caller) = Auth::from_request_parts(&mut parts, &api).await?;
    caller.check_ever(verb)?;
    let _place = match parts.extensions.get::<Listener>() {
        // Whoever opens the socket can do the server worse than ask much.
        Some(Listener::Socket) if api.0.local_users.is_none() => None,
        _ => Some(api.0.limits.token(&key_of(&parts))?),
    };
    parts.extensions.insert(caller);
    Ok(next.run(Request::from_parts(parts, body)).await)
}
