//! Connections are held: the server's pings are answered, some connections send a message now and then, and
//! at the end everybody does.

use std::time::Instant;

use super::answer::Answer;
use super::crew::{Crew, Ready};
use super::schedule::Schedule;
use super::window::Window;

/// Messages a second for each connection, unless the options have a rate.
const RATE: f64 = 0.01;

pub(crate) fn run(crew: &mut Crew<'_>) -> Result<Answer, String> {
    crew.open_all()?;
    crew.echo_once()?;
    let wanted = crew.clients.len();
    #[allow(clippy::cast_precision_loss)] // connections
    let rate = crew.options.rate.unwrap_or((wanted as f64 * RATE).max(1.0));
    let mut window = Window::begin(crew);
    let mut lost = Lost { count: 0, reason: None };
    let mut schedule = Schedule::new(window.begin, rate);
    while Instant::now() < window.end {
        let now = Instant::now();
        while let Some((number, due)) = schedule.take(now) {
            let number = usize::try_from(number % wanted as u64).unwrap_or(0);
            let Some(client) = &mut crew.clients[number] else { continue };
            let mut line = client.line(now)?;
            // One that has not answered the last gets no other: it is asked in the end.
            if line.exchange.due.is_empty() && line.sender.link.state().can_send() {
                line.send(&mut crew.content, due)?;
                line.flush();
            }
        }
        let until = window.end.min(schedule.due());
        crew.wait_quietly(Some(until))?;
        receive(crew, &mut lost, |due, now| window.latencies.record(now.saturating_duration_since(due)))?;
    }
    let end = Instant::now();
    window.count(end, wanted as u64);
    let mut answer = window.finish(crew, end);
    answer.deviation = None; // nothing was counted second by second
    ask_all(crew, &mut lost)?;
    if let Some(reason) = lost.reason {
        return Err(format!("{} of {wanted} connections were lost: {reason}", lost.count));
    }
    Ok(Answer { pings: Some(crew.pings()), ..answer })
}

/// Connections that did not stay.
struct Lost {
    count: usize,
    /// Of the first.
    reason: Option<String>,
}

/// Takes what comes, and notes who is gone.
fn receive(crew: &mut Crew<'_>, lost: &mut Lost, mut on_reply: impl FnMut(Instant, Instant)) -> Result<(), String> {
    for index in 0..crew.ready.len() {
        let Ready { number, closed } = crew.ready[index];
        let Some(client) = crew.clients.get_mut(number).and_then(Option::as_mut) else { continue };
        let content = &crew.content;
        let result = client.proceed(closed, &mut |line, kind, bytes| {
            on_reply(line.take(content, kind, bytes)?, line.now);
            Ok(())
        });
        if let Err(error) = result {
            lost.count += 1;
            lost.reason.get_or_insert(error);
            crew.forget(number);
        }
    }
    Ok(())
}

/// Every connection that is left has another message echoed.
fn ask_all(crew: &mut Crew<'_>, lost: &mut Lost) -> Result<(), String> {
    let now = Instant::now();
    for client in crew.clients.iter_mut().flatten() {
        let mut line = client.line(now)?;
        if line.sender.link.state().can_send() {
            line.send(&mut crew.content, now)?;
            line.flush();
        }
    }
    crew.expect();
    loop {
        let silent = crew.clients.iter().flatten().filter(|client| !client.exchange().due.is_empty()).count();
        if silent == 0 {
            return Ok(());
        }
        if let Err(error) = crew.wait(None) {
            lost.count += silent;
            lost.reason.get_or_insert(error);
            return Ok(());
        }
        receive(crew, lost, |_, _| {})?;
    }
}
