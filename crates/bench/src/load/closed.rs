//! Closed loops: the next message is sent when one is back.

use std::time::Instant;

use super::answer::Answer;
use super::crew::Crew;
use super::window::measure;

/// Every connection has some messages under way, and sends the next when one of them is back.
pub(crate) fn echo(crew: &mut Crew) -> Result<Answer, String> {
    crew.open_all()?;
    let now = Instant::now();
    let messages = crew.options.window.unwrap_or(1);
    for client in crew.clients.iter_mut().flatten() {
        let mut line = client.line(now, &mut crew.content)?;
        (0..messages).try_for_each(|_| line.send(now))?;
        line.flush();
    }
    crew.expect();
    let window = measure(crew, |crew, window| {
        crew.wait(Some(window.end))?;
        crew.serve(&mut |_, line, came| {
            window.record(line.take(came)?, line.now);
            line.send(line.now)
        })
    })?;
    let mut answer = window.finish(crew);
    // What is under way proves that nothing was lost. It does not count, but how long it took does: a
    // connection that was never answered would have no latency at all.
    let mut left = messages * crew.clients.len();
    while left > 0 {
        crew.wait(None).map_err(|error| format!("{left} messages have no reply: {error}"))?;
        crew.serve(&mut |_, line, came| {
            let now = line.now;
            answer.record(0, now.saturating_duration_since(line.take(came)?));
            left -= 1;
            Ok(())
        })?;
    }
    Ok(answer)
}

/// All connections send at the same time; when everybody has the echo, again.
pub(crate) fn burst(crew: &mut Crew) -> Result<Answer, String> {
    crew.open_all()?;
    // All are due when the burst begins: a connection whose turn to send comes late waits like one whose
    // reply does.
    let window = measure(crew, |crew, window| crew.echo_all(|due, now| window.record(due, now)))?;
    Ok(window.finish(crew))
}
