//! All connections send at the same time; when everybody has the echo, again.

use std::time::Instant;

use super::answer::Answer;
use super::crew::Crew;
use super::window::Window;

pub(crate) fn run(crew: &mut Crew<'_>) -> Result<Answer, String> {
    crew.open_all()?;
    let warm = Instant::now() + crew.options.warmup;
    while Instant::now() < warm {
        burst(crew, |_, _| {})?;
    }
    let mut window = Window::begin(crew);
    while Instant::now() < window.end {
        // All are due when the burst begins: a connection whose turn to send comes late waits like one whose
        // reply does.
        burst(crew, |due, now| {
            window.latencies.record(now.saturating_duration_since(due));
            window.count(now, 1);
        })?;
    }
    let end = Instant::now();
    Ok(window.finish(crew, end))
}

fn burst(crew: &mut Crew<'_>, mut on_reply: impl FnMut(Instant, Instant)) -> Result<(), String> {
    let begin = Instant::now();
    let mut left = 0_usize;
    for client in crew.clients.iter_mut().flatten() {
        let mut line = client.line(begin)?;
        line.send(&mut crew.content, begin)?;
        line.flush();
        left += 1;
    }
    crew.expect();
    while left > 0 {
        crew.wait(None).map_err(|error| format!("{left} connections have no reply: {error}"))?;
        crew.serve(&mut |_, line, content, kind, bytes| {
            on_reply(line.take(content, kind, bytes)?, line.now);
            left -= 1;
            Ok(())
        })?;
    }
    Ok(())
}
