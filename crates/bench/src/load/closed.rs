//! Closed loops: a message is sent when the reply to an earlier one has arrived.

use std::time::Instant;

use super::answer::Answer;
use super::crew::Crew;
use super::window::measure;

/// Each connection has some messages in flight, and sends one for each reply.
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
    // Outstanding replies prove that no message was lost. They do not count, but their latencies do: otherwise a
    // connection without any reply would have no latency.
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

/// All connections send at the same time, repeatedly, each time after all replies have arrived.
pub(crate) fn burst(crew: &mut Crew) -> Result<Answer, String> {
    crew.open_all()?;
    // All messages are scheduled for the beginning of the burst: waiting to send counts like waiting for a reply.
    let window = measure(crew, |crew, window| crew.echo_all(|due, now| window.record(due, now)))?;
    Ok(window.finish(crew))
}
