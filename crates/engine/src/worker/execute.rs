//! Commands of other threads, and how a worker executes them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use wirespeed_driver::encoded::FrameBatch;
use wirespeed_driver::protocol::CloseCode;

use super::Worker;
use super::congested::Sent;
use crate::connection::Client;
use crate::control::Command;
use crate::delivery::{MessageBatch, Pending};
use crate::reasons::Reason;
use crate::topics::{Pattern, Topic};
use crate::util::slab::Key;

/// The maximum number of messages delivered before sockets are written: large enough that a write carries many
/// messages, small enough that other clients do not notice.
const MAX_DELIVERIES: usize = 32 * 1024;

/// The maximum size of a batch in bytes. A batch is as large as one write, and stays in the cache until it is written to
/// the next client.
const BATCH_LIMIT: usize = 32 * 1024;

/// A message of a batch costs about one part in this number of a single delivery.
const BATCH_COST_DIVISOR: usize = 8;

impl Worker {
    /// Executes the commands of one turn, so that their messages are written before more are delivered.
    pub(super) fn execute_commands(&mut self) {
        self.delivered = 0;
        while self.delivered < MAX_DELIVERIES
            && let Some(command) = self.commands.pop_front()
        {
            self.count_taken(&command);
            if self.commands.front().is_some_and(|next| command.batches_with(next)) {
                self.execute_batch(command);
            } else {
                self.execute(command);
            }
        }
        self.current = None;
        self.release_capacity();
    }

    fn count_taken(&mut self, command: &Command) {
        self.delivered += 1;
        self.done.0 += command.size();
        self.done.1 += command.command_size();
    }

    /// Executes a command together with those after it that may be in the same batch.
    fn execute_batch(&mut self, first: Command) {
        let (mut messages, mut bytes) = (Vec::new(), 0);
        let mut add = |command: &Command| {
            if let Some((_, _, message)) = command.audience() {
                bytes += message.message.size();
                messages.push(message.clone());
            }
            bytes < BATCH_LIMIT
        };
        let mut more = add(&first);
        while more
            && self.commands.front().is_some_and(|next| first.batches_with(next))
            && let Some(command) = self.commands.pop_front()
        {
            self.count_taken(&command);
            more = add(&command);
        }
        let frames = Arc::new(FrameBatch::new(messages.iter().map(|message| &*message.message)));
        let batch = MessageBatch { messages: &messages, frames: Some(&frames) };
        match first.audience() {
            Some((Some(topic), except, _)) => self.publish(topic, &batch, except),
            Some((None, except, _)) => self.broadcast(&batch, except),
            None => {}
        }
    }

    /// Frees the mailbox's capacity of the executed commands, which notifies waiting senders.
    pub(super) fn release_capacity(&mut self) {
        let (bytes, command_bytes) = std::mem::take(&mut self.done);
        self.bytes_since_check = self.bytes_since_check.saturating_add(bytes);
        self.mailbox.done(bytes);
        self.mailbox.done_commands(command_bytes);
    }

    pub(super) fn execute(&mut self, command: Command) {
        self.current = command.target();
        wirespeed_driver::protocol::failpoint::hit("engine.command");
        match command {
            Command::Send(key, message) => {
                if let Some(Client::Established(client)) = self.clients.get_mut(key) {
                    client.count_sent(message.cost());
                    self.push(key, &message);
                } else {
                    self.metrics.count_undelivered(1);
                }
            }
            Command::Broadcast(message, except) => self.broadcast(&MessageBatch::of(&message), except),
            Command::Publish(topic, message, except) => self.publish(&topic, &MessageBatch::of(&message), except),
            Command::Published(at) => self.published_at = Some(at),
            Command::Subscribe(key, id, pattern) => match self.clients.get_mut(key) {
                Some(Client::Established(client)) if !client.is_ending() => {
                    self.topics.insert(&pattern, key);
                    client.subscriptions.push(pattern);
                }
                // It has ended since, perhaps after the registry subscribed it and before it was removed there.
                _ => drop(self.worker.registry.remove_session(id)),
            },
            Command::Unsubscribe(key, pattern) => {
                if let Some(Client::Established(client)) = self.clients.get_mut(key) {
                    self.topics.remove(&pattern, key);
                    client.subscriptions.retain(|other| *other != pattern);
                }
            }
            Command::Reading(key) => self.set_reading(key),
            Command::Figures(key, reply) => {
                if let Some(Client::Established(client)) = self.clients.get_mut(key) {
                    let _ = reply.send(client.figures()); // the caller may have stopped waiting
                }
            }
            Command::Observe(audience, sender) => self.observe(audience, sender),
            Command::Accepted(incoming) => self.receive(*incoming),
            Command::Refreshed(key) => self.set_time(key, Instant::now()),
            Command::Close(key, code, reason) => self.close(key, code, reason),
            Command::StopAccepting { accept_backlog } => self.stop_accepting(accept_backlog),
            Command::Shed(count, code, reason) => self.shed(count, code, &reason),
            Command::Drain(code, reason) => {
                self.draining = true;
                for key in self.clients.keys() {
                    match self.clients.get_mut(key) {
                        Some(Client::Established(_)) => self.close(key, code, reason.clone()),
                        _ => self.remove(key),
                    }
                }
            }
        }
    }

    /// Counts the messages of commands that are never executed.
    pub(super) fn discard(&mut self, commands: &[Command]) {
        let mut lost = 0;
        for command in commands {
            match command {
                Command::Send(..) => lost += 1,
                Command::Broadcast(_, except) => {
                    for key in self.clients.keys() {
                        let Some(Client::Established(client)) = self.clients.get_mut(key) else { continue };
                        let gets = client.emits_events() && !client.is_ending() && *except != Some(client.session.id());
                        lost += u64::from(gets);
                    }
                }
                Command::Publish(topic, _, except) => {
                    self.published += 1;
                    for key in self.topics.matching(topic).flat_map(|set| set.iter()) {
                        let Some(Client::Established(client)) = self.clients.get_mut(key) else { continue };
                        let first = std::mem::replace(&mut client.published, self.published) != self.published;
                        lost += u64::from(first && *except != Some(client.session.id()));
                    }
                }
                Command::Accepted(incoming) => self.fail(Reason::Stopping, incoming.remote),
                _ => {}
            }
        }
        self.metrics.count_undelivered(lost);
    }

    fn shed(&mut self, count: usize, code: CloseCode, reason: &str) {
        if self.leaving.is_empty() {
            self.leaving = self.clients.keys();
        }
        let mut left = count;
        while left > 0
            && let Some(key) = self.leaving.pop()
        {
            if let Some(Client::Established(client)) = self.clients.get_mut(key)
                && !client.is_ending()
            {
                self.close(key, code, reason.into());
                left -= 1;
            }
        }
    }

    fn publish(&mut self, topic: &Topic, batch: &MessageBatch<'_>, except: Option<u64>) {
        self.published += 1;
        let mut audience = std::mem::take(&mut self.audience);
        audience.extend(self.topics.matching(topic).flat_map(|set| set.iter()));
        let mut sent = Sent::default();
        self.deliver_each(&audience, |worker, key| {
            let Some(Client::Established(client)) = worker.clients.get_mut(key) else { return };
            if std::mem::replace(&mut client.published, worker.published) != worker.published
                && except != Some(client.session.id())
            {
                worker.deliver(key, batch, &mut sent);
            }
        });
        audience.clear();
        self.audience = audience;
        self.count_deliveries(&sent, batch, except, || Some(topic.clone()));
    }

    fn broadcast(&mut self, batch: &MessageBatch<'_>, except: Option<u64>) {
        let mut sent = Sent::default();
        self.deliver_each(&self.clients.keys(), |worker, key| {
            let Some(Client::Established(client)) = worker.clients.get_mut(key) else { return };
            // Closing sessions get no messages.
            if client.emits_events() && !client.is_ending() && except != Some(client.session.id()) {
                worker.deliver(key, batch, &mut sent);
            }
        });
        self.count_deliveries(&sent, batch, except, || None);
    }

    /// Delivers to each session of the audience. A panic ends the session being handled; the others get the message.
    fn deliver_each(&mut self, audience: &[Key], mut deliver: impl FnMut(&mut Self, Key)) {
        let mut left = audience.iter();
        while let Err(panic) = catch_unwind(AssertUnwindSafe(|| left.by_ref().for_each(|key| deliver(self, *key)))) {
            self.end_current(&*panic);
        }
    }

    /// Delivers to one session of an audience.
    fn deliver(&mut self, key: Key, batch: &MessageBatch<'_>, sent: &mut Sent) {
        self.current = Some(key);
        wirespeed_driver::protocol::failpoint::hit("engine.deliver");
        let Some(Client::Established(client)) = self.clients.get_mut(key) else { return };
        client.push_all(batch, self.share, &self.shared.config);
        if !std::mem::replace(&mut client.dirty, true) {
            if self.commands.is_empty() {
                // No further message could leave with it: write while the frames are in the cache.
                client.dirty = false;
                self.write(key);
            } else {
                self.dirty.push(key);
            }
        }
        if let Some(Client::Established(client)) = self.clients.get_mut(key) {
            let high_water = client.session.high_water();
            sent.count(client, high_water, Instant::now);
            if client.take_wrote_early() {
                self.mark(key);
            }
        }
    }

    fn count_deliveries(
        &mut self,
        sent: &Sent,
        batch: &MessageBatch<'_>,
        sender: Option<u64>,
        audience: impl FnOnce() -> Option<Topic>,
    ) {
        self.current = None;
        self.delivered += sent.all * batch.messages.len().div_ceil(BATCH_COST_DIVISOR);
        self.note_congestion(sent, sender, audience);
    }

    pub(super) fn push(&mut self, key: Key, message: &Pending) {
        wirespeed_driver::protocol::failpoint::hit("engine.push");
        if let Some(Client::Established(client)) = self.clients.get_mut(key) {
            client.push(message, self.share, &self.shared.config);
            client.take_wrote_early(); // it is written in this turn
            self.mark(key);
        }
    }

    /// Closes a session after its queued messages.
    fn close(&mut self, key: Key, code: CloseCode, reason: Box<str>) {
        if let Some(Client::Established(client)) = self.clients.get_mut(key) {
            client.close(code, reason, &self.shared.config);
            let read_pending = client.read_pending;
            self.mark(key);
            if read_pending && !self.events_have_capacity {
                self.draining_input.push(key); // read once the close frame has left
            }
        }
    }

    /// Removes a session's subscriptions from the registry and from this worker's index.
    pub(super) fn forget_topics(&mut self, key: Key, id: u64, subscriptions: &[Pattern]) {
        self.worker.registry.remove_session(id);
        for pattern in subscriptions {
            self.topics.remove(pattern, key);
        }
    }

    pub(super) fn mark(&mut self, key: Key) {
        if let Some(Client::Established(client)) = self.clients.get_mut(key)
            && !std::mem::replace(&mut client.dirty, true)
        {
            self.dirty.push(key);
        }
    }
}
