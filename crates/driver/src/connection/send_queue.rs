//! Who may send, who waits for what, and when what is queued is written.

use std::collections::{BTreeSet, VecDeque};
use std::mem::take;
use std::time::{Duration, Instant};

use wirespeed_protocol::CloseCode;

use super::{ConnectionDriver, Environment, LazyBox, Watermarks};
use crate::endpoint::LargeSend;

/// Bytes sent, or received, without a suspension after which the loop has a turn.
pub const YIELD_BYTES: usize = 256 * 1024;

/// Corked messages leave when they are this many bytes, or twice the high mark of what may wait: masked, and
/// sent, while they are in the second-level cache.
const CORK_LIMIT: usize = 64 * 1024;

/// A send goes straight to the socket too, though it is not the first of its iteration, if it comes this much
/// later than those before: whoever computes in between is no stream.
const CORK_TIME: Duration = Duration::from_micros(50);

/// A large message on its way out, piece by piece.
pub struct Large<L> {
    /// How far its frame is.
    pub send: LargeSend,
    /// What its bytes are taken from: it cannot change.
    pub source: L,
    /// How many were.
    pub offset: usize,
}

/// What to do with bytes that were queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Write them now.
    Write,
    /// They leave at the end of this iteration of the loop, with what else comes.
    Cork,
    /// They wait for room.
    Wait,
}

/// What a listener is to be told about room to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritableNotice {
    /// Nothing.
    No,
    /// That there is room, once there is: it was told, or somebody was refused, that there is none.
    Wanted,
    /// The same; the loop was asked to call for it.
    Soon,
}

/// What keeps everybody from sending, however much room there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nothing.
    Free,
    /// A server has yet to answer the opening handshake.
    Opening,
    /// A message is being sent in fragments, by the task of this number.
    Fragments(usize),
}

/// When the clock was last read in this iteration of the loop, and how many sends must come before it is read
/// again.
#[derive(Clone, Copy, Debug, Default)]
struct ClockCache {
    at: Option<Instant>,
    every: u8,
    skip: u8,
}

/// See the module.
pub struct SendQueue<E: Environment> {
    /// Of bytes to be written.
    marks: Watermarks,
    /// What is sent in one iteration of the loop may leave together.
    coalesce: bool,
    /// Messages sent without a suspension after which the loop has a turn.
    yield_after: usize,
    /// Those who wait, once somebody had to.
    waiting: LazyBox<Waiting<E::Waiter>>,
    /// The kernel, or the transport, has no room.
    pub blocked: bool,
    /// Somebody else is being given what was queued, and may run any code meanwhile: what that queues comes after it.
    pub handing: bool,
    /// Somebody waits until the transport has handed everything to the kernel: it says that it has no room
    /// although it has.
    pub draining: bool,
    /// What was queued leaves at the end of this iteration of the loop.
    pub corked: bool,
    /// The large message that is on its way.
    pub large: Option<Box<Large<E::Source>>>,
    /// What keeps everybody from sending.
    pub hold: Hold,
    /// A close that waits for the end of a large message.
    pub pending_close: Option<Box<(Option<CloseCode>, String)>>,
    /// The iteration of the loop in which something was last written through.
    wrote_in: u64,
    clock: ClockCache,
    /// Sent since the loop last had a turn, as far as is known: in the iteration of this number, bytes and
    /// messages.
    unsuspended: (u64, usize, usize),
    /// The loop is due a turn that nobody could give it yet.
    pub turn_owed: bool,
    /// What a listener is to be told.
    pub writable_notice: WritableNotice,
}

/// Who waits to send, or for what was sent.
struct Waiting<W> {
    /// Those who wait for room to send, by their tickets: first come first served.
    senders: VecDeque<(u64, W)>,
    /// Those who have sent and wait until less is queued.
    drainers: VecDeque<W>,
    /// The tickets of the senders that were woken and have not run yet: it is their turn before anybody
    /// else's.
    turns: BTreeSet<u64>,
    /// The last ticket of all that ever were given.
    last_ticket: u64,
    /// Those who wait until something was written, with the count of written bytes that they wait for.
    flushes: Vec<(u64, W)>,
}

impl<W> Default for Waiting<W> {
    fn default() -> Self {
        Self {
            senders: VecDeque::new(),
            drainers: VecDeque::new(),
            turns: BTreeSet::new(),
            last_ticket: 0,
            flushes: Vec::new(),
        }
    }
}

impl<W> Waiting<W> {
    fn has_flushes(&self) -> bool {
        !self.flushes.is_empty()
    }
}

impl<E: Environment> SendQueue<E> {
    /// An empty one.
    #[must_use]
    pub fn new(marks: Watermarks, coalesce: bool, yield_after: usize) -> Self {
        Self {
            marks,
            coalesce,
            yield_after: yield_after.max(1),
            waiting: LazyBox::default(),
            blocked: false,
            handing: false,
            draining: false,
            corked: false,
            large: None,
            hold: Hold::Free,
            pending_close: None,
            wrote_in: 0,
            clock: ClockCache::default(),
            unsuspended: (0, 0, 0),
            turn_owed: false,
            writable_notice: WritableNotice::No,
        }
    }

    /// Of bytes to be written.
    #[must_use]
    pub fn marks(&self) -> Watermarks {
        self.marks
    }

    // ---- room ----

    /// Whether more is kept for a peer that does not read than should be. What is corked is not: it leaves
    /// soon.
    #[inline]
    pub fn is_above_high(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        self.blocked && driver.send_half().queued() > self.marks.high
    }

    /// Whether so much has left that senders may go on.
    #[inline]
    pub fn has_room(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        self.large.is_none() && !self.is_blocked_elsewhere(driver) && driver.send_half().queued() <= self.marks.low
    }

    /// Whether a listener may be told that it can send: there is room, and nobody is in the middle of a message.
    #[must_use]
    pub fn is_writable(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        self.hold == Hold::Free && self.has_room(driver)
    }

    /// A transport has said that it has no room; a socket is asked by queueing.
    fn is_blocked_elsewhere(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        self.blocked && !self.draining && driver.socket().is_none() && !driver.is_over()
    }

    /// Whether somebody waits for room, and it is there.
    #[inline]
    pub fn is_room_due(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        let free = self.hold == Hold::Free;
        let waits = |waiting: &Waiting<_>| !waiting.drainers.is_empty() || !waiting.senders.is_empty() && free;
        let awaited = self.waiting.get().is_some_and(waits) || free && self.writable_notice == WritableNotice::Wanted;
        awaited && self.has_room(driver)
    }

    /// Whether a message must wait before it can even be queued. `turn`: it is the turn of whoever sends it.
    #[inline]
    pub fn must_wait(&self, driver: &ConnectionDriver<E::Buffer>, turn: bool) -> bool {
        !turn && self.waiting.get().is_some_and(|waiting| !waiting.turns.is_empty() || !waiting.senders.is_empty())
            || self.hold != Hold::Free
            || self.should_wait(driver)
    }

    /// Whether so much is queued that whoever sends should wait until it has left.
    #[inline]
    pub fn should_wait(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        self.large.is_some() || self.is_above_high(driver) || self.is_blocked_elsewhere(driver)
    }

    // ---- the order of those who wait ----

    /// The place of a sender that has to wait, behind all others.
    pub fn next_ticket(&mut self) -> u64 {
        let waiting = self.waiting.make();
        waiting.last_ticket += 1;
        waiting.last_ticket
    }

    /// A sender waits, in its place: one that was woken, and found no room, is before those that have come
    /// since.
    pub fn park(&mut self, ticket: u64, sender: E::Waiter) {
        let senders = &mut self.waiting.make().senders;
        let place = senders.partition_point(|(other, _)| *other <= ticket);
        senders.insert(place, (ticket, sender));
    }

    /// Somebody has sent, and waits until less is queued.
    pub fn park_drainer(&mut self, drainer: E::Waiter) {
        self.waiting.make().drainers.push_back(drainer);
    }

    /// Whether it was the turn of the sender with this ticket; it is no longer.
    pub fn take_turn(&mut self, ticket: u64) -> bool {
        self.waiting.get_mut().is_some_and(|waiting| waiting.turns.remove(&ticket))
    }

    /// Whether no sender that waits, or whose turn it is, was before this one. Woken ones run in their order,
    /// but one that found no room, waits and is woken again runs after others.
    #[must_use]
    pub fn is_first(&self, ticket: u64) -> bool {
        self.waiting.get().is_none_or(|waiting| {
            waiting.turns.first().is_none_or(|other| *other >= ticket)
                && waiting.senders.front().is_none_or(|(other, _)| *other >= ticket)
        })
    }

    /// Somebody gives up waiting.
    pub fn forget(&mut self, ticket: u64, waiter: &E::Waiter) {
        let Some(waiting) = self.waiting.get_mut() else { return };
        waiting.turns.remove(&ticket);
        waiting.senders.retain(|(_, other)| other != waiter);
        waiting.drainers.retain(|other| other != waiter);
        waiting.flushes.retain(|(_, other)| other != waiter);
    }

    /// The next one who waited for room that is there: it goes on. A sender has its turn; those that were
    /// cancelled have none.
    pub(super) fn next_woken(&mut self, cx: E::Context<'_>, driver: &ConnectionDriver<E::Buffer>) -> Option<E::Waiter> {
        if !self.has_room(driver) {
            return None;
        }
        let waiting = self.waiting.get_mut()?;
        if let Some(drainer) = waiting.drainers.pop_front() {
            return Some(drainer);
        }
        if self.hold != Hold::Free {
            return None;
        }
        while let Some((ticket, sender)) = waiting.senders.pop_front() {
            if E::is_waiting(cx, &sender) {
                waiting.turns.insert(ticket);
                return Some(sender);
            }
        }
        None
    }

    /// It is over: all who wait. Senders have their turn, in which they learn it.
    pub fn take_all(&mut self) -> impl Iterator<Item = E::Waiter> + use<E> {
        let (senders, drainers) = self.waiting.get_mut().map_or_else(Default::default, |waiting| {
            waiting.turns.extend(waiting.senders.iter().map(|(ticket, _)| *ticket));
            (take(&mut waiting.senders), take(&mut waiting.drainers))
        });
        senders.into_iter().map(|(_, sender)| sender).chain(drainers)
    }

    // ---- writing ----

    /// Whether nothing is left to be written.
    #[inline]
    pub fn is_written(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        driver.send_half().queued() == 0 && self.large.is_none()
    }

    /// Whether something is to be written, and may be: now, and not at the end of the iteration. `ending`:
    /// nothing is put off any more.
    #[inline]
    pub fn is_write_due(&self, driver: &ConnectionDriver<E::Buffer>, ending: bool) -> bool {
        !self.is_written(driver) && !self.blocked && !self.handing && (!self.corked || ending) && !driver.is_over()
    }

    /// What to do with what was just queued, in this iteration of the loop.
    #[inline]
    pub fn output(&mut self, driver: &ConnectionDriver<E::Buffer>, iteration: u64) -> Output {
        if self.blocked {
            return Output::Wait;
        }
        if !self.coalesce || self.large.is_some() {
            return Output::Write;
        }
        if self.wrote_in != iteration {
            self.wrote_in = iteration;
            self.clock = ClockCache::default();
            return Output::Write;
        }
        if driver.send_half().queued() >= CORK_LIMIT.min(2 * self.marks.high) {
            // What masking and writing so much takes is no pause of the sender's.
            self.clock.at = None;
            return Output::Write;
        }
        // The clock is read from the second send on, and ever more seldom while they come fast: it would be a
        // tenth of their time.
        if self.clock.skip > 0 {
            self.clock.skip -= 1;
            return Output::Cork;
        }
        let now = Instant::now();
        let before = self.clock.at.replace(now);
        if before.is_some_and(|before| now.duration_since(before) > CORK_TIME) {
            self.clock.every = 0;
            return Output::Write;
        }
        self.clock.every = (2 * self.clock.every + 1).min(15);
        self.clock.skip = self.clock.every;
        Output::Cork
    }

    /// Counts what was sent since a task was last suspended; true: the loop has been kept waiting for long
    /// enough.
    #[inline]
    pub fn is_turn_due(&mut self, len: usize, iteration: u64) -> bool {
        let (seen, bytes, messages) = &mut self.unsuspended;
        if *seen != iteration {
            (*seen, *bytes, *messages) = (iteration, 0, 0);
        }
        *bytes += len;
        *messages += 1;
        if *bytes < YIELD_BYTES && *messages < self.yield_after {
            return false;
        }
        *seen = 0;
        true
    }

    // ---- flushes ----

    /// Whether nobody waits for what was written.
    #[inline]
    pub fn has_flushes(&self) -> bool {
        self.waiting.get().is_some_and(Waiting::has_flushes)
    }

    /// Somebody waits until everything that is queued now was written.
    pub fn park_flush(&mut self, driver: &mut ConnectionDriver<E::Buffer>, waiter: E::Waiter) {
        let send_half = driver.send_half_mut();
        send_half.seal(); // it counts as it will be written
        let target = if self.large.is_some() { u64::MAX } else { send_half.written() + send_half.queued() as u64 };
        self.waiting.make().flushes.push((target, waiter));
    }

    /// The large message that was on its way is queued: those who wait for it need not wait for what comes behind it.
    pub fn note_large_queued(&mut self, driver: &mut ConnectionDriver<E::Buffer>) {
        let Some(waiting) = self.waiting.get_mut().filter(|waiting| waiting.has_flushes()) else { return };
        let send_half = driver.send_half_mut();
        send_half.seal();
        let queued = send_half.written() + send_half.queued() as u64;
        for (target, _) in &mut waiting.flushes {
            *target = (*target).min(queued);
        }
    }

    /// Whether somebody waits until something was written, and it may have been.
    #[inline]
    pub fn is_flush_due(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        let Some(waiting) = self.waiting.get() else { return false };
        waiting.has_flushes() && driver.send_half().failure().is_none() && {
            let written = driver.send_half().written();
            self.is_written(driver) || waiting.flushes.iter().any(|(target, _)| *target <= written)
        }
    }

    /// Those whose bytes were written. Nobody, once writing has failed: the end tells them.
    pub fn take_flushed(&mut self, driver: &ConnectionDriver<E::Buffer>) -> Vec<E::Waiter> {
        if !self.is_flush_due(driver) {
            return Vec::new();
        }
        let (all, written) = (self.is_written(driver), driver.send_half().written());
        let flushes = &mut self.waiting.make().flushes;
        flushes.extract_if(.., |(target, _)| all || *target <= written).map(|(_, waiter)| waiter).collect()
    }

    /// It is over: all who wait for a flush.
    pub fn take_flushes(&mut self) -> impl Iterator<Item = E::Waiter> + use<E> {
        let flushes = self.waiting.get_mut().map(|waiting| take(&mut waiting.flushes)).unwrap_or_default();
        flushes.into_iter().map(|(_, waiter)| waiter)
    }

    /// Whether anybody waits.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.waiting.get().is_some_and(|waiting| {
            !waiting.senders.is_empty()
                || !waiting.drainers.is_empty()
                || !waiting.turns.is_empty()
                || waiting.has_flushes()
        })
    }

    /// All who wait.
    pub fn waiters(&self) -> impl Iterator<Item = &E::Waiter> {
        self.waiting.get().into_iter().flat_map(|waiting| {
            waiting.senders.iter().chain(&waiting.flushes).map(|(_, waiter)| waiter).chain(&waiting.drainers)
        })
    }
}
