//! Commands of other threads, and how a worker executes them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use wirespeed_driver::encoded::FrameBatch;
use wirespeed_driver::protocol::CloseCode;

use super::congested::Sent;
use super::{AcceptedSocket, Key, Worker};
use crate::connection::Client;
use crate::outbox::{MessageBatch, Pending};
use crate::publishing::Envelope;
use crate::reasons::Reason;
use crate::session::SessionFigures;
use crate::topics::{Pattern, Topic};

/// The maximum number of messages delivered before sockets are written: large enough that a write carries many
/// messages, small enough that other clients do not notice.
const DELIVERIES: usize = 32 * 1024;

/// The maximum size of a batch, and of a message in it, in bytes. A batch is as large as one write, and stays in the
/// cache until it is written to the next client.
const RUN: usize = 32 * 1024;
const RUN_MESSAGE: usize = 4 * 1024;

/// A message of a batch costs about one part in this number of a single delivery.
const RUN_SHARE: usize = 8;

/// A command for a worker.
pub(crate) enum Command {
    /// Sends a message to one session.
    Send(Key, Envelope),
    /// Sends a message to all sessions but one.
    Broadcast(Envelope, Option<u64>),
    /// Publishes a message to the subscribers of the topic, but one.
    Publish(Topic, Envelope, Option<u64>),
    /// The next message was published at this time: its latency is measured.
    Published(Instant),
    /// Subscribes the session with this number to the pattern.
    Subscribe(Key, u64, Pattern),
    /// Ends a subscription.
    Unsubscribe(Key, Pattern),
    /// Stops or resumes reading: see [`crate::Session::set_reading`].
    Reading(Key),
    /// The session has a new token, and its expiry has changed.
    Refreshed(Key),
    /// Returns the figures of the session.
    Figures(Key, SyncSender<SessionFigures>),
    /// Publishers of the audience wait for sessions of another worker. Contains the session that sent the last
    /// message.
    Observe(Option<Topic>, Option<u64>),
    /// Takes a client that another worker has accepted.
    Welcome(Box<AcceptedSocket>),
    /// Starts the closing handshake, after the messages sent before.
    Close(Key, CloseCode, Box<str>),
    /// Stops accepting.
    CloseDoors {
        /// Accept the clients in the backlogs first, as no other engine will.
        look: bool,
    },
    /// Closes this number of sessions that are not closing yet.
    Shed(usize, CloseCode, Box<str>),
    /// Closes all sessions, and stops accepting.
    Drain(CloseCode, Box<str>),
}

impl Command {
    pub(crate) fn send(key: Key, message: Pending) -> Self {
        Self::Send(key, Envelope::new(message))
    }

    pub(crate) fn broadcast(message: &Pending, except: Option<u64>) -> Self {
        Self::Broadcast(Envelope::new(message.clone()), except)
    }

    pub(crate) fn publish(topic: &Topic, message: &Pending, except: Option<u64>) -> Self {
        Self::Publish(topic.clone(), Envelope::new(message.clone()), except)
    }

    /// Returns the bytes of the message, as the mailbox counts them.
    fn size(&self) -> usize {
        match self {
            Self::Send(_, message) | Self::Broadcast(message, _) | Self::Publish(_, message, _) => message.cost(),
            _ => 0,
        }
    }

    /// Returns the client that the command is about, if it is about one.
    fn whom(&self) -> Option<Key> {
        match self {
            Self::Send(key, _)
            | Self::Subscribe(key, ..)
            | Self::Unsubscribe(key, _)
            | Self::Reading(key)
            | Self::Refreshed(key)
            | Self::Figures(key, _)
            | Self::Close(key, ..) => Some(*key),
            _ => None,
        }
    }

    /// Returns the topic, the excluded session and the message of a command for many sessions.
    fn audience(&self) -> Option<(Option<&Topic>, Option<u64>, &Pending)> {
        match self {
            Self::Publish(topic, message, except) => Some((Some(topic), *except, message)),
            Self::Broadcast(message, except) => Some((None, *except, message)),
            _ => None,
        }
    }

    /// Returns whether both messages may be in one batch: they have the same audience, no key, and are small enough
    /// that copying them costs less than it saves.
    fn runs_with(&self, next: &Self) -> bool {
        let small = |message: &Pending| message.key.is_none() && message.message.size() <= RUN_MESSAGE;
        match (self.audience(), next.audience()) {
            (Some((topic, except, message)), Some((next_topic, next_except, next))) => {
                except == next_except && topic == next_topic && small(message) && small(next)
            }
            _ => false,
        }
    }

    /// Returns the bytes of a command without a message whose number has no other limit.
    pub(crate) fn command(&self) -> usize {
        match self {
            Self::Subscribe(_, _, pattern) | Self::Unsubscribe(_, pattern) => {
                size_of::<Self>() + pattern.as_str().len()
            }
            _ => 0,
        }
    }
}

impl Worker {
    /// Executes the commands of one turn, so that their messages are written before more are delivered.
    pub(super) fn obey_some(&mut self) {
        self.delivered = 0;
        while self.delivered < DELIVERIES
            && let Some(command) = self.commands.pop_front()
        {
            self.note_taken(&command);
            if self.commands.front().is_some_and(|next| command.runs_with(next)) {
                self.obey_run(command);
            } else {
                self.execute(command);
            }
        }
        self.current = None;
        self.note_done();
    }

    fn note_taken(&mut self, command: &Command) {
        self.delivered += 1;
        self.done.0 += command.size();
        self.done.1 += command.command();
    }

    /// Executes a command together with those after it that may be in the same batch.
    fn obey_run(&mut self, first: Command) {
        let (mut messages, mut bytes) = (Vec::new(), 0);
        let mut add = |command: &Command| {
            if let Some((_, _, message)) = command.audience() {
                bytes += message.message.size();
                messages.push(message.clone());
            }
            bytes < RUN
        };
        let mut more = add(&first);
        while more
            && self.commands.front().is_some_and(|next| first.runs_with(next))
            && let Some(command) = self.commands.pop_front()
        {
            self.note_taken(&command);
            more = add(&command);
        }
        let run = Arc::new(FrameBatch::new(messages.iter().map(|message| &*message.message)));
        let volley = MessageBatch { messages: &messages, run: Some(&run) };
        match first.audience() {
            Some((Some(topic), except, _)) => self.publish(topic, &volley, except),
            Some((None, except, _)) => self.broadcast(&volley, except),
            None => {}
        }
    }

    /// Frees the mailbox's capacity of the executed commands, which notifies waiting senders.
    pub(super) fn note_done(&mut self) {
        let (bytes, commands_done) = std::mem::take(&mut self.done);
        self.taken_in = self.taken_in.saturating_add(bytes);
        self.mailbox.done(bytes);
        self.mailbox.done_errands(commands_done);
    }

    pub(super) fn execute(&mut self, command: Command) {
        self.current = command.whom();
        wirespeed_driver::protocol::failpoint::hit("engine.command");
        match command {
            Command::Send(key, message) => {
                if let Some(Client::Established(live)) = self.clients.get_mut(key) {
                    live.count_sent(message.cost());
                    self.push(key, &message);
                } else {
                    self.metrics.drop_undelivered(1);
                }
            }
            Command::Broadcast(message, except) => self.broadcast(&MessageBatch::of(&message), except),
            Command::Publish(topic, message, except) => self.publish(&topic, &MessageBatch::of(&message), except),
            Command::Published(at) => self.published_at = Some(at),
            Command::Subscribe(key, id, pattern) => match self.clients.get_mut(key) {
                Some(Client::Established(live)) if !live.is_ending() => {
                    self.topics.insert(&pattern, key);
                    live.subscriptions.push(pattern);
                }
                // It has ended since, perhaps after the registry subscribed it and before it was removed there.
                _ => drop(self.worker.registry.remove_session(id)),
            },
            Command::Unsubscribe(key, pattern) => {
                if let Some(Client::Established(live)) = self.clients.get_mut(key) {
                    self.topics.remove(&pattern, key);
                    live.subscriptions.retain(|other| *other != pattern);
                }
            }
            Command::Reading(key) => self.set_reading(key),
            Command::Figures(key, asker) => {
                if let Some(Client::Established(live)) = self.clients.get_mut(key) {
                    let _ = asker.send(live.figures()); // the caller may have stopped waiting
                }
            }
            Command::Observe(audience, sender) => self.observe(audience, sender),
            Command::Welcome(guest) => self.receive(*guest),
            Command::Refreshed(key) => self.set_time(key, Instant::now()),
            Command::Close(key, code, reason) => self.close(key, code, reason),
            Command::CloseDoors { look } => self.close_doors(look),
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
    pub(super) fn forget(&mut self, commands: &[Command]) {
        let mut lost = 0;
        for command in commands {
            match command {
                Command::Send(..) => lost += 1,
                Command::Broadcast(_, except) => {
                    for key in self.clients.keys() {
                        let Some(Client::Established(live)) = self.clients.get_mut(key) else { continue };
                        let gets = live.is_told() && !live.is_ending() && *except != Some(live.session.id());
                        lost += u64::from(gets);
                    }
                }
                Command::Publish(topic, _, except) => {
                    self.published += 1;
                    for key in self.topics.matching(topic).flat_map(|set| set.iter()) {
                        let Some(Client::Established(live)) = self.clients.get_mut(key) else { continue };
                        let first = std::mem::replace(&mut live.published, self.published) != self.published;
                        lost += u64::from(first && *except != Some(live.session.id()));
                    }
                }
                Command::Welcome(guest) => self.fail(Reason::Stopping, guest.remote),
                _ => {}
            }
        }
        self.metrics.drop_undelivered(lost);
    }

    fn shed(&mut self, count: usize, code: CloseCode, reason: &str) {
        if self.leaving.is_empty() {
            self.leaving = self.clients.keys();
        }
        let mut left = count;
        while left > 0
            && let Some(key) = self.leaving.pop()
        {
            if let Some(Client::Established(live)) = self.clients.get_mut(key)
                && !live.is_ending()
            {
                self.close(key, code, reason.into());
                left -= 1;
            }
        }
    }

    fn publish(&mut self, topic: &Topic, volley: &MessageBatch<'_>, except: Option<u64>) {
        self.published += 1;
        let mut audience = std::mem::take(&mut self.audience);
        audience.extend(self.topics.matching(topic).flat_map(|set| set.iter()));
        let mut sent = Sent::default();
        self.deliver_to(&audience, |worker, key| {
            let Some(Client::Established(live)) = worker.clients.get_mut(key) else { return };
            if std::mem::replace(&mut live.published, worker.published) != worker.published
                && except != Some(live.session.id())
            {
                worker.deliver(key, volley, &mut sent);
            }
        });
        audience.clear();
        self.audience = audience;
        self.note_deliveries(&sent, volley, except, || Some(topic.clone()));
    }

    fn broadcast(&mut self, volley: &MessageBatch<'_>, except: Option<u64>) {
        let mut sent = Sent::default();
        self.deliver_to(&self.clients.keys(), |worker, key| {
            let Some(Client::Established(live)) = worker.clients.get_mut(key) else { return };
            // Closing sessions get no messages.
            if live.is_told() && !live.is_ending() && except != Some(live.session.id()) {
                worker.deliver(key, volley, &mut sent);
            }
        });
        self.note_deliveries(&sent, volley, except, || None);
    }

    /// Delivers to each session of the audience. A panic ends the session being handled; the others get the message.
    fn deliver_to(&mut self, audience: &[Key], mut deliver: impl FnMut(&mut Self, Key)) {
        let mut left = audience.iter();
        while let Err(panic) = catch_unwind(AssertUnwindSafe(|| left.by_ref().for_each(|key| deliver(self, *key)))) {
            self.lose_current(&*panic);
        }
    }

    /// Delivers to one session of an audience.
    fn deliver(&mut self, key: Key, volley: &MessageBatch<'_>, sent: &mut Sent) {
        self.current = Some(key);
        wirespeed_driver::protocol::failpoint::hit("engine.deliver");
        let Some(Client::Established(live)) = self.clients.get_mut(key) else { return };
        live.push_all(volley, self.share, &self.shared.config);
        if !std::mem::replace(&mut live.dirty, true) {
            if self.commands.is_empty() {
                // No further message could leave with it: write while the frames are in the cache.
                live.dirty = false;
                self.write(key);
            } else {
                self.dirty.push(key);
            }
        }
        if let Some(Client::Established(live)) = self.clients.get_mut(key) {
            let high = live.session.high();
            sent.count(live, high, Instant::now);
            if live.take_asked() {
                self.mark(key);
            }
        }
    }

    fn note_deliveries(
        &mut self,
        sent: &Sent,
        volley: &MessageBatch<'_>,
        sender: Option<u64>,
        audience: impl FnOnce() -> Option<Topic>,
    ) {
        self.current = None;
        self.delivered += sent.all * volley.messages.len().div_ceil(RUN_SHARE);
        self.note_sent(sent, sender, audience);
    }

    pub(super) fn push(&mut self, key: Key, message: &Pending) {
        wirespeed_driver::protocol::failpoint::hit("engine.push");
        if let Some(Client::Established(live)) = self.clients.get_mut(key) {
            live.push(message, self.share, &self.shared.config);
            live.take_asked(); // it is written in this turn
            self.mark(key);
        }
    }

    /// Closes a session after its queued messages.
    fn close(&mut self, key: Key, code: CloseCode, reason: Box<str>) {
        if let Some(Client::Established(live)) = self.clients.get_mut(key) {
            live.close(code, reason, &self.shared.config);
            let unread = live.unread;
            self.mark(key);
            if unread && !self.roomy {
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
        if let Some(Client::Established(live)) = self.clients.get_mut(key)
            && !std::mem::replace(&mut live.dirty, true)
        {
            self.dirty.push(key);
        }
    }
}
