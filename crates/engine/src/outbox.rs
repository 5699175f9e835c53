//! What waits for a session whose client does not take it yet: whole messages, bounded in bytes, and what
//! becomes of them when there are too many.

use std::collections::VecDeque;
use std::sync::Arc;

use wirespeed_driver::encoded::Encoded;

/// What is done with a session whose client reads too slowly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// It is ended, with close code 1013 if that still reaches the client.
    #[default]
    Disconnect,
    /// The oldest messages that wait are dropped for the new one.
    DropOldest,
    /// The new message is dropped.
    DropNewest,
    /// A message replaces the one of the same key that waits; those without a key, and what is too much all the
    /// same, as for [`Policy::DropOldest`].
    Conflate,
}

/// One message that waits.
#[derive(Clone, Debug)]
pub struct Pending {
    /// Its frames.
    pub message: Arc<Encoded>,
    /// What it is about: for [`Policy::Conflate`].
    pub key: Option<Arc<str>>,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// It waits. So many others were dropped for it.
    Kept {
        /// Messages that were dropped.
        dropped: usize,
    },
    /// It was dropped.
    Dropped,
    /// There is too much: the session is to be ended.
    Overflow,
}

/// Messages in the order in which they were sent.
#[derive(Debug, Default)]
pub struct Outbox {
    pending: VecDeque<Pending>,
    bytes: usize,
}

impl Outbox {
    /// Bytes that wait.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Messages that wait.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Whether none do.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Adds a message. `beside`: bytes that wait elsewhere for the same session; with them, `limit` is not
    /// passed, but a message that is alone may be as large as it likes.
    pub fn push(&mut self, new: Pending, beside: usize, limit: usize, policy: Policy) -> Pushed {
        let size = new.message.size();
        let mut dropped = 0;
        if policy == Policy::Conflate
            && let Some(key) = &new.key
            && let Some(index) = self.pending.iter().position(|other| other.key.as_ref() == Some(key))
            && let Some(old) = self.pending.remove(index)
        {
            self.bytes -= old.message.size();
            dropped = 1;
        }
        if self.has_room(size, beside, limit) {
            self.keep(new, size);
            return Pushed::Kept { dropped };
        }
        match policy {
            Policy::Disconnect => Pushed::Overflow,
            Policy::DropNewest => Pushed::Dropped,
            Policy::DropOldest | Policy::Conflate => {
                while !self.has_room(size, beside, limit)
                    && let Some(old) = self.pending.pop_front()
                {
                    self.bytes -= old.message.size();
                    dropped += 1;
                }
                if !self.has_room(size, beside, limit) {
                    return Pushed::Dropped; // what waits elsewhere cannot be dropped: it has begun to leave
                }
                self.keep(new, size);
                Pushed::Kept { dropped }
            }
        }
    }

    fn has_room(&self, size: usize, beside: usize, limit: usize) -> bool {
        let waiting = self.bytes + beside;
        waiting == 0 || waiting.saturating_add(size) <= limit
    }

    fn keep(&mut self, new: Pending, size: usize) {
        self.bytes += size;
        self.pending.push_back(new);
    }

    /// Takes the oldest.
    pub fn pop(&mut self) -> Option<Pending> {
        let oldest = self.pending.pop_front()?;
        self.bytes -= oldest.message.size();
        if self.pending.is_empty() {
            self.pending = VecDeque::new(); // an idle session keeps nothing
        }
        Some(oldest)
    }

    /// Forgets all; how many they were.
    pub fn clear(&mut self) -> usize {
        self.bytes = 0;
        std::mem::take(&mut self.pending).len()
    }
}
