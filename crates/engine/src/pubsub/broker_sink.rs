//! The engine's side of a broker: delivers the broker's messages to the engine's sessions.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::broker::{Message, Sink, Unsendable};
use crate::control::{Command, Refused, WorkerHandle, has_capacity};
use crate::delivery::Pending;
use crate::delivery::slow_consumer::SlowConsumerBudget;
use crate::events::Events;
use crate::logs::Logs;
use crate::shared::EngineShared;
use crate::topics::{Registry, Topic};
use crate::util::locks::lock;

/// The time for which slow sessions may delay a broker's messages; afterwards they may do so for a quarter of the
/// time. It suffices to read at a moderate rate what accumulated while the broker paused.
const PACING_BUDGET: Duration = Duration::from_secs(10);

/// Shorter waits are not worth a system call.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// Slows a broker down to the rate at which its sessions read.
struct Pacing {
    /// The audience of the last message, if its publishers should wait.
    audience: Option<Option<Topic>>,
    budget: SlowConsumerBudget,
}

/// The [`Sink`] of an engine.
pub(crate) struct EngineSink {
    shared: Arc<EngineShared>,
    registry: Arc<Registry>,
    workers: Vec<Arc<WorkerHandle>>,
    /// Used by the broker's thread only.
    pacing: Mutex<Pacing>,
}

impl EngineSink {
    pub(crate) fn new(shared: Arc<EngineShared>, registry: Arc<Registry>, workers: Vec<Arc<WorkerHandle>>) -> Self {
        let pacing =
            Mutex::new(Pacing { audience: None, budget: SlowConsumerBudget::new(PACING_BUDGET, Instant::now()) });
        Self { shared, registry, workers, pacing }
    }

    /// Whether there is room for another message to this audience: in the mailboxes, and as its sessions keep up.
    fn pace(&self, room: bool, audience: Option<&Topic>) -> bool {
        let congested = self.workers.iter().any(|worker| worker.congestion.has(audience));
        if congested || !room {
            // Checked again before the next message: an overloaded worker detects slow sessions late.
            lock(&self.pacing).audience = Some(audience.cloned());
        }
        room && !congested
    }

    fn pending(&self, message: Message<'_>) -> Result<Pending, Unsendable> {
        let encoded = self.shared.encode(message.kind, message.payload).map_err(|_| Unsendable)?;
        Ok(Pending { message: encoded, key: message.key.map(Arc::from) })
    }

    fn events(&self) -> &Events {
        &self.shared.events
    }
}

// A full mailbox does not refuse these messages, unlike those of other publishers: otherwise only some workers would
// receive a message. Instead the calling thread waits after each message that finds no room.
impl Sink for EngineSink {
    fn publish(&self, topic: &Topic, message: Message<'_>) -> Result<bool, Unsendable> {
        let pending = self.pending(message)?;
        let size = pending.cost();
        let (_, room) = self.registry.publish(topic, None, |workers| {
            workers.iter().fold(true, |room, worker| {
                let command = Command::publish(topic, &pending, None);
                let Some(worker) = self.workers.get(worker.index()) else { return room };
                room & worker.mailbox.put_checked(command, size).unwrap_or(true) // a worker that has ended has room
            })
        });
        Ok(self.pace(room, Some(topic)))
    }

    fn broadcast(&self, message: Message<'_>) -> Result<bool, Unsendable> {
        let pending = self.pending(message)?;
        let size = pending.cost();
        let room = self.workers.iter().fold(true, |room, worker| {
            room & worker.mailbox.put_checked(Command::broadcast(&pending, None), size).unwrap_or(true)
        });
        Ok(self.pace(room, None))
    }

    fn wait_for_capacity(&self, deadline: Instant) -> bool {
        if self.workers.iter().any(|worker| worker.mailbox.wait_for_capacity(Some(deadline)) == Err(Refused::Full)) {
            return false;
        }
        let (Some(worker), mut pacing) = (self.workers.first(), lock(&self.pacing)) else { return true };
        let now = Instant::now();
        let left = pacing.budget.left(now);
        let Some(audience) = pacing.audience.take_if(|_| left >= SHORTEST_WAIT) else { return true };
        let is_ready = || has_capacity(&self.workers, audience.as_ref());
        let waited = worker.capacity.wait(Some(deadline.min(now + left)), is_ready);
        pacing.budget.spend(now.elapsed());
        let full = waited == Err(Refused::Full);
        if full {
            pacing.audience = Some(audience);
        }
        !full
    }

    fn resume(&self) {
        if let Some(worker) = self.workers.first() {
            worker.capacity.notify();
        }
    }

    fn noticed(&self) {
        self.events().ring();
    }

    fn logs(&self) -> Arc<Logs> {
        Arc::clone(&self.shared.logs)
    }
}
