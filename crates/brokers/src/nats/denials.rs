//! What a server of NATS says that it does not let us do.
//!
//! It says so beside everything else, in words, before it answers what we have sent behind it. Knows no connection; the
//! client's library calls [`Denials::hear`], the node's thread the rest.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use foldhash::fast::RandomState;

/// Subjects that are remembered until somebody looks. The library does not tell of so many at once: see [`super::EVENTS`].
const SUBJECTS: usize = 64 * 1024;

/// The server's error for a subscription above its limit.
pub(super) const TOO_MANY: &str = "Maximum Subscriptions Exceeded";

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Denials {
    heard: AtomicU64,
    publishing: AtomicU64,
    /// Subscriptions above the limit; the server does not name them.
    too_many: AtomicU64,
    /// Subscriptions, by their subjects: what the server says.
    subscribing: Mutex<HashMap<String, String, RandomState>>,
}

/// What is denied.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Denied {
    Publishing,
    TooMany,
    /// With its subject.
    Subscribing(String),
}

impl Denials {
    /// The library has said something, whatever it is.
    pub(super) fn count(&self) {
        self.heard.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes what the server says; what it denies, if it denies something.
    pub(super) fn hear(&self, said: &str) -> Option<Denied> {
        let denied = parse(said)?;
        match &denied {
            Denied::Publishing => {
                self.publishing.fetch_add(1, Ordering::Relaxed);
            }
            Denied::TooMany => {
                self.too_many.fetch_add(1, Ordering::Relaxed);
            }
            Denied::Subscribing(subject) => {
                let mut subscribing = self.subscribing.lock().unwrap_or_else(PoisonError::into_inner);
                if subscribing.len() < SUBJECTS {
                    subscribing.insert(subject.clone(), said.to_owned());
                }
            }
        }
        Some(denied)
    }

    /// How often the library has said something, ever.
    pub(super) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// How many messages the server did not take, ever; or fewer, if it has said so very often at once.
    pub(super) fn publishing(&self) -> u64 {
        self.publishing.load(Ordering::Relaxed)
    }

    /// How many subscriptions were above the limit so far. The library may drop some of these errors, but never all of them.
    pub(super) fn too_many(&self) -> u64 {
        self.too_many.load(Ordering::Relaxed)
    }

    /// The subjects of subscriptions that were denied since the last call, with what the server says.
    pub(super) fn take(&self) -> HashMap<String, String, RandomState> {
        std::mem::take(&mut *self.subscribing.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What it is, if it is a denial. The subject is quoted as Go does it.
fn parse(said: &str) -> Option<Denied> {
    let is = |known: &str| said.trim_matches('\'').eq_ignore_ascii_case(known);
    if is(TOO_MANY) || is("Maximum Account Subscriptions Exceeded") {
        return Some(Denied::TooMany);
    }
    // The server closes the connection after this error.
    if is("Maximum Payload Violation") {
        return Some(Denied::Publishing);
    }
    let (what, rest) = said.strip_prefix("Permissions Violation for ")?.split_once(' ')?;
    if what == "Publish" {
        return Some(Denied::Publishing);
    }
    let mut letters = rest.strip_prefix("to \"")?.chars();
    let mut subject = String::new();
    loop {
        match letters.next()? {
            '"' => break,
            '\\' => subject.push(letters.next()?),
            letter => subject.push(letter),
        }
    }
    (what == "Subscription").then_some(Denied::Subscribing(subject))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_denial() {
        let subscribing = |subject: &str| Some(Denied::Subscribing(subject.to_owned()));
        for (said, expected) in [
            ("Permissions Violation for Publish to \"a.b\"", Some(Denied::Publishing)),
            ("Permissions Violation for Publish with Reply of \"a.b\"", Some(Denied::Publishing)),
            ("Permissions Violation for Subscription to \"a.*\"", subscribing("a.*")),
            ("Permissions Violation for Subscription to \"a.>\" using queue \"q\"", subscribing("a.>")),
            ("Permissions Violation for Subscription to \"a\" (sid \"1\")", subscribing("a")),
            ("Permissions Violation for Subscription to \"a\\\\.\\\"b\\\"\"", subscribing("a\\.\"b\"")),
            ("Permissions Violation for Subscription to \"a", None),
            ("Permissions Violation for Subscription", None),
            ("Permissions Violation for Something to \"a\"", None),
            ("maximum subscriptions exceeded", Some(Denied::TooMany)),
            ("Maximum Payload Violation", Some(Denied::Publishing)),
            ("Maximum Connections Exceeded", None),
            ("", None),
        ] {
            assert_eq!(parse(said), expected, "{said}");
        }
    }

    #[test]
    fn what_is_heard_is_taken_once() {
        let denials = Denials::default();
        assert_eq!(denials.hear("Permissions Violation for Publish to \"a\""), Some(Denied::Publishing));
        for _ in 0..2 {
            let heard = denials.hear("Permissions Violation for Subscription to \"b\"");
            assert_eq!(heard, Some(Denied::Subscribing("b".to_owned())));
        }
        assert_eq!(denials.publishing(), 1);
        assert_eq!(denials.take().into_keys().collect::<Vec<_>>(), ["b"]);
        assert!(denials.take().is_empty());
    }
}
