//! Who waits for what on a connection of a loop, and whom to wake: the one place that decides it.
//!
//! Whoever uses a [`WaitState`] does so in three steps: *lock*, *note*, *settle*. It locks the flow, notes in it
//! what has happened (bytes came, room came, time passed, somebody sends, receives, waits, flushes, closes,
//! gives up), gives the lock up, and settles: it asks [`WaitState::poll_action`] what is to be done until there is
//! nothing, and does each, outside the lock. Most of the time there is nothing, which [`WaitState::is_quiescent`]
//! says at once.

use std::collections::VecDeque;
use std::time::Instant;

use wirespeed_protocol::{CloseCode, Delivery, PayloadBuffer, SendError, Side};

use super::send_queue::{Hold, Output, SendQueue, WritableNotice};
use super::watchers::Watchers;
use super::{ConnectionDriver, Inbox, LazyBox, Progress, Wanted, Watermarks};
use crate::endpoint::Failure;

/// What a loop and its application are made of.
pub trait Environment {
    /// What messages are assembled in.
    type Buffer: PayloadBuffer;
    /// What they become.
    type Message;
    /// Somebody who waits to be woken: for a message, for room, for a flush, for the end.
    type Waiter: PartialEq + Clone;
    /// Somebody who is told: that a pong came, that it is over.
    type Future;
    /// What the bytes of a large message are taken from.
    type Source;
    /// What is needed to look at a waiter.
    type Context<'a>: Copy;

    /// Whether it still waits: it was neither woken nor given up.
    fn is_waiting(cx: Self::Context<'_>, waiter: &Self::Waiter) -> bool;

    /// Whether it was given what it waited for, and has yet to take it.
    fn is_holding(cx: Self::Context<'_>, waiter: &Self::Waiter) -> bool;

    /// What a receiver waits for.
    fn delivery(waiter: &Self::Waiter) -> Delivery;
}

/// How much may wait, and how long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Messages received and not taken: see [`Inbox`].
    pub messages: Watermarks,
    /// Their bytes.
    pub bytes: Watermarks,
    /// Bytes to be written.
    pub write: Watermarks,
    /// Whether what is sent in one iteration of the loop may leave together.
    pub coalesce: bool,
    /// Messages sent without a suspension after which the loop has a turn.
    pub yield_after: usize,
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It goes on, or its ending does.
    NotYet,
    /// All who wait were told but those who wait for the end of TCP: the transport has yet to close the
    /// socket.
    Lingering,
    /// All were.
    Complete,
}

/// What is to be done next. The steps come in the order in which they stand here, some again after others.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<W> {
    /// It ends, and somebody else writes: [`ConnectionDriver::set_transport_buffered`] must know whether he has bytes that the kernel
    /// has not.
    CheckTransportBuffer,
    /// Whoever writes for us ends our direction of TCP.
    Shut,
    /// What is queued is written, until nothing is left or there is no room.
    Write,
    /// Those who wait for a flush may be told: [`SendQueue::take_flushed`], unless whoever writes for us has
    /// bytes that the kernel has not.
    NotifyFlushed,
    /// This one goes on: there is room, or its turn.
    Wake(W),
    /// The listener is called, from the loop, for the room that there is.
    WritableNotice,
    /// Nothing is read any more, until somebody receives.
    Pause,
    /// What was read and left is parsed, by [`Inbox::fill`]: it may fill the queue again.
    Fill,
    /// Reading goes on.
    Resume,
    /// It ends: the time that this may take is waited for.
    Schedule,
    /// It is over: [`WaitState::finish`].
    Finish,
    /// Nothing.
    Rest,
}

/// Where a settling is.
#[derive(Debug, Default)]
pub struct ActionCursor {
    phase: Phase,
    /// Looked since something was last written.
    looked: bool,
    /// Writing has raised: it is not tried again.
    stuck: bool,
    progress: Option<Progress>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Write,
    Flushes,
    Room,
    Reading,
    /// What was left of input, before it was parsed.
    Filled(usize),
    End,
    Rest,
}

impl ActionCursor {
    /// [`Action::Write`] could not be made.
    pub fn fail_write(&mut self) {
        self.stuck = true;
    }
}

/// What is said at the end, to whom.
pub struct Teardown<E: Environment> {
    /// They go on, and learn it.
    pub waiters: Vec<E::Waiter>,
    /// They go on, and learn that what they sent was not all written.
    pub flushes: Vec<E::Waiter>,
    /// They have waited for pongs.
    pub pings: Vec<E::Future>,
    /// They have waited for this.
    pub closers: Vec<E::Future>,
    /// The rest of a large message that nobody will send.
    pub large: Option<E::Source>,
}

/// See the module.
pub struct WaitState<E: Environment> {
    /// What moves, closes and keeps it alive.
    pub driver: ConnectionDriver<E::Buffer>,
    /// What was received and not taken.
    pub inbox: Inbox<E::Message>,
    /// What is sent, and who waits to.
    pub send_queue: SendQueue<E>,
    /// Those who wait for a message, first come first served. If there are any, the inbox has nothing for the
    /// first and all input is parsed, unless somebody is [handed](Self::handed) what comes before.
    pub receivers: VecDeque<E::Waiter>,
    /// The one that was given a message and takes it later: see [`Self::assign`].
    pub in_delivery: Option<E::Waiter>,
    /// Messages go to a listener, and nobody receives.
    pub listens: bool,
    /// Nothing is read, because the application does not receive.
    pub paused: bool,
    /// Those who wait for something else than to receive or to send.
    pub watchers: LazyBox<Watchers<E>>,
    /// How far the end has come.
    pub end: End,
}

impl<E: Environment> WaitState<E> {
    /// One that begins.
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

    /// That of a connection that a thread has which there is not: it is over.
    #[must_use]
    pub fn disowned(failure: Failure) -> Self {
        let none = Watermarks::at(0);
        let limits = Limits { messages: none, bytes: none, write: none, coalesce: true, yield_after: 1 };
        Self { end: End::Complete, ..Self::new(ConnectionDriver::disowned(Side::Client, failure), limits, false) }
    }

    /// Whether everybody who waits was told that it is over.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.end != End::NotYet
    }

    /// Whether nobody can send any more.
    #[inline]
    pub fn is_closing(&self) -> bool {
        self.driver.is_closing() || self.send_queue.pending_close.is_some()
    }

    /// Whether anybody waits.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        !self.receivers.is_empty() || self.send_queue.is_awaited() || self.watchers.is_awaited()
    }

    /// Whether a server has yet to answer the opening handshake.
    #[inline]
    pub fn is_connecting(&self) -> bool {
        self.send_queue.hold == Hold::Opening
    }

    // ---- sending: see the outbox ----

    /// Whether a message must wait before it can even be queued. `turn`: it is the turn of whoever sends it.
    #[inline]
    pub fn must_wait(&self, turn: bool) -> bool {
        self.send_queue.must_wait(&self.driver, turn)
    }

    /// Whether so much is queued that whoever sends should wait until it has left.
    #[inline]
    pub fn should_wait(&self) -> bool {
        self.send_queue.should_wait(&self.driver)
    }

    /// Whether more is kept for a peer that does not read than should be.
    #[inline]
    pub fn is_above_high(&self) -> bool {
        self.send_queue.is_above_high(&self.driver)
    }

    /// Whether so much has left that senders may go on.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.send_queue.has_room(&self.driver)
    }

    /// Whether somebody waits for room, and it is there.
    #[inline]
    pub fn is_room_due(&self) -> bool {
        self.send_queue.is_room_due(&self.driver)
    }

    /// Whether nothing is left to be written.
    #[inline]
    pub fn is_written(&self) -> bool {
        self.send_queue.is_written(&self.driver)
    }

    /// Whether something is to be written, and may be: now, and not at the end of the iteration.
    #[inline]
    pub fn is_write_due(&self) -> bool {
        self.send_queue.is_write_due(&self.driver, false)
    }

    /// What to do with what was just queued, in this iteration of the loop.
    #[inline]
    pub fn output(&mut self, iteration: u64) -> Output {
        self.send_queue.output(&self.driver, iteration)
    }

    // ---- receiving ----

    /// What was just given to this receiver is taken by it later. Until then nobody takes what comes after: given up,
    /// it goes back to where it was, which the middle of another message must not be.
    pub fn assign(&mut self, waiter: E::Waiter) {
        self.in_delivery = Some(waiter);
    }

    /// Whether somebody has a message that he has yet to take. Once all are told of the end, nobody waits for him.
    #[inline]
    fn has_delivery(&self, cx: E::Context<'_>) -> bool {
        !self.is_finished() && self.in_delivery.as_ref().is_some_and(|waiter| E::is_holding(cx, waiter))
    }

    /// It has taken what it was given, or gives it up. Whether somebody waits for what comes after.
    pub fn release_assigned(&mut self, cx: E::Context<'_>) -> bool {
        self.in_delivery = None;
        self.has_receivers(cx)
    }

    /// Whether somebody comes first for the next message.
    #[inline]
    pub fn has_receivers(&mut self, cx: E::Context<'_>) -> bool {
        self.has_delivery(cx) || self.has_waiting(cx)
    }

    #[inline]
    fn has_waiting(&mut self, cx: E::Context<'_>) -> bool {
        while self.receivers.front().is_some_and(|waiter| !E::is_waiting(cx, waiter)) {
            self.receivers.pop_front();
        }
        !self.receivers.is_empty()
    }

    /// The place of the one that what comes next is for: the first, but in the middle of a message that is
    /// received in fragments the one that receives it.
    #[inline]
    pub fn next_receiver(&mut self, cx: E::Context<'_>) -> Option<usize> {
        if self.has_delivery(cx) || !self.has_waiting(cx) {
            return None;
        }
        if self.inbox.is_streaming() { self.position_of_streamer(cx) } else { Some(0) }
    }

    fn position_of_streamer(&self, cx: E::Context<'_>) -> Option<usize> {
        self.receivers.iter().position(|waiter| E::delivery(waiter) == Delivery::Fragments && E::is_waiting(cx, waiter))
    }

    /// Whether so much was taken that reading, which was paused, may go on.
    #[inline]
    pub fn is_resumable(&self) -> bool {
        self.paused && self.inbox.is_low(&self.driver.endpoint)
    }

    /// Whether nothing more is to be read before something was taken.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.inbox.is_full(&self.driver.endpoint)
    }

    /// Whether reading may stop for the application to receive. What closes reads on, for the answer of the
    /// peer, unless the application still receives.
    fn may_pause(&self, cx: E::Context<'_>, closing: bool) -> bool {
        let send_half = self.driver.send_half();
        let more = send_half.state().can_receive() && !send_half.is_eof() && send_half.failure().is_none();
        let wanted = match self.inbox.wanted() {
            Wanted::All => !closing,
            Wanted::WhileClosing => !closing || more,
            Wanted::WithRoom => false,
        };
        // Whoever waits has nothing yet: the rest of a large message, perhaps. Or asks again and again,
        // without waiting, for the rest.
        let awaited = if self.inbox.is_streaming() {
            self.position_of_streamer(cx).is_some()
        } else {
            !self.receivers.is_empty()
        };
        wanted && !awaited && !self.inbox.is_polled()
    }

    // ---- the end ----

    /// Begins the closing handshake; after the large message that is on its way. `keep`: the application goes
    /// on receiving, so nothing that arrives is dropped.
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
        if self.send_queue.hold == Hold::Opening {
            // Nobody was told that there is a connection.
            self.driver.end(Failure::Aborted);
            return Ok(());
        }
        if self.send_queue.large.is_some() && !self.driver.is_closing() {
            self.send_queue.pending_close.get_or_insert_with(|| Box::new((code, reason.to_owned())));
            self.driver.limit_closing(now);
            return Ok(());
        }
        self.driver.begin_close(code, reason, now)
    }

    /// It is over: who is to be told so. Once. `lingers`: the socket is a transport's, which has yet to close
    /// it.
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
        let Watchers { pings, enders, .. } = self.watchers.take();
        waiters.extend(enders);
        let pings = pings.into_iter().map(|(_, future)| future).collect();
        let flushes = self.send_queue.take_flushes().collect();
        // In a child process no loop will close it: it is the parent's.
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

    // ---- settling ----

    /// Whether nothing is left to do after anything has happened, which is so most of the time:
    /// [`Self::poll_action`] would say [`Action::Rest`].
    #[inline]
    pub fn is_quiescent(&mut self, now: impl FnOnce() -> Instant) -> bool {
        let driver = &mut self.driver;
        driver.advance(now) == Progress::Open
            && !self.send_queue.is_write_due(driver, false)
            && !self.send_queue.is_room_due(driver)
            && !self.send_queue.is_flush_due(driver)
            && !self.paused
            && !self.inbox.is_full(&driver.endpoint)
            && (self.listens || !self.receivers.is_empty())
    }

    /// What is to be done next to bring everything in line with what has happened. In this order:
    ///
    /// 1. what is due is written, and the ending makes its next step, until neither has anything to do;
    /// 2. those who wait for a flush, and for room, are told;
    /// 3. reading is paused or resumed; what is parsed for that may ask for an answer, or be the end: from
    ///    the beginning;
    /// 4. the time of an ending is waited for; or it is over, and everybody is told.
    pub fn poll_action(
        &mut self,
        cursor: &mut ActionCursor,
        cx: E::Context<'_>,
        now: impl Fn() -> Instant,
    ) -> Action<E::Waiter> {
        loop {
            let progress = match (cursor.phase, cursor.progress) {
                (Phase::Write, _) | (_, None) => {
                    if let Some(step) = self.step_of_writing(cursor, &now) {
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
                Phase::Room => match self.step_of_room(cx) {
                    Some(step) => return step,
                    None => cursor.phase = Phase::Reading,
                },
                Phase::Reading => {
                    cursor.phase = Phase::End;
                    let may_pause = self.may_pause(cx, progress != Progress::Open);
                    if !self.paused && may_pause && self.is_full() {
                        self.paused = true;
                        self.driver.endpoint.shrink_input();
                        self.driver.note_paused();
                        return Action::Pause;
                    }
                    if self.paused && !self.driver.is_over() && (!may_pause || self.inbox.is_low(&self.driver.endpoint))
                    {
                        self.paused = false;
                        self.driver.note_paused();
                        cursor.phase = Phase::Filled(self.driver.endpoint.unparsed());
                        if self.receivers.is_empty() && !self.listens {
                            return Action::Fill;
                        }
                    }
                }
                Phase::Filled(unparsed) => {
                    self.paused = self.may_pause(cx, progress != Progress::Open) && self.is_full();
                    let parsed = self.driver.endpoint.unparsed() != unparsed;
                    cursor.phase = if parsed { Phase::Write } else { Phase::End };
                    if !self.paused {
                        return Action::Resume;
                    }
                }
                Phase::End => {
                    cursor.phase = Phase::Rest;
                    match progress {
                        Progress::Open => {}
                        Progress::Closing => return Action::Schedule,
                        Progress::Over => return Action::Finish,
                    }
                }
                Phase::Rest => return Action::Rest,
            }
        }
    }

    fn step_of_writing(
        &mut self,
        cursor: &mut ActionCursor,
        now: impl FnOnce() -> Instant,
    ) -> Option<Action<E::Waiter>> {
        if !std::mem::replace(&mut cursor.looked, true) && self.driver.is_ending_elsewhere() {
            return Some(Action::CheckTransportBuffer);
        }
        let mut progress = self.driver.advance(now);
        if progress == Progress::Closing && self.is_cut_off() {
            progress = self.driver.end(Failure::Aborted);
        }
        cursor.progress = Some(progress);
        if self.driver.take_shut() {
            return Some(Action::Shut);
        }
        cursor.looked = false;
        // Afterwards nothing is left, or there is no room, or the connection has failed.
        (!cursor.stuck && self.send_queue.is_write_due(&self.driver, progress != Progress::Open))
            .then_some(Action::Write)
    }

    /// Whether writing has failed while the queue of received messages is full and no task receives. The end of the
    /// stream lies behind messages that are not read, so waiting for it would keep every sender waiting.
    fn is_cut_off(&self) -> bool {
        let send_half = self.driver.send_half();
        let failed = send_half.failure().is_some_and(|failure| !failure.is_said()) && !send_half.is_eof();
        failed && self.inbox.wanted() != Wanted::WithRoom && self.receivers.is_empty() && self.is_full()
    }

    fn step_of_room(&mut self, cx: E::Context<'_>) -> Option<Action<E::Waiter>> {
        if let Some(woken) = self.send_queue.next_woken(cx, &self.driver) {
            return Some(Action::Wake(woken));
        }
        if self.send_queue.writable_notice == WritableNotice::Wanted && self.send_queue.is_writable(&self.driver) {
            // From inside whatever settles: in the loop's next iteration.
            self.send_queue.writable_notice = WritableNotice::Soon;
            return Some(Action::WritableNotice);
        }
        None
    }
}
