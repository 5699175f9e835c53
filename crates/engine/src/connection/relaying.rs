//! What a client of a relay sends: published on its topic, no faster than those of this engine who get it read, and than
//! a broker takes it.

use wirespeed_driver::protocol::MessageKind;

use crate::publishing::{FanOut, has_capacity};
use crate::relay::Relay;
use crate::session::{Session, TopicPermission};
use crate::topics::Topic;
use crate::worker::EngineShared;

/// See the module.
pub(crate) struct Relaying {
    topic: Topic,
    /// There is no room for more: it is not read until there is.
    waits: bool,
    /// Something of it was published in this turn.
    moved: bool,
    /// Messages dropped, because it may not publish.
    denied: u64,
    /// Of these, those of which the sheet knows.
    told: u64,
}

impl Relaying {
    pub(crate) fn new(topic: Topic) -> Self {
        Self { topic, waits: false, moved: false, denied: 0, told: 0 }
    }

    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Whether it was, and no longer is.
    pub(crate) fn take_waits(&mut self) -> bool {
        std::mem::take(&mut self.waits)
    }

    pub(crate) fn has_moved(&self) -> bool {
        self.moved
    }

    pub(crate) fn denied(&self) -> u64 {
        self.denied
    }

    /// How many were denied since the last call.
    pub(crate) fn take_denied(&mut self) -> u64 {
        self.denied - std::mem::replace(&mut self.told, self.denied)
    }

    /// Looks for room before anything is read: so that of all who wait one at a time goes on, and what is too much is
    /// one message of each worker.
    pub(crate) fn look(&mut self, shared: &EngineShared) {
        wirespeed_driver::protocol::failpoint::hit("engine.relay");
        let here = shared.homes.get().is_none_or(|homes| has_capacity(homes, Some(&self.topic)).unwrap_or(true));
        (self.waits, self.moved) = (!here || !has_broker_room(shared), false);
    }

    /// Publishes a message. False: it sends nothing here.
    pub(crate) fn pass(
        &mut self,
        session: &Session,
        relay: &Relay,
        kind: MessageKind,
        payload: &[u8],
        shared: &EngineShared,
    ) -> bool {
        if !relay.send {
            return false;
        }
        if !session.may(TopicPermission::Publish, self.topic.as_str()) {
            self.denied += 1;
            return true;
        }
        let (Ok(message), Some(homes)) = (shared.encode(kind, payload), shared.homes.get()) else { return true };
        if shared.broker.get().is_some_and(|broker| !broker.admits(payload.len())) {
            self.waits = true;
            return true; // nobody gets it, and it is counted: the sender cannot be told
        }
        let except = (!relay.echo).then(|| session.id());
        let mut posting = FanOut::new(shared, homes).after_waiting();
        let published = posting.publish(&session.worker().registry, &self.topic, message, except, None);
        self.moved = true;
        self.waits = published.is_ok_and(|published| !published.room) || !has_broker_room(shared);
        true
    }
}

fn has_broker_room(shared: &EngineShared) -> bool {
    shared.broker.get().is_none_or(|broker| broker.has_capacity())
}
