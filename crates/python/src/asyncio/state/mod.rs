//! What a connection on an event loop knows between two calls, and what it does with it that is no business of the loop.

mod inbox;
mod outbox;

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use wirespeed_driver::drive::{Drive, Progress};
use wirespeed_driver::drive::{Inbox, Marks};
use wirespeed_driver::protocol::{CloseCode, Side};

pub(super) use self::inbox::{Arrival, Notes};
use self::outbox::Looked;
pub(super) use self::outbox::{Large, Output, TellWritable};
use super::waiter::WaiterRef;
use crate::payload::PyPayload;

/// Bytes sent, or received, without a suspension after which the loop has a turn.
const YIELD_BYTES: usize = 256 * 1024;

/// How much may wait, and how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Messages received and not taken, and their bytes: see [`Inbox`].
    pub(super) messages: Marks,
    pub(super) bytes: Marks,
    /// Bytes to be written.
    pub(super) write: Marks,
    /// Messages sent without a suspension after which the loop has a turn.
    pub(super) yield_after: usize,
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    NotYet,
    /// All who wait were told but those of `wait_closed`: the transport has yet to close the socket.
    Lingering,
    Complete,
}

pub(super) struct State {
    pub(super) conn: Drive<PyPayload>,
    pub(super) limits: Limits,
    // ---- receiving ----
    pub(super) inbox: Inbox<Py<PyAny>>,
    /// Tasks that wait for a message, first come first served. If there are any, the queue has nothing for the first and all input is parsed.
    pub(super) receivers: VecDeque<WaiterRef>,
    /// The iteration of the loop for which the inbox counts what was received without a suspension.
    received_in: u64,
    /// A task that receives has given the loop a turn and comes back for the rest of what was read.
    pub(super) turn_pending: bool,
    /// Nothing is read, because the application does not receive.
    pub(super) paused: bool,
    // ---- sending ----
    /// Tasks that wait for room, first come first served.
    pub(super) senders: VecDeque<WaiterRef>,
    /// Tasks that have sent and wait until less is queued.
    pub(super) drainers: VecDeque<WaiterRef>,
    /// The tickets of the senders that were woken and have not run yet: it is their turn before anybody else's.
    pub(super) turns: BTreeSet<u64>,
    /// The number of the last sender that had to wait, of all that ever had to.
    pub(super) last_ticket: u64,
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
    /// The task that sends it, as [`raw::current_task`](super::raw::current_task) numbers them.
    pub(super) fragmenter: usize,
    /// A close that waits for the end of a large message.
    pub(super) pending_close: Option<(Option<CloseCode>, String)>,
    /// The iteration of the loop in which something was last written through.
    wrote_in: u64,
    looked: Looked,
    /// Sent since the loop last had a turn, as far as we know: in the iteration of this number.
    unsuspended: (u64, usize, usize),
    /// The loop is due a turn that nobody could give it yet: `send_nowait` cannot.
    pub(super) turn_owed: bool,
    pub(super) tell_writable: TellWritable,
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
    /// A server has yet to answer the opening handshake.
    pub(super) connecting: bool,
    /// What the loop says is acted upon.
    pub(super) begun: bool,
    /// The transport has ended.
    pub(super) lost: bool,
    pub(super) end: End,
    /// The key of our timer.
    pub(super) timer: Option<(Instant, u64)>,
}

impl State {
    pub(super) fn new(conn: Drive<PyPayload>, limits: Limits) -> Self {
        Self {
            inbox: Inbox::new(limits.messages, limits.bytes),
            conn,
            limits,
            receivers: VecDeque::new(),
            received_in: 0,
            turn_pending: false,
            paused: false,
            senders: VecDeque::new(),
            drainers: VecDeque::new(),
            turns: BTreeSet::new(),
            last_ticket: 0,
            blocked: false,
            draining: false,
            resuming: false,
            corked: false,
            large: None,
            fragmenting: false,
            fragmenter: 0,
            pending_close: None,
            wrote_in: 0,
            looked: Looked::default(),
            unsuspended: (0, 0, 0),
            turn_owed: false,
            tell_writable: TellWritable::No,
            flushes: Vec::new(),
            pings: Vec::new(),
            closers: Vec::new(),
            mourners: Vec::new(),
            tell_controls: false,
            streaming_receiver: false,
            listener_error: None,
            connecting: false,
            begun: false,
            lost: false,
            end: End::NotYet,
            timer: None,
        }
    }

    /// That of a connection of the parent process, which is over.
    pub(super) fn disowned() -> Self {
        let none = Marks::at(0);
        let limits = Limits { messages: none, bytes: none, write: none, yield_after: 1 };
        let mut state = Self::new(Drive::disowned(Side::Client), limits);
        state.end = End::Complete;
        state
    }

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

    /// Whether everybody who waits was told that it is over.
    #[inline]
    pub(super) fn is_finished(&self) -> bool {
        self.end != End::NotYet
    }

    /// Whether nothing is left to do after anything has happened, which is so most of the time: of all that [`AsyncConnection::settle`] does, nothing is due.
    /// `listens`: messages go to a listener.
    ///
    /// [`AsyncConnection::settle`]: super::connection::AsyncConnection::settle
    #[inline]
    pub(super) fn is_settled(&mut self, listens: bool) -> bool {
        self.conn.advance(Instant::now) == Progress::Open
            && !self.is_write_due(false)
            && !self.is_room_due()
            && !self.is_flush_due()
            && !self.paused
            && !self.is_queue_full()
            && (listens || !self.receivers.is_empty())
    }

    /// Whether anything must keep this connection alive although the application may have dropped it: a task that waits on it.
    pub(super) fn is_awaited(&self) -> bool {
        !self.receivers.is_empty()
            || self.turn_pending
            || !self.senders.is_empty()
            || !self.drainers.is_empty()
            || !self.turns.is_empty()
            || !self.flushes.is_empty()
            || !self.pings.is_empty()
            || !self.closers.is_empty()
            || !self.mourners.is_empty()
    }
}
