//! Every connection sends as fast as its socket accepts, to a path that counts messages. Only messages confirmed by the
//! server count.
//!
//! The server answers each text message with the number of messages received before it. Such questions are sent
//! continually, so that the counts of single seconds are known, and finally when the window is over; the measurement
//! ends with the last answer. In rounds of a fixed number of messages, one question is sent at the end of each round.
//!
//! The number of unconfirmed messages is limited. Otherwise, a slow server with many connections would need minutes
//! after the window to read the system's buffers.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirespeed_driver::entropy;
use wirespeed_driver::protocol::{Config, Connection, Limits, MessageKind, Side};

use super::answer::Answer;
use super::client::{OpenConnection, Received, UNASKED};
use super::client_pool::ClientPool;
use super::content::Content;
use super::text;
use super::window::{Window, measure};

/// The largest size of frames that are prepared before the window, with masks, and sent repeatedly; also the amount
/// written to a socket at once, in bytes.
const BLOCK: usize = 64 * 1024;

/// The largest size of a frame header in bytes.
const HEADER: usize = 14;

/// The largest number of bytes queued for the socket of a connection.
const QUEUED: usize = 256 * 1024;

/// The number of unconfirmed bytes that is always allowed, for all connections of a thread together.
const AHEAD: usize = 8 << 20;

/// If answers arrive faster, more messages may be unconfirmed; if they take twice as long, fewer.
const PROMPT: Duration = Duration::from_millis(250);

/// The largest rate of questions per second, on all connections together.
const QUESTIONS: usize = 1000;

/// The minimum time between two questions of a connection.
const ASK: Duration = Duration::from_millis(10);

const REPORT: &[u8] = b"report";

pub(crate) fn run(pool: &mut ClientPool) -> Result<Answer, String> {
    let connections = pool.options.connections;
    pool.open_all()?;
    let turn = pool.options.messages.map(|messages| messages as u64);
    // A question follows each half of the unconfirmed messages, so each half is at least a block.
    let share = AHEAD / connections;
    let block = Block::new(&mut pool.content, turn, (share / 2).min(BLOCK))?;
    let least = ((share / block.size) as u64).max(block.messages * 2);
    let every = ASK.max(Duration::from_secs(1) * u32::try_from(connections).unwrap_or(u32::MAX) / QUESTIONS as u32);
    let now = Instant::now();
    let sinks = (0..connections).map(|_| Sink::new(least, now)).collect();
    let mut load = Load { block, sinks, least, every, turn, goal: 0 };
    let window = measure(pool, |pool, window| {
        let begun = Instant::now();
        load.begin_turn();
        load.send_until_end(pool, window)?;
        load.finish(pool, window)?;
        if turn.is_some() {
            window.answer.record(0, begun.elapsed());
        }
        Ok(())
    })?;
    Ok(window.finish(pool))
}

/// A block of encoded frames.
struct Block {
    frames: Vec<u8>,
    messages: u64,
    /// The size of a payload in bytes.
    size: usize,
    /// The sum of the numbers in its messages, modulo 2 to the 32.
    sum: u32,
}

impl Block {
    /// Encodes frames of at most `most` bytes, but at least one. The number of messages divides that of a round.
    fn new(content: &mut Content, turn: Option<u64>, most: usize) -> Result<Self, String> {
        let limits = Limits { message_size: None, fragment_size: None, fragments: None };
        let mut encoder = Connection::<Vec<u8>>::new(Config { side: Side::Client, limits, deflate: None });
        let (mut frames, mut messages, mut sum, kind) = (Vec::new(), 0, 0_u32, content.kind());
        let fitting = (most / (content.size() + HEADER)) as u64;
        let wanted = (1..=fitting).rev().find(|part| turn.is_none_or(|turn| turn % part == 0)).unwrap_or(1);
        while messages < wanted {
            let message = content.message(messages);
            encoder.send_message(kind, message, None, entropy::draw_key, &mut frames).map_err(text)?;
            #[allow(clippy::cast_possible_truncation)] // modulo
            let number = content.written(messages) as u32;
            sum = sum.wrapping_add(number);
            messages += 1;
        }
        Ok(Self { frames, messages, size: content.size(), sum })
    }

    /// Returns the sum of the numbers in this many messages, which are whole blocks.
    #[allow(clippy::cast_possible_truncation)] // modulo
    fn sum_of(&self, messages: u64) -> u32 {
        self.sum.wrapping_mul((messages / self.messages) as u32)
    }
}

/// The state of one connection.
struct Sink {
    /// The number of messages sent.
    sent: u64,
    /// For each unanswered question: the number of messages sent before it, and when it was asked.
    asked: VecDeque<(u64, Instant)>,
    confirmed: u64,
    /// The number of messages that may be unconfirmed.
    ahead: u64,
    /// When that number was changed.
    changed: Instant,
    /// When to ask next.
    ask: Instant,
    /// Whether its socket accepts more, and the server is not far behind.
    hungry: bool,
}

struct Load {
    block: Block,
    sinks: Vec<Sink>,
    /// The minimum number of messages of each connection that may be unconfirmed.
    least: u64,
    /// The interval of questions of each connection.
    every: Duration,
    /// The number of messages of each connection in a round; `None`: as many as possible.
    turn: Option<u64>,
    /// The number of messages of each connection at the end of the round.
    goal: u64,
}

impl Load {
    fn begin_turn(&mut self) {
        if let Some(turn) = self.turn {
            self.goal += turn;
            self.sinks.iter_mut().for_each(|sink| sink.hungry = true);
        }
    }

    /// Sends until the window or the round is over, and counts confirmed messages.
    fn send_until_end(&mut self, pool: &mut ClientPool, window: &mut Window) -> Result<(), String> {
        pool.expect();
        loop {
            let now = Instant::now();
            let end = self.turn.is_none().then_some(window.end);
            if end.map_or_else(|| self.sinks.iter().all(|sink| sink.sent == self.goal), |end| now >= end) {
                return Ok(());
            }
            // One turn of each connection that can send.
            for number in 0..self.sinks.len() {
                if self.sinks[number].hungry {
                    self.sinks[number].hungry = self.send(pool, number, now)?;
                }
            }
            let hungry = self.sinks.iter().any(|sink| sink.hungry);
            pool.wait(if hungry { Some(now) } else { end })?;
            self.receive(pool, window)?;
        }
    }

    /// Sends some blocks. Returns false if the socket or the server is behind.
    fn send(&mut self, pool: &mut ClientPool, number: usize, now: Instant) -> Result<bool, String> {
        let Self { block, sinks, every, turn, goal, .. } = self;
        let sink = &mut sinks[number];
        let mut connection = pool.connection(number, now)?;
        let more = |sink: &Sink| if turn.is_none() { sink.unconfirmed() < sink.ahead } else { sink.sent < *goal };
        let mut bytes = 0;
        while more(sink) && bytes < BLOCK && connection.sender.send_half().queued() < QUEUED {
            if connection.sender.send_half().deflate().is_some() {
                // Compression depends on earlier messages, so these frames cannot be prepared.
                for _ in 0..block.messages {
                    connection.send(now)?;
                    connection.exchange.due.clear(); // messages have no replies
                }
            } else {
                let payloads = block.messages * block.size as u64;
                connection
                    .sender
                    .send_half_mut()
                    .send_encoded(&block.frames, block.messages, payloads)
                    .map_err(text)?;
            }
            bytes += block.frames.len();
            sink.sent += block.messages;
            if turn.is_none() && (now >= sink.ask || sink.unasked() >= sink.ahead / 2) {
                sink.ask = now + *every;
                sink.ask(&mut connection)?;
            }
        }
        connection.flush();
        // In a round, each connection continues until all have sent their messages.
        Ok((turn.is_some() || more(sink)) && connection.sender.send_half().queued() == 0)
    }

    /// Handles the events of the last wait.
    fn receive(&mut self, pool: &mut ClientPool, window: &mut Window) -> Result<(), String> {
        let Self { block, sinks, least, .. } = self;
        pool.serve(&mut |number, connection, received| {
            let sink = &mut sinks[number];
            window.count(connection.now, sink.answer(block, received, connection.now, *least)?);
            Ok(())
        })?;
        for ready in &pool.ready {
            let room = pool.clients[ready.number].as_ref().is_some_and(|client| client.queued() < QUEUED);
            sinks[ready.number].hungry |= room;
        }
        Ok(())
    }

    /// Asks the final question on all connections, and waits for the answers.
    fn finish(&mut self, pool: &mut ClientPool, window: &mut Window) -> Result<(), String> {
        let now = Instant::now();
        for (number, sink) in self.sinks.iter_mut().enumerate() {
            let mut connection = pool.connection(number, now)?;
            sink.ask(&mut connection)?;
            connection.flush();
        }
        pool.expect();
        while self.sinks.iter().any(|sink| !sink.asked.is_empty()) {
            pool.wait(None).map_err(|error| {
                let silent = self.sinks.iter().filter(|sink| !sink.asked.is_empty()).count();
                format!("{silent} connections have no answer to `report`: {error}")
            })?;
            self.receive(pool, window)?;
        }
        Ok(())
    }
}

impl Sink {
    fn new(ahead: u64, now: Instant) -> Self {
        Self { sent: 0, asked: VecDeque::new(), confirmed: 0, ahead, changed: now, ask: now, hungry: true }
    }

    fn unconfirmed(&self) -> u64 {
        self.sent - self.confirmed
    }

    /// Returns the number of messages sent since the last question.
    fn unasked(&self) -> u64 {
        self.sent - self.asked.back().map_or(self.confirmed, |(sent, _)| *sent)
    }

    fn ask(&mut self, connection: &mut OpenConnection<'_>) -> Result<(), String> {
        connection.sender.send_half_mut().send_message(MessageKind::Text, REPORT, Some(false)).map_err(text)?;
        self.asked.push_back((self.sent, connection.now));
        Ok(())
    }

    /// Returns how many more messages an answer confirms. It must confirm all that were sent before its question.
    fn answer(&mut self, block: &Block, received: Received<'_>, now: Instant, least: u64) -> Result<u64, String> {
        let Received::Message(kind, bytes) = received else { return Err(UNASKED.into()) };
        let wrong = || {
            let begin = &bytes[..bytes.len().min(60)];
            format!("the server answered `report` with {:?}", String::from_utf8_lossy(begin))
        };
        let answer: Value = serde_json::from_slice(bytes).map_err(|_| wrong())?;
        let number = |name: &str| answer.get(name).and_then(Value::as_u64).ok_or_else(wrong);
        let messages = number("messages")?;
        let (sent, asked) = self.asked.pop_front().filter(|_| kind == MessageKind::Text).ok_or_else(wrong)?;
        if messages != sent {
            if self.asked.iter().any(|(later, _)| *later == messages) {
                return Err(format!(
                    "the server has not answered `report` after {sent} messages, but after {messages}"
                ));
            }
            return Err(format!("the server received {messages} of {sent} messages"));
        }
        // A server that decodes messages reports the sum of their numbers instead of bytes.
        if answer.get("sum").is_some() {
            let (sum, due) = (number("sum")?, u64::from(block.sum_of(sent)));
            if sum != due {
                return Err(format!("the numbers that the server decoded add up to {sum} where {due} was due"));
            }
        } else {
            let (arrived, due) = (number("bytes")?, sent * block.size as u64);
            if arrived != due {
                return Err(format!("the server received {arrived} of {due} bytes"));
            }
        }
        // An answer to a question before the last change does not show its effect.
        if asked >= self.changed {
            let took = now.saturating_duration_since(asked);
            let ahead = match self.unconfirmed() > self.ahead / 2 {
                true if took < PROMPT => self.ahead * 2,
                _ if took > PROMPT * 2 => (self.ahead / 2).max(least),
                _ => self.ahead,
            };
            if ahead != self.ahead {
                (self.ahead, self.changed) = (ahead, now);
            }
        }
        let more = messages - self.confirmed;
        self.confirmed = messages;
        Ok(more)
    }
}
