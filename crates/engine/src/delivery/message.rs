//! An encoded message that waits in queues, and the memory that it counts for.

use std::ops::Deref;
use std::sync::Arc;

use wirespeed_driver::encoded::{Encoded, FrameBatch};

/// A message that waits.
#[derive(Clone, Debug)]
pub struct Pending {
    /// The encoded frames.
    pub message: Arc<Encoded>,
    /// The subject of the message, for [`crate::config::Policy::Conflate`].
    pub key: Option<Arc<str>>,
}

/// The memory of a waiting message beside its bytes: its entries in queues, and its share of the buffer. Without it a
/// limit in bytes would allow fifty times that memory in messages of one byte.
pub(crate) const OVERHEAD: usize = 64;

impl Pending {
    /// Returns the bytes that the message counts for in limits.
    #[must_use]
    #[inline]
    pub fn cost(&self) -> usize {
        self.message.size() + OVERHEAD
    }
}

/// Consecutive messages without keys for the same audience. They wait and leave as one batch where that is possible,
/// and one by one elsewhere.
#[derive(Debug)]
pub struct MessageBatch<'a> {
    /// The messages.
    pub messages: &'a [Pending],
    /// All of them as one batch, if there are several.
    pub frames: Option<&'a Arc<FrameBatch>>,
}

impl<'a> MessageBatch<'a> {
    /// Wraps one message.
    #[must_use]
    pub fn of(message: &'a Pending) -> Self {
        Self { messages: std::slice::from_ref(message), frames: None }
    }
}

/// A message in a mailbox, or taken from it and not delivered yet. Its memory counts as waiting for a worker.
pub(crate) struct Envelope(Pending);

impl Envelope {
    pub(crate) fn new(message: Pending) -> Self {
        message.message.post();
        Self(message)
    }
}

impl Deref for Envelope {
    type Target = Pending;

    fn deref(&self) -> &Pending {
        &self.0
    }
}

impl Drop for Envelope {
    fn drop(&mut self) {
        self.0.message.collect();
    }
}
