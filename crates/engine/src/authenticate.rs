//! Who a client is, by the token in its request, and what it is told if it has no good one.

use std::time::{Duration, Instant, SystemTime};

use wirespeed_driver::protocol::handshake::{Header, HeaderList, Request, Response, ServerHandshake};

use crate::auth::acl::AclOptions;
use crate::auth::{Denied, Head, Identity, Jwt};
use crate::logs::{Cause, Logs};
use crate::principal::User;

struct Fields<'a>(&'a Request);

impl Head for Fields<'_> {
    fn headers(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.0.headers.iter().filter(move |field| field.name().eq_ignore_ascii_case(name)).map(Header::value)
    }

    fn target(&self) -> &str {
        &self.0.target
    }
}

/// Who it is, and what he may.
pub(crate) fn authenticate(auth: &Jwt, acl: &AclOptions, request: &Request, logs: &Logs) -> Result<User, Denied> {
    let now = unix_time();
    refresh(auth, now.as_secs(), logs);
    user(auth.verify(&Fields(request), now.as_secs())?, acl, now)
}

/// The same by a token alone.
pub(crate) fn identify_again(auth: &Jwt, acl: &AclOptions, token: &str, logs: &Logs) -> Result<User, Denied> {
    let now = unix_time();
    refresh(auth, now.as_secs(), logs);
    user(auth.verify_token(token, now.as_secs())?, acl, now)
}

/// Looks for new keys in the file, no more often than once a second.
fn refresh(auth: &Jwt, now: u64, logs: &Logs) {
    match auth.refresh(now) {
        Ok(false) => {}
        Ok(true) => logs.note(Cause::KeyFileRead, Instant::now(), || "the key file was read again".to_owned()),
        Err(error) => {
            logs.note(Cause::KeyFile, Instant::now(), || format!("{error}; the keys that were read before stay in use"))
        }
    }
}

fn unix_time() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// `now` has parts of a second, which tokens do not: a session ends when its token does, and not up to a second later.
fn user(identity: Identity, acl: &AclOptions, now: Duration) -> Result<User, Denied> {
    let rights = acl.rights(&identity)?;
    let left = identity.expires.map(|at| Duration::from_secs(at).saturating_sub(now));
    // A token that is good for longer than clocks go is good for ever.
    let expires = left.and_then(|left| Instant::now().checked_add(left));
    Ok(User { identity, rights, expires })
}

/// What whoever is not let in is told.
pub(crate) fn refusal(handshake: &ServerHandshake, denied: &Denied) -> Response {
    let mut headers = HeaderList::new();
    let fields = [("WWW-Authenticate", denied.challenge()), ("Content-Type", Some("text/plain; charset=utf-8"))];
    for (name, value) in fields {
        if let Some(value) = value {
            let _ = headers.push(name, value); // constants, and valid
        }
    }
    handshake
        .reject(denied.status(), &headers, denied.client_text().as_bytes())
        .unwrap_or_else(|error| handshake.reject_error(&error))
}
