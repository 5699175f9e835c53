//! One connection sends, and the server sends it on to all of them; when everybody has one message, the next
//! is sent: a closed loop. Among several threads the first publishes, and everybody receives.

use std::time::{Duration, Instant};

use super::answer::Answer;
use super::crew::Crew;
use super::publications::Publications;
use super::team::Member;
use super::window::Window;

/// How often a thread that has everything looks whether there will be more.
const LOOK: Duration = Duration::from_millis(10);

pub(crate) fn run(crew: &mut Crew<'_>) -> Result<Answer, String> {
    crew.open_all()?;
    let mut publications = Publications::new(crew);
    if let Some(member) = crew.member.clone() {
        // All connections are there before the first message.
        member.meet();
        if !member.is_first() {
            return listen(crew, publications.of(member.clone()), &member);
        }
        publications = publications.of(member);
    }
    let under_way = crew.options.window.unwrap_or(1);
    publications.begin(crew)?;
    let warm = Instant::now() + crew.options.warmup;
    publications.keep_publishing(crew, under_way, warm, |_| {})?;
    let mut window = Window::begin(crew);
    let end = window.end;
    publications.keep_publishing(crew, under_way, end, |delivery| window.deliver(delivery))?;
    let end = Instant::now();
    let mut answer = window.finish(crew, end);
    // What is under way proves that nothing was lost. It does not count, but how long it took does.
    publications.finish(crew, |delivery| answer.add_latency(delivery))?;
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
        publications.receive(crew, |_| {})?;
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
        publications.receive(crew, |delivery| on_delivery(delivery.now))?;
    }
    Ok(())
}
