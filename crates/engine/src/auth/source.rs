//! Finds the token in the head of a request.

use std::borrow::Cow;

use percent_encoding::percent_decode;

use super::Head;
use super::options::Source;
use crate::reasons::Denied;

/// Returns the first token that the sources contain, not verified. An empty token counts as missing.
pub(super) fn find<'h, 's>(head: &'h impl Head, sources: &'s [Source]) -> Result<(Cow<'h, [u8]>, &'s Source), Denied> {
    for source in sources {
        let found = match source {
            Source::Cookie(name) => cookie(head, name).map(Cow::Borrowed),
            Source::Bearer => bearer(head)?.map(Cow::Borrowed),
            Source::Query(name) => query(head.target(), name),
            Source::Subprotocol(prefix) => subprotocol(head, prefix).map(Cow::Borrowed),
        };
        if let Some(token) = found.filter(|token| !token.is_empty()) {
            return Ok((token, source));
        }
    }
    Err(Denied::Missing)
}

/// Returns the value of the first cookie with this name, without surrounding quotes (RFC 6265 section 4.1.1). Names are
/// case-sensitive.
fn cookie<'h>(head: &'h impl Head, name: &str) -> Option<&'h [u8]> {
    head.headers("cookie").flat_map(|value| value.split(|&byte| byte == b';')).find_map(|pair| {
        let mut parts = pair.splitn(2, |&byte| byte == b'=');
        let (known, value) = (parts.next()?, parts.next()?);
        let value = (trim(known) == name.as_bytes()).then(|| trim(value))?;
        Some(value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value))
    })
}

/// Returns the credentials of the scheme `Bearer`, in any case (RFC 9110 section 11.1); `None` for other schemes.
fn bearer(head: &impl Head) -> Result<Option<&[u8]>, Denied> {
    let mut values = head.headers("authorization");
    let Some(value) = values.next() else { return Ok(None) };
    // Only one such field is allowed: with two, a proxy in front might check the other one.
    if values.next().is_some() {
        return Err(Denied::Malformed);
    }
    let value = trim(value);
    let end = value.iter().position(|&byte| byte == b' ').unwrap_or(value.len());
    let (scheme, rest) = value.split_at(end);
    Ok(scheme.eq_ignore_ascii_case(b"bearer").then(|| trim(rest)))
}

/// Returns the first query parameter with this name. A `+` is kept: tokens contain neither spaces nor `+`.
fn query<'h>(target: &'h str, name: &str) -> Option<Cow<'h, [u8]>> {
    let target = target.split_once('#').map_or(target, |(target, _)| target);
    let (_, query) = target.split_once('?')?;
    query.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        percent_decode(key.as_bytes()).eq(name.bytes()).then(|| percent_decode(value.as_bytes()).into())
    })
}

fn subprotocol<'h>(head: &'h impl Head, prefix: &str) -> Option<&'h [u8]> {
    head.headers("sec-websocket-protocol")
        .flat_map(|value| value.split(|&byte| byte == b','))
        .find_map(|entry| trim(entry).strip_prefix(prefix.as_bytes()))
}

/// Removes optional whitespace at both ends (RFC 9110 section 5.6.3).
fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}
