//! The commands of other threads to a worker.

use std::sync::mpsc::SyncSender;
use std::time::Instant;

use wirespeed_driver::protocol::CloseCode;

use crate::delivery::Pending;
use crate::delivery::message::Envelope;
use crate::listen::AcceptedSocket;
use crate::metrics::SessionFigures;
use crate::topics::{Pattern, Topic};
use crate::util::slab::Key;

/// The maximum size of a message in a batch, in bytes.
const BATCHED_MESSAGE_LIMIT: usize = 4 * 1024;

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
    Accepted(Box<AcceptedSocket>),
    /// Starts the closing handshake, after the messages sent before.
    Close(Key, CloseCode, Box<str>),
    /// Stops accepting.
    StopAccepting {
        /// Accept the clients in the backlogs first, as no other engine will.
        accept_backlog: bool,
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
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Send(_, message) | Self::Broadcast(message, _) | Self::Publish(_, message, _) => message.cost(),
            _ => 0,
        }
    }

    /// Returns the client that the command is about, if it is about one.
    pub(crate) fn target(&self) -> Option<Key> {
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
    pub(crate) fn audience(&self) -> Option<(Option<&Topic>, Option<u64>, &Pending)> {
        match self {
            Self::Publish(topic, message, except) => Some((Some(topic), *except, message)),
            Self::Broadcast(message, except) => Some((None, *except, message)),
            _ => None,
        }
    }

    /// Returns whether both messages may be in one batch: they have the same audience, no key, and are small enough
    /// that copying them costs less than it saves.
    pub(crate) fn batches_with(&self, next: &Self) -> bool {
        let small = |message: &Pending| message.key.is_none() && message.message.size() <= BATCHED_MESSAGE_LIMIT;
        match (self.audience(), next.audience()) {
            (Some((topic, except, message)), Some((next_topic, next_except, next))) => {
                except == next_except && topic == next_topic && small(message) && small(next)
            }
            _ => false,
        }
    }

    /// Returns the bytes of a command without a message whose number has no other limit.
    pub(crate) fn command_size(&self) -> usize {
        match self {
            Self::Subscribe(_, _, pattern) | Self::Unsubscribe(_, pattern) => {
                size_of::<Self>() + pattern.as_str().len()
            }
            _ => 0,
        }
    }
}
