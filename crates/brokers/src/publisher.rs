//! Publishing without an engine, from any process.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wirespeed_engine::broker::{Broker, EnqueueResult, Message, Status, is_reserved};
use wirespeed_engine::capacity::Watch;
use wirespeed_engine::logs::Logs;
use wirespeed_engine::mailbox::Wake;
use wirespeed_engine::topics::Topic;

use crate::client::{BrokerClient, BrokerConfig};
use crate::queue::{Policy, To};

/// Why something is not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There was no room in the queue until the deadline.
    Full,
    /// The publisher was closed.
    Closed,
    /// The topic is for brokers themselves.
    Reserved,
    /// Text that is not UTF-8.
    NotText,
}

/// A queue to a broker, and a thread that empties it. From any thread; dropped, it is closed.
pub struct Publisher {
    node: BrokerClient,
}

impl Publisher {
    /// Begins to connect.
    ///
    /// # Errors
    /// A thread cannot begin.
    pub fn new(hub: &BrokerConfig) -> io::Result<Self> {
        // Who does not wait is told, and who waits is not told.
        let mut hub = hub.clone();
        hub.policy = Policy::Raise;
        Ok(Self { node: BrokerClient::start(&hub, None)? })
    }

    /// Queues a message for who subscribes to the topic, or, without one, for all sessions of all engines.
    ///
    /// # Errors
    /// [`Refusal`]; there may be room later, see [`Self::wait_for_capacity`].
    pub fn publish(&self, topic: Option<&Topic>, message: Message<'_>) -> Result<(), Refusal> {
        use wirespeed_engine::driver::protocol::MessageKind;

        if message.kind == MessageKind::Text && std::str::from_utf8(message.payload).is_err() {
            return Err(Refusal::NotText);
        }
        let to = match topic {
            Some(topic) if is_reserved(topic) => return Err(Refusal::Reserved),
            Some(topic) => To::Topic(topic.clone()),
            None => To::All,
        };
        let shared = self.node.shared();
        if !shared.has_capacity(message.payload.len()) {
            return Err(Refusal::Full);
        }
        match shared.push(to, message) {
            EnqueueResult::Yes | EnqueueResult::Local => Ok(()),
            EnqueueResult::Full | EnqueueResult::TooLarge => Err(Refusal::Full),
            EnqueueResult::Closed => Err(Refusal::Closed),
        }
    }

    /// Waits until a message of so many bytes finds room, or the deadline; whether it does, or there is nobody to wait
    /// for.
    #[must_use]
    pub fn wait_for_capacity(&self, bytes: usize, deadline: Instant) -> bool {
        self.node.shared().wait_for_capacity(bytes, deadline)
    }

    /// Whether a message of so many bytes finds room, or the publisher has ended.
    #[must_use]
    pub fn has_capacity(&self, bytes: usize) -> bool {
        self.node.shared().has_capacity(bytes)
    }

    /// Has `wake` called when the queue has room, when messages are settled, and at the end.
    #[must_use]
    pub fn watch(&self, wake: Arc<dyn Wake>) -> Watch {
        self.node.shared().eased().watch(wake)
    }

    /// Identifies the publisher as long as a [`Watch`] of it exists.
    #[must_use]
    pub fn watch_key(&self) -> usize {
        Arc::as_ptr(self.node.shared().eased()).addr()
    }

    /// Messages that were published, ever: for [`Self::flush`].
    #[must_use]
    pub fn published(&self) -> u64 {
        self.node.shared().accepted()
    }

    /// How many of them the broker may not have, as far as it is known: they were under way when a connection broke, or
    /// it has refused them.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.node.shared().missing()
    }

    /// Waits until the broker has so many of them; what [`Self::missing`] is then. It never becomes less: whoever has looked
    /// before knows how many are new, and several who wait are told the same. `None`: not by the deadline.
    #[must_use]
    pub fn flush(&self, published: u64, deadline: Option<Instant>) -> Option<u64> {
        self.node.shared().flush(published, deadline)
    }

    /// How it stands.
    #[must_use]
    pub fn status(&self) -> Status {
        self.node.status()
    }

    /// Begins the end without waiting for it; messages in the queue are not sent.
    pub fn end(&self) {
        self.node.end(Duration::ZERO);
    }

    /// Whether it has ended, so that [`Self::missing`] is final.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.node.shared().has_ended()
    }

    /// Its log.
    #[must_use]
    pub fn logs(&self) -> &Arc<Logs> {
        self.node.shared().logs()
    }

    /// Ends it: what was taken is still sent, if that takes no longer than a moment. Again: nothing.
    pub fn close(&self) {
        self.node.close();
        if self.node.is_of_this_process() {
            self.logs().end(); // in a forked child, a thread that does not exist there may hold the lock
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.close();
    }
}
