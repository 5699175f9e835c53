//! Two endpoints over a simulated link, where bytes arrive late and in parts, in both directions at once. Time is
//! simulated too.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::collections::VecDeque;

use support::{Frame, Rng, Seen, connection_with, feed, params, sparse};
use wirespeed_protocol::deflate::Params;
use wirespeed_protocol::{CloseCode, CloseFrame, Connection, Fault, Limits, MessageKind, Side, State};

/// One direction of a link. It keeps the order of bytes, but not the boundaries of writes.
struct Link {
    latency: u64,
    /// Maximum number of bytes of a read. Reads return fewer at random.
    read: usize,
    /// Bytes in transit with the times when they arrive.
    flying: VecDeque<(u64, u8)>,
}

impl Link {
    fn write(&mut self, now: u64, bytes: &[u8], rng: &mut Rng) {
        // The jitter only delays bytes; later bytes never overtake earlier ones.
        let earliest = self.flying.back().map_or(0, |(time, _)| *time);
        let mut time = (now + self.latency).max(earliest);
        for byte in bytes {
            if rng.below(200) == 0 {
                time += rng.below(5) as u64;
            }
            self.flying.push_back((time, *byte));
        }
    }

    fn read(&mut self, now: u64, rng: &mut Rng) -> Vec<u8> {
        let len = 1 + rng.below(self.read);
        let arrived = self.flying.iter().take(len).take_while(|(time, _)| *time <= now).count();
        self.flying.drain(..arrived).map(|(_, byte)| byte).collect()
    }

    /// Returns the time when the next bytes arrive.
    fn next(&self) -> Option<u64> {
        self.flying.front().map(|(time, _)| *time)
    }
}

/// One endpoint: a connection and the events that its application has received.
struct End {
    connection: Connection,
    rng: Rng,
    seen: Vec<Seen>,
    out: Vec<u8>,
    echo: bool,
    /// The time of the unanswered ping, and the longest round trip so far.
    ping: Option<u64>,
    latency: u64,
}

impl End {
    fn new(side: Side, deflate: Option<Params>, seed: u64) -> Self {
        let connection = connection_with(side, Limits::default(), deflate);
        Self { connection, rng: Rng::new(seed), seen: Vec::new(), out: Vec::new(), echo: false, ping: None, latency: 0 }
    }

    fn send(&mut self, kind: MessageKind, payload: &[u8]) {
        let Self { connection, rng, out, .. } = self;
        connection.send_message(kind, payload, None, || rng.key(), out).unwrap();
    }

    fn ping(&mut self, now: u64) {
        let Self { connection, rng, out, .. } = self;
        connection.send_ping(&now.to_be_bytes(), || rng.key(), out).unwrap();
        self.ping = Some(now);
    }

    fn close(&mut self, code: u16) {
        let Self { connection, rng, out, .. } = self;
        connection.send_close(Some(CloseCode(code)), "done", || rng.key(), out).unwrap();
    }

    /// Processes the bytes of a read and handles the events as an application does.
    fn receive(&mut self, now: u64, bytes: &[u8]) {
        for event in feed(&mut self.connection, bytes) {
            let Self { connection, rng, out, .. } = self;
            match &event {
                Seen::Ping(payload) if connection.state() == State::Open => {
                    connection.send_pong(payload, || rng.key(), out).unwrap();
                }
                // Only pings with a time as payload are measured.
                Seen::Pong(payload) => {
                    if let Ok(time) = payload[..].try_into() {
                        let sent = u64::from_be_bytes(time);
                        assert_eq!(self.ping.take(), Some(sent));
                        self.latency = self.latency.max(now - sent);
                    }
                }
                Seen::Message(kind, payload) if self.echo && connection.state() == State::Open => {
                    connection.send_message(*kind, payload, None, || rng.key(), out).unwrap();
                }
                Seen::Close(_) => connection.send_close_reply(|| rng.key(), out),
                Seen::Fault(_) => connection.send_fault(|| rng.key(), out),
                _ => {}
            }
            self.seen.push(event);
        }
    }

    fn messages(&self) -> Vec<&[u8]> {
        let mut messages = Vec::new();
        for event in &self.seen {
            if let Seen::Message(_, payload) = event {
                messages.push(&payload[..]);
            }
        }
        messages
    }
}

struct Pair {
    now: u64,
    client: End,
    server: End,
    up: Link,
    down: Link,
    rng: Rng,
}

impl Pair {
    fn new(latency: u64, read: usize, deflate: Option<Params>, seed: u64) -> Self {
        let link = || Link { latency, read, flying: VecDeque::new() };
        Self {
            now: 0,
            client: End::new(Side::Client, deflate, seed + 1),
            server: End::new(Side::Server, deflate, seed + 2),
            up: link(),
            down: link(),
            rng: Rng::new(seed),
        }
    }

    /// Processes the next write or read. Returns false if nothing is left.
    fn step(&mut self) -> bool {
        let Self { now, client, server, up, down, rng } = self;
        // A write may be partial: the rest stays in the buffer.
        for (end, link) in [(&mut *client, &mut *up), (&mut *server, &mut *down)] {
            let len = rng.below(end.out.len() + 1).max(end.out.len().min(1));
            let bytes: Vec<u8> = end.out.drain(..len).collect();
            link.write(*now, &bytes, rng);
        }
        let waiting = !client.out.is_empty() || !server.out.is_empty();
        match up.next().into_iter().chain(down.next()).min() {
            Some(time) => *now = if waiting { *now } else { time.max(*now) },
            None if !waiting => return false,
            None => {}
        }
        let bytes = up.read(*now, rng);
        server.receive(*now, &bytes);
        let bytes = down.read(*now, rng);
        client.receive(*now, &bytes);
        true
    }

    fn run(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 2_000_000, "the two ends never come to rest");
        }
    }

    /// Ends the streams, once all earlier bytes have arrived.
    fn end(&mut self) {
        self.run();
        self.client.connection.receive_eof();
        self.server.connection.receive_eof();
    }
}

fn links() -> impl Iterator<Item = (u64, usize, Option<Params>)> {
    let deflates = [None, Some(params(15, false)), Some(Params { threshold: 40, ..params(9, true) })];
    deflates.into_iter().flat_map(|deflate| {
        [(0, 100_000), (1, 1), (30, 1500), (250, 17)].map(|(latency, read)| (latency, read, deflate))
    })
}

#[test]
fn echo_returns_every_message() {
    for (index, (latency, read, deflate)) in links().enumerate() {
        let mut pair = Pair::new(latency, read, deflate, index as u64 * 100);
        pair.server.echo = true;
        let mut rng = Rng::new(index as u64);
        let mut sent = Vec::new();
        for size in [0, 1, 125, 126, 1000, 5, 20_000 / sparse(40)] {
            let message = rng.prose(size);
            pair.client.send(MessageKind::Binary, &message);
            sent.push(message);
        }
        let text = "aé€😀".repeat(50);
        pair.client.send(MessageKind::Text, text.as_bytes());
        sent.push(text.into_bytes());
        pair.run();
        assert_eq!(pair.server.messages(), sent);
        assert_eq!(pair.client.messages(), sent);
        assert!(pair.now >= 2 * latency);
    }
}

/// Sends messages, fragments and pings in both directions at once, then closes while messages are in transit.
#[test]
fn both_directions_work_at_once() {
    for (index, (latency, read, deflate)) in links().enumerate() {
        let mut pair = Pair::new(latency, read, deflate, index as u64 * 100 + 7);
        let mut rng = Rng::new(index as u64 + 50);
        let mut sent = [Vec::new(), Vec::new()];
        for round in 0..40 / sparse(10) {
            for (end, sent) in [&mut pair.client, &mut pair.server].into_iter().zip(&mut sent) {
                let size = rng.below(3000 / sparse(10));
                let message = rng.prose(size);
                if round % 3 == 0 {
                    let (first, second) = message.split_at(message.len() / 3);
                    let End { connection, rng, out, .. } = end;
                    connection.send_first_fragment(MessageKind::Binary, first, None, || rng.key(), out).unwrap();
                    connection.send_ping(b"between", || rng.key(), out).unwrap();
                    connection.send_fragment(second, true, || rng.key(), out).unwrap();
                } else {
                    end.send(MessageKind::Binary, &message);
                }
                sent.push(message);
            }
            for _ in 0..rng.below(30) {
                pair.step();
            }
        }
        // The client begins to close. Messages that the server sent before it received the close frame still arrive.
        pair.client.close(1000);
        while pair.server.connection.state() == State::Open {
            assert!(pair.step());
        }
        pair.run();
        assert!(pair.server.messages() == sent[0], "{latency} {read}");
        assert!(pair.client.messages() == sent[1], "{latency} {read}");
        let close = CloseFrame { code: Some(CloseCode(1000)), reason: "done".to_owned() };
        for end in [&mut pair.client, &mut pair.server] {
            assert_eq!(end.connection.state(), State::Closed);
            assert_eq!(end.connection.close_received(), Some(&close));
            assert_eq!(end.connection.close_sent(), Some(&close));
            assert_eq!(end.connection.fault(), None);
        }
        pair.end();
        assert_eq!(pair.client.connection.state(), State::Closed);
    }
}

#[test]
fn pings_measure_the_link() {
    for (latency, read, deflate) in links() {
        let mut pair = Pair::new(latency, read, deflate, 3);
        for _ in 0..5 {
            let now = pair.now;
            pair.client.ping(now);
            pair.run();
            pair.server.ping(pair.now);
            pair.run();
        }
        for end in [&pair.client, &pair.server] {
            assert!(end.latency >= 2 * latency, "{} of {latency}", end.latency);
            assert!(end.latency <= 2 * latency + 50);
            assert_eq!(end.ping, None);
        }
    }
}

/// Both endpoints send a close frame before either receives one.
#[test]
fn simultaneous_closes_are_clean() {
    for (latency, read, deflate) in links() {
        let mut pair = Pair::new(latency, read, deflate, 4);
        pair.client.send(MessageKind::Text, b"last words");
        pair.server.send(MessageKind::Text, b"of both");
        pair.client.close(1000);
        pair.server.close(1001);
        pair.run();
        for (end, local, remote) in [(&pair.client, 1000, 1001), (&pair.server, 1001, 1000)] {
            assert_eq!(end.connection.state(), State::Closed);
            assert_eq!(end.connection.close_sent().unwrap().code, Some(CloseCode(local)));
            assert_eq!(end.connection.close_received().unwrap().code, Some(CloseCode(remote)));
            assert_eq!(end.messages().len(), 1);
        }
    }
}

/// The peer that caused a fault receives the close frame. Messages before the fault are delivered.
#[test]
fn peer_receives_the_close_frame_of_its_fault() {
    for (latency, read, deflate) in links() {
        let mut pair = Pair::new(latency, read, deflate, 5);
        pair.client.send(MessageKind::Text, b"good");
        pair.client.out.extend(Frame::text(b"\xff").masked([1, 2, 3, 4]).encode());
        pair.client.send(MessageKind::Text, b"too late");
        pair.run();
        assert_eq!(pair.server.seen, [Seen::text("good"), Seen::Fault(Fault::InvalidUtf8)]);
        assert_eq!(pair.server.connection.state(), State::Failed);
        let close = CloseFrame { code: Some(CloseCode::INVALID_DATA), reason: "invalid UTF-8".to_owned() };
        assert_eq!(pair.client.seen, [Seen::Close(close)]);
        // The client replies, as to any close frame; the server discards the reply.
        assert_eq!(pair.client.connection.state(), State::Closed);
    }
}

/// The stream ends while messages are in transit.
#[test]
fn broken_link_fails_both_endpoints() {
    for cut in (0..60).step_by(sparse(7)) {
        let mut pair = Pair::new(10, 1500, None, 6);
        pair.client.send(MessageKind::Text, b"first");
        pair.client.send(MessageKind::Binary, &[7; 40]);
        let bytes: Vec<u8> = pair.client.out.drain(..).take(cut).collect();
        pair.client.out = bytes;
        pair.run();
        pair.end();
        assert_eq!(pair.server.connection.state(), State::Failed);
        assert_eq!(pair.server.connection.fault(), None);
        let whole = [11, 11 + 46].iter().filter(|end| cut >= **end).count();
        assert_eq!(pair.server.messages().len(), whole, "{cut}");
    }
}
