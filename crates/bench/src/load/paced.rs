//! Open loops: messages or pings on a fixed schedule, independent of replies.
//!
//! A latency begins at the scheduled time, not when the message was sent. Therefore a pause of the server, or a delay
//! of the load generator, is included in the latencies of all messages scheduled meanwhile. This avoids coordinated
//! omission.

use std::time::Instant;

use super::answer::Answer;
use super::client::Came;
use super::crew::{BEHIND, Crew};
use super::schedule::Schedule;
use super::window::Window;

/// Sends messages on all connections in turn.
pub(crate) fn echo(crew: &mut Crew) -> Result<Answer, String> {
    crew.open_all()?;
    let rate = crew.options.rate.ok_or("--rate is missing")?;
    let warm = Window::warm_up(crew);
    Load::new(rate, false).run(crew, Schedule::new(warm.begin, rate), warm)
}

/// Starts all connections at once, and then pings each repeatedly during the window. No connection may be lost, and
/// every ping needs its pong. Pongs are counted. One connection in a hundred may need a second attempt to open, as in a
/// [storm](super::openings::storm).
pub(crate) fn pings(crew: &mut Crew) -> Result<Answer, String> {
    // Checks first that the server serves a connection.
    crew.open_first()?;
    crew.close_all()?;
    let wanted = crew.options.clients();
    crew.open_most(wanted, wanted / 100, |_, _| {})?;
    crew.open_all()?;
    #[allow(clippy::cast_precision_loss)] // connections
    let rate = crew.options.rate.unwrap_or(wanted as f64);
    let mut load = Load::new(rate, true);
    let warm = Window::warm_up(crew);
    if crew.options.busy {
        load.echoes = wanted;
        for number in 0..wanted {
            let mut line = crew.line(number, warm.begin)?;
            line.send(warm.begin)?;
            line.flush();
        }
    }
    // Nothing is scheduled in the warm-up, so that the storm of openings can pass.
    let answer = load.run(crew, Schedule::new(warm.end, rate), warm)?;
    let lost = wanted - crew.open_count();
    if lost > 0 { Err(format!("{lost} of {wanted} connections were lost")) } else { Ok(answer) }
}

/// The messages or pings of a run.
struct Load {
    /// The rate per second.
    rate: f64,
    /// Sends pings instead of messages.
    pings: bool,
    /// The numbers of messages or pings that were sent, and that were answered.
    sent: u64,
    answered: u64,
    /// The number of connections that echo while they are pinged, each with a message in flight.
    echoes: usize,
    /// When these connections stop sending, once that is known.
    end: Option<Instant>,
    /// Connections with queued bytes, unordered, possibly with duplicates.
    touched: Vec<usize>,
}

impl Load {
    fn new(rate: f64, pings: bool) -> Self {
        Self { rate, pings, sent: 0, answered: 0, echoes: 0, end: None, touched: Vec::new() }
    }

    /// Runs the warm-up with its schedule, and the window, and waits for all replies.
    fn run(mut self, crew: &mut Crew, schedule: Schedule, mut warm: Window) -> Result<Answer, String> {
        self.send_until_end(crew, schedule, &mut warm)?;
        let mut window = Window::begin(crew);
        self.end = Some(window.end);
        self.send_until_end(crew, Schedule::new(window.begin, self.rate), &mut window)?;
        let late = window.end + BEHIND;
        while self.answered < self.sent || self.echoes > 0 {
            if Instant::now() >= late {
                return Err(self.unanswered());
            }
            crew.wait_quietly(Some(late))?;
            self.receive(crew, &mut window)?;
        }
        Ok(Answer { offered: Some(self.rate), ..window.finish(crew) })
    }

    /// Sends scheduled messages until the window is over, and handles replies meanwhile.
    fn send_until_end(&mut self, crew: &mut Crew, mut schedule: Schedule, window: &mut Window) -> Result<(), String> {
        let clients = crew.clients.len() as u64;
        loop {
            let now = Instant::now();
            schedule.check(now.min(window.end), self.things())?;
            while let Some((number, due)) = schedule.take(now, window.end) {
                let number = (number % clients) as usize;
                let mut line = crew.line(number, now)?;
                if self.pings {
                    line.ping(due)?;
                } else {
                    line.send(due)?;
                    self.touched.push(number);
                }
                self.sent += 1;
            }
            // Flush once for each connection, not for each message.
            for number in self.touched.drain(..) {
                if crew.clients[number].as_ref().is_some_and(|client| client.queued() > 0) {
                    crew.line(number, now)?.flush();
                }
            }
            if now >= window.end {
                return Ok(());
            }
            crew.wait_quietly(Some(window.end.min(schedule.due())))?;
            self.receive(crew, window)?;
        }
    }

    /// Handles the events of the last wait.
    fn receive(&mut self, crew: &mut Crew, window: &mut Window) -> Result<(), String> {
        crew.serve(&mut |_, line, came| {
            let due = match came {
                Came::Pong(due) => due,
                Came::Message(..) => line.take(came)?,
            };
            if self.pings && matches!(came, Came::Message(..)) {
                if self.end.is_none_or(|end| line.now < end) {
                    return line.send(line.now);
                }
                self.echoes -= 1;
                return Ok(());
            }
            self.answered += 1;
            if due >= window.begin {
                window.record(due, line.now);
            }
            Ok(())
        })?;
        if crew.behind(Instant::now()) {
            return Err(format!("the server cannot answer {} {} a second", self.rate, self.things()));
        }
        Ok(())
    }

    fn things(&self) -> &'static str {
        if self.pings { "pings" } else { "messages" }
    }

    fn unanswered(&self) -> String {
        let (left, things) = (self.sent - self.answered, self.things());
        if left == 0 {
            return format!("{} messages of pinged connections have no reply", self.echoes);
        }
        format!("{left} of {} {things} were not answered", self.sent)
    }
}
