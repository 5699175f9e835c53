//! The order of tasks that wait to send, and the decision when queued bytes are written.

use std::collections::{BTreeSet, VecDeque};
use std::mem::take;
use std::time::{Duration, Instant};

use wirespeed_protocol::CloseCode;

use super::{ConnectionDriver, Environment, LazyBox, Watermarks};
use crate::endpoint::LargeSend;

/// Number of bytes sent or received without a suspension after which the task yields to the loop.
pub const YIELD_BYTES: usize = 256 * 1024;

/// Corked messages are written at this number of bytes or at twice the high watermark, whichever is less. They
/// are then still in the second-level cache for masking and writing.
const CORK_LIMIT: usize = 64 * 1024;

/// A send is written immediately if it comes this much later than the one before: a sender that computes in
/// between gains nothing from corking.
const CORK_TIME: Duration = Duration::from_micros(50);

/// A large message that is sent piece by piece.
pub struct Large<L> {
    /// The progress of its frame.
    pub send: LargeSend,
    /// The object from which its bytes are read; the bytes must not change.
    pub source: L,
    /// Number of bytes already taken from `source`.
    pub offset: usize,
}

/// What to do with bytes that were just queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Write them now.
    Write,
    /// Write them at the end of this iteration of the loop, together with others.
    Cork,
    /// Wait for room.
    Wait,
}

/// Whether a listener waits to be notified of room to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritableNotice {
    /// It does not wait.
    No,
    /// It waits for room: it was notified that there is none, or a send was refused.
    Wanted,
    /// It waits for room, and the loop has scheduled the call.
    Soon,
}

/// A reason why no task may send, regardless of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nothing.
    Free,
    /// The opening handshake has not been answered yet.
    Opening,
    /// The task with this number is sending a message in fragments.
    Fragments(usize),
}

/// The last clock reading in this iteration of the loop, and the number of sends until the next reading.
#[derive(Clone, Copy, Debug, Default)]
struct ClockCache {
    at: Option<Instant>,
    every: u8,
    skip: u8,
}

/// Orders the senders of one connection and decides when its queued bytes are written.
///
/// 1. Before sending, check `must_wait`. To wait, take a `next_ticket` and call `add_sender`.
/// 2. When woken, call `take_turn`, then check again.
/// 3. After queueing, follow `output`: write, cork or wait. If `should_wait`, wait with `add_drainer`.
/// 4. To wait until bytes are written, call `add_flush`.
///
/// The bytes themselves are in the [`SendHalf`](crate::endpoint::SendHalf) of the driver.
pub struct SendQueue<E: Environment> {
    /// Watermarks of the bytes to be written.
    marks: Watermarks,
    /// Messages sent in one iteration of the loop may be written together.
    coalesce: bool,
    /// Number of messages sent without a suspension after which the sender yields to the loop.
    yield_after: usize,
    /// The waiting tasks, allocated when the first one waits.
    waiting: LazyBox<Waiting<E::Waiter>>,
    /// The kernel or the transport has no room.
    pub blocked: bool,
    /// The queued bytes are being passed to a transport, which may run any code. Bytes queued meanwhile come
    /// after them.
    pub passing_output: bool,
    /// A task waits until the transport has passed everything to the kernel: the transport then reports no room
    /// although it has some.
    pub draining: bool,
    /// Queued bytes are written at the end of this iteration of the loop.
    pub corked: bool,
    /// The large message that is being sent.
    pub large: Option<Box<Large<E::Source>>>,
    /// A reason why no task may send.
    pub hold: Hold,
    /// A close that waits for the end of a large message.
    pub pending_close: Option<Box<(Option<CloseCode>, String)>>,
    /// The iteration of the loop that last wrote immediately.
    wrote_in: u64,
    clock: ClockCache,
    /// The iteration in which a task last sent, and the number of bytes and messages sent in it without a
    /// suspension.
    sent_without_yield: (u64, usize, usize),
    /// A yield to the loop is due, but no task has made it yet.
    pub yield_owed: bool,
    /// Whether a listener waits for room.
    pub writable_notice: WritableNotice,
}

/// Tasks that wait to send, or for bytes to be written.
struct Waiting<W> {
    /// Tasks that wait for room to send, by ticket: first come, first served.
    senders: VecDeque<(u64, W)>,
    /// Tasks that have sent and wait until fewer bytes are queued.
    drainers: VecDeque<W>,
    /// Tickets of woken senders that have not run yet. They go before all others.
    turns: BTreeSet<u64>,
    /// The last ticket issued.
    last_ticket: u64,
    /// Tasks that wait until bytes are written, with the count of written bytes that each waits for.
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
    /// Creates an empty queue.
    #[must_use]
    pub fn new(marks: Watermarks, coalesce: bool, yield_after: usize) -> Self {
        Self {
            marks,
            coalesce,
            yield_after: yield_after.max(1),
            waiting: LazyBox::default(),
            blocked: false,
            passing_output: false,
            draining: false,
            corked: false,
            large: None,
            hold: Hold::Free,
            pending_close: None,
            wrote_in: 0,
            clock: ClockCache::default(),
            sent_without_yield: (0, 0, 0),
            yield_owed: false,
            writable_notice: WritableNotice::No,
        }
    }

    /// Returns the watermarks of the bytes to be written.
    #[must_use]
    pub fn marks(&self) -> Watermarks {
        self.marks
    }

    // ---- room ----

    /// Returns whether the write queue of a peer that does not read is above its high mark. Corked bytes do not
    /// count, because they are written soon.
    #[inline]
    pub fn is_above_high(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        self.blocked && driver.send_half().queued() > self.marks.high
    }

    /// Returns whether enough was written for senders to continue.
    #[inline]
    pub fn has_room(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        self.large.is_none() && !self.is_transport_blocked(driver) && driver.send_half().queued() <= self.marks.low
    }

    /// Returns whether a listener can send: there is room, and no task is in the middle of a message.
    #[must_use]
    pub fn is_writable(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        self.hold == Hold::Free && self.has_room(driver)
    }

    /// Returns whether an external transport has reported no room. A socket is asked by writing to it.
    fn is_transport_blocked(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        self.blocked && !self.draining && driver.socket().is_none() && !driver.is_over()
    }

    /// Returns whether a task waits for room and there is room.
    #[inline]
    pub fn is_room_due(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        let free = self.hold == Hold::Free;
        let waits = |waiting: &Waiting<_>| !waiting.drainers.is_empty() || !waiting.senders.is_empty() && free;
        let awaited = self.waiting.get().is_some_and(waits) || free && self.writable_notice == WritableNotice::Wanted;
        awaited && self.has_room(driver)
    }

    /// Returns whether a message must wait before it can be queued. `turn`: it is this sender's turn.
    #[inline]
    pub fn must_wait(&self, driver: &ConnectionDriver<E::Buffer>, turn: bool) -> bool {
        !turn && self.waiting.get().is_some_and(|waiting| !waiting.turns.is_empty() || !waiting.senders.is_empty())
            || self.hold != Hold::Free
            || self.should_wait(driver)
    }

    /// Returns whether a sender should wait until queued bytes are written.
    #[inline]
    pub fn should_wait(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        self.large.is_some() || self.is_above_high(driver) || self.is_transport_blocked(driver)
    }

    // ---- the order of waiting tasks ----

    /// Issues a ticket, which places a sender behind all others.
    pub fn next_ticket(&mut self) -> u64 {
        let waiting = self.waiting.make();
        waiting.last_ticket += 1;
        waiting.last_ticket
    }

    /// Adds a waiting sender at the place of its ticket: a sender that was woken and found no room goes before
    /// those that came since.
    pub fn add_sender(&mut self, ticket: u64, sender: E::Waiter) {
        let senders = &mut self.waiting.make().senders;
        let place = senders.partition_point(|(other, _)| *other <= ticket);
        senders.insert(place, (ticket, sender));
    }

    /// Adds a task that has sent and waits until fewer bytes are queued.
    pub fn add_drainer(&mut self, drainer: E::Waiter) {
        self.waiting.make().drainers.push_back(drainer);
    }

    /// Ends the turn of the sender with this ticket. Returns whether it was its turn.
    pub fn take_turn(&mut self, ticket: u64) -> bool {
        self.waiting.get_mut().is_some_and(|waiting| waiting.turns.remove(&ticket))
    }

    /// Returns whether no earlier sender waits or has its turn. Woken senders run in order, except that one
    /// which found no room and is woken again runs after others.
    #[must_use]
    pub fn is_first(&self, ticket: u64) -> bool {
        self.waiting.get().is_none_or(|waiting| {
            waiting.turns.first().is_none_or(|other| *other >= ticket)
                && waiting.senders.front().is_none_or(|(other, _)| *other >= ticket)
        })
    }

    /// Removes a task that no longer waits.
    pub fn remove_waiter(&mut self, ticket: u64, waiter: &E::Waiter) {
        let Some(waiting) = self.waiting.get_mut() else { return };
        waiting.turns.remove(&ticket);
        waiting.senders.retain(|(_, other)| other != waiter);
        waiting.drainers.retain(|other| other != waiter);
        waiting.flushes.retain(|(_, other)| other != waiter);
    }

    /// Returns the next task to wake if there is room. A sender gets its turn; cancelled senders are skipped.
    pub(super) fn next_to_wake(
        &mut self,
        cx: E::Context<'_>,
        driver: &ConnectionDriver<E::Buffer>,
    ) -> Option<E::Waiter> {
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

    /// Takes all waiting tasks when the connection is over. Senders get their turn, in which they find the
    /// error.
    pub fn take_all(&mut self) -> impl Iterator<Item = E::Waiter> + use<E> {
        let (senders, drainers) = self.waiting.get_mut().map_or_else(Default::default, |waiting| {
            waiting.turns.extend(waiting.senders.iter().map(|(ticket, _)| *ticket));
            (take(&mut waiting.senders), take(&mut waiting.drainers))
        });
        senders.into_iter().map(|(_, sender)| sender).chain(drainers)
    }

    // ---- writing ----

    /// Returns whether nothing is left to be written.
    #[inline]
    pub fn is_written(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        driver.send_half().queued() == 0 && self.large.is_none()
    }

    /// Returns whether bytes can be written now, rather than at the end of the iteration. `ending`: corked
    /// bytes are written too.
    #[inline]
    pub fn is_write_due(&self, driver: &ConnectionDriver<E::Buffer>, ending: bool) -> bool {
        !self.is_written(driver)
            && !self.blocked
            && !self.passing_output
            && (!self.corked || ending)
            && !driver.is_over()
    }

    /// Returns what to do with bytes that were just queued in this iteration of the loop.
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
            // The time to mask and write so many bytes is not a pause of the sender.
            self.clock.at = None;
            return Output::Write;
        }
        // The clock is read from the second send on, and less often while sends follow fast: reading it each
        // time would cost a tenth of their time.
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

    /// Counts a message sent without a suspension. Returns true if the task should yield to the loop.
    #[inline]
    pub fn is_yield_due(&mut self, len: usize, iteration: u64) -> bool {
        let (seen, bytes, messages) = &mut self.sent_without_yield;
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

    /// Returns whether a task waits until bytes are written.
    #[inline]
    pub fn has_flushes(&self) -> bool {
        self.waiting.get().is_some_and(Waiting::has_flushes)
    }

    /// Adds a task that waits until all bytes queued now are written.
    pub fn add_flush(&mut self, driver: &mut ConnectionDriver<E::Buffer>, waiter: E::Waiter) {
        let send_half = driver.send_half_mut();
        send_half.seal(); // encrypted, the queue has the length that will be written
        let target = if self.large.is_some() { u64::MAX } else { send_half.written() + send_half.queued() as u64 };
        self.waiting.make().flushes.push((target, waiter));
    }

    /// Records that the large message is queued completely: tasks that wait for its end need not wait for later
    /// messages.
    pub fn record_large_queued(&mut self, driver: &mut ConnectionDriver<E::Buffer>) {
        let Some(waiting) = self.waiting.get_mut().filter(|waiting| waiting.has_flushes()) else { return };
        let send_half = driver.send_half_mut();
        send_half.seal();
        let queued = send_half.written() + send_half.queued() as u64;
        for (target, _) in &mut waiting.flushes {
            *target = (*target).min(queued);
        }
    }

    /// Returns whether a task waits until bytes are written, and they may be.
    #[inline]
    pub fn is_flush_due(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        let Some(waiting) = self.waiting.get() else { return false };
        waiting.has_flushes() && driver.send_half().failure().is_none() && {
            let written = driver.send_half().written();
            self.is_written(driver) || waiting.flushes.iter().any(|(target, _)| *target <= written)
        }
    }

    /// Takes the tasks whose bytes were written. After a write error it takes none: the end of the connection
    /// notifies them.
    pub fn take_flushed(&mut self, driver: &ConnectionDriver<E::Buffer>) -> Vec<E::Waiter> {
        if !self.is_flush_due(driver) {
            return Vec::new();
        }
        let (all, written) = (self.is_written(driver), driver.send_half().written());
        let flushes = &mut self.waiting.make().flushes;
        flushes.extract_if(.., |(target, _)| all || *target <= written).map(|(_, waiter)| waiter).collect()
    }

    /// Takes all tasks that wait for a flush, when the connection is over.
    pub fn take_flushes(&mut self) -> impl Iterator<Item = E::Waiter> + use<E> {
        let flushes = self.waiting.get_mut().map(|waiting| take(&mut waiting.flushes)).unwrap_or_default();
        flushes.into_iter().map(|(_, waiter)| waiter)
    }

    /// Returns whether any task waits.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        self.waiting.get().is_some_and(|waiting| {
            !waiting.senders.is_empty()
                || !waiting.drainers.is_empty()
                || !waiting.turns.is_empty()
                || waiting.has_flushes()
        })
    }

    /// Returns all waiting tasks.
    pub fn waiters(&self) -> impl Iterator<Item = &E::Waiter> {
        self.waiting.get().into_iter().flat_map(|waiting| {
            waiting.senders.iter().chain(&waiting.flushes).map(|(_, waiter)| waiter).chain(&waiting.drainers)
        })
    }
}
