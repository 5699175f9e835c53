//! Checks the tokens of the metrics and the page. Wrong tokens are counted and logged, and an address that sends too
//! many is blocked for a while, even with the right token. So even a short token cannot be guessed.
//!
//! Knows no sockets. [`crate::http`] calls it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use subtle::ConstantTimeEq;
use wirespeed_driver::accept::Origin;
use wirespeed_driver::protocol::handshake::Request;

use super::origin_of;
use crate::logs::{Cause, Logs};
use crate::util::locks::lock;

/// The maximum number of wrong tokens per address (IPv6: per /64) within [`WINDOW`]. Further requests get 429.
const MAX_WRONG_TOKENS: u32 = 10;

/// The duration of the count, from the first wrong token of an address on.
const WINDOW: Duration = Duration::from_secs(60);

/// The maximum number of addresses in memory.
const MAX_ADDRESSES: usize = 4096;

/// The resource that a token protects.
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

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenRefusal {
    Missing,
    Wrong,
    /// The address has sent too many wrong tokens.
    Blocked,
}

struct WrongTokens {
    count: u32,
    /// When the count is forgotten.
    until: Instant,
}

/// The counters of refused requests, and the wrong tokens per address.
#[derive(Default)]
pub(crate) struct OperatorTokens {
    metrics: AtomicU64,
    page: AtomicU64,
    wrong: Mutex<HashMap<Origin, WrongTokens>>,
}

impl OperatorTokens {
    /// Returns the numbers of requests without a valid token, by area.
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
        lock(&self.wrong).get(origin).is_some_and(|wrong| wrong.count >= MAX_WRONG_TOKENS && now < wrong.until)
    }

    fn record_wrong(&self, origin: Origin, now: Instant) {
        let mut all = lock(&self.wrong);
        if all.len() >= MAX_ADDRESSES && !all.contains_key(&origin) {
            all.retain(|_, wrong| now < wrong.until);
            // The oldest entry makes room: to benefit, an attacker would need thousands of other addresses.
            let first = all.iter().min_by_key(|(_, wrong)| wrong.until).map(|(origin, _)| *origin);
            if let Some(first) = first.filter(|_| all.len() >= MAX_ADDRESSES) {
                all.remove(&first);
            }
        }
        let wrong = all.entry(origin).or_insert(WrongTokens { count: 0, until: now + WINDOW });
        if now >= wrong.until {
            *wrong = WrongTokens { count: 0, until: now + WINDOW };
        }
        wrong.count += 1;
    }

    /// Checks the token of a request. `remote`: the client, behind trusted proxies.
    ///
    /// # Errors
    /// The token is missing or wrong, or the address is blocked.
    pub(crate) fn check(
        &self,
        request: &Request,
        token: &str,
        area: Area,
        remote: Option<SocketAddr>,
        logs: &Logs,
    ) -> Result<(), TokenRefusal> {
        let (origin, now) = (origin_of(remote), Instant::now());
        let blocked = self.is_blocked(&origin, now);
        let (refusal, cause, problem) = match has_token(request, token) {
            Some(true) if !blocked => return Ok(()),
            // A missing token is no guess: a scraper lacks it, or the page's URL was opened without its form.
            None => (TokenRefusal::Missing, Cause::OperatorTokenMissing, "has no token"),
            Some(_) if blocked => {
                let problem = "is refused: its address has sent too many wrong tokens";
                (TokenRefusal::Blocked, Cause::OperatorToken, problem)
            }
            Some(_) => (TokenRefusal::Wrong, Cause::OperatorToken, "has a wrong token"),
        };
        self.counter(area).fetch_add(1, Ordering::Relaxed);
        logs.note(cause, now, || {
            let from = remote.map_or_else(|| "a Unix socket".to_owned(), |remote| remote.to_string());
            format!("a request for the {} from {from} {problem}", area.name())
        });
        if refusal == TokenRefusal::Wrong {
            self.record_wrong(origin, now);
        }
        Err(refusal)
    }
}

/// Compares the token of a request (RFC 6750 2.1) in constant time; only its length can leak. `None` without a token.
fn has_token(request: &Request, token: &str) -> Option<bool> {
    let value = request.headers.single("Authorization").ok().flatten()?;
    let (scheme, given) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| bool::from(given.ct_eq(token.as_bytes())))
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
        for _ in 0..MAX_WRONG_TOKENS {
            assert!(!tokens.is_blocked(&of(1), start));
            tokens.record_wrong(of(1), start);
        }
        assert!(tokens.is_blocked(&of(1), start) && !tokens.is_blocked(&of(2), start));
        assert!(!tokens.is_blocked(&of(1), start + WINDOW));
        tokens.record_wrong(of(1), start + WINDOW);
        assert!(!tokens.is_blocked(&of(1), start + WINDOW));
    }

    #[test]
    fn the_number_of_remembered_addresses_is_bounded() {
        let (tokens, start) = (OperatorTokens::default(), Instant::now());
        for number in 0..MAX_ADDRESSES as u32 + 100 {
            tokens.record_wrong(of(number), start);
        }
        assert_eq!(lock(&tokens.wrong).len(), MAX_ADDRESSES);
        tokens.record_wrong(of(u32::MAX), start + WINDOW);
        assert_eq!(lock(&tokens.wrong).len(), 1);
    }

    #[test]
    fn a_full_table_evicts_the_oldest_address_only() {
        let (tokens, start) = (OperatorTokens::default(), Instant::now());
        let at = |number: u32| start + Duration::from_millis(u64::from(number));
        let fill = |number| (0..MAX_WRONG_TOKENS).for_each(|_| tokens.record_wrong(of(number), at(number)));
        (0..MAX_ADDRESSES as u32).for_each(fill);
        let now = at(MAX_ADDRESSES as u32);
        // The new address is counted, so that it cannot guess without a limit.
        fill(MAX_ADDRESSES as u32);
        assert!(tokens.is_blocked(&of(MAX_ADDRESSES as u32), now));
        assert!(!tokens.is_blocked(&of(0), now));
        assert!((1..MAX_ADDRESSES as u32).all(|number| tokens.is_blocked(&of(number), now)));
        assert_eq!(lock(&tokens.wrong).len(), MAX_ADDRESSES);
    }
}
