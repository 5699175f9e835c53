//! Every connection has some messages under way, and sends the next when one of them is back: a closed loop.

use std::time::Instant;

use super::answer::Answer;
use super::crew::Crew;
use super::window::Window;

pub(crate) fn run(crew: &mut Crew<'_>) -> Result<Answer, String> {
    crew.open_all()?;
    let now = Instant::now();
    let mut under_way = 0_u64;
    for client in crew.clients.iter_mut().flatten() {
        let mut line = client.line(now)?;
        for _ in 0..crew.options.window.unwrap_or(1) {
            line.send(&mut crew.content, now)?;
            under_way += 1;
        }
        line.flush();
    }
    let warm = now + crew.options.warmup;
    crew.expect();
    while Instant::now() < warm {
        crew.wait(Some(warm))?;
        crew.serve(&mut |_, line, content, kind, bytes| {
            line.take(content, kind, bytes)?;
            line.send(content, line.now)
        })?;
    }
    let mut window = Window::begin(crew);
    while Instant::now() < window.end {
        crew.wait(Some(window.end))?;
        crew.serve(&mut |_, line, content, kind, bytes| {
            let due = line.take(content, kind, bytes)?;
            window.latencies.record(line.now.saturating_duration_since(due));
            window.count(line.now, 1);
            line.send(content, line.now)
        })?;
    }
    let end = Instant::now();
    let mut answer = window.finish(crew, end);
    // What is under way proves that nothing was lost. It does not count, but how long it took does: a
    // connection that was never answered would have no latency at all.
    while under_way > 0 {
        crew.wait(None).map_err(|error| format!("{under_way} messages have no reply: {error}"))?;
        crew.serve(&mut |_, line, content, kind, bytes| {
            let due = line.take(content, kind, bytes)?;
            if let Some(latencies) = &mut answer.latencies {
                latencies.record(line.now.saturating_duration_since(due));
            }
            under_way -= 1;
            Ok(())
        })?;
    }
    Ok(answer)
}
