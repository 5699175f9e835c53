//! Putting messages into the mailboxes of the workers whose sessions get them, and forwarding them to the broker.
//!
//! Called by the application's API and by relays.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use wirespeed_driver::encoded::Encoded;

use crate::broker::{self, Message, Published};
use crate::control::{Command, Refused, WorkerHandle};
use crate::delivery::Pending;
use crate::shared::EngineShared;
use crate::topics::{Registry, Topic};

/// Puts commands into the mailboxes of several workers.
pub(crate) struct FanOut<'a> {
    shared: &'a EngineShared,
    handles: &'a [Arc<WorkerHandle>],
    /// The sender has waited for capacity, and is not refused for lack of it.
    waited: bool,
    /// Sleeping workers are woken when this is dropped, each once.
    wakes_later: bool,
    /// Workers to be woken then.
    asleep: Vec<&'a WorkerHandle>,
}

impl<'a> FanOut<'a> {
    pub(crate) fn new(shared: &'a EngineShared, handles: &'a [Arc<WorkerHandle>]) -> Self {
        Self { shared, handles, waited: false, wakes_later: false, asleep: Vec::new() }
    }

    /// Skips the check of capacity, for a sender that has waited for it.
    pub(crate) fn after_waiting(mut self) -> Self {
        self.waited = true;
        self
    }

    /// For several messages in a row: workers are not woken until this is dropped, or a mailbox has no capacity.
    pub(crate) fn waking_later(mut self) -> Self {
        self.wakes_later = true;
        self
    }

    /// Puts a command into the mailboxes of several workers: all of them, or none if it returns an error, as the
    /// sender then retries. Returns whether there is capacity for more and the audience is not congested.
    pub(crate) fn put<H: Iterator<Item = &'a Arc<WorkerHandle>>>(
        &mut self,
        handles: impl Fn() -> H,
        audience: Option<&Topic>,
        bytes: usize,
        command: impl Fn() -> Command,
    ) -> Result<bool, Refused> {
        if !self.waited {
            handles().try_for_each(|worker| worker.mailbox.check())?;
        }
        handles().try_fold(true, |has_capacity, worker| {
            self.begin_timing(worker);
            Ok(has_capacity & self.put_one(worker, command(), bytes)? & !worker.congestion.has(audience))
        })
    }

    fn put_one(&mut self, worker: &'a WorkerHandle, command: Command, bytes: usize) -> Result<bool, Refused> {
        if !self.wakes_later {
            return worker.mailbox.put_checked(command, bytes);
        }
        let (has_capacity, asleep) = worker.mailbox.put_without_waking(command, bytes)?;
        if asleep {
            self.asleep.push(worker);
        }
        if !has_capacity {
            self.wake();
        }
        Ok(has_capacity)
    }

    fn wake(&mut self) {
        self.asleep.drain(..).for_each(|worker| worker.mailbox.wake());
    }

    /// Starts a measurement of the latency with the next message, if none is under way at this worker.
    fn begin_timing(&mut self, worker: &'a WorkerHandle) {
        if self.shared.metrics.get(worker.worker.index()).is_some_and(|metrics| metrics.begin_timing()) {
            let _ = self.put_one(worker, Command::Published(Instant::now()), 0); // fails if the worker has ended
        }
    }

    /// Publishes a message to the subscribers of the topic except one, and to other engines.
    pub(crate) fn publish(
        &mut self,
        registry: &Registry,
        topic: &Topic,
        message: Arc<Encoded>,
        except: Option<u64>,
        key: Option<Arc<str>>,
    ) -> Result<Published, Refused> {
        wirespeed_driver::protocol::failpoint::hit("engine.publish");
        let pending = Pending { message: Arc::clone(&message), key: key.clone() };
        let all = self.handles;
        let (count, put) = registry.publish(topic, except, |workers| {
            let handles = || workers.iter().filter_map(|worker| all.get(worker.index()));
            self.put(handles, Some(topic), pending.cost(), || Command::publish(topic, &pending, except))
        });
        let has_capacity = put?;
        if count == 0 && self.shared.stop.load(Ordering::Acquire) {
            return Err(Refused::Closed);
        }
        let (kind, payload) = (message.kind(), message.payload());
        let forwarded = broker::forward(&self.shared.broker, topic, Message { kind, payload, key: key.as_deref() });
        Ok(Published { count, room: has_capacity, broker: forwarded })
    }
}

impl Drop for FanOut<'_> {
    fn drop(&mut self) {
        self.wake();
    }
}
