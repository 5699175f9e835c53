//! A client with a session: its messages are moved, and it is ended in its time.

mod write;

use std::time::{Duration, Instant};

use wirespeed_driver::connection::{Progress, Reading};
use wirespeed_driver::endpoint::{Failure, PeerEvent, Stats, payload_len};
use wirespeed_driver::protocol::{CloseCode, Payload};
use wirespeed_driver::socket::Socket;
use wirespeed_driver::{ConnectionDriver, Endpoint, buffer_pool};

use self::write::Blocked;
use super::Turn;
use super::relaying::Relaying;
use crate::admission::Permit;
use crate::config::{Config, Role};
use crate::events::{Batch, Ended};
use crate::inbound::{Meter, Verdict};
use crate::metrics::WorkerMetrics;
use crate::outbox::Outbox;
use crate::relay::Relay;
use crate::session::{Session, SessionFigures};
use crate::timer_wheel::Listed;
use crate::topics::{Pattern, Topic};
use crate::worker::EngineShared;

/// Reads of one connection in one turn: then others have theirs.
const READS: u32 = 4;

/// Bytes of messages that are handed to the connection at once, while the kernel takes them: as many as stay
/// in the cache, and as the connection of a client that reads nothing may have of its own.
const AT_ONCE: usize = 64 * 1024;

/// Small reads of one that has to wait now and then, before it is trusted with a large one.
const WARY: u8 = 64;

/// Bytes of messages that one session may add while events have no room, or its handler is behind, because it is ending.
const LATE: u64 = 256 * 1024;

/// What each of them counts for beside its payload: else a message of a byte, which takes much more than that to be
/// kept, and to be handled, would come 262,144 times.
const LATE_EACH: u64 = 256;

/// An ending that waits for what was sent before.
struct Closing {
    code: CloseCode,
    reason: Box<str>,
    /// Until then: whoever takes it drop by drop would take it for ever.
    by: Option<Instant>,
}

/// What is done with its messages, and where they go.
pub(crate) struct Established {
    pub(crate) session: Session,
    /// Of a relay's.
    relaying: Option<Box<Relaying>>,
    driver: ConnectionDriver<Vec<u8>>,
    outbox: Outbox,
    /// [`AT_ONCE`], or a quarter of its limit.
    at_once: usize,
    /// To be closed once what was sent before has left.
    closing: Option<Box<Closing>>,
    /// The kernel has no room.
    blocked: Option<Blocked>,
    /// It was written in between, and the worker is yet to settle what came of that.
    asked: bool,
    /// Bytes that wait for the client, of which the session's account knows.
    counted: usize,
    /// What has moved, of which the worker's sheet knows.
    moved: Stats,
    /// What waits, of which it does.
    shown: usize,
    /// Memory that it holds, of which it does.
    buffered_bytes: usize,
    /// What the kernel had taken when it had no room for the first time.
    filled: Option<u64>,
    /// Publishers do not wait for it until it has caught up.
    given_up: bool,
    /// Messages dropped, because the client reads too slowly, of which the sheet does not know.
    pub(crate) dropped: u32,
    /// All of them.
    dropped_in_all: u32,
    /// Messages that came to nothing, because it is ending or has ended.
    undelivered: u32,
    /// Topics, and patterns of topics, that it gets.
    pub(crate) subscriptions: Vec<Pattern>,
    /// The last message published that it got, as the worker counts them.
    pub(crate) published: u64,
    /// Wanted by the worker's list of those that have something to write.
    pub(crate) dirty: bool,
    /// On one of the worker's lists of those that have something to read.
    pub(crate) unread: bool,
    /// Whoever handles its messages wants no more of them at present.
    pub(crate) paused: bool,
    /// It has not been read for that.
    pub(crate) stopped: bool,
    /// When the worker will ask for what is due.
    pub(crate) listed: Listed,
    /// An edge has told that the client has ended its direction.
    read_closed: bool,
    /// So many reads more are small ones: what is read while it is to wait is kept.
    wary: u8,
    /// What was added while events had no room, or its handler was behind, because it is ending.
    draining_input: u64,
    /// Of what it sends while it is ending something was dropped: nothing comes behind it.
    cut: bool,
    /// Its place among others.
    _permit: Permit,
    /// What it has sent of late, if that is limited.
    meter: Option<Box<Meter>>,
    /// Messages dropped, because it sends too many, of which the sheet does not know.
    limited: u32,
    /// All of them.
    limited_in_all: u32,
}

impl Established {
    pub(crate) fn new(
        session: Session,
        topic: Option<Topic>,
        endpoint: Endpoint<Vec<u8>>,
        socket: Socket,
        close_timeout: Duration,
        permit: Permit,
        meter: Option<Box<Meter>>,
    ) -> Self {
        let at_once = AT_ONCE.min(session.high().div_ceil(2));
        let wary = if topic.is_some() || meter.is_some() { WARY } else { 0 };
        Self {
            session,
            relaying: topic.map(|topic| Box::new(Relaying::new(topic))),
            driver: ConnectionDriver::new(endpoint, Some(socket), Some(close_timeout)),
            outbox: Outbox::default(),
            at_once,
            closing: None,
            blocked: None,
            asked: false,
            counted: 0,
            moved: Stats::default(),
            shown: 0,
            buffered_bytes: 0,
            filled: None,
            given_up: false,
            dropped: 0,
            dropped_in_all: 0,
            undelivered: 0,
            subscriptions: Vec::new(),
            published: 0,
            dirty: false,
            unread: false,
            paused: false,
            stopped: false,
            listed: Listed::default(),
            read_closed: false,
            wary,
            draining_input: 0,
            cut: false,
            _permit: permit,
            meter,
            limited: 0,
            limited_in_all: 0,
        }
    }

    fn role(&self) -> &Role {
        &self.session.route().role
    }

    /// Whether what happens to it is told.
    pub(crate) fn is_told(&self) -> bool {
        *self.role() == Role::Events
    }

    /// It will not be read for a while: a buffer of the process's is given back for one of its own.
    pub(crate) fn release_input(&mut self) {
        self.driver.endpoint.shrink_input();
    }

    pub(crate) fn note_read_closed(&mut self) {
        self.read_closed = true;
    }

    /// Bytes that wait for the client.
    pub(crate) fn queued(&self) -> usize {
        self.outbox.bytes() + self.driver.send_half().queued()
    }

    /// Has what moved since the last call counted, and what waits now.
    pub(crate) fn account(&mut self, metrics: &WorkerMetrics) {
        let now = self.driver.send_half().stats();
        metrics.move_messages(&std::mem::replace(&mut self.moved, now), &now);
        self.account_dropped(metrics);
        self.limited_in_all = self.limited_in_all.saturating_add(self.limited);
        metrics.limited.add(std::mem::take(&mut self.limited).into());
        if let Some(relaying) = &mut self.relaying {
            metrics.denied.add(relaying.take_denied());
        }
        let buffered_bytes = self.outbox.overhead() + self.driver.send_half().own_queued();
        self.account_queued(self.queued(), buffered_bytes, metrics);
    }

    /// Nothing of it waits any more.
    pub(crate) fn forget_account(&mut self, metrics: &WorkerMetrics) {
        let cleared = self.outbox.clear();
        self.note_undelivered(cleared);
        self.account_dropped(metrics);
        self.account_queued(0, 0, metrics);
    }

    fn account_dropped(&mut self, metrics: &WorkerMetrics) {
        metrics.drop_undelivered(std::mem::take(&mut self.undelivered).into());
        if self.dropped > 0 {
            self.dropped_in_all = self.dropped_in_all.saturating_add(self.dropped);
            metrics.drop_messages(self.session.route().policy, std::mem::take(&mut self.dropped).into());
        }
    }

    /// What was counted of it.
    pub(crate) fn figures(&self) -> SessionFigures {
        let Stats { messages_received, bytes_received, messages_sent, bytes_sent } = self.driver.send_half().stats();
        SessionFigures {
            messages_received,
            bytes_received,
            messages_sent,
            bytes_sent,
            messages_dropped: self.dropped_in_all.saturating_add(self.dropped).into(),
            messages_limited: self.limited_in_all.saturating_add(self.limited).into(),
            messages_denied: self.relaying.as_ref().map_or(0, |relaying| relaying.denied()),
            queued_bytes: self.session.queued(),
            subscriptions: self.subscriptions.len(),
            open: self.session.opened().elapsed(),
        }
    }

    /// That messages were dropped, for the log.
    pub(crate) fn describe_slow(&self) -> String {
        let (id, dropped) = (self.session.id(), self.dropped);
        let from =
            self.session.remote_address().map_or_else(|| "a Unix socket".to_owned(), |remote| remote.to_string());
        let then = if self.is_ending() { "; it is closed" } else { "" };
        format!("session {id} of {from} does not read as fast as it is sent: {dropped} messages were dropped{then}")
    }

    /// That it was cut off, for the log.
    pub(crate) fn describe_cut(&self) -> String {
        let id = self.session.id();
        format!("session {id} was cut off: it takes nothing, and more waits for all sessions than may")
    }

    fn note_undelivered(&mut self, messages: usize) {
        self.undelivered = self.undelivered.saturating_add(count(messages));
    }

    fn account_queued(&mut self, queued: usize, buffered_bytes: usize, metrics: &WorkerMetrics) {
        let held_before = std::mem::replace(&mut self.buffered_bytes, buffered_bytes);
        if buffered_bytes != held_before {
            metrics.buffered_bytes.add(buffered_bytes as u64);
            metrics.buffered_bytes.subtract(held_before as u64);
        }
        let before = std::mem::replace(&mut self.shown, queued);
        if queued != before {
            metrics.outbox_bytes.add(queued as u64);
            metrics.outbox_bytes.subtract(before as u64);
        }
    }

    /// Reads what is there, as far as this is its turn. `roomy`: events have room.
    pub(crate) fn read(&mut self, batch: &mut Batch, roomy: bool, shared: &EngineShared) -> Turn {
        if self.is_told() && !roomy {
            return Turn::Held;
        }
        let draining_input = self.paused;
        let turn = self.read_on(batch, draining_input, shared);
        if matches!(turn, Turn::Limited | Turn::BackpressureWaiters { .. }) {
            self.wary = WARY;
        }
        turn
    }

    /// Of one that is ending while events have no room: what its client has sent before it answers is read all the
    /// same, and then the answer. So much, and no more: else whoever is closed could fill the memory.
    pub(crate) fn read_late(&mut self, batch: &mut Batch, shared: &EngineShared) -> Turn {
        if !self.is_ending() || self.draining_input >= LATE {
            return Turn::Held;
        }
        self.read_on(batch, true, shared)
    }

    /// `draining_input`: whoever takes its messages wants no more of them, and what it may add, as it is ending, is limited.
    fn read_on(&mut self, batch: &mut Batch, draining_input: bool, shared: &EngineShared) -> Turn {
        let (events, echoes) = (self.is_told(), *self.role() == Role::Echo);
        if self.is_limited() {
            return Turn::Limited;
        }
        // One that only listens is read whoever is behind.
        if let (Role::Relay(Relay { send: true, .. }), Some(relaying)) =
            (&self.session.route().role, &mut self.relaying)
        {
            relaying.look(shared);
        }
        if let Some(backpressured) = self.backpressured() {
            return backpressured;
        }
        if self.paused && !self.is_ending() {
            return Turn::Stopped;
        }
        let mut drained = false;
        for _ in 0..READS {
            if !self.driver.endpoint.has_input() {
                let most = if self.wary > 0 { buffer_pool::SMALL_READ_SIZE } else { usize::MAX };
                self.wary = self.wary.saturating_sub(1);
                drained = self.driver.read_edge_of(most, self.read_closed);
            }
            self.take_events(batch, draining_input, shared);
            if self.write(Instant::now) == Progress::Over {
                return Turn::Over;
            }
            if self.is_limited() {
                return Turn::Limited;
            }
            if let Some(backpressured) = self.backpressured() {
                return backpressured;
            }
            if events && batch.is_full() {
                return Turn::Again;
            }
            if echoes && self.driver.send_half().queued() >= AT_ONCE {
                return Turn::Idle; // it reads on when the client has: see `write_ready`
            }
            if drained && !self.driver.endpoint.has_input() {
                return Turn::Idle;
            }
        }
        Turn::Again
    }

    /// Of a relay's that is to be read once there is room: what its turn has come to.
    fn backpressured(&self) -> Option<Turn> {
        let relaying = self.relaying.as_ref().filter(|relaying| relaying.waits() && !self.is_ending())?;
        Some(Turn::BackpressureWaiters { moved: relaying.has_moved() })
    }

    /// Whether it was not read for want of room.
    pub(crate) fn take_roomless(&mut self) -> bool {
        self.relaying.as_mut().is_some_and(|relaying| relaying.take_waits())
    }

    fn take_events(&mut self, batch: &mut Batch, draining_input: bool, shared: &EngineShared) {
        wirespeed_driver::protocol::failpoint::hit("engine.read");
        let (mut flooded, mut intrudes) = (false, false);
        // One that is ending is read for its answer, whatever it has done: what it may not send is dropped.
        let ending = self.is_ending();
        let told_late = ending && self.is_told();
        let expired = ending && self.session.expires().is_some_and(|expires| expires <= Instant::now());
        loop {
            let full = match self.role() {
                Role::Echo => self.driver.send_half().queued() >= AT_ONCE,
                Role::Events => batch.is_full(),
                Role::Relay(_) => intrudes || self.backpressured().is_some(),
            };
            if full || self.is_limited() {
                break;
            }
            let (event, mut sender) = self.driver.poll_event_and_sender();
            let (kind, payload) = match event {
                Some(PeerEvent::Message { kind, payload }) => (kind, payload),
                Some(_) => continue,
                None => break,
            };
            if told_late {
                let cost = payload_len(&payload) as u64 + LATE_EACH;
                self.cut |= expired || draining_input && self.draining_input >= LATE;
                if self.cut {
                    self.limited += 1;
                    continue;
                }
                self.draining_input += if draining_input { cost } else { 0 };
            }
            if let Some(meter) = &mut self.meter {
                let now = Instant::now();
                let waits = ending && meter.paused().is_some_and(|until| until > now);
                self.cut |= waits;
                let verdict = if waits { Verdict::Drop } else { meter.take(payload_len(&payload), now) };
                if verdict != Verdict::Pass {
                    self.limited += 1;
                    flooded |= verdict == Verdict::Disconnect;
                    continue;
                }
            }
            match (&self.session.route().role, payload) {
                (Role::Relay(relay), payload) => {
                    if let Some(relaying) = &mut self.relaying
                        && self.session.is_open()
                    {
                        intrudes |= !relaying.pass(&self.session, relay, kind, payload.as_slice(), shared);
                    }
                }
                (Role::Echo, payload) => {
                    let _ = sender.send_message(kind, payload.as_slice(), None); // refused only while closing
                }
                (Role::Events, Payload::Slice(data)) => batch.message(&self.session, kind, data),
                (Role::Events, Payload::Buffer(data)) => batch.owned_message(&self.session, kind, data),
            }
        }
        if flooded {
            // RFC 6455 7.4.1, 1008: "a message that violates its policy".
            self.close(CloseCode::POLICY_VIOLATION, "too many messages".into(), &shared.config);
        }
        if intrudes {
            self.close(CloseCode::POLICY_VIOLATION, "nothing may be sent here".into(), &shared.config);
        }
    }

    /// Whether nothing is read for a while, because it has sent too much. The closing handshake is waited for.
    fn is_limited(&self) -> bool {
        self.meter.as_ref().is_some_and(|meter| meter.paused().is_some()) && !self.is_ending()
    }

    /// Whether reading goes on now that did not.
    pub(crate) fn take_resumed(&mut self, now: Instant) -> bool {
        let ending = self.is_ending();
        match &mut self.meter {
            Some(meter) if meter.paused().is_some_and(|until| until <= now) => {
                meter.resume();
                true
            }
            Some(meter) => ending && meter.release(),
            None => false,
        }
    }

    /// Whether reading stopped because the client does not read what it is answered.
    pub(crate) fn waits_to_answer(&self) -> bool {
        *self.role() == Role::Echo && (self.driver.endpoint.has_input() || self.driver.send_half().queued() >= AT_ONCE)
    }

    /// Closes it after what waits, within the time for closing from now on.
    pub(crate) fn close(&mut self, code: CloseCode, reason: Box<str>, config: &Config) {
        self.session.set_closed();
        if self.closing.is_none() {
            let by = Instant::now().checked_add(config.close_timeout);
            self.closing = Some(Box::new(Closing { code, reason, by }));
        }
    }

    /// Ends it here and now.
    pub(crate) fn abort(&mut self) {
        self.driver.end(Failure::Aborted);
    }

    /// When [`Self::handle_deadline`] is due.
    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        let closing = self.closing.as_ref().and_then(|closing| closing.by);
        let expires = self.session.expires().filter(|_| !self.is_ending());
        let limited = self.meter.as_ref().filter(|meter| !meter.is_released());
        let resumes = limited.and_then(|meter| meter.paused());
        let resumes = resumes.map(|until| if self.is_ending() { now } else { until });
        [self.driver.deadline(now), closing, expires, resumes].into_iter().flatten().min()
    }

    /// Sees to what is due. `buffered_bytes`: nobody is read at present of whom something would be told.
    pub(crate) fn handle_deadline(&mut self, now: Instant, reading_paused: bool, config: &Config) {
        wirespeed_driver::protocol::failpoint::hit("engine.timer");
        // What was to leave before the close frame does not.
        if self.closing.as_ref().is_some_and(|closing| closing.by.is_some_and(|by| by <= now)) {
            return self.abort();
        }
        if self.session.expires().is_some_and(|expires| expires <= now) {
            // RFC 6455 7.4.1, 1008: "a message that violates its policy".
            self.close(CloseCode::POLICY_VIOLATION, "token expired".into(), config);
        }
        let waits = self.stopped
            || self.is_limited()
            || self.backpressured().is_some()
            || self.is_read_slowly(now, config.ping_timeout);
        let reading = if reading_paused && self.is_told() || waits { Reading::Paused } else { Reading::Going };
        let _ = self.driver.handle_deadline(now, reading, 0);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.closing.is_some() || self.driver.is_closing()
    }

    /// How it ended.
    pub(crate) fn ended(&self) -> Ended {
        let send_half = self.driver.send_half();
        let (code, reason) = match send_half.close_received() {
            Some(frame) => (frame.code.unwrap_or(CloseCode::NO_STATUS_RCVD).0, frame.reason.clone()),
            None => (CloseCode::ABNORMAL_CLOSURE.0, String::new()),
        };
        Ended { code, reason, failure: send_half.failure().map(ToString::to_string) }
    }
}

/// So many as are counted of one session.
fn count(messages: usize) -> u32 {
    u32::try_from(messages).unwrap_or(u32::MAX)
}
