//! The wanted subscriptions, those at the broker, and the difference, which is to be applied.
//! Its size depends only on the wanted and the current subscriptions, however often they change. [`crate::client`]
//! calls it.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;
use wirespeed_engine::topics::Pattern;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Sessions subscribe to the pattern.
    wanted: bool,
    /// The broker has the subscription.
    subscribed: bool,
    /// It was requested and not ended since, connected or not: the tracker counts its messages.
    followed: bool,
    /// The broker denied it, and it will be retried later. Only wanted patterns are denied.
    denied: bool,
    /// The application was notified of the denial, and the pattern was not subscribed since.
    reported: bool,
    /// The broker has no such subscriptions: this connection does not retry.
    unsupported: bool,
}

impl Entry {
    fn needs_change(self) -> bool {
        (self.wanted && !self.denied) != self.subscribed
    }
}

/// A followed pattern that was unwanted for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DroppedPattern {
    pub(crate) pattern: Pattern,
    /// `Some` if it is wanted again: whether the broker has the subscription.
    pub(crate) wanted_again: Option<bool>,
}

/// The subscriptions of a client.
#[derive(Debug, Default)]
pub(crate) struct SubscriptionSet {
    entries: HashMap<Pattern, Entry, RandomState>,
    /// The patterns whose change has not been taken yet.
    pending: HashSet<Pattern, RandomState>,
    /// Followed patterns that became unwanted, or wanted again, since the last [`Self::take_dropped`].
    left: HashSet<Pattern, RandomState>,
}

impl SubscriptionSet {
    /// Sets whether a pattern is wanted. Returns whether there is a change to apply.
    pub(crate) fn set_wanted(&mut self, pattern: &Pattern, wanted: bool) -> bool {
        if self.entries.get(pattern).is_some_and(|entry| entry.followed && entry.wanted != wanted) {
            self.left.insert(pattern.clone());
        }
        self.change(pattern, |entry| {
            entry.wanted = wanted;
            entry.denied = false;
            entry.reported &= wanted;
        })
    }

    /// Records whether the broker has the subscription now. Returns whether there is a change to apply.
    pub(crate) fn mark_applied(&mut self, pattern: &Pattern, subscribed: bool) -> bool {
        self.change(pattern, |entry| {
            entry.subscribed = subscribed;
            entry.followed = subscribed;
            entry.reported = false;
        })
    }

    /// Records that the broker denies a pattern. It is not requested until a session subscribes to it anew, or
    /// [`Self::retry_denied`]. Returns whether the application was not notified yet.
    pub(crate) fn deny(&mut self, pattern: &Pattern, unsupported: bool) -> bool {
        let mut reported = false;
        self.change(pattern, |entry| {
            reported = entry.reported;
            let Entry { wanted, .. } = *entry;
            *entry = Entry { wanted, denied: wanted, reported: true, unsupported, ..Entry::default() };
        });
        !reported
    }

    fn change(&mut self, pattern: &Pattern, change: impl FnOnce(&mut Entry)) -> bool {
        let entry = self.entries.entry(pattern.clone()).or_default();
        change(entry);
        let entry = *entry;
        if entry.needs_change() {
            self.pending.insert(pattern.clone());
            return true;
        }
        self.pending.remove(pattern);
        if !entry.wanted && !entry.followed {
            self.entries.remove(pattern);
        }
        false
    }

    /// Schedules denied patterns for a retry, without a second notification. Returns whether there are any.
    pub(crate) fn retry_denied(&mut self) -> bool {
        let before = self.pending.len();
        for (pattern, entry) in &mut self.entries {
            if entry.denied && !entry.unsupported {
                entry.denied = false;
                self.pending.insert(pattern.clone());
            }
        }
        self.pending.len() > before
    }

    /// Takes the changes: patterns, and whether to subscribe. The caller then calls [`Self::mark_applied`].
    pub(crate) fn take_changes(&mut self) -> Vec<(Pattern, bool)> {
        let pending = std::mem::take(&mut self.pending);
        let wanted = |pattern: Pattern| {
            let entry = self.entries.get_mut(&pattern);
            let wanted = entry.is_some_and(|entry| {
                entry.followed = entry.wanted;
                entry.wanted
            });
            (pattern, wanted)
        };
        pending.into_iter().map(wanted).collect()
    }

    /// Takes the patterns that were unwanted since the last call, for [`crate::tracker::DeliveryTracker::forget_dropped`].
    /// That takes too long to run under the lock of this set.
    pub(crate) fn take_dropped(&mut self) -> Vec<DroppedPattern> {
        let left = std::mem::take(&mut self.left);
        let wanted_again = |pattern: &Pattern| match self.entries.get(pattern) {
            Some(Entry { wanted: true, followed: true, subscribed, .. }) => Some(*subscribed),
            _ => None,
        };
        left.into_iter().map(|pattern| DroppedPattern { wanted_again: wanted_again(&pattern), pattern }).collect()
    }

    /// Records that the broker has no subscription any more.
    pub(crate) fn reset(&mut self) {
        self.entries.retain(|pattern, entry| {
            entry.subscribed = false;
            entry.denied = false;
            entry.reported = false;
            if entry.followed && !entry.wanted {
                self.left.insert(pattern.clone());
            }
            entry.wanted
        });
        self.pending = self.entries.keys().cloned().collect();
    }

    /// Returns whether the broker denies a wanted pattern, including those that are being retried.
    pub(crate) fn has_denied(&self) -> bool {
        self.entries.values().any(|entry| entry.reported && entry.wanted && !entry.unsupported)
    }

    /// Returns the number of subscriptions at the broker.
    pub(crate) fn len(&self) -> usize {
        self.entries.values().filter(|entry| entry.subscribed).count()
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
    fn only_differences_are_applied() {
        let mut subscriptions = SubscriptionSet::default();
        let a = pattern("a");
        assert!(subscriptions.set_wanted(&a, true));
        assert!(!subscriptions.set_wanted(&a, false));
        assert!(subscriptions.take_changes().is_empty());
        assert!(subscriptions.entries.is_empty());
        subscriptions.set_wanted(&a, true);
        assert_eq!(subscriptions.take_changes(), [(a.clone(), true)]);
        // The pattern becomes unwanted while the change is being applied.
        assert!(!subscriptions.set_wanted(&a, false));
        assert!(subscriptions.mark_applied(&a, true));
        assert_eq!(subscriptions.take_changes(), [(a.clone(), false)]);
        assert!(!subscriptions.mark_applied(&a, false));
        assert!(subscriptions.entries.is_empty() && subscriptions.pending.is_empty());
    }

    #[test]
    fn forgotten_subscriptions_are_requested_again() {
        let mut subscriptions = SubscriptionSet::default();
        let (a, b) = (pattern("a"), pattern("b.*"));
        subscriptions.set_wanted(&a, true);
        subscriptions.set_wanted(&b, true);
        for (pattern, wanted) in subscriptions.take_changes() {
            subscriptions.mark_applied(&pattern, wanted);
        }
        assert_eq!(subscriptions.len(), 2);
        subscriptions.set_wanted(&b, false);
        subscriptions.reset();
        assert_eq!(subscriptions.take_changes(), [(a, true)]);
        assert_eq!(subscriptions.len(), 0);
    }

    #[test]
    fn unwanted_patterns_are_returned_connected_or_not() {
        let mut subscriptions = SubscriptionSet::default();
        let (a, b) = (pattern("a"), pattern("b"));
        subscriptions.set_wanted(&a, true);
        subscriptions.take_changes();
        subscriptions.set_wanted(&a, false); // while the change is being applied
        assert!(std::mem::take(&mut subscriptions.left).contains(&a));
        subscriptions.set_wanted(&a, true);
        subscriptions.mark_applied(&a, true);
        subscriptions.set_wanted(&b, true);
        subscriptions.reset();
        subscriptions.set_wanted(&a, false);
        subscriptions.set_wanted(&b, false); // it was never requested
        subscriptions.set_wanted(&a, true);
        assert!(std::mem::take(&mut subscriptions.left).contains(&a));
        assert_eq!(subscriptions.take_changes(), [(a, true)]);
        assert!(subscriptions.left.is_empty());
    }

    #[test]
    fn denied_pattern_waits_for_a_new_subscription_or_a_retry() {
        let mut subscriptions = SubscriptionSet::default();
        let a = pattern("a");
        subscriptions.set_wanted(&a, true);
        subscriptions.take_changes();
        assert!(subscriptions.deny(&a, false));
        assert!(subscriptions.take_changes().is_empty());
        assert_eq!(subscriptions.len(), 0);
        assert!(!subscriptions.set_wanted(&a, false));
        assert!(subscriptions.entries.is_empty());
        assert!(subscriptions.set_wanted(&a, true));
        assert_eq!(subscriptions.take_changes(), [(a.clone(), true)]);
        // A new connection requests it again.
        assert!(subscriptions.deny(&a, false), "it was unwanted in between");
        subscriptions.reset();
        assert_eq!(subscriptions.take_changes(), [(a.clone(), true)]);
        assert!(subscriptions.deny(&a, false), "a new connection reports it again");
        assert!(subscriptions.retry_denied() && !subscriptions.retry_denied());
        assert_eq!(subscriptions.take_changes(), [(a.clone(), true)]);
        assert!(!subscriptions.deny(&a, false), "it was reported");
        // A subscription in between makes the next denial reportable.
        assert!(subscriptions.retry_denied());
        subscriptions.take_changes();
        subscriptions.mark_applied(&a, true);
        assert!(subscriptions.deny(&a, false));
        // An unsupported pattern is not retried.
        subscriptions.deny(&a, true);
        assert!(!subscriptions.retry_denied());
        // The pattern is unwanted when the answer arrives.
        subscriptions.set_wanted(&a, false);
        subscriptions.deny(&a, false);
        assert!(subscriptions.entries.is_empty() && subscriptions.pending.is_empty());
    }

    #[test]
    fn size_is_bounded_by_the_wanted_patterns() {
        let mut subscriptions = SubscriptionSet::default();
        for number in 0..10_000 {
            let pattern = pattern(&format!("topic.{number}"));
            subscriptions.set_wanted(&pattern, true);
            subscriptions.set_wanted(&pattern, false);
        }
        assert!(subscriptions.entries.is_empty() && subscriptions.pending.is_empty() && subscriptions.left.is_empty());
    }
}
