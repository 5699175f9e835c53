//! What waits for a session whose client does not take it yet: whole messages, bounded in bytes, and what
//! becomes of them when there are too many.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use wirespeed_driver::encoded::{Encoded, FrameBatch};

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

/// What a message that waits takes beside its bytes: its places in queues, and its share of what holds the bytes.
/// Without it a limit of bytes would let in fifty times as much in messages of one byte.
pub(crate) const OVERHEAD: usize = 64;

impl Pending {
    /// What it counts for where bytes are limited.
    #[must_use]
    #[inline]
    pub fn cost(&self) -> usize {
        self.message.size() + OVERHEAD
    }
}

/// Messages in a row for the same audience, none of which has a key: they wait, and leave, as one. Where they cannot,
/// they are what they were.
#[derive(Debug)]
pub struct MessageBatch<'a> {
    /// Each of them.
    pub messages: &'a [Pending],
    /// All of them, if there are several.
    pub run: Option<&'a Arc<FrameBatch>>,
}

impl<'a> MessageBatch<'a> {
    /// One message.
    #[must_use]
    pub fn of(message: &'a Pending) -> Self {
        Self { messages: std::slice::from_ref(message), run: None }
    }
}

/// What waits in one place of an outbox.
#[derive(Clone, Debug)]
pub enum Waiting {
    /// A message.
    One(Pending),
    /// Those of a run, without the first so many, which were dropped.
    FrameBatch(Arc<FrameBatch>, usize),
}

impl Waiting {
    /// What it counts for where bytes are limited: as much as each of its messages.
    #[must_use]
    #[inline]
    pub fn cost(&self) -> usize {
        match self {
            Self::One(message) => message.cost(),
            Self::FrameBatch(run, without) => run.size() - run.size_of_first(*without) + self.len() * OVERHEAD,
        }
    }

    /// Messages.
    #[must_use]
    #[inline]
    #[allow(clippy::len_without_is_empty)] // there is always one
    pub fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::FrameBatch(run, without) => run.len() - without,
        }
    }

    fn key(&self) -> Option<&Arc<str>> {
        match self {
            Self::One(message) => message.key.as_ref(),
            Self::FrameBatch(..) => None,
        }
    }
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
    /// The first is there; of the others, those that were replaced are not.
    pending: VecDeque<Option<Waiting>>,
    /// How many messages are there.
    len: usize,
    bytes: usize,
    /// How many have left `pending` at its beginning, ever.
    left: u64,
    /// For [`Policy::Conflate`]: where the last message of each key is, counted from the first that there ever was.
    #[allow(clippy::box_collection)] // sessions without one are many
    keys: Option<Box<HashMap<Arc<str>, u64>>>,
}

impl Outbox {
    /// Bytes that wait, as [`Pending::cost`] counts them.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Messages that wait.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Memory that they take beside what the messages hold.
    #[must_use]
    #[inline]
    pub fn overhead(&self) -> usize {
        self.len * OVERHEAD
    }

    /// Whether none do.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a message. `beside`: bytes that wait elsewhere for the same session; with them, `limit` is not
    /// passed, but a message that is alone may be as large as it likes. Where the policy drops others for it, alone in
    /// here: what waits elsewhere has begun to leave, and what is new is not dropped for it.
    pub fn push(&mut self, new: Pending, beside: usize, limit: usize, policy: Policy) -> Pushed {
        let cost = new.cost();
        let mut dropped = 0;
        if policy == Policy::Conflate
            && let Some(key) = &new.key
            && let Some(keys) = &mut self.keys
            && let Some(place) = keys.remove(key)
            && let Some(old) = self.pending.get_mut(place.saturating_sub(self.left) as usize).and_then(Option::take)
        {
            self.note_gone(&old);
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

    /// Adds all messages of a run, if there is room for them without anything that the policy would have to do: else
    /// none, and false.
    pub fn push_run(&mut self, run: &Arc<FrameBatch>, beside: usize, limit: usize) -> bool {
        let new = Waiting::FrameBatch(Arc::clone(run), 0);
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
            let place = self.left + self.pending.len() as u64;
            self.keys.get_or_insert_default().insert(Arc::clone(key), place);
        }
        self.pending.push_back(Some(new));
    }

    fn note_gone(&mut self, old: &Waiting) {
        self.bytes -= old.cost();
        self.len -= old.len();
    }

    /// Has the first one there again; and where most were replaced, only those that were not.
    fn trim(&mut self) {
        while let Some(None) = self.pending.front() {
            self.pending.pop_front();
            self.left += 1;
        }
        if self.keys.is_some() && self.pending.len() > 2 * self.len + 16 {
            self.pending.retain(Option::is_some);
            let places = (self.left..).zip(&self.pending);
            let of = |(place, waiting): (u64, &Option<Waiting>)| Some((waiting.as_ref()?.key()?.clone(), place));
            self.keys = Some(Box::new(places.filter_map(of).collect()));
        }
    }

    /// Drops the oldest message. False: there is none.
    pub fn drop_oldest(&mut self) -> bool {
        if let Some(Some(oldest @ Waiting::FrameBatch(..))) = self.pending.front_mut()
            && oldest.len() > 1
        {
            let before = oldest.cost();
            if let Waiting::FrameBatch(_, without) = oldest {
                *without += 1;
            }
            self.bytes -= before - oldest.cost();
            self.len -= 1;
            return true;
        }
        self.pop().is_some()
    }

    /// Takes what is in the oldest place.
    pub fn pop(&mut self) -> Option<Waiting> {
        let oldest = self.pending.pop_front()??;
        if let (Some(keys), Some(key)) = (&mut self.keys, oldest.key())
            && keys.get(key) == Some(&self.left)
        {
            keys.remove(key);
        }
        self.left += 1;
        self.note_gone(&oldest);
        self.trim();
        if self.len == 0 {
            *self = Self::default(); // an idle session keeps nothing
        }
        Some(oldest)
    }

    /// Forgets all; how many they were.
    pub fn clear(&mut self) -> usize {
        std::mem::take(self).len
    }
}
