//! All connections are begun at the same time; when all are ready, they are closed; again, until the window
//! is over.
//!
//! What counts is the time of opening only.

use std::time::{Duration, Instant};

use super::answer::Answer;
use super::client::Found;
use super::crew::{Crew, Ready};
use super::window::Window;

pub(crate) fn run(crew: &mut Crew<'_>) -> Result<Answer, String> {
    // The server is there, and has served somebody.
    crew.open_first()?;
    close_all(crew)?;
    let mut window = Window::begin(crew);
    let (mut opening, mut idle) = (Duration::ZERO, Duration::ZERO);
    loop {
        let (begin, waited) = (Instant::now(), crew.waited);
        open_all(crew, |begun, now| {
            window.latencies.record(now.saturating_duration_since(begun));
            window.count(now, 1);
        })?;
        opening += begin.elapsed();
        idle += crew.waited - waited;
        let deflate = crew.deflate();
        close_all(crew)?;
        let now = Instant::now();
        if now >= window.end {
            crew.waited = idle;
            // Rates of single seconds would have the time of closing in them.
            return Ok(Answer { deflate, deviation: None, ..window.finish_after(crew, now, opening) });
        }
    }
}

/// Opens all connections at the same time. None may fail; `on_open` is told when each was begun, and ready.
pub(super) fn open_all(crew: &mut Crew<'_>, mut on_open: impl FnMut(Instant, Instant)) -> Result<(), String> {
    let wanted = crew.options.connections;
    let mut begun = Vec::with_capacity(wanted);
    let (mut opened, mut failed, mut reason) = (0, 0, None);
    for number in 0..wanted {
        begun.push(Instant::now());
        if let Err(error) = crew.connect(number) {
            failed += 1;
            reason.get_or_insert(error);
        }
    }
    crew.expect();
    while opened + failed < wanted {
        if let Err(error) = crew.wait(None) {
            failed = wanted - opened;
            reason.get_or_insert(error);
            break;
        }
        for index in 0..crew.ready.len() {
            let Ready { number, .. } = crew.ready[index];
            match crew.open_one(index) {
                Ok(Found::Opened) => {
                    on_open(begun[number], Instant::now());
                    opened += 1;
                }
                Ok(_) => {}
                Err(error) => {
                    // One that was open counts as failed as well: it did not stay until all were.
                    opened -= usize::from(crew.clients[number].as_ref().is_some_and(super::client::Client::is_open));
                    failed += 1;
                    reason.get_or_insert(error);
                    crew.forget(number);
                }
            }
        }
    }
    match reason {
        None => Ok(()),
        Some(reason) => Err(format!("{failed} of {wanted} connections could not be opened: {reason}")),
    }
}

/// Closes all connections, each with its handshake; a server that is slow with that is not waited for long.
pub(super) fn close_all(crew: &mut Crew<'_>) -> Result<(), String> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let mut left = 0_usize;
    for client in crew.clients.iter_mut().flatten() {
        client.close()?;
        left += 1;
    }
    let mut end = Instant::now() + PATIENCE;
    while left > 0 && Instant::now() < end {
        crew.wait_quietly(Some(end))?;
        for index in 0..crew.ready.len() {
            let Ready { number, .. } = crew.ready[index];
            // However it ends, it is closed.
            if !matches!(crew.open_one(index), Ok(Found::Nothing | Found::Opened)) && crew.clients[number].is_some() {
                crew.forget(number);
                left -= 1;
                end = Instant::now() + PATIENCE;
            }
        }
    }
    for number in 0..crew.clients.len() {
        crew.forget(number);
    }
    Ok(())
}
