//! Which patterns are wanted of the broker, and which it was told: what differs is to be done.
//!
//! As large as what is wanted and what is there, however often either changes before it is looked at.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;
use wirespeed_engine::topics::Pattern;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Sessions subscribe to it.
    wanted: bool,
    /// The broker knows.
    there: bool,
    /// It was asked for, and not ended: the account remembers what came by it, also while there is no connection.
    followed: bool,
    /// The broker denies it, and is asked again later. Only wanted patterns are denied.
    denied: bool,
    /// The application knows about the denial, and the pattern was not subscribed since.
    told: bool,
    /// The broker has no such subscriptions: this connection does not ask again.
    unsupported: bool,
}

impl Entry {
    fn differs(self) -> bool {
        (self.wanted && !self.denied) != self.there
    }
}

/// A pattern that was followed, and that nobody wanted at some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) pattern: Pattern,
    /// It is wanted again; whether the broker knows it. `None`: it is not.
    pub(crate) again: Option<bool>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct SubscriptionSet {
    entries: HashMap<Pattern, Entry, RandomState>,
    /// Of those, which differ, and are not being done.
    differ: HashSet<Pattern, RandomState>,
    /// Of those that are or were followed, which nobody wanted at some time, or which are wanted again, since the account
    /// was told of these.
    left: HashSet<Pattern, RandomState>,
}

impl SubscriptionSet {
    /// Sets whether a pattern is wanted; whether there is something to do.
    pub(crate) fn want(&mut self, pattern: &Pattern, wanted: bool) -> bool {
        if self.entries.get(pattern).is_some_and(|entry| entry.followed && entry.wanted != wanted) {
            self.left.insert(pattern.clone());
        }
        self.change(pattern, |entry| {
            entry.wanted = wanted;
            entry.denied = false;
            entry.told &= wanted;
        })
    }

    /// The broker was told: whether it has it now.
    pub(crate) fn done(&mut self, pattern: &Pattern, there: bool) -> bool {
        self.change(pattern, |entry| {
            entry.there = there;
            entry.followed = there;
            entry.told = false;
        })
    }

    /// The broker denies a pattern: it is not asked until something wants the pattern anew, or [`Self::ask_denied_again`].
    /// Whether the application does not know yet.
    pub(crate) fn deny(&mut self, pattern: &Pattern, unsupported: bool) -> bool {
        let mut told = false;
        self.change(pattern, |entry| {
            told = entry.told;
            let Entry { wanted, .. } = *entry;
            *entry = Entry { wanted, denied: wanted, told: true, unsupported, ..Entry::default() };
        });
        !told
    }

    fn change(&mut self, pattern: &Pattern, change: impl FnOnce(&mut Entry)) -> bool {
        let entry = self.entries.entry(pattern.clone()).or_default();
        change(entry);
        let entry = *entry;
        if entry.differs() {
            self.differ.insert(pattern.clone());
            return true;
        }
        self.differ.remove(pattern);
        if !entry.wanted && !entry.followed {
            self.entries.remove(pattern);
        }
        false
    }

    /// Has denied patterns asked for again, without reporting a second denial; whether there are any.
    pub(crate) fn ask_denied_again(&mut self) -> bool {
        let before = self.differ.len();
        for (pattern, entry) in &mut self.entries {
            if entry.denied && !entry.unsupported {
                entry.denied = false;
                self.differ.insert(pattern.clone());
            }
        }
        self.differ.len() > before
    }

    /// What is to be done: patterns, and whether they are to be there. Whoever takes them calls [`Self::done`].
    pub(crate) fn take(&mut self) -> Vec<(Pattern, bool)> {
        let differ = std::mem::take(&mut self.differ);
        let wanted = |pattern: Pattern| {
            let entry = self.entries.get_mut(&pattern);
            let wanted = entry.is_some_and(|entry| {
                entry.followed = entry.wanted;
                entry.wanted
            });
            (pattern, wanted)
        };
        differ.into_iter().map(wanted).collect()
    }

    /// What was left since the last call: for [`crate::tracker::DeliveryTracker::forget_left`], which takes longer than those can wait
    /// who want something meanwhile.
    pub(crate) fn take_left(&mut self) -> Vec<Left> {
        let left = std::mem::take(&mut self.left);
        let again = |pattern: &Pattern| match self.entries.get(pattern) {
            Some(Entry { wanted: true, followed: true, there, .. }) => Some(*there),
            _ => None,
        };
        left.into_iter().map(|pattern| Left { again: again(&pattern), pattern }).collect()
    }

    /// The broker knows nothing any more.
    pub(crate) fn forget(&mut self) {
        self.entries.retain(|pattern, entry| {
            entry.there = false;
            entry.denied = false;
            entry.told = false;
            if entry.followed && !entry.wanted {
                self.left.insert(pattern.clone());
            }
            entry.wanted
        });
        self.differ = self.entries.keys().cloned().collect();
    }

    /// Whether the broker denies a pattern, also while it is asked again.
    pub(crate) fn has_denied(&self) -> bool {
        self.entries.values().any(|entry| entry.told && entry.wanted && !entry.unsupported)
    }

    /// How many the broker was told.
    pub(crate) fn len(&self) -> usize {
        self.entries.values().filter(|entry| entry.there).count()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::new(text).unwrap()
    }

    #[test]
    fn only_what_differs_is_done() {
        let mut subscriptions = SubscriptionSet::default();
        let a = pattern("a");
        assert!(subscriptions.want(&a, true));
        assert!(!subscriptions.want(&a, false));
        assert!(subscriptions.take().is_empty());
        assert!(subscriptions.entries.is_empty());
        subscriptions.want(&a, true);
        assert_eq!(subscriptions.take(), [(a.clone(), true)]);
        // It changes while it is being done.
        assert!(!subscriptions.want(&a, false));
        assert!(subscriptions.done(&a, true));
        assert_eq!(subscriptions.take(), [(a.clone(), false)]);
        assert!(!subscriptions.done(&a, false));
        assert!(subscriptions.entries.is_empty() && subscriptions.differ.is_empty());
    }

    #[test]
    fn what_is_forgotten_is_done_again() {
        let mut subscriptions = SubscriptionSet::default();
        let (a, b) = (pattern("a"), pattern("b.*"));
        subscriptions.want(&a, true);
        subscriptions.want(&b, true);
        for (pattern, wanted) in subscriptions.take() {
            subscriptions.done(&pattern, wanted);
        }
        assert_eq!(subscriptions.len(), 2);
        subscriptions.want(&b, false);
        subscriptions.forget();
        assert_eq!(subscriptions.take(), [(a, true)]);
        assert_eq!(subscriptions.len(), 0);
    }

    #[test]
    fn what_was_left_is_told_whether_there_is_a_connection_or_not() {
        let mut subscriptions = SubscriptionSet::default();
        let (a, b) = (pattern("a"), pattern("b"));
        subscriptions.want(&a, true);
        subscriptions.take();
        subscriptions.want(&a, false); // while it is being done
        assert!(std::mem::take(&mut subscriptions.left).contains(&a));
        subscriptions.want(&a, true);
        subscriptions.done(&a, true);
        subscriptions.want(&b, true);
        subscriptions.forget();
        subscriptions.want(&a, false);
        subscriptions.want(&b, false); // never asked for
        subscriptions.want(&a, true);
        assert!(std::mem::take(&mut subscriptions.left).contains(&a));
        assert_eq!(subscriptions.take(), [(a, true)]);
        assert!(subscriptions.left.is_empty());
    }

    #[test]
    fn what_is_denied_is_not_asked_until_it_is_wanted_anew_or_to_be_asked_again() {
        let mut subscriptions = SubscriptionSet::default();
        let a = pattern("a");
        subscriptions.want(&a, true);
        subscriptions.take();
        assert!(subscriptions.deny(&a, false));
        assert!(subscriptions.take().is_empty());
        assert_eq!(subscriptions.len(), 0);
        assert!(!subscriptions.want(&a, false));
        assert!(subscriptions.entries.is_empty());
        assert!(subscriptions.want(&a, true));
        assert_eq!(subscriptions.take(), [(a.clone(), true)]);
        // By another connection it is asked again.
        assert!(subscriptions.deny(&a, false), "nothing wanted it in between");
        subscriptions.forget();
        assert_eq!(subscriptions.take(), [(a.clone(), true)]);
        assert!(subscriptions.deny(&a, false), "by another connection");
        assert!(subscriptions.ask_denied_again() && !subscriptions.ask_denied_again());
        assert_eq!(subscriptions.take(), [(a.clone(), true)]);
        assert!(!subscriptions.deny(&a, false), "it was told");
        // A subscription in between makes the next denial news.
        assert!(subscriptions.ask_denied_again());
        subscriptions.take();
        subscriptions.done(&a, true);
        assert!(subscriptions.deny(&a, false));
        // An unsupported pattern is not asked again.
        subscriptions.deny(&a, true);
        assert!(!subscriptions.ask_denied_again());
        // Nobody wants it any more when the answer comes.
        subscriptions.want(&a, false);
        subscriptions.deny(&a, false);
        assert!(subscriptions.entries.is_empty() && subscriptions.differ.is_empty());
    }

    #[test]
    fn bounded_by_what_is_wanted() {
        let mut subscriptions = SubscriptionSet::default();
        for number in 0..10_000 {
            let pattern = pattern(&format!("topic.{number}"));
            subscriptions.want(&pattern, true);
            subscriptions.want(&pattern, false);
        }
        assert!(subscriptions.entries.is_empty() && subscriptions.differ.is_empty() && subscriptions.left.is_empty());
    }
}
