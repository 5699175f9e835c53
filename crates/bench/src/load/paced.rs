//! So many messages a second, at moments that are settled beforehand, whatever became of those before: an
//! open loop.
//!
//! A latency begins when a message was due and not when it was sent. So a server that stops for a while, or a
//! load generator that comes late, is not made better by the messages that were not sent meanwhile
//! (coordinated omission).

use std::time::Instant;

use super::answer::Answer;
use super::crew::{BEHIND, Crew};
use super::schedule::Schedule;
use super::window::Window;

pub(crate) fn run(crew: &mut Crew<'_>) -> Result<Answer, String> {
    let rate = crew.options.rate.ok_or("--rate is missing")?;
    crew.open_all()?;
    let start = Instant::now();
    let mut pacer = Pacer { schedule: Schedule::new(start, rate), rate, under_way: 0, touched: Vec::new() };
    let warm = start + crew.options.warmup;
    while Instant::now() < warm {
        pacer.step(crew, warm, |_, _| {})?;
    }
    let mut window = Window::begin(crew);
    let (begin, end) = (window.begin, window.end);
    while Instant::now() < end {
        pacer.step(crew, end, |due, now| {
            if due >= begin {
                window.latencies.record(now.saturating_duration_since(due));
                window.count(now, 1);
            }
        })?;
    }
    // What became due in the last moment.
    pacer.send(crew, end, end)?;
    let mut last = end;
    crew.expect();
    while pacer.under_way > 0 {
        let left = pacer.under_way;
        crew.wait(None).map_err(|error| format!("{left} messages have no reply: {error}"))?;
        pacer.receive(crew, |due, now| {
            if due >= begin {
                window.latencies.record(now.saturating_duration_since(due));
                window.count(now, 1);
                last = now;
            }
        })?;
    }
    Ok(Answer { offered: Some(rate), ..window.finish(crew, last) })
}

/// Who sends what is due.
struct Pacer {
    schedule: Schedule,
    rate: f64,
    under_way: u64,
    /// Connections with something to be written, in no order; some of them twice.
    touched: Vec<usize>,
}

impl Pacer {
    /// Sends what is due, then takes what comes until more is due; nothing that is due at `end` or after it.
    fn step(
        &mut self,
        crew: &mut Crew<'_>,
        end: Instant,
        on_reply: impl FnMut(Instant, Instant),
    ) -> Result<(), String> {
        self.send(crew, Instant::now(), end)?;
        crew.wait_quietly(Some(end.min(self.schedule.due())))?;
        self.receive(crew, on_reply)
    }

    /// Sends what is due at `now`, if that is before `end`.
    fn send(&mut self, crew: &mut Crew<'_>, now: Instant, end: Instant) -> Result<(), String> {
        if now.saturating_duration_since(self.schedule.due()) > BEHIND {
            let (rate, late) = (self.rate, BEHIND.as_secs());
            return Err(format!("the load generator cannot send {rate} messages a second: it is {late} s late"));
        }
        let clients = crew.clients.len() as u64;
        while self.schedule.due() < end
            && let Some((number, due)) = self.schedule.take(now)
        {
            let number = usize::try_from(number % clients).unwrap_or(0);
            let client = crew.clients[number].as_mut().ok_or("a connection is gone")?;
            client.line(now)?.send(&mut crew.content, due)?;
            self.under_way += 1;
            self.touched.push(number);
        }
        // Once for each connection, and not for each message.
        for number in self.touched.drain(..) {
            if let Some(client) = crew.clients[number].as_mut().filter(|client| client.queued() > 0) {
                client.line(now)?.flush();
            }
        }
        Ok(())
    }

    /// Takes what the last wait found.
    fn receive(&mut self, crew: &mut Crew<'_>, mut on_reply: impl FnMut(Instant, Instant)) -> Result<(), String> {
        crew.serve(&mut |_, line, content, kind, bytes| {
            let due = line.take(content, kind, bytes)?;
            self.under_way -= 1;
            on_reply(due, line.now);
            Ok(())
        })?;
        if crew.behind(Instant::now()) {
            return Err(format!("the server cannot answer {} messages a second", self.rate));
        }
        Ok(())
    }
}
