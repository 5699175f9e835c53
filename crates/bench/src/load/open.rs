//! Connections are opened and closed, some at the same time: a closed loop of opening and closing handshakes.

use std::time::Instant;

use super::answer::Answer;
use super::client::Found;
use super::crew::{Crew, Ready};
use super::window::Window;

pub(crate) fn run(crew: &mut Crew<'_>) -> Result<Answer, String> {
    crew.open_first()?;
    crew.forget(0);
    let connections = crew.options.connections;
    let mut begun = Vec::with_capacity(connections);
    for number in 0..connections {
        begun.push(Instant::now());
        crew.connect(number)?;
    }
    let warm = Instant::now() + crew.options.warmup;
    while Instant::now() < warm {
        step(crew, &mut begun, warm, |_, _| {})?;
    }
    let mut window = Window::begin(crew);
    while Instant::now() < window.end {
        let end = window.end;
        step(crew, &mut begun, end, |begun, now| {
            window.latencies.record(now.saturating_duration_since(begun));
            window.count(now, 1);
        })?;
    }
    let end = Instant::now();
    Ok(window.finish(crew, end))
}

/// Takes what comes: closes what is open, opens what is closed. `on_open` is told when each was begun, and
/// ready.
fn step(
    crew: &mut Crew<'_>,
    begun: &mut [Instant],
    end: Instant,
    mut on_open: impl FnMut(Instant, Instant),
) -> Result<(), String> {
    crew.wait(Some(end))?;
    for index in 0..crew.ready.len() {
        let Ready { number, .. } = crew.ready[index];
        match crew.open_one(index)? {
            Found::Nothing => {}
            Found::Opened => {
                on_open(begun[number], Instant::now());
                if let Some(client) = &mut crew.clients[number] {
                    client.close()?;
                }
            }
            Found::Closed => {
                crew.forget(number);
                begun[number] = Instant::now();
                crew.connect(number)?;
            }
        }
    }
    Ok(())
}
