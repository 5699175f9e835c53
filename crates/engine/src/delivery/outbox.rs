//! The queue of messages that a session's client has not read yet, bounded in bytes, and the policies for a full
//! queue.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use wirespeed_driver::encoded::FrameBatch;

use super::message::{OVERHEAD, Pending};
use crate::config::Policy;

/// One entry of an outbox.
#[derive(Clone, Debug)]
pub enum Waiting {
    /// A message.
    One(Pending),
    /// A batch without its first messages, which were dropped: their number.
    FrameBatch(Arc<FrameBatch>, usize),
}

impl Waiting {
    /// Returns the bytes that it counts for in limits: the sum of its messages.
    #[must_use]
    #[inline]
    pub fn cost(&self) -> usize {
        match self {
            Self::One(message) => message.cost(),
            Self::FrameBatch(frames, skipped) => frames.size() - frames.size_of_first(*skipped) + self.len() * OVERHEAD,
        }
    }

    /// Returns the number of messages.
    #[must_use]
    #[inline]
    #[allow(clippy::len_without_is_empty)] // there is always one
    pub fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::FrameBatch(frames, skipped) => frames.len() - skipped,
        }
    }

    fn key(&self) -> Option<&Arc<str>> {
        match self {
            Self::One(message) => message.key.as_ref(),
            Self::FrameBatch(..) => None,
        }
    }
}

/// The result of [`Outbox::push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// The message was queued, and others were dropped for it.
    Kept {
        /// The number of dropped messages.
        dropped: usize,
    },
    /// The message was dropped.
    Dropped,
    /// The limit is exceeded: the session has to be closed.
    Overflow,
}

/// Messages in the order in which they were sent.
///
/// The session pushes while its connection is busy, and pops when the connection takes more.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Replaced messages leave `None`; the first entry is always `Some`.
    pending: VecDeque<Option<Waiting>>,
    /// The number of messages.
    len: usize,
    bytes: usize,
    /// The number of entries that were ever removed at the front.
    left: u64,
    /// For [`Policy::Conflate`]: the place of the last message of each key, counted from the first entry ever.
    #[allow(clippy::box_collection)] // most sessions have none
    keys: Option<Box<HashMap<Arc<str>, u64>>>,
}

impl Outbox {
    /// Returns the queued bytes, as [`Pending::cost`] counts them.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of queued messages.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the memory of the entries, beside that of the messages.
    #[must_use]
    #[inline]
    pub fn overhead(&self) -> usize {
        self.len * OVERHEAD
    }

    /// Returns whether no message is queued.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a message. With the bytes `beside`, which wait elsewhere for the same session, the queue does not exceed
    /// `limit`; but a message that waits alone may have any size. If the policy drops others for the new message, it
    /// may exceed the limit together with `beside`, as those bytes have begun to leave.
    pub fn push(&mut self, new: Pending, beside: usize, limit: usize, policy: Policy) -> Pushed {
        let cost = new.cost();
        let mut dropped = 0;
        if policy == Policy::Conflate
            && let Some(key) = &new.key
            && let Some(keys) = &mut self.keys
            && let Some(index) = keys.remove(key)
            && let Some(old) = self.pending.get_mut(index.saturating_sub(self.left) as usize).and_then(Option::take)
        {
            self.subtract(&old);
            self.trim();
            dropped = 1;
        }
        if self.has_capacity(cost, beside, limit) {
            self.keep(Waiting::One(new), policy);
            return Pushed::Kept { dropped };
        }
        match policy {
            Policy::Disconnect => Pushed::Overflow,
            Policy::DropNewest => Pushed::Dropped,
            Policy::DropOldest | Policy::Conflate => {
                while !self.has_capacity(cost, beside, limit) && self.drop_oldest() {
                    dropped += 1;
                }
                self.keep(Waiting::One(new), policy);
                Pushed::Kept { dropped }
            }
        }
    }

    /// Adds a batch if all of it fits without dropping a message. Otherwise adds nothing and returns false.
    pub fn push_batch(&mut self, frames: &Arc<FrameBatch>, beside: usize, limit: usize) -> bool {
        let new = Waiting::FrameBatch(Arc::clone(frames), 0);
        let fits = (self.bytes + beside).saturating_add(new.cost()) <= limit;
        if fits {
            self.keep(new, Policy::default());
        }
        fits
    }

    fn has_capacity(&self, cost: usize, beside: usize, limit: usize) -> bool {
        let waiting = self.bytes + beside;
        waiting == 0 || waiting.saturating_add(cost) <= limit
    }

    fn keep(&mut self, new: Waiting, policy: Policy) {
        self.bytes += new.cost();
        self.len += new.len();
        if policy == Policy::Conflate
            && let Some(key) = new.key()
        {
            let index = self.left + self.pending.len() as u64;
            self.keys.get_or_insert_default().insert(Arc::clone(key), index);
        }
        self.pending.push_back(Some(new));
    }

    fn subtract(&mut self, old: &Waiting) {
        self.bytes -= old.cost();
        self.len -= old.len();
    }

    /// Restores the rule that the first entry is `Some`, and compacts the queue if most entries were replaced.
    fn trim(&mut self) {
        while let Some(None) = self.pending.front() {
            self.pending.pop_front();
            self.left += 1;
        }
        if self.keys.is_some() && self.pending.len() > 2 * self.len + 16 {
            self.pending.retain(Option::is_some);
            let places = (self.left..).zip(&self.pending);
            let of = |(index, waiting): (u64, &Option<Waiting>)| Some((waiting.as_ref()?.key()?.clone(), index));
            self.keys = Some(Box::new(places.filter_map(of).collect()));
        }
    }

    /// Drops the oldest message. Returns false if there is none.
    pub fn drop_oldest(&mut self) -> bool {
        if let Some(Some(oldest @ Waiting::FrameBatch(..))) = self.pending.front_mut()
            && oldest.len() > 1
        {
            let before = oldest.cost();
            if let Waiting::FrameBatch(_, skipped) = oldest {
                *skipped += 1;
            }
            self.bytes -= before - oldest.cost();
            self.len -= 1;
            return true;
        }
        self.pop().is_some()
    }

    /// Takes the oldest entry.
    pub fn pop(&mut self) -> Option<Waiting> {
        let oldest = self.pending.pop_front()??;
        if let (Some(keys), Some(key)) = (&mut self.keys, oldest.key())
            && keys.get(key) == Some(&self.left)
        {
            keys.remove(key);
        }
        self.left += 1;
        self.subtract(&oldest);
        self.trim();
        if self.len == 0 {
            *self = Self::default(); // an idle session keeps no memory
        }
        Some(oldest)
    }

    /// Drops all messages, and returns their number.
    pub fn clear(&mut self) -> usize {
        std::mem::take(self).len
    }
}
