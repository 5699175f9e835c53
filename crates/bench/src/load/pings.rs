//! All connections are begun at once; then each is pinged again and again for as long as the window is, at
//! moments that are settled beforehand. None may be lost, every ping needs its pong.
//!
//! What counts are the pongs; a latency begins when its ping was due.

use std::time::Instant;

use super::answer::Answer;
use super::client::Client;
use super::crew::{BEHIND, Crew};
use super::schedule::Schedule;
use super::storm;
use super::window::Window;

pub(crate) fn run(crew: &mut Crew<'_>) -> Result<Answer, String> {
    // The server is there, and has served somebody.
    crew.open_first()?;
    storm::close_all(crew)?;
    storm::open_all(crew, |_, _| {})?;
    let wanted = crew.clients.len();
    #[allow(clippy::cast_precision_loss)] // connections
    let rate = crew.options.rate.unwrap_or(wanted as f64);
    settle(crew)?;

    let mut window = Window::begin(crew);
    let mut schedule = Schedule::new(window.begin, rate);
    let (mut pinged, mut answered) = (0_u64, 0_u64);
    let mut last = window.begin;
    let late = window.end + BEHIND;
    while answered < pinged || schedule.due() < window.end {
        let now = Instant::now();
        if now >= late {
            return Err(format!("{} of {pinged} pings were not answered", pinged - answered));
        }
        while schedule.due() < window.end
            && let Some((number, due)) = schedule.take(now)
        {
            let number = usize::try_from(number % wanted as u64).unwrap_or(0);
            let client = crew.clients[number].as_mut().ok_or("a connection is gone")?;
            client.line(now)?.ping(due)?;
            pinged += 1;
        }
        let until = if schedule.due() < window.end { schedule.due() } else { late };
        crew.wait_quietly(Some(until))?;
        crew.serve(&mut |_, _, _, _, _| Err("a message came that nobody had asked for".into()))?;
        for ready in &crew.ready {
            let Some(client) = crew.clients.get_mut(ready.number).and_then(Option::as_mut) else { continue };
            for (due, now) in client.take_pongs() {
                window.latencies.record(now.saturating_duration_since(due));
                window.count(now, 1);
                last = now;
                answered += 1;
            }
        }
    }
    let open = crew.clients.iter().flatten().filter(|client| Client::is_open(client)).count();
    if open != wanted {
        return Err(format!("{} of {wanted} connections were lost", wanted - open));
    }
    let end = last.max(window.end);
    Ok(Answer { offered: Some(rate), ..window.finish(crew, end) })
}

/// Lets the storm pass: the warm-up.
fn settle(crew: &mut Crew<'_>) -> Result<(), String> {
    let warm = Instant::now() + crew.options.warmup;
    while Instant::now() < warm {
        crew.wait_quietly(Some(warm))?;
        crew.serve(&mut |_, _, _, _, _| Err("a message came that nobody had asked for".into()))?;
    }
    Ok(())
}
