//! The order of tasks that wait to send, and the decision when queued bytes are written.

mod flushes;

use std::collections::{BTreeSet, VecDeque};
use std::mem::{replace, take};
use std::time::{Duration, Instant};

use wirespeed_protocol::CloseCode;

#[cfg(doc)]
use super::WaitState;
use super::lazy_box::LazyBox;
use super::{ConnectionDriver, Environment, Watermarks};
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
pub(super) struct Large<L> {
    /// The progress of its frame.
    pub(super) send: LargeSend,
    /// The object from which its bytes are read; the bytes must not change.
    pub(super) source: L,
    /// Number of bytes already taken from `source`.
    pub(super) offset: usize,
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
enum WritableNotice {
    /// It does not wait.
    No,
    /// It waits for room: it was notified that there is none, or a send was refused.
    Wanted,
    /// It waits for room, and the loop has scheduled the call.
    Soon,
}

/// Whether tasks may send whole messages, regardless of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendLock {
    /// They may.
    Unlocked,
    /// They may not: the opening handshake has not been answered yet.
    Opening,
    /// They may not: the task with this number is sending a message in fragments.
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
/// 1. Before sending, check [`WaitState::must_wait`]. To wait, take a [`Self::next_ticket`] and call
///    [`Self::add_sender`].
/// 2. When woken, call [`Self::take_turn`], then check again.
/// 3. After queueing, follow [`WaitState::output`]: write, [cork](Self::cork) or wait. If
///    [`WaitState::should_wait`] returns true, wait with [`Self::add_drainer`].
/// 4. After writing, call [`Self::set_blocked`].
/// 5. To wait until bytes are written, call [`WaitState::add_flush`].
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
    blocked: bool,
    /// The queued bytes are being passed to a transport, which may run any code. Bytes queued meanwhile come
    /// after them.
    passing_output: bool,
    /// A task waits until the transport has passed everything to the kernel: the transport then reports no room
    /// although it has some.
    draining: bool,
    /// Queued bytes are written at the end of this iteration of the loop.
    corked: bool,
    /// The large message that is being sent.
    pub(super) large: Option<Box<Large<E::Source>>>,
    lock: SendLock,
    /// A close that waits for the end of a large message.
    pub(super) pending_close: Option<Box<(Option<CloseCode>, String)>>,
    /// The iteration of the loop that last wrote immediately.
    wrote_in: u64,
    clock: ClockCache,
    /// The iteration in which a task last sent, and the number of bytes and messages sent in it without a
    /// suspension.
    sent_without_yield: (u64, usize, usize),
    /// A yield to the loop is due, but no task has made it yet.
    yield_owed: bool,
    /// Whether a listener waits for room.
    writable_notice: WritableNotice,
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
    pub(super) fn new(marks: Watermarks, coalesce: bool, yield_after: usize) -> Self {
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
            lock: SendLock::Unlocked,
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
    pub(super) fn is_above_high(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        self.blocked && driver.send_half().queued() > self.marks.high
    }

    /// Returns whether enough was written for senders to continue.
    #[inline]
    pub(super) fn has_room(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        self.large.is_none() && !self.is_transport_blocked(driver) && driver.send_half().queued() <= self.marks.low
    }

    /// Returns whether a listener can send: there is room, and no task is in the middle of a message.
    #[must_use]
    pub(super) fn is_writable(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        self.lock == SendLock::Unlocked && self.has_room(driver)
    }

    /// Returns whether an external transport has reported no room. A socket is asked by writing to it.
    fn is_transport_blocked(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        self.blocked && !self.draining && driver.socket().is_none() && !driver.is_over()
    }

    /// Returns whether a task waits for room and there is room.
    #[inline]
    pub(super) fn is_room_due(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        let free = self.lock == SendLock::Unlocked;
        let waits = |waiting: &Waiting<_>| !waiting.drainers.is_empty() || !waiting.senders.is_empty() && free;
        let awaited = self.waiting.get().is_some_and(waits) || free && self.writable_notice == WritableNotice::Wanted;
        awaited && self.has_room(driver)
    }

    /// Returns whether a message must wait before it can be queued. `turn`: it is this sender's turn.
    #[inline]
    pub(super) fn must_wait(&self, driver: &ConnectionDriver<E::Buffer>, turn: bool) -> bool {
        !turn && self.waiting.get().is_some_and(|waiting| !waiting.turns.is_empty() || !waiting.senders.is_empty())
            || self.is_locked()
            || self.should_wait(driver)
    }

    /// Returns whether a sender should wait until queued bytes are written.
    #[inline]
    pub(super) fn should_wait(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        self.large.is_some() || self.is_above_high(driver) || self.is_transport_blocked(driver)
    }

    /// Sets whether the kernel or the transport has no room. Returns the previous value. Call it after each write,
    /// and when the loop or the transport reports room.
    pub fn set_blocked(&mut self, blocked: bool) -> bool {
        replace(&mut self.blocked, blocked)
    }

    /// Returns whether the kernel or the transport has no room.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Returns whether queued bytes can be written: there is room, and no caller is passing bytes to the transport.
    #[must_use]
    #[inline]
    pub fn accepts_output(&self) -> bool {
        !self.blocked && !self.passing_output
    }

    /// Begins to pass bytes to an external transport, which may run any code: until
    /// [`Self::end_transport_write`], [`Self::accepts_output`] returns false.
    pub(super) fn begin_transport_write(&mut self) {
        self.passing_output = true;
    }

    /// Records that the transport has taken the bytes of [`WaitState::begin_transport_write`], or has failed.
    pub fn end_transport_write(&mut self) {
        self.passing_output = false;
    }

    /// Begins to wait until the transport has passed everything to the kernel. Its watermark is 0 meanwhile, so its
    /// reports of no room do not block senders. Returns false if this was already waited for.
    pub fn start_draining(&mut self) -> bool {
        !replace(&mut self.draining, true)
    }

    /// Ends [`Self::start_draining`]: the transport reports room, or its watermark could not be set. Returns whether
    /// draining was under way.
    pub fn stop_draining(&mut self) -> bool {
        take(&mut self.draining)
    }

    // ---- locks ----

    /// Prevents all tasks from sending until [`Self::unlock_after_opening`]. Call it first, on a connection whose
    /// opening handshake is not answered.
    pub fn lock_for_opening(&mut self) {
        self.lock = SendLock::Opening;
    }

    /// Lets tasks send, because the opening handshake is answered. Call it before the answer is queued.
    pub fn unlock_after_opening(&mut self) {
        if self.is_opening() {
            self.lock = SendLock::Unlocked;
        }
    }

    pub(super) fn is_opening(&self) -> bool {
        self.lock == SendLock::Opening
    }

    /// Begins a message in fragments, sent by `task`; other tasks wait until [`Self::end_fragments`]. Returns false
    /// if no task may send now: see [`Self::is_locked`].
    pub fn begin_fragments(&mut self, task: usize) -> bool {
        let free = !self.is_locked();
        if free {
            self.lock = SendLock::Fragments(task);
        }
        free
    }

    /// Ends the message in fragments, complete or not. The caller then runs the due actions, which wake waiting
    /// senders.
    pub fn end_fragments(&mut self) {
        if self.fragment_sender().is_some() {
            self.lock = SendLock::Unlocked;
        }
    }

    /// Returns the task that is sending a message in fragments.
    #[must_use]
    pub fn fragment_sender(&self) -> Option<usize> {
        match self.lock {
            SendLock::Fragments(task) => Some(task),
            SendLock::Unlocked | SendLock::Opening => None,
        }
    }

    /// Returns whether no task may send a whole message: the opening handshake is not answered, or a message is being
    /// sent in fragments.
    #[must_use]
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.lock != SendLock::Unlocked
    }

    /// Returns whether a large message is being sent, so that no other frame can be queued.
    #[must_use]
    #[inline]
    pub fn is_sending_large(&self) -> bool {
        self.large.is_some()
    }

    /// Returns the object from which the bytes of the large message are read.
    #[must_use]
    pub fn large_source(&self) -> Option<&E::Source> {
        self.large.as_ref().map(|large| &large.source)
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
    pub(super) fn remove_waiter(&mut self, ticket: u64, waiter: &E::Waiter) {
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
        if self.lock != SendLock::Unlocked {
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
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = E::Waiter> + use<E> {
        let (senders, drainers) = self.waiting.get_mut().map_or_else(Default::default, |waiting| {
            waiting.turns.extend(waiting.senders.iter().map(|(ticket, _)| *ticket));
            (take(&mut waiting.senders), take(&mut waiting.drainers))
        });
        senders.into_iter().map(|(_, sender)| sender).chain(drainers)
    }

    // ---- writing ----

    /// Returns whether nothing is left to be written.
    #[inline]
    pub(super) fn is_written(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        driver.send_half().queued() == 0 && self.large.is_none()
    }

    /// Returns whether bytes can be written now, rather than at the end of the iteration. `ending`: corked
    /// bytes are written too.
    #[inline]
    pub(super) fn is_write_due(&self, driver: &ConnectionDriver<E::Buffer>, ending: bool) -> bool {
        !self.is_written(driver) && self.accepts_output() && (!self.corked || ending) && !driver.is_over()
    }

    /// Returns what to do with bytes that were just queued in this iteration of the loop.
    #[inline]
    pub(super) fn output(&mut self, driver: &ConnectionDriver<E::Buffer>, iteration: u64) -> Output {
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

    /// Leaves queued bytes to the end of this iteration of the loop. Returns whether they were corked already;
    /// otherwise the caller arranges a call of [`Self::uncork`].
    #[inline]
    pub fn cork(&mut self) -> bool {
        replace(&mut self.corked, true)
    }

    /// Makes corked bytes due, at the end of the iteration.
    pub fn uncork(&mut self) {
        self.corked = false;
    }

    /// Records that a sender which cannot suspend itself was due a turn of the loop: the next flush makes it.
    pub fn owe_yield(&mut self) {
        self.yield_owed = true;
    }

    /// Returns once whether a turn of the loop is owed: see [`Self::owe_yield`].
    pub fn take_owed_yield(&mut self) -> bool {
        take(&mut self.yield_owed)
    }

    /// Requests [`Action::WritableNotice`](super::Action::WritableNotice) once a listener can send. Call it when the
    /// listener was refused, or was notified that it should wait.
    pub fn request_writable_notice(&mut self) {
        self.writable_notice = WritableNotice::Wanted;
    }

    pub(super) fn is_writable_notice_due(&mut self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        let due = self.writable_notice == WritableNotice::Wanted && self.is_writable(driver);
        if due {
            self.writable_notice = WritableNotice::Soon;
        }
        due
    }

    pub(super) fn take_writable_notice(&mut self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        let writable = self.writable_notice != WritableNotice::No && self.is_writable(driver);
        self.writable_notice = match self.writable_notice {
            _ if writable => WritableNotice::No,
            WritableNotice::Soon => WritableNotice::Wanted,
            notice => notice,
        };
        writable
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
    pub(super) fn waiters(&self) -> impl Iterator<Item = &E::Waiter> {
        self.waiting.get().into_iter().flat_map(|waiting| {
            waiting.senders.iter().chain(&waiting.flushes).map(|(_, waiter)| waiter).chain(&waiting.drainers)
        })
    }
}
