//! The waiting tasks of a connection on an event loop: the one place that decides which of them to wake.

mod receiving;
mod sending;
mod watching;

use std::collections::VecDeque;
use std::time::Instant;

use wirespeed_protocol::{CloseCode, Delivery, PayloadBuffer, SendError, Side};

use super::lazy_box::LazyBox;
use super::send_queue::SendQueue;
use super::watchers::Watchers;
use super::{ConnectionDriver, Inbox, Progress, Reading, Wanted, Watermarks};
use crate::endpoint::Failure;

/// The types of an event loop and its application.
pub trait Environment {
    /// The buffer in which messages are assembled.
    type Buffer: PayloadBuffer;
    /// The application's form of a received message.
    type Message;
    /// A task that waits for a message, for room to send, for a flush or for the end.
    type Waiter: PartialEq + Clone;
    /// A future that is notified of a pong or of the end.
    type Future;
    /// The object from which the bytes of a large message are read.
    type Source;
    /// The context needed to inspect a waiter.
    type Context<'a>: Copy;

    /// Returns whether the waiter still waits: it was neither woken nor cancelled.
    fn is_waiting(cx: Self::Context<'_>, waiter: &Self::Waiter) -> bool;

    /// Returns whether the waiter was assigned a message that it has not taken yet.
    fn has_assigned_message(cx: Self::Context<'_>, waiter: &Self::Waiter) -> bool;

    /// Returns the form in which a receiver wants messages.
    fn delivery(waiter: &Self::Waiter) -> Delivery;
}

/// Limits of the queues of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Received messages that the application has not taken: see [`Inbox`].
    pub messages: Watermarks,
    /// Bytes of those messages.
    pub bytes: Watermarks,
    /// Bytes to be written.
    pub write: Watermarks,
    /// Whether messages sent in one iteration of the loop may be written together.
    pub coalesce: bool,
    /// Number of messages sent without a suspension after which the sender yields to the loop.
    pub yield_after: usize,
}

/// How far the end of the connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The connection is open or closing.
    NotYet,
    /// All waiters were notified except those that wait for the end of TCP: the transport has yet to close the
    /// socket.
    Lingering,
    /// All waiters were notified.
    Complete,
}

/// The next action for the caller of [`WaitState::poll_action`]. Actions come in the order of the variants;
/// some repeat.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<W> {
    /// The connection is closing and an external transport writes: call
    /// [`ConnectionDriver::set_transport_buffered`].
    CheckTransportBuffer,
    /// The external transport must end our direction of TCP.
    ShutdownWrite,
    /// Write queued bytes until none are left or there is no room.
    Write,
    /// Wake the waiters of [`WaitState::take_flushed`], unless the external transport still has unwritten
    /// bytes.
    NotifyFlushed,
    /// Wake this sender: there is room, or it is its turn.
    Wake(W),
    /// Call the listener from the loop: there is room to send.
    WritableNotice,
    /// Stop reading until the application receives.
    Pause,
    /// Parse the unparsed input with [`WaitState::fill`]; this may fill the queue again.
    Fill,
    /// Resume reading.
    Resume,
    /// Start the timer for the close timeout.
    Schedule,
    /// The connection is over: call [`WaitState::finish`].
    Finish,
    /// Nothing is left to do.
    Idle,
}

/// The position of a caller in the sequence of actions; create one for each run.
#[derive(Debug, Default)]
pub struct ActionCursor {
    phase: Phase,
    /// The transport buffer was checked since the last write.
    transport_checked: bool,
    /// A write has failed in this run and is not retried.
    write_failed: bool,
    progress: Option<Progress>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Write,
    Flushes,
    Room,
    Reading,
    /// Reading resumes; the value is the number of unparsed bytes before [`Action::Fill`].
    Filled(usize),
    End,
    Done,
}

impl ActionCursor {
    /// Records that [`Action::Write`] has failed: it is not returned again in this run.
    pub fn fail_write(&mut self) {
        self.write_failed = true;
    }
}

/// The waiters and futures to notify at the end of a connection.
pub struct Teardown<E: Environment> {
    /// Waiters that continue and raise the error of the connection.
    pub waiters: Vec<E::Waiter>,
    /// Waiters for a flush that did not complete.
    pub flushes: Vec<E::Waiter>,
    /// Futures that wait for pongs.
    pub pings: Vec<E::Future>,
    /// Futures that wait for the end.
    pub closers: Vec<E::Future>,
    /// The rest of a large message that will not be sent.
    pub large: Option<E::Source>,
}

/// A connection and the tasks that wait for it.
///
/// Each call from outside follows three steps:
/// 1. Lock the connection.
/// 2. Record the event with one of the methods below.
/// 3. Call [`Self::poll_action`] and perform the action outside the lock, until it returns [`Action::Idle`].
///
/// Step 3 is usually empty; [`Self::is_quiescent`] is the fast check for that. At [`Action::Finish`], call
/// [`Self::finish`] once and notify the waiters that it returns.
///
/// The events of step 2, and the calls that record them:
/// - Bytes have arrived: [`Self::receive`], or a read of the [driver](Self::driver_mut). Then, while
///   [`Self::next_receiver`] returns a task, [`Self::take`] a message for it; without a task, [`Self::fill`].
/// - A task receives: [`Self::take`] unless [`Self::has_receivers`]; to wait, [`Self::add_receiver`].
/// - A task sends: as described at [`SendQueue`]. A message for which [`SendHalf::is_large`] returns true:
///   [`Self::begin_large`], then [`Self::append_large`] at each [`Action::Write`].
/// - A task flushes: [`Self::add_flush`], unless [`Self::is_written`].
/// - A task waits for a pong or for the end: [`Self::send_ping`], [`Self::add_closer`], [`Self::add_end_waiter`].
/// - A task is cancelled: [`Self::remove_receiver`] or [`Self::remove_sender`]; a future: [`Self::remove_futures`].
/// - There is room to write: [`SendQueue::set_blocked`].
/// - The time of [`ConnectionDriver::deadline`] has come: [`Self::handle_deadline`].
/// - The application closes: [`Self::begin_close`].
///
/// [`SendHalf::is_large`]: crate::endpoint::SendHalf::is_large
pub struct WaitState<E: Environment> {
    driver: ConnectionDriver<E::Buffer>,
    inbox: Inbox<E::Message>,
    send_queue: SendQueue<E>,
    /// Tasks that wait for a message, in order of arrival. If there are any, the inbox has nothing for the
    /// first and all input is parsed, unless a message is [assigned](Self::assign) to an earlier receiver.
    receivers: VecDeque<E::Waiter>,
    /// The receiver that was assigned a message and has not taken it yet: see [`Self::assign`].
    in_delivery: Option<E::Waiter>,
    /// Messages go to a listener and no task receives.
    listens: bool,
    /// Reading is paused because the application does not receive.
    paused: bool,
    watchers: LazyBox<Watchers<E>>,
    end: End,
}

impl<E: Environment> WaitState<E> {
    /// Creates the state of a new connection.
    #[must_use]
    pub fn new(driver: ConnectionDriver<E::Buffer>, limits: Limits, listens: bool) -> Self {
        Self {
            driver,
            inbox: Inbox::new(limits.messages, limits.bytes),
            send_queue: SendQueue::new(limits.write, limits.coalesce, limits.yield_after),
            receivers: VecDeque::new(),
            in_delivery: None,
            listens,
            paused: false,
            watchers: LazyBox::default(),
            end: End::NotYet,
        }
    }

    /// Creates a placeholder, already over, for a connection held by a thread that does not exist in this
    /// process.
    #[must_use]
    pub fn placeholder(failure: Failure) -> Self {
        let none = Watermarks::at(0);
        let limits = Limits { messages: none, bytes: none, write: none, coalesce: true, yield_after: 1 };
        Self { end: End::Complete, ..Self::new(ConnectionDriver::placeholder(Side::Client, failure), limits, false) }
    }

    /// Returns the driver, which moves bytes, closes the connection and keeps it alive.
    #[must_use]
    #[inline]
    pub fn driver(&self) -> &ConnectionDriver<E::Buffer> {
        &self.driver
    }

    /// Returns the driver, to record what was read or is sent.
    #[inline]
    pub fn driver_mut(&mut self) -> &mut ConnectionDriver<E::Buffer> {
        &mut self.driver
    }

    /// Returns the received messages that the application has not taken.
    #[must_use]
    #[inline]
    pub fn inbox(&self) -> &Inbox<E::Message> {
        &self.inbox
    }

    /// Returns the received messages that the application has not taken, to put some back or to drop them.
    #[inline]
    pub fn inbox_mut(&mut self) -> &mut Inbox<E::Message> {
        &mut self.inbox
    }

    /// Returns the order of senders and the state of the write queue.
    #[must_use]
    #[inline]
    pub fn send_queue(&self) -> &SendQueue<E> {
        &self.send_queue
    }

    /// Returns the order of senders and the state of the write queue, to change them.
    #[inline]
    pub fn send_queue_mut(&mut self) -> &mut SendQueue<E> {
        &mut self.send_queue
    }

    /// Returns how far the end of the connection has come.
    #[must_use]
    pub fn end(&self) -> End {
        self.end
    }

    /// Returns whether reading is paused because the application does not receive.
    #[must_use]
    #[inline]
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Returns whether the waiters were notified that the connection is over.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.end != End::NotYet
    }

    /// Returns whether sending is no longer possible.
    #[inline]
    pub fn is_closing(&self) -> bool {
        self.driver.is_closing() || self.send_queue.pending_close.is_some()
    }

    /// Returns whether any task waits.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        !self.receivers.is_empty() || self.send_queue.has_waiters() || self.watchers.has_waiters()
    }

    /// Returns whether the opening handshake has not been answered yet.
    #[inline]
    pub fn is_connecting(&self) -> bool {
        self.send_queue.is_opening()
    }

    /// Returns whether reading may stop until the application receives. A closing connection reads on, to find
    /// the peer's close frame, unless the application still receives.
    fn may_pause(&self, cx: E::Context<'_>, closing: bool) -> bool {
        let send_half = self.driver.send_half();
        let more = send_half.state().can_receive() && !send_half.is_eof() && send_half.failure().is_none();
        let wanted = match self.inbox.wanted() {
            Wanted::All => !closing,
            Wanted::WhileClosing => !closing || more,
            Wanted::WithRoom => false,
        };
        // A receiver that waits has nothing yet: perhaps it needs the rest of a large message. A caller that
        // polls without waiting needs the rest too.
        let awaited =
            if self.inbox.is_streaming() { self.fragment_receiver(cx).is_some() } else { !self.receivers.is_empty() };
        wanted && !awaited && !self.inbox.is_polled()
    }

    /// Handles that the time of [`ConnectionDriver::deadline`] has come: see [`ConnectionDriver::handle_deadline`].
    pub fn handle_deadline(&mut self, now: Instant, backlog: u64) -> Option<Instant> {
        let reading = if self.paused { Reading::Paused } else { Reading::Going };
        self.driver.handle_deadline(now, reading, backlog)
    }

    // ---- the end ----

    /// Begins the closing handshake, after a large message that is being sent. `keep`: the application still
    /// receives, so arriving messages are kept.
    pub fn begin_close(
        &mut self,
        code: Option<CloseCode>,
        reason: &str,
        keep: bool,
        now: Instant,
    ) -> Result<(), SendError> {
        if self.driver.is_over() {
            return Ok(());
        }
        self.inbox.limit_wanted(keep);
        if self.send_queue.is_opening() {
            // The application does not know of a connection yet.
            self.driver.end(Failure::Aborted);
            return Ok(());
        }
        if self.send_queue.large.is_some() && !self.driver.is_closing() {
            self.send_queue.pending_close.get_or_insert_with(|| Box::new((code, reason.to_owned())));
            self.driver.start_close_timeout(now);
            return Ok(());
        }
        self.driver.begin_close(code, reason, now)
    }

    /// Ends the waiting when the connection is over and returns the waiters to notify; `None` if this was done
    /// before. `lingers`: an external transport has yet to close the socket.
    pub fn finish(&mut self, lingers: bool) -> Option<Teardown<E>> {
        if self.is_finished() {
            return None;
        }
        let large = self.send_queue.large.take();
        if large.is_some() {
            self.driver.send_half_mut().abandon_large();
        }
        self.paused = false;
        let mut waiters: Vec<_> = std::mem::take(&mut self.receivers).into();
        waiters.extend(self.send_queue.take_all());
        let closers = self.watchers.take_closers();
        let Watchers { pings, end_waiters, .. } = self.watchers.take();
        waiters.extend(end_waiters);
        let pings = pings.into_iter().map(|(_, future)| future).collect();
        let flushes = self.send_queue.take_flushes().collect();
        // In a child process no loop will close the socket: it belongs to the parent.
        let lingers = lingers && !self.driver.send_half().is_forked();
        self.end = if lingers { End::Lingering } else { End::Complete };
        let closers = if lingers && !closers.is_empty() {
            self.watchers.make().closers = closers; // they wait on
            Vec::new()
        } else {
            closers
        };
        Some(Teardown { waiters, flushes, pings, closers, large: large.map(|large| large.source) })
    }

    // ---- actions ----

    /// Returns whether no action is due: [`Self::poll_action`] would return [`Action::Idle`]. This is the
    /// common case.
    #[inline]
    pub fn is_quiescent(&mut self, now: impl FnOnce() -> Instant) -> bool {
        let driver = &mut self.driver;
        driver.advance(now) == Progress::Open
            && !self.send_queue.is_write_due(driver, false)
            && !self.send_queue.is_room_due(driver)
            && !self.send_queue.is_flush_due(driver)
            && !self.paused
            && !self.inbox.is_full(driver.endpoint())
            && (self.listens || !self.receivers.is_empty())
    }

    /// Returns the next action that the recorded events require. The order is:
    ///
    /// 1. Write due bytes and advance the closing handshake, until neither has anything to do.
    /// 2. Notify waiters for a flush, then waiters for room.
    /// 3. Pause or resume reading. Input parsed for that may require an answer or end the connection: restart
    ///    at 1.
    /// 4. Start the close timer or, if the connection is over, finish.
    pub fn poll_action(
        &mut self,
        cursor: &mut ActionCursor,
        cx: E::Context<'_>,
        now: impl Fn() -> Instant,
    ) -> Action<E::Waiter> {
        loop {
            let progress = match (cursor.phase, cursor.progress) {
                (Phase::Write, _) | (_, None) => {
                    if let Some(step) = self.next_write_action(cursor, &now) {
                        return step;
                    }
                    cursor.phase = Phase::Flushes;
                    continue;
                }
                (_, Some(progress)) => progress,
            };
            match cursor.phase {
                Phase::Write => {}
                Phase::Flushes => {
                    cursor.phase = Phase::Room;
                    if self.send_queue.is_flush_due(&self.driver) {
                        return Action::NotifyFlushed;
                    }
                }
                Phase::Room => match self.next_wake_action(cx) {
                    Some(step) => return step,
                    None => cursor.phase = Phase::Reading,
                },
                Phase::Reading => {
                    cursor.phase = Phase::End;
                    let may_pause = self.may_pause(cx, progress != Progress::Open);
                    if !self.paused && may_pause && self.is_full() {
                        self.paused = true;
                        self.driver.endpoint_mut().shrink_input();
                        self.driver.record_pause();
                        return Action::Pause;
                    }
                    if self.paused
                        && !self.driver.is_over()
                        && (!may_pause || self.inbox.is_low(self.driver.endpoint()))
                    {
                        self.paused = false;
                        self.driver.record_pause();
                        cursor.phase = Phase::Filled(self.driver.endpoint().unparsed());
                        if self.receivers.is_empty() && !self.listens {
                            return Action::Fill;
                        }
                    }
                }
                Phase::Filled(unparsed) => {
                    self.paused = self.may_pause(cx, progress != Progress::Open) && self.is_full();
                    let parsed = self.driver.endpoint().unparsed() != unparsed;
                    cursor.phase = if parsed { Phase::Write } else { Phase::End };
                    if !self.paused {
                        return Action::Resume;
                    }
                }
                Phase::End => {
                    cursor.phase = Phase::Done;
                    match progress {
                        Progress::Open => {}
                        Progress::Closing => return Action::Schedule,
                        Progress::Over => return Action::Finish,
                    }
                }
                Phase::Done => return Action::Idle,
            }
        }
    }

    fn next_write_action(
        &mut self,
        cursor: &mut ActionCursor,
        now: impl FnOnce() -> Instant,
    ) -> Option<Action<E::Waiter>> {
        if !std::mem::replace(&mut cursor.transport_checked, true) && self.driver.is_closing_externally() {
            return Some(Action::CheckTransportBuffer);
        }
        let mut progress = self.driver.advance(now);
        if progress == Progress::Closing && self.is_end_unreachable() {
            progress = self.driver.end(Failure::Aborted);
        }
        cursor.progress = Some(progress);
        if self.driver.take_shutdown_due() {
            return Some(Action::ShutdownWrite);
        }
        cursor.transport_checked = false;
        // After the write, nothing is left, or there is no room, or the connection has failed.
        (!cursor.write_failed && self.send_queue.is_write_due(&self.driver, progress != Progress::Open))
            .then_some(Action::Write)
    }

    /// Returns whether writing has failed while the inbox is full and no task receives. The end of the stream
    /// is then behind unread messages, and waiting for it would block all senders.
    fn is_end_unreachable(&self) -> bool {
        let send_half = self.driver.send_half();
        let failed = send_half.failure().is_some_and(|failure| !failure.is_sent_to_peer()) && !send_half.is_eof();
        failed && self.inbox.wanted() != Wanted::WithRoom && self.receivers.is_empty() && self.is_full()
    }

    fn next_wake_action(&mut self, cx: E::Context<'_>) -> Option<Action<E::Waiter>> {
        if let Some(woken) = self.send_queue.next_to_wake(cx, &self.driver) {
            return Some(Action::Wake(woken));
        }
        // The caller may be inside application code, so the listener runs in the next iteration of the loop.
        self.send_queue.is_writable_notice_due(&self.driver).then_some(Action::WritableNotice)
    }
}
