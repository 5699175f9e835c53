//! Decides when a keepalive ping is due and when the peer is dead. It owns no timer: callers pass the time.
//!
//! A peer is alive while bytes arrive from it, or while it acknowledges bytes that were sent before the ping,
//! because during a large transfer no pong can arrive. It is dead when neither has happened for the timeout.

use std::time::{Duration, Instant};

/// An unanswered ping.
struct Outstanding {
    id: u64,
    payload: Box<[u8]>,
    sent: Instant,
    /// For a keepalive ping, not one of the application: how long the peer has been silent.
    silence: Option<Silence>,
}

/// A ping of the application that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnsweredPing {
    /// The number of the ping.
    pub number: u64,
    /// The round-trip time of the ping that the pong names: this one or a later one.
    pub latency: Duration,
}

/// The numbers of bytes that a connection has moved, as seen from its socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Bytes that were read.
    pub read: u64,
    /// Bytes that the kernel has received and that were not read; the pong may be among them.
    pub unread: u64,
    /// Bytes that the kernel has taken.
    pub written: u64,
    /// Written bytes that the peer has acknowledged. Negative where the kernel counts its own overhead (unix(7)).
    pub acknowledged: i64,
    /// Bytes that wait for room in the kernel.
    pub queued: u64,
}

impl Traffic {
    fn received(self) -> u64 {
        self.read.wrapping_add(self.unread)
    }
}

/// Measures how long a peer has shown no progress.
#[derive(Debug)]
pub(crate) struct Silence {
    since: Instant,
    checked_at: Instant,
    read: u64,
    unread: u64,
    acknowledged: i64,
    /// Acknowledgements count up to this position: those of the ping itself prove only that the peer's kernel runs.
    until: i64,
}

impl Silence {
    /// Starts at a ping that is queued after `traffic`.
    fn of_ping(now: Instant, traffic: Traffic) -> Self {
        Self::new(now, traffic, (traffic.written + traffic.queued).cast_signed())
    }

    /// Starts in the middle of a frame, which no ping can pass.
    pub(crate) fn in_frame(now: Instant, traffic: Traffic) -> Self {
        Self::new(now, traffic, i64::MAX)
    }

    fn new(now: Instant, traffic: Traffic, until: i64) -> Self {
        let acknowledged = traffic.acknowledged.min(until);
        // Unread bytes may have arrived before the ping, but the pong may be among them: the first check counts
        // them.
        Self { since: now, checked_at: now, read: traffic.received(), unread: 0, acknowledged, until }
    }

    /// Compares with the last check. Returns how long the peer has been silent.
    pub(crate) fn check(&mut self, now: Instant, traffic: Traffic) -> Duration {
        self.checked_at = now;
        let acknowledged = traffic.acknowledged.min(self.until);
        let received = traffic.received() != self.read.wrapping_add(self.unread);
        // If the connection has just received bytes, or keeps reading, the pong may still come. A connection that
        // does not read at all, because its peer takes no answers, does not wait for a pong.
        let reads = traffic.unread > 0 && (self.unread == 0 || traffic.read != self.read);
        if received || reads || acknowledged != self.acknowledged {
            self.since = now;
        }
        (self.read, self.unread, self.acknowledged) = (traffic.read, traffic.unread, acknowledged);
        now.saturating_duration_since(self.since)
    }

    /// Returns the time of the last check.
    pub(crate) fn checked_at(&self) -> Instant {
        self.checked_at
    }

    /// Restarts the silence, because the peer could not have shown progress.
    pub(crate) fn restart(&mut self, now: Instant) {
        (self.since, self.checked_at) = (now, now);
    }
}

/// The keepalive action that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing before this moment; `None`: never.
    Nothing(Option<Instant>),
    /// Send a ping, and record it with [`Keepalive::handle_own_ping_sent`].
    Ping,
    /// The last keepalive ping is unanswered: call [`Keepalive::check`].
    Check,
}

/// Pings that were sent.
#[derive(Default)]
struct Pings {
    /// In the order of sending.
    unanswered: Vec<Outstanding>,
    /// The application's pings that were answered and not taken yet.
    answered: Vec<AnsweredPing>,
}

impl Pings {
    fn is_empty(&self) -> bool {
        self.unanswered.is_empty() && self.answered.is_empty()
    }
}

/// The keepalive state of one connection, and the application's pings.
///
/// 1. At the time of [`Self::poll`], perform the action that it returns.
/// 2. Pass each pong to [`Self::handle_pong`], and take the application's pings that it answers with
///    [`Self::take_answered`].
/// 3. When [`Self::check`] returns true, the peer is dead: fail the connection.
pub struct Keepalive {
    interval: Span,
    timeout: Span,
    /// When the next keepalive ping is due.
    next: Option<Instant>,
    /// Usually `None`.
    pings: Option<Box<Pings>>,
    last_id: u64,
    latency: Span,
}

/// An optional duration in 8 bytes, in nanoseconds, to keep connections small. Durations of centuries become
/// `None`.
#[derive(Clone, Copy)]
pub(crate) struct Span(u64);

impl From<Option<Duration>> for Span {
    fn from(span: Option<Duration>) -> Self {
        Self(span.and_then(|span| u64::try_from(span.as_nanos()).ok()).unwrap_or(u64::MAX))
    }
}

impl Span {
    pub(crate) fn get(self) -> Option<Duration> {
        (self.0 != u64::MAX).then(|| Duration::from_nanos(self.0))
    }
}

impl Keepalive {
    /// Sends a ping every `interval` from `now` on. The peer is dead once a ping is unanswered and the peer has
    /// been silent for `timeout`; until then no other ping is sent. `None` turns either off: without a timeout
    /// there is a ping every interval, answered or not.
    #[must_use]
    pub fn new(interval: Option<Duration>, timeout: Option<Duration>, now: Instant) -> Self {
        Self {
            interval: interval.into(),
            timeout: timeout.into(),
            next: interval.and_then(|interval| now.checked_add(interval)),
            pings: None,
            last_id: 0,
            latency: None.into(),
        }
    }

    fn outstanding(&self) -> &[Outstanding] {
        self.pings.as_ref().map_or(&[], |pings| &pings.unanswered)
    }

    /// Returns the action that is due at `now`.
    #[must_use]
    #[inline]
    pub fn poll(&self, now: Instant) -> Due {
        if self.outstanding().is_empty() {
            return match self.next {
                Some(next) if next <= now => Due::Ping,
                next => Due::Nothing(next),
            };
        }
        self.poll_outstanding(now)
    }

    fn poll_outstanding(&self, now: Instant) -> Due {
        if let (Some(timeout), Some(silence)) = (self.timeout.get(), self.silence()) {
            // Only one keepalive ping is outstanding at a time. Progress is checked at least once per interval, so
            // a peer is found dead at most an interval and a timeout after its last progress.
            let again = self.interval.get().and_then(|interval| silence.checked_at.checked_add(interval));
            let next = [silence.since.checked_add(timeout), again].into_iter().flatten().min();
            return if next.is_some_and(|next| next <= now) { Due::Check } else { Due::Nothing(next) };
        }
        match self.next {
            Some(next) if next <= now => Due::Ping,
            next => Due::Nothing(next),
        }
    }

    fn silence(&self) -> Option<&Silence> {
        self.outstanding().iter().find_map(|ping| ping.silence.as_ref())
    }

    fn silence_mut(&mut self) -> Option<&mut Silence> {
        self.pings.iter_mut().flat_map(|pings| &mut pings.unanswered).find_map(|ping| ping.silence.as_mut())
    }

    /// Checks for progress while the last keepalive ping is unanswered. Returns true if the peer is dead.
    pub fn check(&mut self, now: Instant, traffic: Traffic) -> bool {
        let timeout = self.timeout.get();
        let silent = self.silence_mut().map(|silence| silence.check(now, traffic));
        matches!((silent, timeout), (Some(silent), Some(timeout)) if silent >= timeout)
    }

    /// Skips the ping that is due at `now`; the next one is due an interval later.
    pub fn skip(&mut self, now: Instant) {
        self.next = self.interval.get().and_then(|interval| now.checked_add(interval));
    }

    /// Records a ping of the application. Returns its number.
    pub fn handle_ping_sent(&mut self, payload: &[u8], now: Instant) -> u64 {
        self.push(payload, now, None)
    }

    /// Records that the keepalive ping is queued after `traffic`.
    pub fn handle_own_ping_sent(&mut self, payload: &[u8], now: Instant, traffic: Traffic) {
        // Without a timeout, the pong of the previous ping is not awaited. Removing it keeps unanswered pings from
        // piling up.
        if let Some(pings) = &mut self.pings {
            pings.unanswered.retain(|ping| ping.silence.is_none());
        }
        self.push(payload, now, Some(Silence::of_ping(now, traffic)));
        self.skip(now);
    }

    fn push(&mut self, payload: &[u8], sent: Instant, silence: Option<Silence>) -> u64 {
        self.last_id += 1;
        let ping = Outstanding { id: self.last_id, payload: payload.into(), sent, silence };
        self.pings.get_or_insert_default().unanswered.push(ping);
        self.last_id
    }

    /// Records a pong. If it answers a ping, it answers all earlier ones too (RFC 6455 5.5.3).
    pub fn handle_pong(&mut self, payload: &[u8], now: Instant) {
        let Some(pings) = &mut self.pings else { return };
        let Some(index) = pings.unanswered.iter().position(|ping| *ping.payload == *payload) else { return };
        let Some(named) = pings.unanswered.get(index) else { return };
        let latency = now.saturating_duration_since(named.sent);
        self.latency = Some(latency).into();
        let answered = pings.unanswered.drain(..=index).filter(|ping| ping.silence.is_none());
        pings.answered.extend(answered.map(|ping| AnsweredPing { number: ping.id, latency }));
        if pings.is_empty() {
            self.pings = None;
        }
    }

    /// Takes the application's pings that were answered since the last call, oldest first.
    #[inline]
    pub fn take_answered(&mut self) -> Vec<AnsweredPing> {
        let Some(pings) = &mut self.pings else { return Vec::new() };
        let answered = std::mem::take(&mut pings.answered);
        if pings.is_empty() {
            self.pings = None;
        }
        answered
    }

    /// Restarts the silence at `now`: reading was paused, so the pong may be behind unread messages.
    pub fn restart(&mut self, now: Instant) {
        if let Some(silence) = self.silence_mut() {
            silence.restart(now);
        }
    }

    /// Returns when the next keepalive ping is due, if the last one is answered by then.
    #[must_use]
    pub fn next_ping(&self) -> Option<Instant> {
        self.next
    }

    /// Returns the longest time until a peer without progress is found dead; `None`: never.
    #[must_use]
    pub fn max_silence(&self) -> Option<Duration> {
        self.interval.get()?.checked_add(self.timeout.get()?)
    }

    /// Returns whether a ping with this payload is unanswered; a second one could not be distinguished from it.
    #[must_use]
    pub fn is_outstanding(&self, payload: &[u8]) -> bool {
        self.outstanding().iter().any(|ping| *ping.payload == *payload)
    }

    /// Returns the first payload from `draw` that differs from those of unanswered pings.
    #[must_use]
    pub fn draw(&self, mut draw: impl FnMut() -> [u8; 4]) -> [u8; 4] {
        loop {
            let payload = draw();
            if !self.is_outstanding(&payload) {
                return payload;
            }
        }
    }

    /// Returns the round-trip time of the last ping.
    #[must_use]
    pub fn latency(&self) -> Option<Duration> {
        self.latency.get()
    }

    /// Returns the time between two pings; `None`: no pings are sent.
    #[must_use]
    pub fn interval(&self) -> Option<Duration> {
        self.interval.get()
    }

    /// Returns the time after which a silent peer is dead, if pings are sent at all.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    /// Returns the numbers of the pings that a pong answers, after one second.
    fn pong(keepalive: &mut Keepalive, payload: &[u8], now: Instant) -> Vec<u64> {
        keepalive.handle_pong(payload, now);
        let answered = keepalive.take_answered();
        assert!(answered.iter().all(|ping| ping.latency == S));
        answered.iter().map(|ping| ping.number).collect()
    }

    #[test]
    fn pings_every_interval_and_times_out() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(Some(20 * S), Some(10 * S), start);
        assert_eq!(keepalive.poll(start), Due::Nothing(Some(start + 20 * S)));
        assert_eq!(keepalive.poll(start + 20 * S), Due::Ping);
        keepalive.handle_own_ping_sent(b"a", start + 20 * S, Traffic::default());
        assert_eq!(keepalive.poll(start + 21 * S), Due::Nothing(Some(start + 30 * S)));
        assert_eq!(keepalive.poll(start + 30 * S), Due::Check);
        assert_eq!(pong(&mut keepalive, b"a", start + 22 * S), [], "it is no ping of the application");
        assert!(!keepalive.is_outstanding(b"a"));
        assert_eq!(keepalive.latency(), Some(2 * S));
        assert_eq!(keepalive.poll(start + 30 * S), Due::Nothing(Some(start + 40 * S)));
    }

    #[test]
    fn a_pong_answers_earlier_pings_and_ignores_unknown_ones() {
        let now = Instant::now();
        let mut keepalive = Keepalive::new(None, None, now);
        for payload in [b"1", b"2", b"3"] {
            keepalive.handle_ping_sent(payload, now);
        }
        assert_eq!(pong(&mut keepalive, b"x", now), []);
        keepalive.handle_own_ping_sent(b"4", now, Traffic::default());
        assert_eq!(pong(&mut keepalive, b"2", now + S), [1, 2]);
        assert!(keepalive.is_outstanding(b"3"));
        assert_eq!(keepalive.poll(now + 1000 * S), Due::Nothing(None));
        assert_eq!(pong(&mut keepalive, b"4", now + S), [3]);
    }

    #[test]
    fn drawn_payload_differs_from_unanswered_ones() {
        let now = Instant::now();
        let mut keepalive = Keepalive::new(None, None, now);
        for payload in [b"1111", b"2222"] {
            keepalive.handle_ping_sent(payload, now);
        }
        let mut drawn = [b"2222", b"1111", b"2222", b"3333", b"4444"].into_iter();
        assert_eq!(keepalive.draw(|| *drawn.next().unwrap_or(b"none")), *b"3333");
        assert_eq!(pong(&mut keepalive, b"2222", now + S), [1, 2]);
        assert_eq!(keepalive.draw(|| *b"1111"), *b"1111", "an answered payload can be drawn again");
    }

    #[test]
    fn pings_continue_without_a_timeout() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(Some(S), None, start);
        for turn in 1..100u32 {
            let now = start + turn * S;
            assert_eq!(keepalive.poll(now - S / 2), Due::Nothing(Some(now)));
            assert_eq!(keepalive.poll(now), Due::Ping);
            keepalive.handle_own_ping_sent(&turn.to_be_bytes(), now, Traffic::default());
        }
        assert_eq!(keepalive.outstanding().len(), 1, "unanswered pings are removed");
        let now = start + 100 * S;
        assert_eq!(pong(&mut keepalive, &99u32.to_be_bytes(), now), []);
        assert_eq!(keepalive.latency(), Some(S));
    }

    fn moved(read: u64, acknowledged: i64) -> Traffic {
        Traffic { read, acknowledged, written: 1000, ..Traffic::default() }
    }

    /// Returns the seconds after the ping at which the peer is found dead, if `traffic` returns the bytes moved at
    /// each check.
    fn found_dead(interval: u32, timeout: u32, traffic: impl Fn(u64) -> Traffic) -> u64 {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(Some(interval * S), Some(timeout * S), start);
        keepalive.handle_own_ping_sent(b"a", start, traffic(0));
        for second in 1..1000 {
            let now = start + Duration::from_secs(second);
            if keepalive.poll(now) == Due::Check && keepalive.check(now, traffic(second)) {
                return second;
            }
        }
        0
    }

    #[test]
    fn a_peer_without_progress_is_dead_after_the_timeout() {
        assert_eq!(found_dead(20, 20, |_| moved(5, 1000)), 20);
        assert_eq!(found_dead(2, 20, |_| moved(5, 1000)), 20);
        assert_eq!(found_dead(20, 2, |_| moved(5, 1000)), 2);
    }

    #[test]
    fn a_peer_is_alive_while_bytes_come_or_are_acknowledged() {
        for (interval, timeout) in [(20, 20), (2, 20), (20, 2)] {
            // Bytes arrived until second 100.
            let dead = found_dead(interval, timeout, |second| moved(second.min(100), 1000));
            assert!((100 + u64::from(timeout)..=100 + u64::from(interval + timeout)).contains(&dead), "{dead}");
            // 1000 bytes were queued before the ping; the last was acknowledged after 100 seconds.
            let dead = found_dead(interval, timeout, |second| moved(5, (second * 10).min(1000).cast_signed()));
            assert!((100 + u64::from(timeout)..=100 + u64::from(interval + timeout)).contains(&dead), "{dead}");
        }
    }

    #[test]
    fn acknowledgements_of_the_ping_and_later_bytes_are_not_progress() {
        let dead = found_dead(20, 20, |second| Traffic { acknowledged: 1000 + second.cast_signed(), ..moved(5, 0) });
        assert_eq!(dead, 20);
    }

    #[test]
    fn unread_bytes_may_contain_the_pong() {
        // They are read, little by little, until second 60.
        let slow = |second: u64| Traffic { unread: 600 - second.min(60) * 10, ..moved(second.min(60) * 10, 1000) };
        assert_eq!(found_dead(20, 20, slow), 60);
        // They are never read: the connection does not read.
        assert_eq!(found_dead(20, 20, |_| Traffic { unread: 600, ..moved(5, 1000) }), 40);
    }

    #[test]
    fn restart_resets_the_silence() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(Some(S), Some(S), start);
        keepalive.handle_own_ping_sent(b"a", start, Traffic::default());
        keepalive.restart(start + 100 * S);
        assert!(!keepalive.check(start + 100 * S, Traffic::default()));
        assert_eq!(keepalive.poll(start + 100 * S), Due::Nothing(Some(start + 101 * S)));
        assert!(keepalive.check(start + 101 * S, Traffic::default()));
    }
}
