//! Closed loops: a message is sent when the reply to an earlier one has arrived.

use std::time::Instant;

use super::answer::Answer;
use super::client_pool::ClientPool;
use super::window::measure;

/// Each connection has some messages in flight, and sends one for each reply.
pub(crate) fn echo(pool: &mut ClientPool) -> Result<Answer, String> {
    pool.open_all()?;
    let now = Instant::now();
    let messages = pool.options.window.unwrap_or(1);
    for client in pool.clients.iter_mut().flatten() {
        let mut connection = client.connection(now, &mut pool.content)?;
        (0..messages).try_for_each(|_| connection.send(now))?;
        connection.flush();
    }
    pool.expect();
    let window = measure(pool, |pool, window| {
        pool.wait(Some(window.end))?;
        pool.serve(&mut |_, connection, received| {
            window.record(connection.take(received)?, connection.now);
            connection.send(connection.now)
        })
    })?;
    let mut answer = window.finish(pool);
    // Outstanding replies prove that no message was lost. They do not count, but their latencies do: otherwise a
    // connection without any reply would have no latency.
    let mut left = messages * pool.clients.len();
    while left > 0 {
        pool.wait(None).map_err(|error| format!("{left} messages have no reply: {error}"))?;
        pool.serve(&mut |_, connection, received| {
            let now = connection.now;
            answer.record(0, now.saturating_duration_since(connection.take(received)?));
            left -= 1;
            Ok(())
        })?;
    }
    Ok(answer)
}

/// All connections send at the same time, repeatedly, each time after all replies have arrived.
pub(crate) fn burst(pool: &mut ClientPool) -> Result<Answer, String> {
    pool.open_all()?;
    // All messages are scheduled for the beginning of the burst: waiting to send counts like waiting for a reply.
    let window = measure(pool, |pool, window| pool.echo_all(|due, now| window.record(due, now)))?;
    Ok(window.finish(pool))
}
