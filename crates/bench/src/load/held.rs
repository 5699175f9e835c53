//! Workloads that hold connections: all connections have to survive.

use std::time::Instant;

use super::answer::{Answer, Part};
use super::client_pool::{ClientPool, STDIN, unasked};
use super::schedule::Schedule;
use super::window::Window;

/// The default rate, in messages per second and connection.
const RATE: f64 = 0.01;

/// Answers pings of the server, sends a message on some connections now and then, and on all of them at the end.
pub(crate) fn hold(pool: &mut ClientPool) -> Result<Answer, String> {
    pool.open_all()?;
    pool.echo_all(|_, _| {})?;
    let wanted = pool.clients.len();
    #[allow(clippy::cast_precision_loss)] // connections
    let rate = pool.options.rate.unwrap_or((wanted as f64 * RATE).max(1.0));
    let mut window = Window::begin(pool);
    let mut schedule = Schedule::new(window.begin, rate);
    let mut now = window.begin;
    while now < window.end {
        while let Some((number, due)) = schedule.take(now, window.end) {
            let Some(client) = &mut pool.clients[(number % wanted as u64) as usize] else { continue };
            // A connection without a reply to its last message is skipped; it is checked at the end.
            if client.can_send() && client.exchange.due.is_empty() {
                let mut connection = client.connection(now, &mut pool.content)?;
                connection.send(due)?;
                connection.flush();
            }
        }
        pool.wait_quietly(Some(window.end.min(schedule.due())))?;
        pool.serve_replies(|due, now| window.answer.record(0, now.saturating_duration_since(due)))?;
        now = Instant::now();
    }
    window.count(now, wanted as u64);
    let took = now.saturating_duration_since(window.begin);
    let answer = window.finish_after(pool, took);
    let stayed = pool.ask_all(|_, _| {})?;
    if stayed < wanted {
        let reason = pool.lost.take().unwrap_or_default();
        return Err(format!("{} of {wanted} connections were lost: {reason}", wanted - stayed));
    }
    Ok(Answer { pings: Some(pool.pings()), ..answer })
}

/// Echoes a message on each connection, and then holds the connections until standard input ends. Answers pings; no
/// other input is expected.
pub(crate) fn idle(pool: &mut ClientPool) -> Result<Answer, String> {
    pool.open_all()?;
    pool.echo_all(|_, _| {})?;
    let begin = Instant::now();
    crate::show("ready\n");
    let mut held = pool.watch_stdin()?;
    while held {
        pool.wait_quietly(None)?;
        pool.serve(&mut unasked)?;
        held = pool.ready.iter().all(|ready| ready.number != STDIN);
    }
    Ok(Answer {
        all: Part { count: pool.clients.len() as u64, ..Part::default() },
        seconds: begin.elapsed().as_secs_f64(),
        deflate: pool.deflate(),
        pings: Some(pool.pings()),
        ..Answer::default()
    })
}
