//! Publishing what a client of a relay sends, no faster than the subscribers of this engine and the broker take it.

use wirespeed_driver::protocol::MessageKind;

use crate::auth::acl::TopicPermission;
use crate::config::Relay;
use crate::control::has_capacity;
use crate::pubsub::publish::FanOut;
use crate::session::Session;
use crate::shared::EngineShared;
use crate::topics::Topic;

/// The state of one client of a relay.
pub(crate) struct Relaying {
    topic: Topic,
    /// The topic or the broker has no capacity: the client is not read until it has.
    waits: bool,
    /// A message was published in this turn.
    published: bool,
    /// Messages dropped because the client may not publish.
    denied: u64,
    /// Those of them that were added to the metrics.
    reported_denied: u64,
}

impl Relaying {
    pub(crate) fn new(topic: Topic) -> Self {
        Self { topic, waits: false, published: false, denied: 0, reported_denied: 0 }
    }

    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Returns whether it was waiting for capacity, and resets that.
    pub(crate) fn take_waits(&mut self) -> bool {
        std::mem::take(&mut self.waits)
    }

    pub(crate) fn has_published(&self) -> bool {
        self.published
    }

    pub(crate) fn denied(&self) -> u64 {
        self.denied
    }

    /// Returns how many messages were denied since the last call.
    pub(crate) fn take_denied(&mut self) -> u64 {
        self.denied - std::mem::replace(&mut self.reported_denied, self.denied)
    }

    /// Checks for capacity before anything is read. So waiting clients go on one at a time, and the limit is exceeded
    /// by at most one message of each worker.
    pub(crate) fn check_capacity(&mut self, shared: &EngineShared) {
        wirespeed_driver::protocol::failpoint::hit("engine.relay");
        let here = shared.handles.get().is_none_or(|handles| has_capacity(handles, Some(&self.topic)).unwrap_or(true));
        (self.waits, self.published) = (!here || !has_broker_room(shared), false);
    }

    /// Publishes a message. Returns false if clients of this relay may not send.
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
        let (Ok(message), Some(handles)) = (shared.encode(kind, payload), shared.handles.get()) else { return true };
        if shared.broker.get().is_some_and(|broker| !broker.admits(payload.len())) {
            self.waits = true;
            return true; // the broker counts the dropped message; the sender gets no error
        }
        let except = (!relay.echo).then(|| session.id());
        let mut fan_out = FanOut::new(shared, handles).after_waiting();
        let published = fan_out.publish(&session.worker().registry, &self.topic, message, except, None);
        self.published = true;
        self.waits = published.is_ok_and(|published| !published.room) || !has_broker_room(shared);
        true
    }
}

fn has_broker_room(shared: &EngineShared) -> bool {
    shared.broker.get().is_none_or(|broker| broker.has_capacity())
}
