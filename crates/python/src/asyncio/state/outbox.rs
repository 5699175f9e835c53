//! The sending half: who may send, what waits, what is written when.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use wirespeed_driver::peer::LargeSend;
use wirespeed_driver::write_queue::Flushed;

use super::{State, YIELD_BYTES};
use crate::asyncio::loop_state::LoopState;
use crate::asyncio::waiter::WaiterRef;
use crate::handover;

/// Corked messages leave when they are this many bytes, or twice the high mark of what may wait: masked, and sent, while they are in the
/// second-level cache.
const CORK_LIMIT: usize = 64 * 1024;

/// A send goes straight to the socket too, though it is not the first of its iteration, if it comes this much later than those before: whoever
/// computes in between is no stream.
const CORK_TIME: Duration = Duration::from_micros(50);

/// A large message on its way out, piece by piece.
pub(in crate::asyncio) struct Large {
    pub(in crate::asyncio) send: LargeSend,
    /// A `bytes` or `str`: it cannot change.
    pub(in crate::asyncio) source: Py<PyAny>,
    pub(in crate::asyncio) offset: usize,
}

/// What to do with bytes that were queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::asyncio) enum Output {
    /// Write them now.
    Write,
    /// They leave at the end of this iteration of the loop, with what else comes.
    Cork,
    /// They wait for room.
    Wait,
}

/// What a listener is to be told about room to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::asyncio) enum TellWritable {
    /// Nothing.
    No,
    /// That there is room, once there is: it was told, or somebody was refused, that there is none.
    Wanted,
    /// The same; the loop was asked to call us for it.
    Soon,
}

/// When the clock was last read in this iteration of the loop, and how many sends must come before it is read again.
#[derive(Clone, Copy, Default)]
pub(super) struct Looked {
    at: Option<Instant>,
    every: u8,
    skip: u8,
}

impl State {
    /// Whether more is kept for a peer that does not read than should be. What is corked is not: it leaves soon.
    #[inline]
    pub(in crate::asyncio) fn is_above_high(&self) -> bool {
        self.blocked && self.conn.peer.link.queued() > self.limits.write.high
    }

    /// Whether so much has left that senders may go on.
    #[inline]
    pub(in crate::asyncio) fn has_room(&self) -> bool {
        self.large.is_none() && !self.blocked_by_transport() && self.conn.peer.link.queued() <= self.limits.write.low
    }

    /// A transport has said that it has no room; a socket is asked by queueing.
    fn blocked_by_transport(&self) -> bool {
        self.blocked && !self.draining && self.conn.socket().is_none() && !self.conn.is_over()
    }

    /// Whether somebody waits for room, and it is there.
    #[inline]
    pub(in crate::asyncio) fn is_room_due(&self) -> bool {
        let awaited = !self.drainers.is_empty()
            || !self.senders.is_empty() && !self.fragmenting
            || self.tell_writable == TellWritable::Wanted;
        awaited && self.has_room()
    }

    /// Whether somebody waits until something was written, and it may have been.
    #[inline]
    pub(in crate::asyncio) fn is_flush_due(&self) -> bool {
        !self.flushes.is_empty() && self.conn.peer.link.failure().is_none() && {
            let written = self.conn.peer.link.written();
            self.is_written() || self.flushes.iter().any(|(target, _)| *target <= written)
        }
    }

    /// Hands the kernel what is queued, as far as it has room.
    #[inline]
    pub(in crate::asyncio) fn flush(&mut self, py: Python<'_>, event_loop: &LoopState) -> Flushed {
        let conn = &mut self.conn;
        let much = conn.peer.link.queued() >= handover::MUCH;
        event_loop.moving(py, much, || conn.flush())
    }

    /// Whether nothing is left to be written.
    #[inline]
    pub(in crate::asyncio) fn is_written(&self) -> bool {
        self.conn.peer.link.queued() == 0 && self.large.is_none()
    }

    /// Whether something is to be written, and may be: now, and not at the end of the iteration. `ending`: nothing is put off any more.
    #[inline]
    pub(in crate::asyncio) fn is_write_due(&self, ending: bool) -> bool {
        !self.is_written() && !self.blocked && (!self.corked || ending) && !self.conn.is_over()
    }

    /// The place of a sender that has to wait, behind all others.
    pub(in crate::asyncio) fn next_ticket(&mut self) -> u64 {
        self.last_ticket += 1;
        self.last_ticket
    }

    /// A sender waits, in its place: one that was woken, and found no room, is before those that have come since.
    pub(in crate::asyncio) fn park_sender(&mut self, sender: WaiterRef) {
        let place = self.senders.partition_point(|other| other.ticket() <= sender.ticket());
        self.senders.insert(place, sender);
    }

    /// It is the turn of all these senders, before anybody else's.
    pub(in crate::asyncio) fn give_turns(&mut self, py: Python<'_>, senders: &VecDeque<WaiterRef>) {
        for sender in senders {
            sender.give_turn(py);
            self.turns.insert(sender.ticket());
        }
    }

    /// Whether it was this one's turn; it is no longer.
    pub(in crate::asyncio) fn take_turn(&mut self, py: Python<'_>, sender: &WaiterRef) -> bool {
        let turn = sender.take_turn(py);
        if turn {
            self.turns.remove(&sender.ticket());
        }
        turn
    }

    /// Whether no sender that waits, or whose turn it is, was before this one. Woken ones run in their order, but one that found no room, waits and is woken
    /// again runs after others.
    pub(in crate::asyncio) fn is_first(&self, sender: &WaiterRef) -> bool {
        let before = |ticket: u64| ticket < sender.ticket();
        !self.turns.first().is_some_and(|ticket| before(*ticket))
            && !self.senders.front().is_some_and(|other| before(other.ticket()))
    }

    /// Whether a message must wait before it can even be queued.
    #[inline]
    pub(in crate::asyncio) fn must_wait(&self) -> bool {
        !self.turns.is_empty() || !self.senders.is_empty() || self.is_stuck()
    }

    /// Whether nothing can be queued now, even by whose turn it is.
    #[inline]
    pub(in crate::asyncio) fn is_stuck(&self) -> bool {
        self.fragmenting || self.is_crowded()
    }

    /// Whether so much is queued that whoever sends should wait until it has left.
    #[inline]
    pub(in crate::asyncio) fn is_crowded(&self) -> bool {
        self.large.is_some() || self.is_above_high() || self.blocked_by_transport()
    }

    /// What to do with what was just queued, in this iteration of the loop.
    #[inline]
    pub(in crate::asyncio) fn output(&mut self, iteration: u64) -> Output {
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
    pub(in crate::asyncio) fn is_turn_due(&mut self, len: usize, iteration: u64) -> bool {
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
}
