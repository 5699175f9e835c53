//! The events of sessions, and batches of them.

use std::collections::VecDeque;
use std::ops::Range;

use wirespeed_driver::protocol::MessageKind;

use crate::session::Session;

/// A batch that reaches this number of events, or of message bytes, is handed on before the turn is over.
const BATCH_EVENTS: usize = 4096;
const BATCH_BYTES: usize = 1 << 20;

/// Payloads of this size and above are not copied into the batch.
const LARGE: usize = 16 * 1024;

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The close code that the client sent; 1005 if its close frame had none, 1006 if there was no close frame (RFC
    /// 6455 7.1.5).
    pub code: u16,
    /// The reason that the client gave.
    pub reason: String,
    /// Why the connection failed, if it did.
    pub failure: Option<String>,
}

/// An event of one session.
#[derive(Debug)]
pub enum Event<'a> {
    /// It is open.
    Connected,
    /// A message arrived.
    Message {
        /// Text, which is UTF-8, or binary.
        kind: MessageKind,
        /// The payload.
        data: &'a [u8],
    },
    /// It is over: its last event.
    Disconnected(&'a Ended),
}

enum StoredEvent {
    Connected,
    Small(MessageKind, Range<u32>),
    Large(MessageKind, Vec<u8>),
    Disconnected(Box<Ended>),
}

/// The events of one turn of a worker, in order.
#[derive(Default)]
pub struct Batch {
    /// Each with its session: an index into `sessions`.
    events: VecDeque<(u32, StoredEvent)>,
    sessions: Vec<Session>,
    /// The payloads of small messages.
    bytes: Vec<u8>,
    /// The sessions that are over: indices into `sessions`.
    ended: Vec<u32>,
    /// The total size of the payloads, in bytes.
    size: usize,
    /// When it was handed on, in nanoseconds since the start of the engine.
    pub(super) at: u64,
}

impl Batch {
    /// Returns the number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Returns whether it must be handed on before anything is added: a few compressed bytes may become many.
    pub(crate) fn is_full(&self) -> bool {
        self.events.len() >= BATCH_EVENTS || self.size >= BATCH_BYTES
    }

    /// Returns the total size of the payloads, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    fn session(&mut self, session: &Session) -> u32 {
        // Usually it is the last session: a read brings many messages of one.
        if self.sessions.last().is_none_or(|last| last != session) {
            self.sessions.push(session.clone());
        }
        self.sessions.len() as u32 - 1
    }

    pub(crate) fn connected(&mut self, session: &Session) {
        let index = self.session(session);
        self.events.push_back((index, StoredEvent::Connected));
    }

    pub(crate) fn message(&mut self, session: &Session, kind: MessageKind, data: &[u8]) {
        let index = self.session(session);
        self.size += data.len();
        let kept = match u32::try_from(self.bytes.len() + data.len()) {
            Ok(end) if data.len() < LARGE => {
                let start = self.bytes.len() as u32;
                self.bytes.extend_from_slice(data);
                StoredEvent::Small(kind, start..end)
            }
            _ => StoredEvent::Large(kind, data.to_vec()),
        };
        self.events.push_back((index, kept));
    }

    pub(crate) fn owned_message(&mut self, session: &Session, kind: MessageKind, data: Vec<u8>) {
        if data.len() < LARGE {
            return self.message(session, kind, &data);
        }
        let index = self.session(session);
        self.size += data.len();
        self.events.push_back((index, StoredEvent::Large(kind, data)));
    }

    pub(crate) fn disconnected(&mut self, session: &Session, ended: Ended) {
        let index = self.session(session);
        self.ended.push(index);
        self.events.push_back((index, StoredEvent::Disconnected(Box::new(ended))));
    }

    /// Iterates over the events with their sessions, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Session, Event<'_>)> {
        let session = |index: u32| self.sessions.get(index as usize);
        self.events.iter().filter_map(move |(index, kept)| Some((session(*index)?, self.event(kept))))
    }

    /// Returns the sessions of these events, in the order of their events. A session may be in it several times.
    #[must_use]
    pub fn sessions(&self) -> &[Session] {
        &self.sessions
    }

    /// Returns an event, and the index of its session in [`Self::sessions`].
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<(usize, Event<'_>)> {
        self.events.get(index).map(|(index, kept)| (*index as usize, self.event(kept)))
    }

    /// Iterates over the sessions that are over after this batch: indices into [`Self::sessions`].
    pub fn ended(&self) -> impl Iterator<Item = usize> {
        self.ended.iter().map(|index| *index as usize)
    }

    #[inline]
    fn event<'a>(&'a self, kept: &'a StoredEvent) -> Event<'a> {
        match kept {
            StoredEvent::Connected => Event::Connected,
            StoredEvent::Small(kind, range) => Event::Message { kind: *kind, data: self.small(range) },
            StoredEvent::Large(kind, data) => Event::Message { kind: *kind, data },
            StoredEvent::Disconnected(ended) => Event::Disconnected(ended),
        }
    }

    #[inline]
    fn small(&self, range: &Range<u32>) -> &[u8] {
        self.bytes.get(range.start as usize..range.end as usize).unwrap_or_default()
    }

    /// Takes the first `count` events out.
    pub(super) fn split(&mut self, count: usize) -> Self {
        let mut first = Self::default();
        for _ in 0..count {
            let Some((index, kept)) = self.events.pop_front() else { break };
            let Some(session) = self.sessions.get(index as usize).cloned() else { continue };
            match kept {
                StoredEvent::Connected => first.connected(&session),
                StoredEvent::Small(kind, range) => {
                    first.message(&session, kind, self.small(&range));
                }
                StoredEvent::Large(kind, data) => {
                    first.owned_message(&session, kind, data);
                }
                StoredEvent::Disconnected(ended) => first.disconnected(&session, *ended),
            }
        }
        self.size -= first.size;
        first
    }
}
