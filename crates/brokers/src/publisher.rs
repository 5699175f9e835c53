//! Publishes to engines over a broker, without an engine in this process.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wirespeed_engine::Wake;
use wirespeed_engine::broker::{Broker, EnqueueResult, Message, Status, is_reserved};
use wirespeed_engine::control::Watch;
use wirespeed_engine::logs::Logs;
use wirespeed_engine::topics::Topic;

use crate::client::{BrokerClient, BrokerConfig};
use crate::queue::{Destination, Policy};

/// Why a message is not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The queue had no capacity until the deadline.
    Full,
    /// The publisher was closed.
    Closed,
    /// The topic is reserved for internal use.
    Reserved,
    /// Text that is not UTF-8.
    NotText,
}

/// A queue to a broker, and a thread that sends it. Usable from any thread; dropping it closes it.
pub struct Publisher {
    client: BrokerClient,
}

impl Publisher {
    /// Starts to connect.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn new(config: &BrokerConfig) -> io::Result<Self> {
        // With this policy a full queue refuses the message, so that the caller can wait or raise.
        let mut config = config.clone();
        config.policy = Policy::Raise;
        Ok(Self { client: BrokerClient::start(&config, None)? })
    }

    /// Queues a message for the subscribers of a topic or, without one, for all sessions of all engines.
    ///
    /// # Errors
    /// Returns a [`Refusal`]. After [`Refusal::Full`], call [`Self::wait_for_capacity`].
    pub fn publish(&self, topic: Option<&Topic>, message: Message<'_>) -> Result<(), Refusal> {
        use wirespeed_engine::driver::protocol::MessageKind;

        if message.kind == MessageKind::Text && std::str::from_utf8(message.payload).is_err() {
            return Err(Refusal::NotText);
        }
        let to = match topic {
            Some(topic) if is_reserved(topic) => return Err(Refusal::Reserved),
            Some(topic) => Destination::Topic(topic.clone()),
            None => Destination::All,
        };
        let shared = self.client.shared();
        if !shared.has_capacity(message.payload.len()) {
            return Err(Refusal::Full);
        }
        match shared.push(to, message) {
            EnqueueResult::Yes | EnqueueResult::Local => Ok(()),
            EnqueueResult::Full | EnqueueResult::TooLarge => Err(Refusal::Full),
            EnqueueResult::Closed => Err(Refusal::Closed),
        }
    }

    /// Waits until a message of this size fits, or the deadline. Returns whether it fits, or the publisher has ended.
    #[must_use]
    pub fn wait_for_capacity(&self, bytes: usize, deadline: Instant) -> bool {
        self.client.shared().wait_for_capacity(bytes, deadline)
    }

    /// Returns whether a message of this size fits, or the publisher has ended.
    #[must_use]
    pub fn has_capacity(&self, bytes: usize) -> bool {
        self.client.shared().has_capacity(bytes)
    }

    /// Registers `wake`, which is called when the queue has capacity, when messages are settled, and at the end.
    #[must_use]
    pub fn watch(&self, wake: Arc<dyn Wake>) -> Watch {
        self.client.shared().capacity().watch(wake)
    }

    /// Returns a key that is unique to this publisher as long as a [`Watch`] of it exists.
    #[must_use]
    pub fn watch_key(&self) -> usize {
        Arc::as_ptr(self.client.shared().capacity()).addr()
    }

    /// Returns the number of messages published so far, for [`Self::flush`].
    #[must_use]
    pub fn published(&self) -> u64 {
        self.client.shared().accepted()
    }

    /// Returns how many published messages the broker may not have, as far as known: they were in flight when a
    /// connection broke, or the broker refused them.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.client.shared().missing()
    }

    /// Waits until the first `published` messages are settled, and returns [`Self::missing`]. That number never
    /// decreases, so callers subtract an earlier value, and concurrent callers get the same. `None`: the deadline
    /// passed.
    #[must_use]
    pub fn flush(&self, published: u64, deadline: Option<Instant>) -> Option<u64> {
        self.client.shared().flush(published, deadline)
    }

    /// Returns the state of the connection, and counters.
    #[must_use]
    pub fn status(&self) -> Status {
        self.client.status()
    }

    /// Starts to close without waiting; queued messages are not sent.
    pub fn end(&self) {
        self.client.end(Duration::ZERO);
    }

    /// Returns whether the publisher has ended, so that [`Self::missing`] is final.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.client.shared().has_ended()
    }

    /// Returns the log of this publisher.
    #[must_use]
    pub fn logs(&self) -> &Arc<Logs> {
        self.client.shared().logs()
    }

    /// Closes the publisher. Queued messages are still sent for a short time. Later calls do nothing.
    pub fn close(&self) {
        self.client.close();
        if self.client.is_of_this_process() {
            self.logs().end(); // in a forked child, a thread that does not exist there may hold the lock
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.close();
    }
}
