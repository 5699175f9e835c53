//! One connection sends, and the server sends it on to all of them; when everybody has one message, the next
//! is sent: a closed loop.

use std::time::Instant;

use super::answer::Answer;
use super::crew::Crew;
use super::publications::{Publications, keep_publishing};
use super::window::Window;

pub(crate) fn run(crew: &mut Crew<'_>) -> Result<Answer, String> {
    crew.open_all()?;
    let mut publications = Publications::new(crew.clients.len());
    let under_way = crew.options.window.unwrap_or(1);
    // The first shows that all connections are among those that the server sends to.
    publications.publish(crew, Instant::now())?;
    super::publications::flush(crew, Instant::now())?;
    publications.finish(crew, |_, _| {})?;
    let warm = Instant::now() + crew.options.warmup;
    keep_publishing(&mut publications, crew, under_way, warm, |_, _| {})?;
    let mut window = Window::begin(crew);
    let end = window.end;
    keep_publishing(&mut publications, crew, under_way, end, |due, now| {
        window.latencies.record(now.saturating_duration_since(due));
        window.count(now, 1);
    })?;
    let end = Instant::now();
    let mut answer = window.finish(crew, end);
    // What is under way proves that nothing was lost. It does not count, but how long it took does.
    publications.finish(crew, |due, now| {
        if let Some(latencies) = &mut answer.latencies {
            latencies.record(now.saturating_duration_since(due));
        }
    })?;
    Ok(answer)
}
