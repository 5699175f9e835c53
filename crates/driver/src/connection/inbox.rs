//! Parses received messages and queues those that the application has not taken, up to watermarks.
//!
//! It does not read from the socket or decide which task receives a message; `WaitState` does.

use std::collections::VecDeque;

use wirespeed_protocol::{Delivery, Event, MessageKind, Payload, PayloadBuffer};

use super::Watermarks;
use crate::buffer_pool;
use crate::endpoint::{Endpoint, payload_len};

/// Approximate memory cost of a queued message beside its bytes: an application object and its place in the
/// queue.
const ITEM_COST: usize = 64;

/// Bytes that a received message counts beside its payload, for the application's work with it.
pub const RECEIVED_COST: usize = 32;

/// A message or fragment in the application's form.
#[derive(Debug)]
pub struct Item<M> {
    /// Text or binary.
    pub kind: MessageKind,
    /// The message in the application's form.
    pub message: M,
    /// Whether this is the last fragment of its message; true for whole messages.
    pub fin: bool,
    /// Number of payload bytes.
    pub len: usize,
}

/// Which messages the application will still receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All messages.
    All,
    /// The application closes, and receives messages that still arrive.
    WhileClosing,
    /// The application closes: messages from the first that finds the queue full are dropped.
    WithRoom,
}

/// Whether bytes that were read while no task receives are parsed now or in the next turn of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unparsed {
    /// Parsing may be postponed to the next turn of the loop, once.
    New,
    /// Parsing is postponed, unless a task receives before. Nothing is read meanwhile.
    Postponed,
    /// Parsing was postponed and is due.
    Due,
}

/// Creates the application's messages from payloads, and handles pings and pongs. It runs while the connection
/// is locked and must not call into the connection.
pub trait Receiver<B> {
    /// The application's form of a message.
    type Message;
    /// The error when a message cannot be created.
    type Error;

    /// Creates a message or, unless `whole`, a fragment; the text of a fragment may end inside a character.
    fn message(
        &mut self,
        kind: MessageKind,
        payload: Payload<'_, B>,
        whole: bool,
    ) -> Result<Self::Message, Self::Error>;

    /// Creates a message from its fragments.
    fn join(&mut self, kind: MessageKind, fragments: Vec<Self::Message>) -> Result<Self::Message, Self::Error>;

    /// Handles a ping, which is answered already.
    fn ping(&mut self, payload: &[u8]);

    /// Handles a pong. [`Endpoint::take_answered_pings`] returns the pings that it answers.
    fn pong(&mut self, payload: &[u8]);
}

/// The queue of received messages of one connection.
///
/// 1. After a read without a waiting receiver, call [`Self::fill`], which parses messages into the queue.
/// 2. To receive, call [`Self::take`], which parses directly if the queue is empty.
/// 3. Stop reading at [`Self::is_full`], resume at [`Self::is_low`].
#[derive(Debug)]
pub struct Inbox<M> {
    messages: Watermarks,
    bytes: Watermarks,
    queue: VecDeque<Item<M>>,
    queued_bytes: usize,
    delivery: Delivery,
    /// A message is being taken in fragments: the last fragment taken was not the end.
    streaming: bool,
    /// The last fragment parsed was not the end of its message.
    partial: bool,
    /// The rest of the arriving message is dropped.
    dropping: bool,
    /// A message was dropped because the queue was full, so all later ones are dropped too. Otherwise the end
    /// of a later message could complete a truncated one.
    cut: bool,
    wanted: Wanted,
    unparsed: Unparsed,
    /// A caller has polled, without waiting, for a message that has arrived only in part.
    polled: bool,
    /// Bytes received, with [`RECEIVED_COST`] for each message, since the caller last reset the count.
    received: usize,
}

impl<M> Inbox<M> {
    /// Creates an empty inbox. Reading stops above both marks: number of messages not taken, and their bytes.
    #[must_use]
    pub fn new(messages: Watermarks, bytes: Watermarks) -> Self {
        Self {
            messages,
            bytes,
            queue: VecDeque::new(),
            queued_bytes: 0,
            delivery: Delivery::Messages,
            streaming: false,
            partial: false,
            dropping: false,
            cut: false,
            wanted: Wanted::All,
            unparsed: Unparsed::New,
            polled: false,
            received: 0,
        }
    }

    // ---- taking ----

    /// Takes the next message or fragment that is available.
    #[inline]
    pub fn take<B: PayloadBuffer, R: Receiver<B, Message = M>>(
        &mut self,
        endpoint: &mut Endpoint<B>,
        delivery: Delivery,
        receiver: &mut R,
    ) -> Result<Option<Item<M>>, R::Error> {
        if !self.queue.is_empty() {
            return self.take_queued(endpoint, delivery, receiver);
        }
        self.set_delivery(endpoint, delivery);
        let item = self.parse(endpoint, receiver)?;
        if let Some(item) = &item {
            self.streaming = !item.fin;
        }
        Ok(item)
    }

    /// Takes the next message or fragment from the queue, which holds messages as fragments.
    fn take_queued<B: PayloadBuffer, R: Receiver<B, Message = M>>(
        &mut self,
        endpoint: &mut Endpoint<B>,
        delivery: Delivery,
        receiver: &mut R,
    ) -> Result<Option<Item<M>>, R::Error> {
        let mut end = 0;
        if delivery == Delivery::Messages {
            loop {
                match self.queue.get(end) {
                    Some(item) if item.fin => break,
                    Some(_) => end += 1,
                    // The rest of the message has yet to be parsed or to arrive.
                    None => match self.parse(endpoint, receiver)? {
                        Some(item) => self.enqueue(item),
                        None => return Ok(None),
                    },
                }
            }
        }
        if end == 0 {
            return Ok(self.pop());
        }
        let (mut len, mut kind) = (0, MessageKind::Binary);
        let mut fragments = Vec::with_capacity(end + 1);
        for item in self.queue.drain(..=end) {
            self.queued_bytes -= item.len + ITEM_COST;
            kind = item.kind;
            len += item.len;
            fragments.push(item.message);
        }
        self.streaming = false;
        Ok(Some(Item { kind, message: receiver.join(kind, fragments)?, fin: true, len }))
    }

    fn pop(&mut self) -> Option<Item<M>> {
        let item = self.queue.pop_front()?;
        self.queued_bytes -= item.len + ITEM_COST;
        self.streaming = !item.fin;
        Some(item)
    }

    fn enqueue(&mut self, item: Item<M>) {
        self.queued_bytes += item.len + ITEM_COST;
        self.polled &= !item.fin;
        self.queue.push_back(item);
    }

    #[inline]
    fn set_delivery<B: PayloadBuffer>(&mut self, endpoint: &mut Endpoint<B>, delivery: Delivery) {
        if self.delivery != delivery {
            self.delivery = delivery;
            endpoint.set_delivery(delivery);
        }
    }

    /// Parses input up to the next message or fragment, and handles control frames on the way.
    #[inline]
    fn parse<B: PayloadBuffer, R: Receiver<B, Message = M>>(
        &mut self,
        endpoint: &mut Endpoint<B>,
        receiver: &mut R,
    ) -> Result<Option<Item<M>>, R::Error> {
        loop {
            let (kind, payload, fin) = match endpoint.poll_event() {
                None => return Ok(None),
                Some(Event::Message { kind, payload }) => (kind, payload, true),
                Some(Event::Fragment { kind, payload, fin }) => (kind, payload, fin),
                Some(Event::Ping(payload)) => {
                    receiver.ping(payload.as_slice());
                    continue;
                }
                Some(Event::Pong(payload)) => {
                    receiver.pong(payload.as_slice());
                    continue;
                }
                // After a close frame, the next call discards the rest of the input.
                Some(_) => continue,
            };
            let whole = fin && !self.partial;
            self.partial = !fin;
            self.cut |= self.wanted == Wanted::WithRoom && self.is_full_with(0);
            if self.dropping || self.cut {
                // The rest of this message is dropped.
                self.dropping = !fin;
                continue;
            }
            let len = payload_len(&payload);
            self.received += len + RECEIVED_COST;
            let message = receiver.message(kind, payload, whole)?;
            return Ok(Some(Item { kind, message, fin, len }));
        }
    }

    // ---- queueing ----

    /// Moves parsed messages to the queue. Returns whether parsing of the rest is postponed to the next turn of
    /// the loop, which the caller must then request. `postpones`: the caller supports this.
    pub fn fill<B: PayloadBuffer, R: Receiver<B, Message = M>>(
        &mut self,
        endpoint: &mut Endpoint<B>,
        postpones: bool,
        receiver: &mut R,
    ) -> Result<bool, R::Error> {
        // It is not known how the application will receive them, so fragments stay fragments.
        self.set_delivery(endpoint, Delivery::Fragments);
        let mut postponed = false;
        // While a caller polls, reading continues, so parsing must too: nothing else parses the rest.
        while self.wanted == Wanted::WithRoom || self.polled || !self.is_full(endpoint) {
            let Some(item) = self.parse(endpoint, receiver)? else { break };
            self.enqueue(item);
            postponed = postpones && self.postpone(endpoint);
            if postponed {
                break;
            }
        }
        endpoint.release_parsed();
        Ok(postponed)
    }

    /// Postpones parsing to the next turn of the loop, once for each read. A protocol error closes the
    /// connection when it is parsed. Parsed at once, it would prevent the application from answering the
    /// messages before it.
    pub fn postpone<B: PayloadBuffer>(&mut self, endpoint: &Endpoint<B>) -> bool {
        let postpone = self.unparsed == Unparsed::New && self.wanted != Wanted::WithRoom && endpoint.has_input();
        if postpone {
            self.unparsed = Unparsed::Postponed;
        }
        postpone
    }

    /// Returns items to the front of the queue, in their order.
    pub fn put_back(&mut self, items: impl DoubleEndedIterator<Item = Item<M>>) {
        for item in items.rev() {
            self.queued_bytes += item.len + ITEM_COST;
            self.polled &= !item.fin;
            self.queue.push_front(item);
        }
    }

    /// Returns one fragment to the front of the queue; `streaming` is the state from before it was taken.
    pub fn put_back_fragment(&mut self, item: Item<M>, streaming: bool) {
        self.streaming = streaming;
        self.put_back(std::iter::once(item));
    }

    /// Drops the rest of a message of which some fragments were taken.
    pub fn discard_message(&mut self) {
        while self.streaming {
            if self.pop().is_none() {
                self.dropping = true;
                self.streaming = false;
            }
        }
    }

    // ---- queries ----

    /// Returns the number of queued items.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns whether the queue is empty.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the number of payload bytes in the queue.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.queue.iter().map(|item| item.len).sum()
    }

    /// Returns whether the next item is in the middle of a message that is taken in fragments.
    #[must_use]
    #[inline]
    pub fn is_streaming(&self) -> bool {
        self.streaming
    }

    /// Returns whether reading must stop until messages are taken.
    #[must_use]
    #[inline]
    pub fn is_full<B: PayloadBuffer>(&self, endpoint: &Endpoint<B>) -> bool {
        let unparsed = endpoint.unparsed();
        self.is_full_with(unparsed) || self.is_turn_full(unparsed)
    }

    #[inline]
    fn is_full_with(&self, unparsed: usize) -> bool {
        // One message always fits: with a high mark of zero, none would ever arrive.
        let messages = self.queue.len();
        messages > 0 && messages >= self.messages.high && self.queued_bytes + unparsed >= self.bytes.high
    }

    /// Returns whether reading must stop until postponed input is parsed, however few messages are queued: a
    /// transport may deliver many pieces in one turn.
    #[inline]
    fn is_turn_full(&self, unparsed: usize) -> bool {
        let most = self.bytes.high;
        self.unparsed == Unparsed::Postponed && most > 0 && unparsed >= most.max(buffer_pool::READ_SIZE)
    }

    /// Returns whether enough was taken for reading to resume.
    #[must_use]
    #[inline]
    pub fn is_low<B: PayloadBuffer>(&self, endpoint: &Endpoint<B>) -> bool {
        let unparsed = endpoint.unparsed();
        let bytes = self.queued_bytes + unparsed;
        (self.queue.len() <= self.messages.low || bytes <= self.bytes.low) && !self.is_turn_full(unparsed)
    }

    /// Returns how many bytes may be read at once; unparsed input counts as queued.
    #[must_use]
    #[inline]
    pub fn room(&self) -> usize {
        match self.bytes.high {
            // Only the number of messages is limited.
            0 => buffer_pool::READ_SIZE,
            high => high.saturating_sub(self.queued_bytes),
        }
    }

    /// Returns which messages the application will still receive.
    #[must_use]
    #[inline]
    pub fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// Records that the application closes. `receives`: it still receives; otherwise messages that do not fit
    /// are dropped.
    pub fn limit_wanted(&mut self, receives: bool) {
        if !receives {
            self.wanted = Wanted::WithRoom;
        } else if self.wanted == Wanted::All {
            self.wanted = Wanted::WhileClosing;
        }
    }

    /// Returns when unparsed bytes are parsed.
    #[must_use]
    #[inline]
    pub fn unparsed(&self) -> Unparsed {
        self.unparsed
    }

    /// Sets when unparsed bytes are parsed.
    #[inline]
    pub fn set_unparsed(&mut self, unparsed: Unparsed) {
        self.unparsed = unparsed;
    }

    /// Returns whether a caller polls, without waiting, for a message that has arrived only in part.
    #[must_use]
    pub fn is_polled(&self) -> bool {
        self.polled
    }

    /// Records that a caller polled for a message; `missing`: it was not complete.
    pub fn set_polled(&mut self, missing: bool) {
        self.polled = missing;
    }

    /// Counts the payload of a message that went directly to a listener.
    #[inline]
    pub fn count(&mut self, payload: usize) {
        self.received += payload;
    }

    /// Returns the number of bytes received since [`Self::reset_received`], with [`RECEIVED_COST`] for each message.
    #[must_use]
    #[inline]
    pub fn received(&self) -> usize {
        self.received
    }

    /// Restarts the count of bytes received. Call it when the receiving task was suspended.
    #[inline]
    pub fn reset_received(&mut self) {
        self.received = 0;
    }
}
