//! Open loops: messages or pings on a fixed schedule, independent of replies.
//!
//! A latency begins at the scheduled time, not when the message was sent. Therefore a pause of the server, or a delay
//! of the load generator, is included in the latencies of all messages scheduled meanwhile. This avoids coordinated
//! omission.

use std::time::Instant;

use super::answer::Answer;
use super::client::Received;
use super::client_pool::{BEHIND, ClientPool};
use super::schedule::Schedule;
use super::window::Window;

/// Sends messages on all connections in turn.
pub(crate) fn echo(pool: &mut ClientPool) -> Result<Answer, String> {
    pool.open_all()?;
    let rate = pool.options.rate.ok_or("--rate is missing")?;
    let warm = Window::warm_up(pool);
    Load::new(rate, false).run(pool, Schedule::new(warm.begin, rate), warm)
}

/// Starts all connections at once, and then pings each repeatedly during the window. No connection may be lost, and
/// every ping needs its pong. Pongs are counted. One connection in a hundred may need a second attempt to open, as in a
/// [storm](super::openings::storm).
pub(crate) fn pings(pool: &mut ClientPool) -> Result<Answer, String> {
    // Checks first that the server serves a connection.
    pool.open_first()?;
    pool.close_all()?;
    let wanted = pool.options.clients();
    pool.open_most(wanted, wanted / 100, |_, _| {})?;
    pool.open_all()?;
    #[allow(clippy::cast_precision_loss)] // connections
    let rate = pool.options.rate.unwrap_or(wanted as f64);
    let mut load = Load::new(rate, true);
    let warm = Window::warm_up(pool);
    if pool.options.busy {
        load.echoes = wanted;
        for number in 0..wanted {
            let mut connection = pool.connection(number, warm.begin)?;
            connection.send(warm.begin)?;
            connection.flush();
        }
    }
    // Nothing is scheduled in the warm-up, so that the storm of openings can pass.
    let answer = load.run(pool, Schedule::new(warm.end, rate), warm)?;
    let lost = wanted - pool.open_count();
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
    fn run(mut self, pool: &mut ClientPool, schedule: Schedule, mut warm: Window) -> Result<Answer, String> {
        self.send_until_end(pool, schedule, &mut warm)?;
        let mut window = Window::begin(pool);
        self.end = Some(window.end);
        self.send_until_end(pool, Schedule::new(window.begin, self.rate), &mut window)?;
        let late = window.end + BEHIND;
        while self.answered < self.sent || self.echoes > 0 {
            if Instant::now() >= late {
                return Err(self.unanswered());
            }
            pool.wait_quietly(Some(late))?;
            self.receive(pool, &mut window)?;
        }
        Ok(Answer { offered: Some(self.rate), ..window.finish(pool) })
    }

    /// Sends scheduled messages until the window is over, and handles replies meanwhile.
    fn send_until_end(
        &mut self,
        pool: &mut ClientPool,
        mut schedule: Schedule,
        window: &mut Window,
    ) -> Result<(), String> {
        let clients = pool.clients.len() as u64;
        loop {
            let now = Instant::now();
            schedule.check(now.min(window.end), self.things())?;
            while let Some((number, due)) = schedule.take(now, window.end) {
                let number = (number % clients) as usize;
                let mut connection = pool.connection(number, now)?;
                if self.pings {
                    connection.ping(due)?;
                } else {
                    connection.send(due)?;
                    self.touched.push(number);
                }
                self.sent += 1;
            }
            // Flush once for each connection, not for each message.
            for number in self.touched.drain(..) {
                if pool.clients[number].as_ref().is_some_and(|client| client.queued() > 0) {
                    pool.connection(number, now)?.flush();
                }
            }
            if now >= window.end {
                return Ok(());
            }
            pool.wait_quietly(Some(window.end.min(schedule.due())))?;
            self.receive(pool, window)?;
        }
    }

    /// Handles the events of the last wait.
    fn receive(&mut self, pool: &mut ClientPool, window: &mut Window) -> Result<(), String> {
        pool.serve(&mut |_, connection, received| {
            let due = match received {
                Received::Pong(due) => due,
                Received::Message(..) => connection.take(received)?,
            };
            if self.pings && matches!(received, Received::Message(..)) {
                if self.end.is_none_or(|end| connection.now < end) {
                    return connection.send(connection.now);
                }
                self.echoes -= 1;
                return Ok(());
            }
            self.answered += 1;
            if due >= window.begin {
                window.record(due, connection.now);
            }
            Ok(())
        })?;
        if pool.behind(Instant::now()) {
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
