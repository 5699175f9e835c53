//! What a connection on an event loop knows between two calls, and what it does with it that is no business of the loop.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use wirespeed_driver::blocking::Item;
use wirespeed_driver::evented::Evented;
use wirespeed_driver::peer::{LargeSend, PeerEvent};
use wirespeed_driver::protocol::{CloseCode, Delivery, MessageKind, Payload, PayloadBuffer};

use super::waiter::{Stage, WaiterRef};
use crate::payload::{self, PyPayload};

/// What a queued message costs beside its bytes: an object and its place in the queue.
const ITEM_COST: usize = 64;

/// Corked messages leave when they are this many bytes, or twice the high mark of what may wait: masked, and sent, while they are in the
/// second-level cache.
const CORK_LIMIT: usize = 64 * 1024;

/// A send goes straight to the socket too, though it is not the first of its iteration, if it comes this much later than those before: whoever
/// computes in between is no stream.
const CORK_TIME: Duration = Duration::from_micros(50);

/// Bytes sent, or received, without a suspension after which the loop has a turn.
const YIELD_BYTES: usize = 256 * 1024;

/// What a received message counts beside its bytes: the application's work with it.
const RECEIVED_COST: usize = 32;

/// High and low marks of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    pub(super) high: usize,
    pub(super) low: usize,
}

/// How much may wait, and how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Messages received and not taken: above, reading pauses, if the bytes are above their mark too.
    pub(super) messages: Marks,
    /// Their bytes.
    pub(super) bytes: Marks,
    /// Bytes to be written.
    pub(super) write: Marks,
    /// Messages sent without a suspension after which the loop has a turn.
    pub(super) yield_after: usize,
}

/// A large message on its way out, piece by piece.
pub(super) struct Large {
    pub(super) send: LargeSend,
    /// A `bytes` or `str`: it cannot change.
    pub(super) source: Py<PyAny>,
    pub(super) offset: usize,
}

/// What to do with bytes that were queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// Write them now.
    Write,
    /// They leave at the end of this iteration of the loop, with what else comes.
    Cork,
    /// They wait for room.
    Wait,
}

/// What a listener is told.
pub(super) enum Arrival {
    Message(Py<PyAny>),
    /// A binary message that lies in the read buffer, for a view of it.
    View(*const u8, usize),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
}

/// What was found beside messages, to be told outside the lock.
#[derive(Default)]
pub(super) struct Notes {
    /// Futures of pings that were answered, and the latency in seconds.
    pub(super) pongs: Vec<(Py<PyAny>, f64)>,
    /// For a listener that leaves the messages to `recv`.
    pub(super) controls: Vec<Arrival>,
}

impl Notes {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.pongs.is_empty() && self.controls.is_empty()
    }
}

/// When the clock was last read in this iteration of the loop, and how many sends must come before it is read again.
#[derive(Clone, Copy, Default)]
struct Looked {
    at: Option<Instant>,
    every: u8,
    skip: u8,
}

pub(super) struct State {
    pub(super) conn: Evented<PyPayload>,
    pub(super) limits: Limits,
    // ---- receiving ----
    /// What arrived while nobody received.
    pub(super) queue: VecDeque<Item<Py<PyAny>>>,
    queued_bytes: usize,
    /// Tasks that wait for a message, first come first served. If there are any, the queue has nothing for the first and all input is parsed.
    pub(super) receivers: VecDeque<WaiterRef>,
    delivery: Delivery,
    /// A message is being received in fragments: the last one taken was not its end.
    pub(super) streaming: bool,
    /// What was parsed last was not the end of its message.
    partial: bool,
    /// The rest of a message that was dropped for want of room is dropped too.
    drop_rest: bool,
    /// The rest of the message that is arriving is not wanted.
    discarding: bool,
    /// Messages for which the queue has no room are not wanted: the application closes.
    pub(super) dropping: bool,
    /// What was read is parsed, as far as nobody asks for it before, in the next turn of the loop. Nothing is read meanwhile.
    pub(super) postponed: bool,
    /// It has not been since something was read.
    pub(super) may_postpone: bool,
    /// Received since a task was last suspended: in the iteration of this number.
    received: (u64, usize),
    /// A task that receives has given the loop a turn and comes back for the rest of what was read.
    pub(super) turn_pending: bool,
    /// Nothing is read, because the application does not receive.
    pub(super) paused: bool,
    // ---- sending ----
    /// Tasks that wait for room, first come first served.
    pub(super) senders: VecDeque<WaiterRef>,
    /// Tasks that have sent and wait until less is queued.
    pub(super) drainers: VecDeque<WaiterRef>,
    /// Tasks of the senders that were woken and have not run yet: it is their turn before anybody else's.
    pub(super) sender_turns: usize,
    /// The kernel, or the transport, has no room.
    pub(super) blocked: bool,
    /// Somebody waits until the transport has handed everything to the kernel: it says that it has no room although it has.
    pub(super) draining: bool,
    /// The transport is telling that it has room: it must not be aborted before it is done.
    pub(super) resuming: bool,
    pub(super) corked: bool,
    pub(super) large: Option<Large>,
    /// A message is being sent in fragments: every other waits.
    pub(super) fragmenting: bool,
    /// A close that waits for the end of a large message.
    pub(super) pending_close: Option<(Option<CloseCode>, String)>,
    /// The iteration of the loop in which something was last written through.
    wrote_in: u64,
    looked: Looked,
    /// Sent since the loop last had a turn, as far as we know: in the iteration of this number.
    unsuspended: (u64, usize, usize),
    /// The loop is due a turn that nobody could give it yet: `send_nowait` cannot.
    pub(super) turn_owed: bool,
    /// The listener was told, or somebody was refused, that there is no room.
    pub(super) tell_writable: bool,
    /// Futures of `flush`, with the count of written bytes that they wait for.
    pub(super) flushes: Vec<(u64, Py<PyAny>)>,
    // ---- the rest ----
    /// Futures of pings that were not answered, by their numbers.
    pub(super) pings: Vec<(u64, Py<PyAny>)>,
    /// Futures of `wait_closed`.
    pub(super) closers: Vec<Py<PyAny>>,
    /// Tasks that wait for the end in order to raise it.
    pub(super) mourners: Vec<WaiterRef>,
    /// A listener wants to know of pings and pongs.
    pub(super) tell_controls: bool,
    /// `recv_streaming` is running.
    pub(super) streaming_receiver: bool,
    /// What a listener raised.
    pub(super) listener_error: Option<PyErr>,
    /// The application closes, and receives what still arrives.
    pub(super) keeping: bool,
    /// Everybody was told that it is over.
    pub(super) finished: bool,
    /// What the loop says is acted upon.
    pub(super) begun: bool,
    /// The transport has ended.
    pub(super) lost: bool,
    /// It is over, but the transport has yet to close the socket.
    pub(super) lingering: bool,
    /// The key of our timer.
    pub(super) timer: Option<(Instant, u64)>,
}

impl State {
    pub(super) fn new(conn: Evented<PyPayload>, limits: Limits) -> Self {
        Self {
            conn,
            limits,
            queue: VecDeque::new(),
            queued_bytes: 0,
            receivers: VecDeque::new(),
            delivery: Delivery::Messages,
            streaming: false,
            partial: false,
            drop_rest: false,
            discarding: false,
            dropping: false,
            postponed: false,
            may_postpone: true,
            received: (0, 0),
            turn_pending: false,
            paused: false,
            senders: VecDeque::new(),
            drainers: VecDeque::new(),
            sender_turns: 0,
            blocked: false,
            draining: false,
            resuming: false,
            corked: false,
            large: None,
            fragmenting: false,
            pending_close: None,
            wrote_in: 0,
            looked: Looked::default(),
            unsuspended: (0, 0, 0),
            turn_owed: false,
            tell_writable: false,
            flushes: Vec::new(),
            pings: Vec::new(),
            closers: Vec::new(),
            mourners: Vec::new(),
            tell_controls: false,
            streaming_receiver: false,
            listener_error: None,
            keeping: false,
            finished: false,
            begun: false,
            lost: false,
            lingering: false,
            timer: None,
        }
    }

    // ---- receiving ----

    /// The next message or fragment that is there.
    #[inline]
    pub(super) fn take(
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
            if self.dropping && (self.drop_rest || is_full(&self.limits, self.queue.len(), self.queued_bytes)) {
                // To the end of its message.
                self.drop_rest = !fin;
                continue;
            }
            let message = payload::message(py, kind, payload, if whole { decode } else { Some(false) })?;
            return Ok(Some(Item { kind, message, fin, len }));
        }
    }

    /// What to tell a listener next; `zero_copy`: of whole binary messages, where they lie.
    pub(super) fn next_arrival(
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
    pub(super) fn is_receive_turn_due(&mut self, iteration: u64) -> bool {
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
    pub(super) fn fill_queue(&mut self, py: Python<'_>, notes: &mut Notes) -> PyResult<bool> {
        // Who will receive them, and how, is not known yet: fragments stay fragments.
        self.set_delivery(Delivery::Fragments);
        let mut postponed = false;
        while self.dropping || !self.is_queue_full() {
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
    pub(super) fn postpone(&mut self) -> bool {
        let postpone = self.may_postpone && !self.dropping && self.conn.peer.has_input();
        if postpone {
            self.may_postpone = false;
            self.postponed = true;
        }
        postpone
    }

    /// Takes items back that were received last, in their order.
    pub(super) fn put_back(&mut self, items: impl DoubleEndedIterator<Item = Item<Py<PyAny>>>) {
        for item in items.rev() {
            self.queued_bytes += item.len + ITEM_COST;
            self.queue.push_front(item);
        }
    }

    /// Drops the rest of the message whose fragments were being received.
    pub(super) fn discard_message(&mut self) {
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
    pub(super) fn is_queue_full(&self) -> bool {
        is_full(&self.limits, self.queue.len(), self.queued_bytes)
    }

    /// Whether so much was taken that reading may go on.
    #[inline]
    pub(super) fn is_queue_low(&self) -> bool {
        self.queue.len() <= self.limits.messages.low || self.queued_bytes <= self.limits.bytes.low
    }

    /// Whether reading may stop for the application to receive. What closes reads on, for the answer of the peer, unless the
    /// application still receives.
    pub(super) fn may_pause(&self, closing: bool) -> bool {
        let link = &self.conn.peer.link;
        let keeping = self.keeping && link.state().can_receive() && !link.is_eof() && link.failure().is_none();
        // Whoever waits has nothing yet: the rest of a large message, perhaps.
        !self.dropping && self.receivers.is_empty() && (!closing || keeping)
    }

    pub(super) fn queued_payload(&self) -> usize {
        self.queue.iter().map(|item| item.len).sum()
    }

    /// The first task that still waits for a message.
    #[inline]
    pub(super) fn next_receiver(&mut self) -> Option<&WaiterRef> {
        while self.receivers.front().is_some_and(|waiter| waiter.stage() != Stage::Waiting) {
            self.receivers.pop_front();
        }
        self.receivers.front()
    }

    // ---- sending ----

    /// Whether more is kept for a peer that does not read than should be. What is corked is not: it leaves soon.
    #[inline]
    pub(super) fn is_above_high(&self) -> bool {
        self.blocked && self.conn.peer.link.queued() > self.limits.write.high
    }

    /// Whether so much has left that senders may go on.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.large.is_none() && !self.blocked_by_transport() && self.conn.peer.link.queued() <= self.limits.write.low
    }

    /// A transport has said that it has no room; a socket is asked by queueing.
    fn blocked_by_transport(&self) -> bool {
        self.blocked && !self.draining && self.conn.socket().is_none() && !self.conn.is_over()
    }

    /// Whether a message must wait before it can even be queued.
    #[inline]
    pub(super) fn must_wait(&self) -> bool {
        self.sender_turns > 0 || !self.senders.is_empty() || self.is_stuck()
    }

    /// Whether nothing can be queued now, even by whose turn it is.
    #[inline]
    pub(super) fn is_stuck(&self) -> bool {
        self.fragmenting || self.is_crowded()
    }

    /// Whether so much is queued that whoever sends should wait until it has left.
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        self.large.is_some() || self.is_above_high() || self.blocked_by_transport()
    }

    /// What to do with what was just queued, in this iteration of the loop.
    #[inline]
    pub(super) fn output(&mut self, iteration: u64) -> Output {
        if self.blocked {
            return Output::Wait;
        }
        if self.wrote_in != iteration {
            self.wrote_in = iteration;
            self.looked = Looked::default();
            return Output::Write;
        }
        if self.conn.peer.link.queued() >= CORK_LIMIT.min(2 * self.limits.write.high) {
            return Output::Write;
        }
        // The clock is read from the second send on, and ever more seldom while they come fast: it would be a tenth of their time.
        if self.looked.skip > 0 {
            self.looked.skip -= 1;
            return Output::Cork;
        }
        let now = Instant::now();
        let before = self.looked.at.replace(now);
        if before.is_some_and(|before| now.duration_since(before) > CORK_TIME) {
            self.looked.every = 0;
            return Output::Write;
        }
        self.looked.every = (2 * self.looked.every + 1).min(15);
        self.looked.skip = self.looked.every;
        Output::Cork
    }

    /// Counts what was sent since a task was last suspended; true: the loop has been kept waiting for long enough.
    #[inline]
    pub(super) fn is_turn_due(&mut self, len: usize, iteration: u64) -> bool {
        let (seen, bytes, messages) = &mut self.unsuspended;
        if *seen != iteration {
            (*seen, *bytes, *messages) = (iteration, 0, 0);
        }
        *bytes += len;
        *messages += 1;
        if *bytes < YIELD_BYTES && *messages < self.limits.yield_after {
            return false;
        }
        *seen = 0;
        true
    }

    // ---- the collector ----

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        for waiter in self.receivers.iter().chain(&self.senders).chain(&self.drainers).chain(&self.mourners) {
            waiter.visit(visit)?;
        }
        for future in self.closers.iter().chain(self.pings.iter().chain(&self.flushes).map(|(_, future)| future)) {
            visit.call(future)?;
        }
        Ok(())
    }

    /// Takes everything out that may lead back to here.
    pub(super) fn take_references(&mut self) -> impl Sized + use<> {
        (
            std::mem::take(&mut self.receivers),
            std::mem::take(&mut self.senders),
            std::mem::take(&mut self.drainers),
            std::mem::take(&mut self.mourners),
            std::mem::take(&mut self.closers),
            std::mem::take(&mut self.pings),
            std::mem::take(&mut self.flushes),
            self.listener_error.take(),
        )
    }

    /// Whether anything must keep this connection alive although the application may have dropped it: a task that waits on it.
    pub(super) fn is_awaited(&self) -> bool {
        !self.receivers.is_empty()
            || self.turn_pending
            || !self.senders.is_empty()
            || !self.drainers.is_empty()
            || self.sender_turns > 0
            || !self.flushes.is_empty()
            || !self.pings.is_empty()
            || !self.closers.is_empty()
            || !self.mourners.is_empty()
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
