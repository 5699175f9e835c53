//! The receiving half: what was read becomes messages, for whoever receives, or the queue.

use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use wirespeed_driver::blocking::Item;
use wirespeed_driver::buffers;
use wirespeed_driver::peer::PeerEvent;
use wirespeed_driver::protocol::{Delivery, MessageKind, Payload, PayloadBuffer};

use super::{Limits, State, Unparsed, Wanted, YIELD_BYTES};
use crate::asyncio::waiter::{Stage, WaiterRef};
use crate::payload::{self, PyPayload};

/// What a queued message costs beside its bytes: an object and its place in the queue.
const ITEM_COST: usize = 64;

/// What a received message counts beside its bytes: the application's work with it.
const RECEIVED_COST: usize = 32;

/// What a listener is told.
pub(in crate::asyncio) enum Arrival {
    Message(Py<PyAny>),
    /// A binary message that lies in the read buffer, for a view of it.
    View(*const u8, usize),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
}

/// What was found beside messages, to be told outside the lock.
#[derive(Default)]
pub(in crate::asyncio) struct Notes {
    /// Futures of pings that were answered, and the latency in seconds.
    pub(in crate::asyncio) pongs: Vec<(Py<PyAny>, f64)>,
    /// For a listener that leaves the messages to `recv`.
    pub(in crate::asyncio) controls: Vec<Arrival>,
}

impl Notes {
    #[inline]
    pub(in crate::asyncio) fn is_empty(&self) -> bool {
        self.pongs.is_empty() && self.controls.is_empty()
    }
}

impl State {
    /// The next message or fragment that is there.
    #[inline]
    pub(in crate::asyncio) fn take(
        &mut self,
        py: Python<'_>,
        decode: Option<bool>,
        delivery: Delivery,
        notes: &mut Notes,
    ) -> PyResult<Option<Item<Py<PyAny>>>> {
        if !self.queue.is_empty() {
            return self.take_queued(py, delivery, notes);
        }
        self.set_delivery(delivery);
        let item = self.parse(py, decode, notes)?;
        if let Some(item) = &item {
            self.streaming = !item.fin;
        }
        Ok(item)
    }

    /// The same from the queue, which has the fragments of messages one by one.
    fn take_queued(
        &mut self,
        py: Python<'_>,
        delivery: Delivery,
        notes: &mut Notes,
    ) -> PyResult<Option<Item<Py<PyAny>>>> {
        let mut end = 0;
        if delivery == Delivery::Messages {
            loop {
                match self.queue.get(end) {
                    Some(item) if item.fin => break,
                    Some(_) => end += 1,
                    // The rest of the message has yet to be parsed, or to arrive.
                    None => match self.parse(py, None, notes)? {
                        Some(item) => self.enqueue(item),
                        None => return Ok(None),
                    },
                }
            }
        }
        if end == 0 {
            let item = self.queue.pop_front();
            if let Some(item) = &item {
                self.queued_bytes -= item.len + ITEM_COST;
                self.streaming = !item.fin;
            }
            return Ok(item);
        }
        let mut joined = Vec::new();
        let mut kind = MessageKind::Binary;
        for item in self.queue.drain(..=end) {
            self.queued_bytes -= item.len + ITEM_COST;
            kind = item.kind;
            joined.extend_from_slice(item.message.bind(py).cast::<PyBytes>()?.as_bytes());
        }
        let len = joined.len();
        let message = payload::message(py, kind, Payload::Slice(&joined), None)?;
        self.streaming = false;
        Ok(Some(Item { kind, message, fin: true, len }))
    }

    fn enqueue(&mut self, item: Item<Py<PyAny>>) {
        self.queued_bytes += item.len + ITEM_COST;
        self.polled &= !item.fin;
        self.queue.push_back(item);
    }

    #[inline]
    fn set_delivery(&mut self, delivery: Delivery) {
        if self.delivery != delivery {
            self.delivery = delivery;
            self.conn.peer.set_delivery(delivery);
        }
    }

    /// The next message or fragment in what was read. Handles everything else on the way.
    #[inline]
    fn parse(&mut self, py: Python<'_>, decode: Option<bool>, notes: &mut Notes) -> PyResult<Option<Item<Py<PyAny>>>> {
        loop {
            let (kind, payload, fin) = match self.conn.poll_event() {
                None => return Ok(None),
                Some(PeerEvent::Message { kind, payload }) => (kind, payload, true),
                Some(PeerEvent::Fragment { kind, payload, fin }) => (kind, payload, fin),
                Some(PeerEvent::Closing) => continue,
                Some(PeerEvent::Ping(payload)) => {
                    if self.tell_controls {
                        notes.controls.push(Arrival::Ping(payload.as_slice().to_vec()));
                    }
                    continue;
                }
                Some(PeerEvent::Pong(payload)) => {
                    self.handle_pong(payload.as_slice(), notes);
                    if self.tell_controls {
                        notes.controls.push(Arrival::Pong(payload.as_slice().to_vec()));
                    }
                    continue;
                }
            };
            let whole = fin && !self.partial;
            self.partial = !fin;
            if self.discarding {
                self.discarding = !fin;
                continue;
            }
            let len = length(&payload);
            self.received.1 += len + RECEIVED_COST;
            if self.wanted == Wanted::WithRoom
                && (self.drop_rest || is_full(&self.limits, self.queue.len(), self.queued_bytes))
            {
                // To the end of its message.
                self.drop_rest = !fin;
                continue;
            }
            let message = payload::message(py, kind, payload, if whole { decode } else { Some(false) })?;
            return Ok(Some(Item { kind, message, fin, len }));
        }
    }

    /// What to tell a listener next; `zero_copy`: of whole binary messages, where they lie.
    pub(in crate::asyncio) fn next_arrival(
        &mut self,
        py: Python<'_>,
        zero_copy: bool,
        notes: &mut Notes,
    ) -> PyResult<Option<Arrival>> {
        loop {
            self.received.1 += RECEIVED_COST;
            let arrival = match self.conn.poll_event() {
                None => return Ok(None),
                Some(PeerEvent::Message { kind: MessageKind::Binary, payload: Payload::Slice(slice) }) if zero_copy => {
                    self.received.1 += slice.len();
                    Arrival::View(slice.as_ptr(), slice.len())
                }
                Some(PeerEvent::Message { kind, payload } | PeerEvent::Fragment { kind, payload, .. }) => {
                    self.received.1 += length(&payload);
                    Arrival::Message(payload::message(py, kind, payload, None)?)
                }
                Some(PeerEvent::Ping(payload)) => Arrival::Ping(payload.as_slice().to_vec()),
                Some(PeerEvent::Pong(payload)) => {
                    let data = payload.as_slice().to_vec();
                    self.handle_pong(&data, notes);
                    Arrival::Pong(data)
                }
                Some(PeerEvent::Closing) => continue,
            };
            return Ok(Some(arrival));
        }
    }

    /// Whether so much was received since a task was last suspended that the loop is due a turn, although more is there.
    #[inline]
    pub(in crate::asyncio) fn is_receive_turn_due(&mut self, iteration: u64) -> bool {
        if self.received.0 != iteration {
            self.received = (iteration, 0);
        }
        if self.received.1 < YIELD_BYTES || !self.conn.peer.has_input() {
            return false;
        }
        self.received.1 = 0;
        true
    }

    fn handle_pong(&mut self, payload: &[u8], notes: &mut Notes) {
        let keepalive = &mut self.conn.peer.link.keepalive;
        if let Some((answered, latency)) = keepalive.handle_pong(payload, Instant::now()) {
            // RFC 6455 5.5.3: a pong answers all pings before it too.
            let latency = latency.as_secs_f64();
            let mut index = 0;
            while index < self.pings.len() {
                if answered.contains(&self.pings[index].0) {
                    notes.pongs.push((self.pings.remove(index).1, latency));
                } else {
                    index += 1;
                }
            }
        }
    }

    /// Moves what was read to the queue, as far as it goes. True: the rest is left for the next turn of the loop, which the caller must ask for.
    pub(in crate::asyncio) fn fill_queue(&mut self, py: Python<'_>, notes: &mut Notes) -> PyResult<bool> {
        // Who will receive them, and how, is not known yet: fragments stay fragments.
        self.set_delivery(Delivery::Fragments);
        let mut postponed = false;
        // Reading goes on for who polls, so this must too: nobody else parses what is left.
        while self.wanted == Wanted::WithRoom || self.polled || !self.is_queue_full() {
            let Some(item) = self.parse(py, None, notes)? else { break };
            self.enqueue(item);
            postponed = self.postpone();
            if postponed {
                break;
            }
        }
        self.conn.peer.release_parsed();
        Ok(postponed)
    }

    /// Leaves what was read for the next turn of the loop, once for each read. A fault of the peer, which closes the connection where it is
    /// parsed, would keep the application from answering the messages before it, which it could not receive yet.
    pub(in crate::asyncio) fn postpone(&mut self) -> bool {
        let postpone = self.unparsed == Unparsed::New && self.wanted != Wanted::WithRoom && self.conn.peer.has_input();
        if postpone {
            self.unparsed = Unparsed::Postponed;
        }
        postpone
    }

    /// Takes items back that were received last, in their order.
    pub(in crate::asyncio) fn put_back(&mut self, items: impl DoubleEndedIterator<Item = Item<Py<PyAny>>>) {
        for item in items.rev() {
            self.queued_bytes += item.len + ITEM_COST;
            self.polled &= !item.fin;
            self.queue.push_front(item);
        }
    }

    /// Drops the rest of the message whose fragments were being received.
    pub(in crate::asyncio) fn discard_message(&mut self) {
        self.streaming = true;
        while self.streaming {
            match self.queue.pop_front() {
                Some(item) => {
                    self.queued_bytes -= item.len + ITEM_COST;
                    self.streaming = !item.fin;
                }
                None => {
                    self.discarding = true;
                    self.streaming = false;
                }
            }
        }
    }

    #[inline]
    pub(in crate::asyncio) fn is_queue_full(&self) -> bool {
        let unparsed = self.conn.peer.unparsed();
        is_full(&self.limits, self.queue.len(), self.queued_bytes + unparsed) || self.is_turn_full(unparsed)
    }

    /// Whether no more is to be read before the turn in which what is left is parsed, however few messages are queued: a transport may bring many
    /// pieces in one turn.
    #[inline]
    fn is_turn_full(&self, unparsed: usize) -> bool {
        let most = self.limits.bytes.high;
        self.unparsed == Unparsed::Postponed && most > 0 && unparsed >= most.max(buffers::READ_SIZE)
    }

    /// How much may be read at once: what is read and not parsed yet counts as queued.
    #[inline]
    pub(in crate::asyncio) fn readable_bytes(&self) -> usize {
        match self.limits.bytes.high {
            // Only the number of messages counts.
            0 => buffers::READ_SIZE,
            high => high.saturating_sub(self.queued_bytes),
        }
    }

    /// Whether so much was taken that reading may go on.
    #[inline]
    pub(in crate::asyncio) fn is_queue_low(&self) -> bool {
        let unparsed = self.conn.peer.unparsed();
        let bytes = self.queued_bytes + unparsed;
        let low = self.queue.len() <= self.limits.messages.low || bytes <= self.limits.bytes.low;
        low && !self.is_turn_full(unparsed)
    }

    /// Whether reading may stop for the application to receive. What closes reads on, for the answer of the peer, unless the
    /// application still receives.
    pub(in crate::asyncio) fn may_pause(&self, py: Python<'_>, closing: bool) -> bool {
        let link = &self.conn.peer.link;
        let more = link.state().can_receive() && !link.is_eof() && link.failure().is_none();
        let wanted = match self.wanted {
            Wanted::All => !closing,
            Wanted::WhileClosing => !closing || more,
            Wanted::WithRoom => false,
        };
        // Whoever waits has nothing yet: the rest of a large message, perhaps. Or asks again and again, without waiting, for the rest.
        let awaited = if self.streaming { self.position_of_streamer(py).is_some() } else { !self.receivers.is_empty() };
        wanted && !awaited && !self.polled
    }

    pub(in crate::asyncio) fn queued_payload(&self) -> usize {
        self.queue.iter().map(|item| item.len).sum()
    }

    /// Whether a task waits for a message.
    #[inline]
    pub(in crate::asyncio) fn has_receivers(&mut self, py: Python<'_>) -> bool {
        while self.receivers.front().is_some_and(|waiter| waiter.stage(py) != Stage::Waiting) {
            self.receivers.pop_front();
        }
        !self.receivers.is_empty()
    }

    /// The place of the task that what comes next is for: the first, but in the middle of a message that is received in fragments the one that
    /// receives it.
    #[inline]
    pub(in crate::asyncio) fn next_receiver(&mut self, py: Python<'_>) -> Option<usize> {
        if !self.has_receivers(py) {
            return None;
        }
        if self.streaming { self.position_of_streamer(py) } else { Some(0) }
    }

    fn position_of_streamer(&self, py: Python<'_>) -> Option<usize> {
        let streams =
            |waiter: &WaiterRef| waiter.wants().1 == Delivery::Fragments && waiter.stage(py) == Stage::Waiting;
        self.receivers.iter().position(streams)
    }
}

fn is_full(limits: &Limits, messages: usize, bytes: usize) -> bool {
    // One always fits: with a queue of nothing, nothing would ever arrive.
    messages > 0 && messages >= limits.messages.high && bytes >= limits.bytes.high
}

fn length(payload: &Payload<'_, PyPayload>) -> usize {
    match payload {
        Payload::Slice(slice) => slice.len(),
        Payload::Buffer(buffer) => buffer.as_slice().len(),
    }
}
