//! The tokens of the metrics and the page: wrong ones are counted and logged, and an address that sends too many is
//! refused for a while, even with the right one. So a token cannot be guessed, however short it is.
//!
//! Knows no socket; called by [`crate::http`] and [`crate::page`].

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use subtle::ConstantTimeEq;
use wirespeed_driver::opening::handshake_limiter::Origin;
use wirespeed_driver::protocol::handshake::Request;

use crate::admission;
use crate::http::Answer;
use crate::locks::lock;
use crate::logs::Cause;
use crate::worker::EngineShared;

/// Wrong tokens of one address within [`WINDOW`]; of IPv6, of 64 bits of it. More: 429.
const MOST: u32 = 10;

/// From the first wrong token of an address on.
const WINDOW: Duration = Duration::from_secs(60);

/// [`WINDOW`] as the value of `Retry-After`.
const RETRY_AFTER: &str = "60";

/// Addresses that are remembered at most. While there are more, each of so many sends few.
const ADDRESSES: usize = 4096;

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Area {
    Metrics,
    Page,
}

impl Area {
    const fn name(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Page => "page",
        }
    }
}

struct Wrong {
    count: u32,
    /// When they are forgotten.
    until: Instant,
}

/// Counts and remembers wrong tokens.
#[derive(Default)]
pub(crate) struct OperatorTokens {
    metrics: AtomicU64,
    page: AtomicU64,
    wrong: Mutex<HashMap<Origin, Wrong>>,
}

impl OperatorTokens {
    /// Requests without a good token, by what they were for.
    pub(crate) fn refused(&self) -> [(&'static str, u64); 2] {
        let count = |area: Area| (area.name(), self.counter(area).load(Ordering::Relaxed));
        [count(Area::Metrics), count(Area::Page)]
    }

    fn counter(&self, area: Area) -> &AtomicU64 {
        match area {
            Area::Metrics => &self.metrics,
            Area::Page => &self.page,
        }
    }

    fn is_blocked(&self, origin: &Origin, now: Instant) -> bool {
        lock(&self.wrong).get(origin).is_some_and(|wrong| wrong.count >= MOST && now < wrong.until)
    }

    fn note_wrong(&self, origin: Origin, now: Instant) {
        let mut all = lock(&self.wrong);
        if all.len() >= ADDRESSES && !all.contains_key(&origin) {
            all.retain(|_, wrong| now < wrong.until);
            // The address that was first noted makes room: to guess on, it would need thousands of others.
            let first = all.iter().min_by_key(|(_, wrong)| wrong.until).map(|(origin, _)| *origin);
            if let Some(first) = first.filter(|_| all.len() >= ADDRESSES) {
                all.remove(&first);
            }
        }
        let wrong = all.entry(origin).or_insert(Wrong { count: 0, until: now + WINDOW });
        if now >= wrong.until {
            *wrong = Wrong { count: 0, until: now + WINDOW };
        }
        wrong.count += 1;
    }
}

/// Whether a request has the token (RFC 6750 2.1). How long it takes tells nothing but its length.
fn is_right(request: &Request, token: &str) -> Option<bool> {
    let value = request.headers.single("Authorization").ok().flatten()?;
    let (scheme, given) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| bool::from(given.ct_eq(token.as_bytes())))
}

/// Whether a request has the token.
///
/// # Errors
/// It has not, or its address has sent too many wrong ones: the answer.
pub(crate) fn check(
    request: &Request,
    token: &str,
    area: Area,
    remote: Option<SocketAddr>,
    shared: &EngineShared,
) -> Result<(), Answer> {
    let proxies = &shared.config.proxies;
    let remote = if proxies.forwards(remote) { proxies.client(remote, &request.headers) } else { remote };
    let (tokens, origin, now) = (&shared.operator_tokens, admission::origin(remote), Instant::now());
    let blocked = tokens.is_blocked(&origin, now);
    let given = is_right(request, token);
    if given == Some(true) && !blocked {
        return Ok(());
    }
    tokens.counter(area).fetch_add(1, Ordering::Relaxed);
    let (cause, what) = match given {
        // Without a token nothing is guessed: a scraper was set up without one, or the page was not opened by its form.
        None => (Cause::OperatorTokenMissing, "has no token"),
        Some(_) if blocked => (Cause::OperatorToken, "is refused: its address has sent too many wrong tokens"),
        Some(_) => (Cause::OperatorToken, "has a wrong token"),
    };
    shared.logs.note(cause, now, || {
        let from = remote.map_or_else(|| "a Unix socket".to_owned(), |remote| remote.to_string());
        format!("a request for the {} from {from} {what}", area.name())
    });
    if given.is_none() {
        return Err(Answer::text(401, "A token is needed.\n").with("WWW-Authenticate", "Bearer"));
    }
    if blocked {
        let text = "There were too many wrong tokens from this address.\n";
        return Err(Answer::text(429, text).with("Retry-After", RETRY_AFTER));
    }
    tokens.note_wrong(origin, now);
    // RFC 6750 3.1: the access token is invalid.
    let challenge = "Bearer error=\"invalid_token\"";
    Err(Answer::text(401, "The token is wrong.\n").with("WWW-Authenticate", challenge))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(number: u32) -> Origin {
        Origin::V4(number.to_be_bytes())
    }

    #[test]
    fn an_address_with_too_many_wrong_tokens_is_refused_for_a_minute() {
        let (tokens, start) = (OperatorTokens::default(), Instant::now());
        for _ in 0..MOST {
            assert!(!tokens.is_blocked(&of(1), start));
            tokens.note_wrong(of(1), start);
        }
        assert!(tokens.is_blocked(&of(1), start) && !tokens.is_blocked(&of(2), start));
        assert!(!tokens.is_blocked(&of(1), start + WINDOW));
        tokens.note_wrong(of(1), start + WINDOW);
        assert!(!tokens.is_blocked(&of(1), start + WINDOW));
    }

    #[test]
    fn the_number_of_remembered_addresses_is_bounded() {
        let (tokens, start) = (OperatorTokens::default(), Instant::now());
        for number in 0..ADDRESSES as u32 + 100 {
            tokens.note_wrong(of(number), start);
        }
        assert_eq!(lock(&tokens.wrong).len(), ADDRESSES);
        tokens.note_wrong(of(u32::MAX), start + WINDOW);
        assert_eq!(lock(&tokens.wrong).len(), 1);
    }

    #[test]
    fn a_full_table_evicts_the_oldest_address_only() {
        let (tokens, start) = (OperatorTokens::default(), Instant::now());
        let at = |number: u32| start + Duration::from_millis(u64::from(number));
        let fill = |number| (0..MOST).for_each(|_| tokens.note_wrong(of(number), at(number)));
        (0..ADDRESSES as u32).for_each(fill);
        let now = at(ADDRESSES as u32);
        // A new address is counted, so that it cannot guess without a limit.
        fill(ADDRESSES as u32);
        assert!(tokens.is_blocked(&of(ADDRESSES as u32), now));
        assert!(!tokens.is_blocked(&of(0), now));
        assert!((1..ADDRESSES as u32).all(|number| tokens.is_blocked(&of(number), now)));
        assert_eq!(lock(&tokens.wrong).len(), ADDRESSES);
    }
}
