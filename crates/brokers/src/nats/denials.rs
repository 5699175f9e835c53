//! Parses and records permission errors of a NATS server.
//!
//! The server sends these errors as text, before it answers later commands. Knows no connection; the client library
//! calls [`Denials::record`] through an event callback, and the client's thread the other methods.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use foldhash::fast::RandomState;

/// The maximum number of denied subjects kept until [`Denials::take`]. The library never reports so many at once; see
/// [`super::EVENT_CAPACITY`].
const MAX_SUBJECTS: usize = 64 * 1024;

/// The server's error for a subscription above its limit.
pub(super) const TOO_MANY: &str = "Maximum Subscriptions Exceeded";

/// Denials that the library has reported for one connection.
#[derive(Debug, Default)]
pub(super) struct Denials {
    events: AtomicU64,
    publishing: AtomicU64,
    /// Subscriptions above the limit; the server does not name them.
    too_many: AtomicU64,
    /// The server's errors, by the subjects of the denied subscriptions.
    subscribing: Mutex<HashMap<String, String, RandomState>>,
}

/// The kind of a denial.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Denied {
    Publishing,
    TooMany,
    /// The subject of the denied subscription.
    Subscribing(String),
}

impl Denials {
    /// Counts an event of the library, of any kind.
    pub(super) fn count(&self) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }

    /// Records an error of the server. Returns the denial, if it is one.
    pub(super) fn record(&self, error_text: &str) -> Option<Denied> {
        let denied = parse(error_text)?;
        match &denied {
            Denied::Publishing => {
                self.publishing.fetch_add(1, Ordering::Relaxed);
            }
            Denied::TooMany => {
                self.too_many.fetch_add(1, Ordering::Relaxed);
            }
            Denied::Subscribing(subject) => {
                let mut subscribing = self.subscribing.lock().unwrap_or_else(PoisonError::into_inner);
                if subscribing.len() < MAX_SUBJECTS {
                    subscribing.insert(subject.clone(), error_text.to_owned());
                }
            }
        }
        Some(denied)
    }

    /// Returns the number of events of the library so far.
    pub(super) fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Returns the number of denied messages so far, or fewer if the library dropped events.
    pub(super) fn publishing(&self) -> u64 {
        self.publishing.load(Ordering::Relaxed)
    }

    /// Returns how many subscriptions were above the limit so far. The library may drop some of these errors, but never
    /// all of them.
    pub(super) fn too_many(&self) -> u64 {
        self.too_many.load(Ordering::Relaxed)
    }

    /// Takes the subjects of subscriptions that were denied since the last call, with the server's errors.
    pub(super) fn take(&self) -> HashMap<String, String, RandomState> {
        std::mem::take(&mut *self.subscribing.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Parses an error of the server; `None` if it is not a denial. The subject is quoted as a Go string.
fn parse(error_text: &str) -> Option<Denied> {
    let is = |known: &str| error_text.trim_matches('\'').eq_ignore_ascii_case(known);
    if is(TOO_MANY) || is("Maximum Account Subscriptions Exceeded") {
        return Some(Denied::TooMany);
    }
    // The server closes the connection after this error.
    if is("Maximum Payload Violation") {
        return Some(Denied::Publishing);
    }
    let (what, rest) = error_text.strip_prefix("Permissions Violation for ")?.split_once(' ')?;
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
    fn errors_of_the_server_are_parsed() {
        let subscribing = |subject: &str| Some(Denied::Subscribing(subject.to_owned()));
        for (error_text, expected) in [
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
            assert_eq!(parse(error_text), expected, "{error_text}");
        }
    }

    #[test]
    fn denied_subject_is_taken_once() {
        let denials = Denials::default();
        assert_eq!(denials.record("Permissions Violation for Publish to \"a\""), Some(Denied::Publishing));
        for _ in 0..2 {
            let events = denials.record("Permissions Violation for Subscription to \"b\"");
            assert_eq!(events, Some(Denied::Subscribing("b".to_owned())));
        }
        assert_eq!(denials.publishing(), 1);
        assert_eq!(denials.take().into_keys().collect::<Vec<_>>(), ["b"]);
        assert!(denials.take().is_empty());
    }
}
