//! A client with a session.
//!
//! Moves its messages between the socket, the events and the outbox, and closes it. Knows no other clients.

mod write;

use std::time::{Duration, Instant};

use wirespeed_driver::connection::{Progress, Reading};
use wirespeed_driver::endpoint::{Failure, Stats, payload_len};
use wirespeed_driver::protocol::{CloseCode, Event, Payload};
use wirespeed_driver::socket::Socket;
use wirespeed_driver::{ConnectionDriver, Endpoint, buffer_pool};

use self::write::Blocked;
use super::Turn;
use super::relaying::Relaying;
use crate::admission::Permit;
use crate::config::{Config, Relay, Role};
use crate::connection::meter::{Meter, Verdict};
use crate::delivery::Outbox;
use crate::events::{Batch, Ended};
use crate::metrics::{SessionFigures, WorkerMetrics};
use crate::session::Session;
use crate::shared::EngineShared;
use crate::topics::{Pattern, Topic};
use crate::util::timer_wheel::Listed;

/// The maximum number of reads of one connection in one turn.
const MAX_READS: u32 = 4;

/// The number of bytes passed to the connection at once, while the kernel takes them. They fit into the cache, and are
/// the most that the connection of a client that reads nothing holds itself.
const SEND_CHUNK: usize = 64 * 1024;

/// The number of small reads of a client that had to wait, before it gets a large buffer again.
const SMALL_READS: u8 = 64;

/// Bytes of messages that a closing session may add while events are full, or its handler has paused reading.
const MAX_CLOSING_BYTES: u64 = 256 * 1024;

/// What each such message counts for beside its payload. Otherwise a client could send 262,144 messages of one byte,
/// which take much more memory than that.
const CLOSING_MESSAGE_COST: u64 = 256;

/// A closing handshake that starts once the queued messages have left.
struct Closing {
    code: CloseCode,
    reason: Box<str>,
    /// The connection is aborted at this time, for a client that takes the messages too slowly.
    by: Option<Instant>,
}

/// A client with a session.
///
/// The worker calls, in any order: [`Self::push`] or [`Self::push_all`] for messages, then [`Self::write`] in the same
/// turn; [`Self::read`], and [`Self::read_while_closing`] while events are full; [`Self::handle_deadline`] at
/// [`Self::deadline`]. After each of these it calls [`Self::report`] and [`Self::update_queued`]. When a call returns
/// `Over`, it removes the client, and calls [`Self::clear_reported`] and [`Self::ended`].
pub(crate) struct Established {
    pub(crate) session: Session,
    /// Only of relays.
    relaying: Option<Box<Relaying>>,
    driver: ConnectionDriver<Vec<u8>>,
    outbox: Outbox,
    /// [`SEND_CHUNK`], or a quarter of the limit of the session if that is less.
    send_chunk: usize,
    /// The closing handshake that starts once the queued messages have left.
    closing: Option<Box<Closing>>,
    /// Set while the kernel has no room.
    blocked: Option<Blocked>,
    /// The socket was written outside [`Self::write`], and the worker has yet to follow up.
    wrote_early: bool,
    /// Queued bytes that were added to the session's total.
    counted_bytes: usize,
    /// Traffic that was added to the worker's metrics.
    reported_stats: Stats,
    /// Queued bytes that were added to the metrics.
    reported_bytes: usize,
    /// Memory, beside that of messages, that was added to the metrics.
    buffered_bytes: usize,
    /// Bytes that the kernel had taken when it had no room for the first time.
    taken_when_blocked: Option<u64>,
    /// Publishers do not wait for this session until it has caught up.
    given_up: bool,
    /// Messages dropped because the client reads too slowly, and not yet added to the metrics.
    pub(crate) dropped: u32,
    /// All dropped messages that were added to the metrics.
    dropped_in_all: u32,
    /// Messages that were not delivered because the session is closing or over, and not yet added to the metrics.
    undelivered: u32,
    /// The topics and patterns that the session subscribes to.
    pub(crate) subscriptions: Vec<Pattern>,
    /// The number of the last message published to it, as the worker counts them.
    pub(crate) published: u64,
    /// The client is in [`crate::worker::Worker`]'s list of clients to be written.
    pub(crate) dirty: bool,
    /// The client will be read without an edge: it is in one of the worker's lists, or waits for time or for its
    /// handler.
    pub(crate) read_pending: bool,
    /// The handler of its messages has paused reading.
    pub(crate) reading_disabled: bool,
    /// The client was not read for that reason.
    pub(crate) read_skipped: bool,
    /// The entries of the timer wheel for this client.
    pub(crate) listed: Listed,
    /// An edge has reported that the client has ended its direction.
    read_closed: bool,
    /// The number of reads left that use a small buffer: bytes read before the client has to wait are kept.
    small_reads_left: u8,
    /// Bytes added while events were full, or the handler had paused reading, because the session is closing.
    closing_bytes: u64,
    /// A message of this closing session was dropped: all later ones are too.
    truncated: bool,
    /// The place of the session within the limits of admission.
    _permit: Permit,
    /// The message rate, if it is limited.
    meter: Option<Box<Meter>>,
    /// Messages dropped because the client sends too many, and not yet added to the metrics.
    limited: u32,
    /// All of them that were added to the metrics.
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
        let send_chunk = SEND_CHUNK.min(session.high_water().div_ceil(2));
        let small_reads_left = if topic.is_some() || meter.is_some() { SMALL_READS } else { 0 };
        Self {
            session,
            relaying: topic.map(|topic| Box::new(Relaying::new(topic))),
            driver: ConnectionDriver::new(endpoint, Some(socket), Some(close_timeout)),
            outbox: Outbox::default(),
            send_chunk,
            closing: None,
            blocked: None,
            wrote_early: false,
            counted_bytes: 0,
            reported_stats: Stats::default(),
            reported_bytes: 0,
            buffered_bytes: 0,
            taken_when_blocked: None,
            given_up: false,
            dropped: 0,
            dropped_in_all: 0,
            undelivered: 0,
            subscriptions: Vec::new(),
            published: 0,
            dirty: false,
            read_pending: false,
            reading_disabled: false,
            read_skipped: false,
            listed: Listed::default(),
            read_closed: false,
            small_reads_left,
            closing_bytes: 0,
            truncated: false,
            _permit: permit,
            meter,
            limited: 0,
            limited_in_all: 0,
        }
    }

    fn role(&self) -> &Role {
        &self.session.route().role
    }

    /// Whether this session emits events.
    pub(crate) fn emits_events(&self) -> bool {
        *self.role() == Role::Events
    }

    /// Returns a buffer of the process's pool, because the client will not be read for a while.
    pub(crate) fn release_input(&mut self) {
        self.driver.endpoint_mut().shrink_input();
    }

    pub(crate) fn note_read_closed(&mut self) {
        self.read_closed = true;
    }

    /// Returns the bytes that wait for the client.
    pub(crate) fn queued(&self) -> usize {
        self.outbox.bytes() + self.driver.send_half().queued()
    }

    /// Adds to the metrics what changed since the last call.
    pub(crate) fn report(&mut self, metrics: &WorkerMetrics) {
        let now = self.driver.send_half().stats();
        metrics.count_traffic(&std::mem::replace(&mut self.reported_stats, now), &now);
        self.report_dropped(metrics);
        self.limited_in_all = self.limited_in_all.saturating_add(self.limited);
        metrics.limited.add(std::mem::take(&mut self.limited).into());
        if let Some(relaying) = &mut self.relaying {
            metrics.denied.add(relaying.take_denied());
        }
        let buffered_bytes = self.outbox.overhead() + self.driver.send_half().own_queued();
        self.report_queued(self.queued(), buffered_bytes, metrics);
    }

    /// Drops all queued messages, and takes this session's queues out of the metrics.
    pub(crate) fn clear_reported(&mut self, metrics: &WorkerMetrics) {
        let cleared = self.outbox.clear();
        self.note_undelivered(cleared);
        self.report_dropped(metrics);
        self.report_queued(0, 0, metrics);
    }

    fn report_dropped(&mut self, metrics: &WorkerMetrics) {
        metrics.count_undelivered(std::mem::take(&mut self.undelivered).into());
        if self.dropped > 0 {
            self.dropped_in_all = self.dropped_in_all.saturating_add(self.dropped);
            metrics.count_dropped(self.session.route().settings.policy, std::mem::take(&mut self.dropped).into());
        }
    }

    /// Returns the figures of the session.
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

    /// Describes the dropped messages, for the log.
    pub(crate) fn describe_slow(&self) -> String {
        let (id, dropped) = (self.session.id(), self.dropped);
        let from =
            self.session.remote_address().map_or_else(|| "a Unix socket".to_owned(), |remote| remote.to_string());
        let then = if self.is_ending() { "; it is closed" } else { "" };
        format!("session {id} of {from} reads too slowly: {dropped} messages were dropped{then}")
    }

    /// Describes that the session was aborted for its memory, for the log.
    pub(crate) fn describe_cut(&self) -> String {
        let id = self.session.id();
        format!("session {id} was aborted: it reads nothing, and the memory limit of all sessions is exceeded")
    }

    fn note_undelivered(&mut self, messages: usize) {
        self.undelivered = self.undelivered.saturating_add(count(messages));
    }

    fn report_queued(&mut self, queued: usize, buffered_bytes: usize, metrics: &WorkerMetrics) {
        let held_before = std::mem::replace(&mut self.buffered_bytes, buffered_bytes);
        if buffered_bytes != held_before {
            metrics.buffered_bytes.add(buffered_bytes as u64);
            metrics.buffered_bytes.subtract(held_before as u64);
        }
        let before = std::mem::replace(&mut self.reported_bytes, queued);
        if queued != before {
            metrics.outbox_bytes.add(queued as u64);
            metrics.outbox_bytes.subtract(before as u64);
        }
    }

    /// Reads the client for one turn. `events_have_capacity`: events have capacity.
    pub(crate) fn read(&mut self, batch: &mut Batch, events_have_capacity: bool, shared: &EngineShared) -> Turn {
        if self.emits_events() && !events_have_capacity {
            return Turn::Paused;
        }
        let limited = self.reading_disabled;
        let turn = self.read_turn(batch, limited, shared);
        if matches!(turn, Turn::RateLimited | Turn::Backpressured { .. }) {
            self.small_reads_left = SMALL_READS;
        }
        turn
    }

    /// Reads a closing client while events are full: the messages sent before the client's close frame, and that
    /// frame. The amount is limited, or a closing client could fill the memory.
    pub(crate) fn read_while_closing(&mut self, batch: &mut Batch, shared: &EngineShared) -> Turn {
        if !self.is_ending() || self.closing_bytes >= MAX_CLOSING_BYTES {
            return Turn::Paused;
        }
        self.read_turn(batch, true, shared)
    }

    /// Reads for one turn. `limited`: messages count against the limit of a closing session.
    fn read_turn(&mut self, batch: &mut Batch, limited: bool, shared: &EngineShared) -> Turn {
        let (events, echoes) = (self.emits_events(), *self.role() == Role::Echo);
        if self.is_limited() {
            return Turn::RateLimited;
        }
        // Clients that only receive are read even if the topic has no capacity.
        if let (Role::Relay(Relay { send: true, .. }), Some(relaying)) =
            (&self.session.route().role, &mut self.relaying)
        {
            relaying.check_capacity(shared);
        }
        if let Some(backpressured) = self.backpressured() {
            return backpressured;
        }
        if self.reading_disabled && !self.is_ending() {
            return Turn::ReadingDisabled;
        }
        let mut drained = false;
        for _ in 0..MAX_READS {
            if !self.driver.endpoint().has_input() {
                let most = if self.small_reads_left > 0 { buffer_pool::SMALL_READ_SIZE } else { usize::MAX };
                self.small_reads_left = self.small_reads_left.saturating_sub(1);
                drained = self.driver.read_edge_of(most, self.read_closed);
            }
            self.take_events(batch, limited, shared);
            if self.write(Instant::now) == Progress::Over {
                return Turn::Over;
            }
            if self.is_limited() {
                return Turn::RateLimited;
            }
            if let Some(backpressured) = self.backpressured() {
                return backpressured;
            }
            if events && batch.is_full() {
                return Turn::Ready;
            }
            if echoes && self.driver.send_half().queued() >= SEND_CHUNK {
                return Turn::Idle; // reading resumes when the client has read the echoes: see `waits_to_answer`
            }
            if drained && !self.driver.endpoint().has_input() {
                return Turn::Idle;
            }
        }
        Turn::Ready
    }

    /// Returns the result of a turn that ends because the topic of the relay has no capacity.
    fn backpressured(&self) -> Option<Turn> {
        let relaying = self.relaying.as_ref().filter(|relaying| relaying.waits() && !self.is_ending())?;
        Some(Turn::Backpressured { published: relaying.has_published() })
    }

    /// Returns whether the client was not read for lack of capacity, and resets that.
    pub(crate) fn take_backpressured(&mut self) -> bool {
        self.relaying.as_mut().is_some_and(|relaying| relaying.take_waits())
    }

    fn take_events(&mut self, batch: &mut Batch, limited: bool, shared: &EngineShared) {
        wirespeed_driver::protocol::failpoint::hit("engine.read");
        let (mut exceeds_rate, mut sends_forbidden) = (false, false);
        // A closing session is read for its close frame beyond any limits, and messages above them are dropped.
        let ending = self.is_ending();
        let limits_input = ending && self.emits_events();
        let expired = ending && self.session.expires().is_some_and(|expires| expires <= Instant::now());
        loop {
            let full = match self.role() {
                Role::Echo => self.driver.send_half().queued() >= SEND_CHUNK,
                Role::Events => batch.is_full(),
                Role::Relay(_) => sends_forbidden || self.backpressured().is_some(),
            };
            if full || self.is_limited() {
                break;
            }
            let (event, mut sender) = self.driver.poll_event_and_sender();
            let (kind, payload) = match event {
                Some(Event::Message { kind, payload }) => (kind, payload),
                Some(_) => continue,
                None => break,
            };
            if limits_input {
                let cost = payload_len(&payload) as u64 + CLOSING_MESSAGE_COST;
                self.truncated |= expired || limited && self.closing_bytes >= MAX_CLOSING_BYTES;
                if self.truncated {
                    self.limited += 1;
                    continue;
                }
                self.closing_bytes += if limited { cost } else { 0 };
            }
            if let Some(meter) = &mut self.meter {
                let now = Instant::now();
                let waits = ending && meter.paused().is_some_and(|until| until > now);
                self.truncated |= waits;
                let verdict = if waits { Verdict::Drop } else { meter.take(payload_len(&payload), now) };
                if verdict != Verdict::Pass {
                    self.limited += 1;
                    exceeds_rate |= verdict == Verdict::Disconnect;
                    continue;
                }
            }
            match (&self.session.route().role, payload) {
                (Role::Relay(relay), payload) => {
                    if let Some(relaying) = &mut self.relaying
                        && self.session.is_open()
                    {
                        sends_forbidden |= !relaying.pass(&self.session, relay, kind, payload.as_slice(), shared);
                    }
                }
                (Role::Echo, payload) => {
                    let _ = sender.send_message(kind, payload.as_slice(), None); // refused only while closing
                }
                (Role::Events, Payload::Slice(data)) => batch.message(&self.session, kind, data),
                (Role::Events, Payload::Buffer(data)) => batch.owned_message(&self.session, kind, data),
            }
        }
        if exceeds_rate {
            // RFC 6455 7.4.1, 1008: "a message that violates its policy".
            self.close(CloseCode::POLICY_VIOLATION, "too many messages".into(), &shared.config);
        }
        if sends_forbidden {
            self.close(CloseCode::POLICY_VIOLATION, "nothing may be sent here".into(), &shared.config);
        }
    }

    /// Returns whether reading has stopped because of the message rate. A closing session is read nevertheless.
    fn is_limited(&self) -> bool {
        self.meter.as_ref().is_some_and(|meter| meter.paused().is_some()) && !self.is_ending()
    }

    /// Returns whether reading resumes now after it stopped because of the message rate.
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

    /// Returns whether reading has stopped because the client does not read the echoes.
    pub(crate) fn waits_to_answer(&self) -> bool {
        *self.role() == Role::Echo
            && (self.driver.endpoint().has_input() || self.driver.send_half().queued() >= SEND_CHUNK)
    }

    /// Closes the session after its queued messages, and aborts it after the close timeout.
    pub(crate) fn close(&mut self, code: CloseCode, reason: Box<str>, config: &Config) {
        self.session.set_closed();
        if self.closing.is_none() {
            let by = Instant::now().checked_add(config.close_timeout);
            self.closing = Some(Box::new(Closing { code, reason, by }));
        }
    }

    /// Aborts the connection immediately.
    pub(crate) fn abort(&mut self) {
        self.driver.end(Failure::Aborted);
    }

    /// Returns when [`Self::handle_deadline`] is due.
    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        let closing = self.closing.as_ref().and_then(|closing| closing.by);
        let expires = self.session.expires().filter(|_| !self.is_ending());
        let limited = self.meter.as_ref().filter(|meter| !meter.is_released());
        let resumes = limited.and_then(|meter| meter.paused());
        let resumes = resumes.map(|until| if self.is_ending() { now } else { until });
        [self.driver.deadline(now), closing, expires, resumes].into_iter().flatten().min()
    }

    /// Handles what is due. `reading_paused`: events are full, and sessions that emit events are not read.
    pub(crate) fn handle_deadline(&mut self, now: Instant, reading_paused: bool, config: &Config) {
        wirespeed_driver::protocol::failpoint::hit("engine.timer");
        // The queued messages did not leave in time: there is no close frame.
        if self.closing.as_ref().is_some_and(|closing| closing.by.is_some_and(|by| by <= now)) {
            return self.abort();
        }
        if self.session.expires().is_some_and(|expires| expires <= now) {
            // RFC 6455 7.4.1, 1008: "a message that violates its policy".
            self.close(CloseCode::POLICY_VIOLATION, "token expired".into(), config);
        }
        let waits = self.read_skipped
            || self.is_limited()
            || self.backpressured().is_some()
            || self.is_read_slowly(now, config.ping_timeout);
        let reading = if reading_paused && self.emits_events() || waits { Reading::Paused } else { Reading::Going };
        let _ = self.driver.handle_deadline(now, reading, 0);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.closing.is_some() || self.driver.is_closing()
    }

    /// Returns how the session ended.
    pub(crate) fn ended(&self) -> Ended {
        let send_half = self.driver.send_half();
        let (code, reason) = match send_half.close_received() {
            Some(frame) => (frame.code.unwrap_or(CloseCode::NO_STATUS_RCVD).0, frame.reason.clone()),
            None => (CloseCode::ABNORMAL_CLOSURE.0, String::new()),
        };
        Ended { code, reason, failure: send_half.failure().map(ToString::to_string) }
    }
}

/// Converts to the width of a session's counters.
fn count(messages: usize) -> u32 {
    u32::try_from(messages).unwrap_or(u32::MAX)
}
