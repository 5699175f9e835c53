//! Authenticates a client by the token in its request, and answers a client without a valid token.

use std::time::{Duration, Instant, SystemTime};

use wirespeed_driver::protocol::handshake::{Header, HeaderList, Request, Response, ServerHandshake};

use crate::auth::acl::AclOptions;
use crate::auth::principal::User;
use crate::auth::{Denied, Head, Identity, Jwt};
use crate::logs::{Cause, Logs};

struct RequestFields<'a>(&'a Request);

impl Head for RequestFields<'_> {
    fn headers(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.0.headers.iter().filter(move |field| field.name().eq_ignore_ascii_case(name)).map(Header::value)
    }

    fn target(&self) -> &str {
        &self.0.target
    }
}

/// Verifies the token of a request and returns the user with its rights.
pub(crate) fn authenticate(auth: &Jwt, acl: &AclOptions, request: &Request, logs: &Logs) -> Result<User, Denied> {
    let now = unix_time();
    refresh(auth, now.as_secs(), logs);
    user(auth.verify(&RequestFields(request), now.as_secs())?, acl, now)
}

/// Verifies a new token of an open session.
pub(crate) fn authenticate_token(auth: &Jwt, acl: &AclOptions, token: &str, logs: &Logs) -> Result<User, Denied> {
    let now = unix_time();
    refresh(auth, now.as_secs(), logs);
    user(auth.verify_token(token, now.as_secs())?, acl, now)
}

/// Reads the key file if it has changed; it is checked at most once per second.
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

/// `now` has a fraction of a second, which tokens do not have: so a session ends with its token, not up to 1 s later.
fn user(identity: Identity, acl: &AclOptions, now: Duration) -> Result<User, Denied> {
    let rights = acl.rights(&identity)?;
    let left = identity.expires.map(|at| Duration::from_secs(at).saturating_sub(now));
    // An expiry that the clock cannot represent counts as none.
    let expires = left.and_then(|left| Instant::now().checked_add(left));
    Ok(User { identity, rights, expires })
}

/// Returns the HTTP response for a client that is denied access.
pub(crate) fn denial(handshake: &ServerHandshake, denied: &Denied) -> Response {
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
