//! The inbox, compared with a simple model: messages are delivered once and in order, whole or in fragments, even if the
//! application puts some back or discards them.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // tests fail by panicking

mod support;

use support::endpoint;
use wirespeed_driver::connection::{Inbox, Item, Receiver, Unparsed, Wanted, Watermarks};
use wirespeed_driver::protocol::{CloseCode, Delivery, MessageKind, Payload, Side};
use wirespeed_driver::{Endpoint, buffer_pool};

/// Overhead of a queued message and of a received message, in bytes.
const ITEM_COST: usize = 64;
const RECEIVED_COST: usize = 32;

#[derive(Debug)]
struct Made {
    bytes: Vec<u8>,
    whole: bool,
}

#[derive(Default)]
struct Maker {
    pings: Vec<Vec<u8>>,
    /// Total size of the created messages, with their overhead.
    made: usize,
}

impl Receiver<Vec<u8>> for Maker {
    type Message = Made;
    type Error = ();

    fn message(&mut self, _: MessageKind, payload: Payload<'_, Vec<u8>>, whole: bool) -> Result<Made, ()> {
        let bytes = match payload {
            Payload::Slice(slice) => slice.to_vec(),
            Payload::Buffer(buffer) => buffer,
        };
        self.made += bytes.len() + RECEIVED_COST;
        Ok(Made { bytes, whole })
    }

    fn join(&mut self, _: MessageKind, fragments: Vec<Made>) -> Result<Made, ()> {
        assert!(fragments.len() > 1 && fragments.iter().all(|fragment| !fragment.whole));
        Ok(Made { bytes: fragments.into_iter().flat_map(|fragment| fragment.bytes).collect(), whole: true })
    }

    fn ping(&mut self, payload: &[u8]) {
        self.pings.push(payload.to_vec());
    }

    fn pong(&mut self, _: &[u8]) {}
}

/// Both ends and the bytes between them.
struct Ends {
    sender: Endpoint,
    receiver: Endpoint,
    inbox: Inbox<Made>,
    maker: Maker,
    wire: Vec<u8>,
    arrived: usize,
}

impl Ends {
    fn new(messages: Watermarks, bytes: Watermarks) -> Self {
        Self {
            sender: endpoint(Side::Server, None),
            receiver: endpoint(Side::Client, None),
            inbox: Inbox::new(messages, bytes),
            maker: Maker::default(),
            wire: Vec::new(),
            arrived: 0,
        }
    }

    /// Sends a message in fragments.
    fn send(&mut self, kind: MessageKind, fragments: &[&[u8]]) {
        let last = fragments.len() - 1;
        for (i, fragment) in fragments.iter().enumerate() {
            let send_half = self.sender.send_half_mut();
            match i {
                0 if last == 0 => send_half.send_message(kind, fragment, None).unwrap(),
                0 => send_half.send_first_fragment(kind, fragment, None).unwrap(),
                _ => send_half.send_fragment(fragment, i == last).unwrap(),
            }
        }
        self.wire.extend(self.sender.send_half_mut().take_output());
    }

    fn deliver(&mut self, most: usize) {
        let end = self.wire.len().min(self.arrived + most);
        for piece in self.wire[self.arrived..end].chunks(buffer_pool::READ_SIZE / 4) {
            self.receiver.receive_slice(piece);
        }
        self.arrived = end;
        self.inbox.set_unparsed(Unparsed::New);
    }

    fn deliver_all(&mut self) {
        self.deliver(usize::MAX / 2);
    }

    fn take(&mut self, delivery: Delivery) -> Option<Item<Made>> {
        self.inbox.take(&mut self.receiver, delivery, &mut self.maker).unwrap()
    }

    fn take_message(&mut self) -> Option<Vec<u8>> {
        self.take(Delivery::Messages).map(|item| item.message.bytes)
    }

    fn fill(&mut self, postpones: bool) -> bool {
        self.inbox.fill(&mut self.receiver, postpones, &mut self.maker).unwrap()
    }

    fn is_full(&self) -> bool {
        self.inbox.is_full(&self.receiver)
    }

    fn is_low(&self) -> bool {
        self.inbox.is_low(&self.receiver)
    }
}

/// A reproducible random generator, splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

struct Sent {
    kind: MessageKind,
    bytes: Vec<u8>,
    /// The position of its end on the wire.
    end: usize,
}

/// The position of the next byte to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position {
    message: usize,
    offset: usize,
    streaming: bool,
}

/// The model: the sent messages and the position of the next byte to take.
struct Model {
    ends: Ends,
    random: Random,
    messages: Watermarks,
    bytes: Watermarks,
    sent: Vec<Sent>,
    pings: Vec<Vec<u8>>,
    position: Position,
    /// Whether the application closes and discards messages for which the queue has no room.
    gives_up: bool,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let high = 1 + random.below(8);
        let messages = Watermarks::new(high, random.below(high + 1));
        let high = [0, 100, 1000, 5000, 1 << 30][random.below(5)];
        let bytes = Watermarks::new(high, random.below(high + 1));
        Self {
            ends: Ends::new(messages, bytes),
            random,
            messages,
            bytes,
            sent: Vec::new(),
            pings: Vec::new(),
            position: Position::default(),
            gives_up: false,
        }
    }

    fn send(&mut self) {
        if self.random.below(4) == 0 {
            let ping = self.pings.len().to_be_bytes();
            self.ends.sender.send_half_mut().send_ping(&ping).unwrap();
            self.pings.push(ping.to_vec());
        }
        let kind = [MessageKind::Text, MessageKind::Binary][self.random.below(2)];
        let count = 1 + self.random.below(4).saturating_sub(1);
        let mut fragments: Vec<Vec<u8>> = Vec::new();
        for _ in 0..count {
            let len = [0, 1, 10, 200, 3000][self.random.below(5)];
            fragments.push((0..len).map(|_| b'0' + self.random.below(64) as u8).collect());
        }
        let slices: Vec<&[u8]> = fragments.iter().map(Vec::as_slice).collect();
        self.ends.send(kind, &slices);
        self.sent.push(Sent { kind, bytes: fragments.concat(), end: self.ends.wire.len() });
    }

    fn take(&mut self, delivery: Delivery) -> Option<Item<Made>> {
        let Position { message, offset, streaming } = self.position;
        let Some(item) = self.ends.take(delivery) else {
            let is_there = self.sent.get(message).is_some_and(|sent| sent.end <= self.ends.arrived);
            assert!(self.gives_up || !is_there, "message {message} has arrived");
            return None;
        };
        let sent = &self.sent[message];
        assert!(sent.bytes[offset..].starts_with(&item.message.bytes), "message {message} from byte {offset}");
        assert_eq!((item.kind, item.len), (sent.kind, item.message.bytes.len()));
        assert_eq!(item.message.whole, item.fin && !streaming);
        if delivery == Delivery::Messages {
            assert!(item.message.whole);
        }
        self.position = if item.fin {
            assert_eq!(offset + item.len, sent.bytes.len());
            Position { message: message + 1, ..Position::default() }
        } else {
            Position { message, offset: offset + item.len, streaming: true }
        };
        Some(item)
    }

    /// Returns the number of payload bytes before the position, and of all messages that have arrived.
    fn totals(&self) -> (usize, usize) {
        let sum = |sent: &[Sent]| sent.iter().map(|sent| sent.bytes.len()).sum::<usize>();
        let arrived = self.sent.partition_point(|sent| sent.end <= self.ends.arrived);
        (sum(&self.sent[..self.position.message]) + self.position.offset, sum(&self.sent[..arrived]))
    }

    fn fill(&mut self) {
        let postpones = self.random.below(2) == 0;
        if self.ends.inbox.unparsed() == Unparsed::Postponed {
            self.ends.inbox.set_unparsed(Unparsed::Due);
        }
        let stays = self.ends.is_full() && !self.gives_up && !self.ends.inbox.is_polled();
        let (new, len) = (self.ends.inbox.unparsed() == Unparsed::New, self.ends.inbox.len());
        let postponed = self.ends.fill(postpones);
        if stays {
            assert_eq!(self.ends.inbox.len(), len);
        }
        if postponed {
            assert!(postpones && new && !self.gives_up && self.ends.receiver.has_input());
            assert_eq!(self.ends.inbox.unparsed(), Unparsed::Postponed);
        } else if !self.ends.is_full() || self.gives_up {
            assert_eq!(self.ends.receiver.unparsed(), 0);
            let (taken, arrived) = self.totals();
            assert!(self.gives_up || taken + self.ends.inbox.payload_bytes() >= arrived);
        }
    }

    fn take_many_and_put_some_back(&mut self) {
        let mut items = Vec::new();
        for _ in 0..self.random.below(5) {
            let before = self.position;
            let Some(item) = self.take(Delivery::Messages) else { break };
            items.push((before, item));
        }
        let kept = self.random.below(items.len() + 1);
        if let Some((before, _)) = items.get(kept) {
            self.position = *before;
        }
        self.ends.inbox.put_back(items.into_iter().skip(kept).map(|(_, item)| item));
    }

    fn step(&mut self) {
        let streaming = self.position.streaming;
        match self.random.below(10) {
            0 | 1 => self.send(),
            2 | 3 if !self.ends.is_full() || self.random.below(10) == 0 => {
                let most = [1, 5, 500, 10_000][self.random.below(4)];
                self.ends.deliver(most);
            }
            4 | 5 => self.fill(),
            6 if !streaming => drop(self.take(Delivery::Messages)),
            7 => {
                let (before, polls) = (self.position, self.random.below(4) == 0);
                match self.take(Delivery::Fragments) {
                    Some(item) if self.random.below(3) == 0 => {
                        self.ends.inbox.put_back_fragment(item, streaming);
                        self.position = before;
                    }
                    item => self.ends.inbox.set_polled(polls && item.is_none()),
                }
            }
            8 if !streaming => self.take_many_and_put_some_back(),
            9 if streaming => {
                self.ends.inbox.discard_message();
                self.position = Position { message: self.position.message + 1, ..Position::default() };
            }
            _ => {}
        }
        self.check();
    }

    fn check(&mut self) {
        let inbox = &mut self.ends.inbox;
        let (len, unparsed) = (inbox.len(), self.ends.receiver.unparsed());
        let bytes = inbox.payload_bytes() + len * ITEM_COST;
        assert_eq!(inbox.is_empty(), len == 0);
        assert_eq!(inbox.is_streaming(), self.position.streaming);
        assert_eq!(inbox.received(), self.ends.maker.made);
        match self.bytes.high {
            0 => assert_eq!(inbox.room(), buffer_pool::READ_SIZE),
            high => assert_eq!(inbox.room(), high.saturating_sub(bytes)),
        }
        let above = len >= self.messages.high && bytes + unparsed >= self.bytes.high;
        assert_eq!(self.ends.is_full(), above);
        assert_eq!(self.ends.is_low(), len <= self.messages.low || bytes + unparsed <= self.bytes.low);
    }
}

#[test]
fn random_calls_deliver_every_message_once() {
    for seed in 0..400 {
        let mut model = Model::new(seed);
        let closes = 100 + model.random.below(200);
        for step in 0..300 {
            if step == closes {
                model.gives_up = seed % 3 == 0;
                model.ends.inbox.limit_wanted(!model.gives_up);
            }
            model.step();
        }
        model.ends.deliver_all();
        let delivery = |model: &Model| if model.position.streaming { Delivery::Fragments } else { Delivery::Messages };
        while model.take(delivery(&model)).is_some() {}
        assert_eq!(model.ends.maker.pings, model.pings, "every ping, in order");
        if !model.gives_up {
            assert_eq!(model.position, Position { message: model.sent.len(), ..Position::default() });
            assert!(model.ends.inbox.is_empty());
            assert_eq!(model.ends.inbox.payload_bytes(), 0);
            model.check();
        }
    }
}

#[test]
fn truncated_message_does_not_continue_with_the_next() {
    // The application closes, so the end of a message is discarded while its beginning is queued. Another task
    // receives.
    let mut ends = Ends::new(Watermarks::at(2), Watermarks::at(0));
    ends.inbox.limit_wanted(false);
    ends.send(MessageKind::Text, &[b"first"]);
    ends.send(MessageKind::Text, &[b"second, ", b"its end"]);
    ends.deliver_all();
    ends.fill(false);
    assert_eq!(ends.inbox.len(), 2);
    assert_eq!(ends.take_message().unwrap(), b"first");
    ends.send(MessageKind::Text, &[b"third"]);
    ends.deliver_all();
    ends.fill(false);
    assert_eq!(ends.take_message(), None);
    // With fragments too, the next fragment is never the end of the truncated message.
    assert_eq!(ends.take(Delivery::Fragments).unwrap().message.bytes, b"second, ");
    ends.send(MessageKind::Text, &[b"fourth"]);
    ends.deliver_all();
    ends.fill(false);
    assert!(ends.take(Delivery::Fragments).is_none());
}

#[test]
fn closing_without_a_receiver_keeps_only_a_full_queue() {
    for (receives, kept) in [(false, 3), (true, 3)] {
        let mut ends = Ends::new(Watermarks::at(3), Watermarks::at(0));
        ends.inbox.limit_wanted(receives);
        assert_eq!(ends.inbox.wanted(), if receives { Wanted::WhileClosing } else { Wanted::WithRoom });
        for _ in 0..5 {
            ends.send(MessageKind::Binary, &[b"x"]);
        }
        ends.deliver_all();
        assert!(!ends.fill(true) || receives);
        ends.inbox.set_unparsed(Unparsed::Due);
        ends.fill(true);
        assert_eq!(ends.inbox.len(), kept);
        assert_eq!(ends.receiver.has_input(), receives, "discarded messages are parsed too");
        let more = std::iter::from_fn(|| ends.take_message()).count();
        assert_eq!(more, if receives { 5 } else { 3 });
    }
    // The inbox does not return to a less strict limit.
    let mut inbox: Inbox<Made> = Inbox::new(Watermarks::at(1), Watermarks::at(1));
    assert_eq!(inbox.wanted(), Wanted::All);
    for (receives, wanted) in [(true, Wanted::WhileClosing), (false, Wanted::WithRoom), (true, Wanted::WithRoom)] {
        inbox.limit_wanted(receives);
        assert_eq!(inbox.wanted(), wanted);
    }
}

#[test]
fn parsing_is_postponed_once() {
    let mut ends = Ends::new(Watermarks::at(16), Watermarks::at(1 << 20));
    assert!(!ends.inbox.postpone(&ends.receiver), "there is nothing to postpone");
    for text in [&b"one"[..], b"two", b"three"] {
        ends.send(MessageKind::Text, &[text]);
    }
    ends.deliver_all();
    assert!(!ends.is_full());
    assert!(ends.fill(true));
    assert_eq!((ends.inbox.len(), ends.inbox.unparsed()), (1, Unparsed::Postponed));
    ends.inbox.set_unparsed(Unparsed::Due);
    assert!(!ends.inbox.postpone(&ends.receiver));
    assert!(!ends.fill(true));
    assert_eq!((ends.inbox.len(), ends.inbox.unparsed()), (3, Unparsed::Due));
}

#[test]
fn postponed_bytes_can_fill_the_inbox() {
    let mut ends = Ends::new(Watermarks::at(1000), Watermarks::at(1000));
    let message = vec![b'x'; buffer_pool::READ_SIZE / 2 - 10];
    for _ in 0..3 {
        ends.send(MessageKind::Binary, &[&message]);
    }
    ends.deliver(buffer_pool::READ_SIZE - 1);
    assert!(ends.inbox.postpone(&ends.receiver));
    assert!(!ends.is_full() && ends.is_low());
    ends.receiver.receive_slice(&ends.wire[ends.arrived..=ends.arrived]);
    ends.arrived += 1;
    assert!(ends.is_full() && !ends.is_low(), "even with few queued messages");
    ends.inbox.set_unparsed(Unparsed::Due);
    assert!(!ends.is_full() && ends.is_low());
    ends.deliver_all();
    while ends.take_message().is_some() {}
    assert_eq!(ends.arrived, ends.wire.len());
}

#[test]
fn postponed_bytes_do_not_count_without_a_byte_watermark() {
    let mut ends = Ends::new(Watermarks::at(1000), Watermarks::at(0));
    ends.send(MessageKind::Binary, &[&vec![b'x'; 2 * buffer_pool::READ_SIZE]]);
    ends.deliver_all();
    assert!(ends.inbox.postpone(&ends.receiver));
    assert!(!ends.is_full() && ends.is_low());
}

#[test]
fn polled_inbox_parses_on_although_its_queue_is_full() {
    let mut ends = Ends::new(Watermarks::at(1), Watermarks::at(0));
    ends.send(MessageKind::Text, &[b"be", b"ginning", b" and end"]);
    ends.send(MessageKind::Text, &[b"next"]);
    ends.deliver_all();
    ends.fill(false);
    assert_eq!((ends.inbox.len(), ends.inbox.is_polled()), (1, false));
    ends.inbox.set_polled(true);
    ends.fill(false);
    assert_eq!((ends.inbox.len(), ends.inbox.is_polled()), (3, false), "up to the end of the message");
    assert_eq!(ends.take_message().unwrap(), b"beginning and end");
    // A message that is put back can be polled too.
    let item = ends.take(Delivery::Messages).unwrap();
    ends.inbox.set_polled(true);
    ends.inbox.put_back(std::iter::once(item));
    assert!(!ends.inbox.is_polled());
    let beginning = Item { fin: false, ..ends.take(Delivery::Messages).unwrap() };
    ends.inbox.set_polled(true);
    ends.inbox.put_back_fragment(beginning, false);
    assert!(ends.inbox.is_polled());
    ends.inbox.set_polled(false);
    assert!(!ends.inbox.is_polled());
}

#[test]
fn one_message_always_fits() {
    let mut ends = Ends::new(Watermarks::at(0), Watermarks::at(0));
    assert!(!ends.is_full());
    for _ in 0..2 {
        ends.send(MessageKind::Text, &[b"x"]);
    }
    ends.deliver_all();
    ends.fill(false);
    assert!(ends.is_full());
    assert_eq!(ends.inbox.len(), 1);
}

#[test]
fn nothing_is_delivered_after_a_close_frame() {
    let mut ends = Ends::new(Watermarks::at(16), Watermarks::at(1 << 20));
    ends.send(MessageKind::Text, &[b"last"]);
    ends.sender.send_half_mut().send_close(Some(CloseCode::NORMAL_CLOSURE), "").unwrap();
    ends.wire.extend(ends.sender.send_half_mut().take_output());
    ends.wire.extend_from_slice(b"\x81\x01x");
    ends.deliver_all();
    assert_eq!(ends.take_message().unwrap(), b"last");
    assert_eq!(ends.take_message(), None);
    assert!(!ends.receiver.has_input());
}

#[test]
fn messages_to_a_listener_count_as_received() {
    let mut inbox: Inbox<Made> = Inbox::new(Watermarks::at(1), Watermarks::at(1));
    inbox.count(5);
    inbox.count(6);
    assert_eq!(inbox.received(), 11);
    inbox.reset_received();
    inbox.count(1);
    assert_eq!(inbox.received(), 1);
}
