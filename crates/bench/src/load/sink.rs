//! Every connection sends as fast as its socket takes it, to a path that counts; only what the server says it
//! has received is counted here.
//!
//! The server answers each text message with what has arrived before it. Such questions are asked all the
//! time, so that the rates of single seconds are known too, and last when the window is over: it ends with
//! the last answer. Or everybody has so many messages to send: then they are asked once, when all were sent.
//!
//! Nobody is much ahead of what the server has confirmed: what is in the system's buffers by then would have to
//! be worked off after the window, which a slow server with many connections would do for minutes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirespeed_driver::entropy;
use wirespeed_driver::protocol::{Config, Connection, Limits, MessageKind, Side};

use super::answer::Answer;
use super::client::{Came, Line, UNASKED};
use super::content::Content;
use super::crew::Crew;
use super::text;
use super::window::{Window, measure};

/// Bytes of frames that are made before the window, masks included, and sent again and again, at most; and what is handed
/// to a socket at once.
const BLOCK: usize = 64 * 1024;

/// The most bytes that a frame has before its payload.
const HEADER: usize = 14;

/// Bytes of a connection that wait for its socket.
const QUEUED: usize = 256 * 1024;

/// Bytes of messages, of all connections of a thread, that may be unconfirmed however slow the server is.
const AHEAD: usize = 8 << 20;

/// Who has an answer this soon may be further ahead; later than twice that, less far.
const PROMPT: Duration = Duration::from_millis(250);

/// Questions a second, of all connections together, at most: those that are asked for the rates of seconds.
const QUESTIONS: usize = 1000;

/// How long after a question a connection asks the next at the earliest.
const ASK: Duration = Duration::from_millis(10);

const REPORT: &[u8] = b"report";

pub(crate) fn run(crew: &mut Crew) -> Result<Answer, String> {
    let connections = crew.options.connections;
    crew.open_all()?;
    let turn = crew.options.messages.map(|messages| messages as u64);
    // A question is asked after each half of what may be unconfirmed, so each half is a block at least.
    let share = AHEAD / connections;
    let block = Block::new(&mut crew.content, turn, (share / 2).min(BLOCK))?;
    let least = ((share / block.size) as u64).max(block.messages * 2);
    let every = ASK.max(Duration::from_secs(1) * u32::try_from(connections).unwrap_or(u32::MAX) / QUESTIONS as u32);
    let now = Instant::now();
    let sinks = (0..connections).map(|_| Sink::new(least, now)).collect();
    let mut load = Load { block, sinks, least, every, turn, goal: 0 };
    let window = measure(crew, |crew, window| {
        let begun = Instant::now();
        load.begin_turn();
        load.send_until_end(crew, window)?;
        load.finish(crew, window)?;
        if turn.is_some() {
            window.answer.record(0, begun.elapsed());
        }
        Ok(())
    })?;
    Ok(window.finish(crew))
}

/// Frames, encoded.
struct Block {
    frames: Vec<u8>,
    messages: u64,
    /// Bytes of a payload.
    size: usize,
    /// Of the numbers in its messages, modulo 2 to the 32.
    sum: u32,
}

impl Block {
    /// As many as fit into so many bytes, one at least; of a turn, a part of which it has several.
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

    /// What the numbers in so many messages add up to: whole blocks.
    #[allow(clippy::cast_possible_truncation)] // modulo
    fn sum_of(&self, messages: u64) -> u32 {
        self.sum.wrapping_mul((messages / self.messages) as u32)
    }
}

/// One connection.
struct Sink {
    /// Messages.
    sent: u64,
    /// How many were sent before each question that was not answered yet, and when it was asked.
    asked: VecDeque<(u64, Instant)>,
    confirmed: u64,
    /// How many may be unconfirmed.
    ahead: u64,
    /// When that was changed.
    changed: Instant,
    /// When to ask next.
    ask: Instant,
    /// Whether its socket takes more, and the server is not far behind.
    hungry: bool,
}

struct Load {
    block: Block,
    sinks: Vec<Sink>,
    /// Messages of each that may be unconfirmed in any case.
    least: u64,
    /// How often each asks.
    every: Duration,
    /// Messages of each in a turn; none: as many as there is time for.
    turn: Option<u64>,
    /// How many each has sent when the turn is over.
    goal: u64,
}

impl Load {
    fn begin_turn(&mut self) {
        if let Some(turn) = self.turn {
            self.goal += turn;
            self.sinks.iter_mut().for_each(|sink| sink.hungry = true);
        }
    }

    /// Sends until the window, or the turn, is over, and counts what is confirmed.
    fn send_until_end(&mut self, crew: &mut Crew, window: &mut Window) -> Result<(), String> {
        crew.expect();
        loop {
            let now = Instant::now();
            let end = self.turn.is_none().then_some(window.end);
            if end.map_or_else(|| self.sinks.iter().all(|sink| sink.sent == self.goal), |end| now >= end) {
                return Ok(());
            }
            // One turn of everybody who can send.
            for number in 0..self.sinks.len() {
                if self.sinks[number].hungry {
                    self.sinks[number].hungry = self.send(crew, number, now)?;
                }
            }
            let hungry = self.sinks.iter().any(|sink| sink.hungry);
            crew.wait(if hungry { Some(now) } else { end })?;
            self.receive(crew, window)?;
        }
    }

    /// Sends some blocks; false: no more now, as its socket or the server is behind.
    fn send(&mut self, crew: &mut Crew, number: usize, now: Instant) -> Result<bool, String> {
        let Self { block, sinks, every, turn, goal, .. } = self;
        let sink = &mut sinks[number];
        let mut line = crew.line(number, now)?;
        let more = |sink: &Sink| if turn.is_none() { sink.unconfirmed() < sink.ahead } else { sink.sent < *goal };
        let mut bytes = 0;
        while more(sink) && bytes < BLOCK && line.sender.send_half.queued() < QUEUED {
            if line.sender.send_half.deflate().is_some() {
                // Compressed with what came before in mind, so not to be made beforehand.
                for _ in 0..block.messages {
                    line.send(now)?;
                    line.exchange.due.clear(); // no message has a reply
                }
            } else {
                let payloads = block.messages * block.size as u64;
                line.sender.send_half.send_encoded(&block.frames, block.messages, payloads).map_err(text)?;
            }
            bytes += block.frames.len();
            sink.sent += block.messages;
            if turn.is_none() && (now >= sink.ask || sink.unasked() >= sink.ahead / 2) {
                sink.ask = now + *every;
                sink.ask(&mut line)?;
            }
        }
        line.flush();
        // Of a turn everybody goes on until all have sent theirs.
        Ok((turn.is_some() || more(sink)) && line.sender.send_half.queued() == 0)
    }

    /// Takes what comes.
    fn receive(&mut self, crew: &mut Crew, window: &mut Window) -> Result<(), String> {
        let Self { block, sinks, least, .. } = self;
        crew.serve(&mut |number, line, came| {
            let sink = &mut sinks[number];
            window.count(line.now, sink.answer(block, came, line.now, *least)?);
            Ok(())
        })?;
        for ready in &crew.ready {
            let room = crew.clients[ready.number].as_ref().is_some_and(|client| client.queued() < QUEUED);
            sinks[ready.number].hungry |= room;
        }
        Ok(())
    }

    /// Asks everybody for what has arrived, and waits for the answers.
    fn finish(&mut self, crew: &mut Crew, window: &mut Window) -> Result<(), String> {
        let now = Instant::now();
        for (number, sink) in self.sinks.iter_mut().enumerate() {
            let mut line = crew.line(number, now)?;
            sink.ask(&mut line)?;
            line.flush();
        }
        crew.expect();
        while self.sinks.iter().any(|sink| !sink.asked.is_empty()) {
            crew.wait(None).map_err(|error| {
                let silent = self.sinks.iter().filter(|sink| !sink.asked.is_empty()).count();
                format!("{silent} connections have no answer to `report`: {error}")
            })?;
            self.receive(crew, window)?;
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

    /// How many were sent since the last question.
    fn unasked(&self) -> u64 {
        self.sent - self.asked.back().map_or(self.confirmed, |(sent, _)| *sent)
    }

    fn ask(&mut self, line: &mut Line<'_>) -> Result<(), String> {
        line.sender.send_half.send_message(MessageKind::Text, REPORT, Some(false)).map_err(text)?;
        self.asked.push_back((self.sent, line.now));
        Ok(())
    }

    /// How many more messages an answer confirms: all that were sent before the question, or it is an error.
    fn answer(&mut self, block: &Block, came: Came<'_>, now: Instant, least: u64) -> Result<u64, String> {
        let Came::Message(kind, bytes) = came else { return Err(UNASKED.into()) };
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
        // Whoever has decoded the messages has no bytes, but what was in them.
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
        // What was asked before a change says nothing of it.
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
