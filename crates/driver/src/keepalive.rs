//! Pings, and when to give up on a peer. Given the time; owns no timer.

use std::time::{Duration, Instant};

/// A ping that was not answered yet.
struct Outstanding {
    id: u64,
    payload: Box<[u8]>,
    sent: Instant,
    /// Sent by [`Keepalive::poll`], not by the application.
    own: bool,
    /// Its deadline was put off once.
    resumed: bool,
    /// For how long nobody has looked for its answer: that does not count.
    absent: Duration,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing before this moment; `None`: ever.
    Nothing(Option<Instant>),
    /// A ping of our own: send one and say so with [`Keepalive::handle_ping_sent`].
    Ping,
    /// The last ping of our own was not answered in time.
    TimedOut,
}

/// The pings of one connection.
pub struct Keepalive {
    interval: Span,
    timeout: Span,
    /// When the next ping of our own is due.
    next: Option<Instant>,
    /// In the order of sending. Most of the time there is none.
    #[allow(clippy::box_collection)] // room for one pointer, not three words, in each connection
    outstanding: Option<Box<Vec<Outstanding>>>,
    last_id: u64,
    latency: Span,
}

/// A duration, or none, in half the room, for as many connections as there are: in nanoseconds. What would
/// take centuries is for ever, which is none.
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
    /// Pings every `interval` from `now` on; gives up when a pong takes longer than `timeout`, and sends no
    /// other ping before. `None` switches either off: without a timeout there is a ping every interval,
    /// whatever is answered.
    #[must_use]
    pub fn new(interval: Option<Duration>, timeout: Option<Duration>, now: Instant) -> Self {
        Self {
            interval: interval.into(),
            timeout: timeout.into(),
            next: interval.and_then(|interval| now.checked_add(interval)),
            outstanding: None,
            last_id: 0,
            latency: None.into(),
        }
    }

    fn outstanding(&self) -> &[Outstanding] {
        self.outstanding.as_ref().map_or(&[], |pings| pings)
    }

    /// What is due at `now`.
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
        let deadline = self.timeout.get().and_then(|timeout| {
            let ping = self.outstanding().iter().find(|ping| ping.own)?;
            ping.sent.checked_add(timeout)?.checked_add(ping.absent)
        });
        if deadline.is_some_and(|deadline| deadline <= now) {
            return Due::TimedOut;
        }
        // With a timeout one of our own at a time: the next interval starts when the last was sent, but waits
        // for its pong.
        let waits = self.timeout.get().is_some() && self.outstanding().iter().any(|ping| ping.own);
        match self.next {
            _ if waits => Due::Nothing(deadline),
            Some(next) if next <= now => Due::Ping,
            next => Due::Nothing(next),
        }
    }

    /// The ping that is due at `now` is left out: the next one is due an interval later.
    pub fn skip(&mut self, now: Instant) {
        self.next = self.interval.get().and_then(|interval| now.checked_add(interval));
    }

    /// A ping was handed to the encoder; `own`: because [`Self::poll`] asked for it. The answer is its
    /// number.
    pub fn handle_ping_sent(&mut self, payload: &[u8], own: bool, now: Instant) -> u64 {
        self.last_id += 1;
        let outstanding = self.outstanding.get_or_insert_default();
        if own {
            // Without a timeout nobody waits for the pong of the one before, and a peer that answers none
            // must not make them pile up.
            outstanding.retain(|ping| !ping.own);
        }
        outstanding.push(Outstanding {
            id: self.last_id,
            payload: payload.into(),
            sent: now,
            own,
            resumed: false,
            absent: Duration::ZERO,
        });
        if own {
            self.skip(now);
        }
        self.last_id
    }

    /// A pong arrived. If it answers a ping, it answers all earlier ones too (RFC 6455 5.5.3): their numbers,
    /// oldest first, and the latency of the one that it names.
    pub fn handle_pong(&mut self, payload: &[u8], now: Instant) -> Option<(Vec<u64>, Duration)> {
        let index = self.outstanding().iter().position(|ping| *ping.payload == *payload)?;
        let outstanding = self.outstanding.as_mut()?;
        let latency = now.saturating_duration_since(outstanding.get(index)?.sent);
        self.latency = Some(latency).into();
        let answered = outstanding.drain(..=index).map(|ping| ping.id).collect();
        if outstanding.is_empty() {
            self.outstanding = None;
        }
        Some((answered, latency))
    }

    /// Whether a ping of our own is unanswered.
    #[must_use]
    #[inline]
    pub fn awaits(&self) -> bool {
        self.outstanding.is_some() && self.outstanding().iter().any(|ping| ping.own)
    }

    /// Nobody has read for this long: the pong may lie behind what the application has yet to work off.
    pub fn postpone(&mut self, absent: Duration) {
        if let Some(ping) = self.outstanding.iter_mut().flat_map(|pings| pings.iter_mut()).find(|ping| ping.own) {
            ping.absent = ping.absent.saturating_add(absent);
        }
    }

    /// The read after [`Self::postpone`] brought nothing: no pong was waiting, and that time counts after all.
    pub fn recall(&mut self, absent: Duration) {
        if let Some(ping) = self.outstanding.iter_mut().flat_map(|pings| pings.iter_mut()).find(|ping| ping.own) {
            ping.absent = ping.absent.saturating_sub(absent);
        }
    }

    /// Something is there to be read, the pong perhaps, so the deadline starts again at `now`. Once per ping; false: it
    /// did so before.
    pub fn handle_resumed(&mut self, now: Instant) -> bool {
        match self.outstanding.iter_mut().flat_map(|pings| pings.iter_mut()).find(|ping| ping.own) {
            Some(ping) if !ping.resumed => {
                ping.resumed = true;
                (ping.sent, ping.absent) = (now, Duration::ZERO);
                true
            }
            _ => false,
        }
    }

    /// The deadline for the pong starts again at `now`, as often as the caller says: nothing was read
    /// meanwhile.
    pub fn restart(&mut self, now: Instant) {
        if let Some(ping) = self.outstanding.iter_mut().flat_map(|pings| pings.iter_mut()).find(|ping| ping.own) {
            (ping.sent, ping.absent) = (now, Duration::ZERO);
        }
    }

    /// When the next ping of our own is due, if the last one is answered by then.
    #[must_use]
    pub fn next_ping(&self) -> Option<Instant> {
        self.next
    }

    /// How long a peer may be silent at most before it is given up; `None`: for ever.
    #[must_use]
    pub fn patience(&self) -> Option<Duration> {
        self.interval.get()?.checked_add(self.timeout.get()?)
    }

    /// Whether an unanswered ping with this payload is on its way: a second one could not be told apart.
    #[must_use]
    pub fn is_outstanding(&self, payload: &[u8]) -> bool {
        self.outstanding().iter().any(|ping| *ping.payload == *payload)
    }

    /// The payload of a ping, of those that `draw` gives, that can be told from those that are unanswered.
    #[must_use]
    pub fn draw(&self, mut draw: impl FnMut() -> [u8; 4]) -> [u8; 4] {
        loop {
            let payload = draw();
            if !self.is_outstanding(&payload) {
                return payload;
            }
        }
    }

    /// The latency that the last pong showed.
    #[must_use]
    pub fn latency(&self) -> Option<Duration> {
        self.latency.get()
    }

    /// The deadline for a pong, if pings are sent at all.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn pings_every_interval_and_times_out() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(Some(20 * S), Some(10 * S), start);
        assert_eq!(keepalive.poll(start), Due::Nothing(Some(start + 20 * S)));
        assert_eq!(keepalive.poll(start + 20 * S), Due::Ping);
        keepalive.handle_ping_sent(b"a", true, start + 20 * S);
        assert_eq!(keepalive.poll(start + 21 * S), Due::Nothing(Some(start + 30 * S)));
        assert_eq!(keepalive.poll(start + 30 * S), Due::TimedOut);
        assert_eq!(keepalive.handle_pong(b"a", start + 22 * S), Some((vec![1], 2 * S)));
        assert_eq!(keepalive.latency(), Some(2 * S));
        assert_eq!(keepalive.poll(start + 30 * S), Due::Nothing(Some(start + 40 * S)));
    }

    #[test]
    fn a_pong_answers_earlier_pings_and_ignores_unknown_ones() {
        let now = Instant::now();
        let mut keepalive = Keepalive::new(None, None, now);
        for payload in [b"1", b"2", b"3"] {
            keepalive.handle_ping_sent(payload, false, now);
        }
        assert_eq!(keepalive.handle_pong(b"x", now), None);
        assert_eq!(keepalive.handle_pong(b"2", now + S), Some((vec![1, 2], S)));
        assert!(keepalive.is_outstanding(b"3"));
        assert_eq!(keepalive.poll(now + 1000 * S), Due::Nothing(None));
    }

    #[test]
    fn what_is_drawn_is_unlike_what_is_unanswered() {
        let now = Instant::now();
        let mut keepalive = Keepalive::new(None, None, now);
        for payload in [b"1111", b"2222"] {
            keepalive.handle_ping_sent(payload, false, now);
        }
        let mut drawn = [b"2222", b"1111", b"2222", b"3333", b"4444"].into_iter();
        assert_eq!(keepalive.draw(|| *drawn.next().unwrap_or(b"none")), *b"3333");
        assert!(keepalive.handle_pong(b"2222", now).is_some());
        assert_eq!(keepalive.draw(|| *b"1111"), *b"1111", "it is answered, and may come again");
    }

    #[test]
    fn without_a_timeout_pings_go_on() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(Some(S), None, start);
        for turn in 1..100u32 {
            let now = start + turn * S;
            assert_eq!(keepalive.poll(now - S / 2), Due::Nothing(Some(now)));
            assert_eq!(keepalive.poll(now), Due::Ping);
            keepalive.handle_ping_sent(&turn.to_be_bytes(), true, now);
        }
        assert_eq!(keepalive.outstanding().len(), 1, "those that nobody answers are forgotten");
        let now = start + 100 * S;
        assert_eq!(keepalive.handle_pong(&99u32.to_be_bytes(), now), Some((vec![99], S)));
    }

    #[test]
    fn absence_counts_only_where_something_had_come() {
        let now = Instant::now();
        let mut keepalive = Keepalive::new(Some(S), Some(S), now);
        keepalive.handle_ping_sent(b"a", true, now);
        keepalive.postpone(5 * S);
        assert_eq!(keepalive.poll(now + 5 * S), Due::Nothing(Some(now + 6 * S)));
        keepalive.postpone(2 * S);
        keepalive.recall(2 * S);
        assert_eq!(keepalive.poll(now + 6 * S), Due::TimedOut);
        keepalive.restart(now + 7 * S);
        assert_eq!(keepalive.poll(now + 7 * S), Due::Nothing(Some(now + 8 * S)), "what was put off is over");
    }

    #[test]
    fn a_pause_restarts_the_deadline() {
        let now = Instant::now();
        let mut keepalive = Keepalive::new(Some(S), Some(S), now);
        keepalive.handle_ping_sent(b"a", true, now);
        assert!(keepalive.handle_resumed(now + 100 * S));
        assert!(!keepalive.handle_resumed(now + 200 * S), "once");
        assert_eq!(keepalive.poll(now + 100 * S), Due::Nothing(Some(now + 101 * S)));
    }
}
