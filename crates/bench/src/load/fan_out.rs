//! One connection sends, and the server sends it on to all of them; when everybody has one message, the next
//! is sent: a closed loop. Among several threads the first publishes, and everybody receives.

use std::time::{Duration, Instant};

use super::answer::Answer;
use super::crew::Crew;
use super::publications::{Publications, keep_publishing};
use super::team::Member;
use super::window::Window;

/// How often a thread that has everything looks whether there will be more.
const LOOK: Duration = Duration::from_millis(10);

pub(crate) fn run(crew: &mut Crew<'_>) -> Result<Answer, String> {
    crew.open_all()?;
    let mut publications = Publications::new(crew.clients.len());
    if let Some(member) = crew.member.clone() {
        // All connections are there before the first message.
        member.meet();
        if !member.is_first() {
            return listen(crew, publications.of(member.clone()), &member);
        }
        publications = publications.of(member);
    }
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
    if let Some(member) = &crew.member {
        member.end();
    }
    Ok(answer)
}

/// Receives what another thread publishes. It does not know when that was due, so it tells no latencies.
fn listen(crew: &mut Crew<'_>, mut publications: Publications, member: &Member) -> Result<Answer, String> {
    let warm = Instant::now() + crew.options.warmup;
    listen_until(&mut publications, crew, warm, |_| {})?;
    let mut window = Window::begin(crew);
    let end = window.end;
    listen_until(&mut publications, crew, end, |now| window.count(now, 1))?;
    let answer = window.finish(crew, Instant::now());
    crew.expect();
    while member.all_published() != Some(publications.completed()) {
        if member.has_failed() {
            return Ok(answer); // why, that one says
        }
        crew.wait(Some(Instant::now() + LOOK)).map_err(|error| publications.explain(error))?;
        publications.receive(crew, |_, _| {})?;
    }
    publications.check(true)?;
    Ok(Answer { latencies: None, ..answer })
}

fn listen_until(
    publications: &mut Publications,
    crew: &mut Crew<'_>,
    end: Instant,
    mut on_delivery: impl FnMut(Instant),
) -> Result<(), String> {
    crew.expect();
    while Instant::now() < end {
        crew.wait(Some(end)).map_err(|error| publications.explain(error))?;
        publications.receive(crew, |_, now| on_delivery(now))?;
    }
    Ok(())
}
