//! Two drivers send, receive and close in any order of steps, which the input determines. Messages arrive whole, in
//! order and before the close frame, and both ends close in time.

use std::time::{Duration, Instant};

use wirespeed_driver::ConnectionDriver;
use wirespeed_driver::buffer_pool::{self, CHECKED_OUT_MAX, READ_SIZE, WRITE_SIZE};
use wirespeed_driver::connection::{Progress, Reading};
use wirespeed_driver::endpoint::LargeSend;
use wirespeed_driver::tls::client::Version;
use wirespeed_protocol::{CloseCode, Event, MessageKind, SendError, State};

use crate::driver_pair::{Choices, early, open};
use crate::input::Input;
use crate::pipe::Pipe;
use crate::support::{Rng, owned};

type Message = (MessageKind, Vec<u8>);

/// A driver and its application.
struct End {
    driver: ConnectionDriver<Vec<u8>>,
    /// Messages that were queued completely.
    sent: Vec<Message>,
    received: Vec<Message>,
    /// A message that is queued in part, and the start of the rest.
    large: Option<(LargeSend, Message, usize)>,
    fragments: Option<Message>,
    pings: Vec<Vec<u8>>,
    pongs: Vec<Vec<u8>>,
    /// Whether bytes were read and not all events were polled.
    unpolled: bool,
}

struct World {
    ends: [End; 2],
    pipe: Pipe,
    now: Instant,
    /// Whether the stream was cut or a timeout has expired, so that messages may be lost.
    cut: bool,
    /// Whether the drivers send keepalive pings. A peer that answers one need not answer an earlier ping.
    keepalive: bool,
}

/// Runs the steps without TLS.
pub fn run(data: &[u8]) {
    World::run(data, false);
}

/// Runs the steps with TLS, whose records are split and joined anywhere.
pub fn run_tls(data: &[u8]) {
    World::run(data, true);
}

/// Runs the steps while so many read buffers are checked out that reads get small ones, which a TLS record can fill.
pub fn run_small_buffers(data: &[u8]) {
    let _checked_out: Vec<_> = (0..CHECKED_OUT_MAX / READ_SIZE).map(|_| buffer_pool::take_read()).collect();
    World::run(data, data.first().is_none_or(|choice| choice & 128 == 0));
}

impl World {
    /// The first bytes select the parameters of the opening handshake, the others the steps.
    fn run(data: &[u8], tls: bool) {
        let mut input = Input::new(data);
        let choice = input.byte();
        let version = if choice & 1 == 0 { Version::Tls13 } else { Version::Tls12 };
        let choices = Choices {
            tls: tls.then_some(version),
            deflate: choice & 2 != 0,
            keepalive: choice & 4 != 0,
            early: usize::from(choice >> 3 & 3),
        };
        let (mut rng, now) = (Rng::new(u64::from(input.byte())), Instant::now());
        let (drives, pipe) = open(&choices, now, &mut rng);
        let mut world = Self { ends: drives.map(End::new), pipe, now, cut: false, keepalive: choices.keepalive };
        world.ends[1].sent = (0..choices.early).map(|number| (MessageKind::Binary, early(number))).collect();
        for _ in 0..300 {
            if input.is_empty() {
                break;
            }
            world.step(&mut input);
            world.check();
        }
        world.finish(usize::from(choice >> 5 & 1));
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let step = input.byte();
        let (at, now) = (usize::from(step & 1), self.now);
        let end = &mut self.ends[at];
        match step >> 1 & 15 {
            0 | 1 => end.send(step, input.payload()),
            2 => end.send_large(step, input.number()),
            3 => drop(end.append(usize::from(input.number()))),
            4 => end.send_fragment(step, input.payload()),
            5 => end.ping(input.payload()),
            6 => drop(end.driver.flush()),
            7 => drop(end.read(step & 32 != 0)),
            8 => drop(end.poll(usize::from(input.below(4)))),
            9 => drop(end.poll(usize::MAX)),
            10..=12 => {
                let most = [1, 3, 50, 1000, 4000, 1 << 16][usize::from(input.below(6))];
                self.pipe.carry(at, most);
            }
            13 if step & 0xE0 == 0xE0 => {
                self.pipe.end(at);
                self.cut = true;
            }
            13 if step & 0xE0 == 0xC0 => self.pass(Duration::from_millis(u64::from(input.byte()) * 100)),
            13 if step & 0x80 != 0 => {
                let code = CloseCode(4000 + u16::from(input.byte()));
                let refused = end.driver.begin_close(Some(code), "bye", now).is_err();
                assert!(!refused || end.driver.send_half().is_mid_frame());
            }
            _ => drop(end.driver.advance(|| now)),
        }
    }

    /// Advances the time. If a timeout expires, messages may be lost.
    fn pass(&mut self, time: Duration) {
        self.now += time;
        let now = self.now;
        for end in &mut self.ends {
            self.cut |= end.driver.is_close_timeout_running() && end.driver.deadline(now).is_some_and(|due| due <= now);
            end.driver.handle_deadline(now, Reading::Going, 0);
            self.cut |= end.driver.send_half().failure().is_some();
        }
    }

    /// Checks the invariants.
    fn check(&self) {
        for (end, other) in [(&self.ends[0], &self.ends[1]), (&self.ends[1], &self.ends[0])] {
            let send_half = end.driver.send_half();
            assert!(other.sent.starts_with(&end.received), "sent messages arrive in order");
            if send_half.close_received().is_some() {
                assert_eq!(end.received.len(), other.sent.len(), "sent messages arrive before the close frame");
            }
            let mut pings = end.pings.iter();
            assert!(end.pongs.iter().all(|pong| pings.any(|ping| ping == pong)), "pongs answer pings, in order");
            assert!(self.cut || send_half.failure().is_none(), "{:?}", send_half.failure());
        }
    }

    /// Runs both ends until nothing changes any more, without advancing the time.
    fn run_until_idle(&mut self) {
        for _ in 0..100_000 {
            let mut moved = false;
            for at in 0..2 {
                moved |= self.ends[at].turn(self.now);
                moved |= self.pipe.carry(at, 1 << 16);
            }
            self.check();
            if !moved {
                return;
            }
        }
        panic!("the ends never become idle");
    }

    /// Runs to the end and checks the results. `closer` is the end that closes, unless one has closed already.
    fn finish(mut self, closer: usize) {
        self.run_until_idle();
        if !self.cut && self.ends.iter().all(|end| end.driver.send_half().state() == State::Open) {
            for (end, other) in [(&self.ends[0], &self.ends[1]), (&self.ends[1], &self.ends[0])] {
                assert_eq!(end.received.len(), other.sent.len(), "everything arrives");
                let answered = end.pongs.last() == end.pings.last();
                assert!(answered || self.keepalive, "the last ping is answered");
                assert_eq!(end.driver.send_half().queued(), 0);
            }
            self.ends[closer].driver.begin_close(Some(CloseCode::NORMAL_CLOSURE), "", self.now).unwrap();
            self.run_until_idle();
        }
        if self.cut {
            // The stream has ended at one end. Each end must still be over at its close deadline.
            let now = self.now;
            for end in &mut self.ends {
                end.driver.start_close_timeout(now);
                let deadline = end.driver.deadline(now);
                assert!(end.driver.is_over() || deadline.is_some());
                assert_eq!(end.driver.advance(|| deadline.unwrap_or(now)), Progress::Over);
            }
            return;
        }
        for end in &self.ends {
            assert!(end.driver.is_over(), "both ends close without a timeout");
            assert_eq!(end.driver.send_half().state(), State::Closed);
            // Except for a part of the peer's last TLS record, and pongs received after its close frame.
            let most = if end.pings.is_empty() { 64 } else { 1 << 15 };
            assert!(end.driver.endpoint().held_capacity() < most, "{}", end.driver.endpoint().held_capacity());
        }
        let [first, second] = self.ends.each_ref().map(|end| end.driver.send_half());
        assert_eq!((first.close_received(), first.close_sent()), (second.close_sent(), second.close_received()));
    }
}

impl End {
    fn new(driver: ConnectionDriver<Vec<u8>>) -> Self {
        Self {
            driver,
            sent: Vec::new(),
            received: Vec::new(),
            large: None,
            fragments: None,
            pings: Vec::new(),
            pongs: Vec::new(),
            unpolled: true, // bytes may have arrived with the opening handshake
        }
    }

    /// Returns whether a call succeeded. Checks that it fails only inside a message or after the close.
    fn allows(&self, result: Result<(), SendError>, in_message: bool) -> bool {
        let send_half = self.driver.send_half();
        let expected = if send_half.is_mid_frame() {
            Err(SendError::MessageOpen)
        } else if !send_half.state().can_send() {
            Err(SendError::NotOpen)
        } else if in_message {
            Err(SendError::MessageOpen)
        } else {
            Ok(())
        };
        assert_eq!(result.is_ok(), expected.is_ok(), "{result:?}");
        result.is_ok()
    }

    fn send(&mut self, step: u8, payload: Vec<u8>) {
        let (message, compress) = (message(step, payload), [None, Some(true), Some(false)][usize::from(step >> 6) % 3]);
        let result = self.driver.sender().send_message(message.0, &message.1, compress);
        if self.allows(result, self.fragments.is_some()) {
            self.sent.push(message);
        }
    }

    /// Begins a message that is queued in parts, or sends it at once if the step selects that.
    fn send_large(&mut self, step: u8, more: u16) {
        if self.sent.iter().filter(|(_, bytes)| bytes.len() > WRITE_SIZE).count() > 2 {
            return; // limits the run time
        }
        let payload: Vec<u8> = (0..WRITE_SIZE + 1 + usize::from(more)).map(|at| (at % 251) as u8).collect();
        if step & 64 != 0 {
            return self.send(step, payload);
        }
        let message = message(step, payload);
        let begun = self.driver.send_half_mut().begin_large(message.0, message.1.len());
        let refused = begun.as_ref().map(|_| ()).map_err(|error| *error);
        if let Ok(large) = begun {
            self.large = Some((large, message, 0));
        } else {
            self.allows(refused, self.fragments.is_some());
        }
    }

    /// Queues up to `most` more bytes of the large message. Returns whether there is one.
    fn append(&mut self, most: usize) -> bool {
        let Some((mut large, message, start)) = self.large.take() else { return false };
        let stop = message.1.len().min(start + most.max(1));
        let done = self.driver.send_half_mut().append_large(&mut large, &message.1[start..stop]);
        assert_eq!(done, stop == message.1.len());
        if !done {
            self.large = Some((large, message, stop));
        } else {
            self.sent.push(message);
        }
        true
    }

    fn send_fragment(&mut self, step: u8, payload: Vec<u8>) {
        let (kind, payload) = message(step, payload);
        let send_half = self.driver.send_half_mut();
        let Some((kind, mut whole)) = self.fragments.take() else {
            let result = send_half.send_first_fragment(kind, &payload, None);
            if self.allows(result, false) {
                self.fragments = Some((kind, payload));
            }
            return;
        };
        let (_, payload) = message(if kind == MessageKind::Text { 32 } else { 0 }, payload);
        let fin = step & 64 != 0;
        let result = send_half.send_fragment(&payload, fin);
        if !self.allows(result, false) {
            self.fragments = Some((kind, whole));
            return;
        }
        whole.extend(payload);
        if fin {
            self.sent.push((kind, whole));
        } else {
            self.fragments = Some((kind, whole));
        }
    }

    fn ping(&mut self, mut payload: Vec<u8>) {
        payload.truncate(120);
        payload.extend_from_slice(&(self.pings.len() as u32).to_le_bytes()); // all payloads differ
        if self.driver.send_half_mut().send_ping(&payload).is_ok() {
            self.pings.push(payload);
        }
    }

    /// Reads once, if all events were polled.
    fn read(&mut self, wanted: bool) -> bool {
        if self.unpolled || self.driver.send_half().is_eof() {
            return false;
        }
        self.unpolled = true;
        self.driver.read(wanted, usize::MAX)
    }

    /// Polls up to `most` events. Returns whether there were any.
    fn poll(&mut self, most: usize) -> bool {
        for taken in 0..most {
            match self.driver.poll_event() {
                Some(Event::Message { kind, payload }) => self.received.push((kind, owned(payload))),
                Some(Event::Pong(payload)) => {
                    let payload = payload.as_slice();
                    if payload.len() > 4 || self.pings.iter().any(|ping| ping == payload) {
                        self.pongs.push(payload.to_vec());
                    }
                }
                Some(Event::Fragment { .. }) => panic!("messages are delivered whole"),
                Some(_) => {}
                None => {
                    self.unpolled = false;
                    return taken > 0;
                }
            }
        }
        most > 0
    }

    /// Does everything that is possible at once. Returns whether anything changed.
    fn turn(&mut self, now: Instant) -> bool {
        if self.driver.is_over() {
            self.large = None;
            self.driver.send_half_mut().abandon_large();
            return self.poll(usize::MAX);
        }
        let written = self.driver.send_half().written();
        let mut moved = self.append(WRITE_SIZE);
        if self.fragments.is_some()
            && self.driver.send_half().state().can_send()
            && !self.driver.send_half().is_mid_frame()
        {
            self.send_fragment(64, Vec::new());
            moved = true;
        }
        moved |= self.poll(usize::MAX) | self.read(true);
        moved |= self.poll(usize::MAX);
        let progress = self.driver.flush_and_advance(|| now).1;
        moved || progress == Progress::Over || self.driver.send_half().written() != written
    }
}

/// Returns a message whose kind the step selects.
fn message(step: u8, mut payload: Vec<u8>) -> Message {
    if step & 32 == 0 {
        return (MessageKind::Binary, payload);
    }
    payload.iter_mut().for_each(|byte| *byte &= 127);
    (MessageKind::Text, payload)
}
