//! Received messages, from the bytes that were read to whoever takes them; what nobody takes is queued, up to
//! marks.

use std::collections::VecDeque;
use std::time::Duration;

use wirespeed_protocol::{Delivery, MessageKind, Payload, PayloadBuffer};

use super::Watermarks;
use crate::buffer_pool;
use crate::endpoint::{Endpoint, PeerEvent, payload_len};

/// What a queued message costs beside its bytes, roughly: an object of the application and its place in the
/// queue.
const ITEM_COST: usize = 64;

/// What a received message counts beside its bytes: the application's work with it.
pub const RECEIVED_COST: usize = 32;

/// A message or fragment, as the application keeps it.
#[derive(Debug)]
pub struct Item<M> {
    /// Text or binary.
    pub kind: MessageKind,
    /// The application's own form.
    pub message: M,
    /// The end of its message; whole messages are their own end.
    pub fin: bool,
    /// Payload bytes.
    pub len: usize,
}

/// Which messages the application will receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All.
    All,
    /// It closes, and receives what still arrives.
    WhileClosing,
    /// It closes: those before the first for which the queue has no room.
    WithRoom,
}

/// What becomes of bytes that were read while nobody receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unparsed {
    /// They may be left for the next turn of the loop, once.
    New,
    /// They are: parsed then, as far as nobody asks for them before. Nothing is read meanwhile.
    Postponed,
    /// They were.
    Due,
}

/// Whoever makes messages of payloads, and hears of what else arrives. It runs while the connection is
/// locked: it must not call back into it.
pub trait Receiver<B> {
    /// What messages become.
    type Message;
    /// Why one cannot be made.
    type Error;

    /// Makes a message, or a fragment of one unless it is `whole`: text may then end inside a character.
    fn message(
        &mut self,
        kind: MessageKind,
        payload: Payload<'_, B>,
        whole: bool,
    ) -> Result<Self::Message, Self::Error>;

    /// Makes a message of the fragments that were made of it.
    fn join(&mut self, kind: MessageKind, fragments: Vec<Self::Message>) -> Result<Self::Message, Self::Error>;

    /// A ping came; it is answered already.
    fn ping(&mut self, payload: &[u8]);

    /// A pong came; it answers the pings of these numbers, the last of them after this time.
    fn pong(&mut self, payload: &[u8], answered: Option<(Vec<u64>, Duration)>);
}

/// See the module.
#[derive(Debug)]
pub struct Inbox<M> {
    messages: Watermarks,
    bytes: Watermarks,
    queue: VecDeque<Item<M>>,
    queued_bytes: usize,
    delivery: Delivery,
    /// A message is being taken in fragments: the last one taken was not its end.
    streaming: bool,
    /// What was parsed last was not the end of its message.
    partial: bool,
    /// The rest of the message that is arriving is dropped.
    dropping: bool,
    /// Something found no room: nothing is kept that comes after it. The end of another message would be
    /// taken for that of one that was cut.
    cut: bool,
    wanted: Wanted,
    unparsed: Unparsed,
    /// Somebody has asked for a message, without waiting, of which only the beginning is here.
    polled: bool,
    /// What was received, with its cost, since somebody last asked.
    received: usize,
}

impl<M> Inbox<M> {
    /// An empty one. Reading stops above both marks: of messages that were not taken, and of their bytes.
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

    /// The next message or fragment that is there.
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

    /// The same from the queue, which has the fragments of messages one by one.
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
                    // The rest of the message has yet to be parsed, or to arrive.
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

    /// The next message or fragment in what was read. Handles everything else on the way.
    #[inline]
    fn parse<B: PayloadBuffer, R: Receiver<B, Message = M>>(
        &mut self,
        endpoint: &mut Endpoint<B>,
        receiver: &mut R,
    ) -> Result<Option<Item<M>>, R::Error> {
        loop {
            let (kind, payload, fin) = match endpoint.poll_event() {
                None => return Ok(None),
                Some(PeerEvent::Message { kind, payload }) => (kind, payload, true),
                Some(PeerEvent::Fragment { kind, payload, fin }) => (kind, payload, fin),
                // What is left of the input is discarded by going on.
                Some(PeerEvent::Closing) => continue,
                Some(PeerEvent::Ping(payload)) => {
                    receiver.ping(payload.as_slice());
                    continue;
                }
                Some(PeerEvent::Pong { payload, answered }) => {
                    receiver.pong(payload.as_slice(), answered);
                    continue;
                }
            };
            let whole = fin && !self.partial;
            self.partial = !fin;
            self.cut |= self.wanted == Wanted::WithRoom && self.is_full_with(0);
            if self.dropping || self.cut {
                // To the end of its message.
                self.dropping = !fin;
                continue;
            }
            let len = payload_len(&payload);
            self.received += len + RECEIVED_COST;
            let message = receiver.message(kind, payload, whole)?;
            return Ok(Some(Item { kind, message, fin, len }));
        }
    }

    // ---- keeping ----

    /// Moves what was read to the queue, as far as it goes. `postpones`: whoever calls asks for another turn
    /// when this says that the rest is left for one.
    pub fn fill<B: PayloadBuffer, R: Receiver<B, Message = M>>(
        &mut self,
        endpoint: &mut Endpoint<B>,
        postpones: bool,
        receiver: &mut R,
    ) -> Result<bool, R::Error> {
        // Who will receive them, and how, is not known yet: fragments stay fragments.
        self.set_delivery(endpoint, Delivery::Fragments);
        let mut postponed = false;
        // Reading goes on for who polls, so this must too: nobody else parses what is left.
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

    /// Leaves what was read for the next turn of the loop, once for each read. A fault of the peer, which
    /// closes the connection where it is parsed, would keep the application from answering the messages
    /// before it, which it could not receive yet.
    pub fn postpone<B: PayloadBuffer>(&mut self, endpoint: &Endpoint<B>) -> bool {
        let postpone = self.unparsed == Unparsed::New && self.wanted != Wanted::WithRoom && endpoint.has_input();
        if postpone {
            self.unparsed = Unparsed::Postponed;
        }
        postpone
    }

    /// Takes items back that were taken last, in their order.
    pub fn put_back(&mut self, items: impl DoubleEndedIterator<Item = Item<M>>) {
        for item in items.rev() {
            self.queued_bytes += item.len + ITEM_COST;
            self.polled &= !item.fin;
            self.queue.push_front(item);
        }
    }

    /// Takes one back whose taking began or ended a message that is taken in fragments: `streaming` as it was
    /// before.
    pub fn untake(&mut self, item: Item<M>, streaming: bool) {
        self.streaming = streaming;
        self.put_back(std::iter::once(item));
    }

    /// Drops the rest of the message whose fragments were being taken, if one was.
    pub fn discard_message(&mut self) {
        while self.streaming {
            if self.pop().is_none() {
                self.dropping = true;
                self.streaming = false;
            }
        }
    }

    // ---- what it is asked ----

    /// How many items nobody has taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether there are none.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Their payload bytes.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.queue.iter().map(|item| item.len).sum()
    }

    /// Whether the middle of a message is to be taken next, in fragments.
    #[must_use]
    #[inline]
    pub fn is_streaming(&self) -> bool {
        self.streaming
    }

    /// Whether nothing more is to be read before something was taken.
    #[must_use]
    #[inline]
    pub fn is_full<B: PayloadBuffer>(&self, endpoint: &Endpoint<B>) -> bool {
        let unparsed = endpoint.unparsed();
        self.is_full_with(unparsed) || self.is_turn_full(unparsed)
    }

    #[inline]
    fn is_full_with(&self, unparsed: usize) -> bool {
        // One always fits: with a queue of nothing, nothing would ever arrive.
        let messages = self.queue.len();
        messages > 0 && messages >= self.messages.high && self.queued_bytes + unparsed >= self.bytes.high
    }

    /// Whether no more is to be read before the turn in which what is left is parsed, however few messages
    /// are queued: a transport may bring many pieces in one turn.
    #[inline]
    fn is_turn_full(&self, unparsed: usize) -> bool {
        let most = self.bytes.high;
        self.unparsed == Unparsed::Postponed && most > 0 && unparsed >= most.max(buffer_pool::READ_SIZE)
    }

    /// Whether so much was taken that reading may go on.
    #[must_use]
    #[inline]
    pub fn is_low<B: PayloadBuffer>(&self, endpoint: &Endpoint<B>) -> bool {
        let unparsed = endpoint.unparsed();
        let bytes = self.queued_bytes + unparsed;
        (self.queue.len() <= self.messages.low || bytes <= self.bytes.low) && !self.is_turn_full(unparsed)
    }

    /// How much may be read at once: what is read and not parsed yet counts as queued.
    #[must_use]
    #[inline]
    pub fn room(&self) -> usize {
        match self.bytes.high {
            // Only the number of messages counts.
            0 => buffer_pool::READ_SIZE,
            high => high.saturating_sub(self.queued_bytes),
        }
    }

    /// Which messages the application will receive.
    #[must_use]
    #[inline]
    pub fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// The application closes. `receives`: it goes on receiving; else it gives up what does not fit.
    pub fn limit_wanted(&mut self, receives: bool) {
        if !receives {
            self.wanted = Wanted::WithRoom;
        } else if self.wanted == Wanted::All {
            self.wanted = Wanted::WhileClosing;
        }
    }

    /// What becomes of bytes that were read.
    #[must_use]
    #[inline]
    pub fn unparsed(&self) -> Unparsed {
        self.unparsed
    }

    /// The same, from now on.
    #[inline]
    pub fn set_unparsed(&mut self, unparsed: Unparsed) {
        self.unparsed = unparsed;
    }

    /// Whether somebody asks again and again, without waiting, for a message of which only the beginning is
    /// here.
    #[must_use]
    pub fn is_polled(&self) -> bool {
        self.polled
    }

    /// Somebody has asked for a message without waiting; `missing`: in vain.
    pub fn set_polled(&mut self, missing: bool) {
        self.polled = missing;
    }

    /// Counts what a listener is told, which does not pass through here.
    #[inline]
    pub fn count(&mut self, payload: usize) {
        self.received += payload;
    }

    /// What was received since this was last zero.
    #[inline]
    pub fn received(&mut self) -> &mut usize {
        &mut self.received
    }
}
