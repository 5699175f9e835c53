//! One connection publishes, and the server sends it on to all of them.

use std::time::{Duration, Instant};

use super::answer::Answer;
use super::crew::{BEHIND, Crew};
use super::publications::Publications;
use super::schedule::Schedule;
use super::window::{Window, measure};

/// Messages under way while the peak is looked for: enough that the server never waits for the next one.
const UNDER_WAY: usize = 4;

/// The peak of fewer messages than this would be chance.
const LEAST: u64 = 10;

/// How long the peak is looked for beyond the warm-up, until there are as many.
const MOST_SEARCHED: Duration = Duration::from_secs(10);

/// Of the peak, unless the options have another share.
const SHARE: f64 = 0.5;

/// When everybody has one message, the next is sent: a closed loop. Among several threads the first publishes, and
/// everybody receives.
pub(crate) fn fan_out(crew: &mut Crew) -> Result<Answer, String> {
    crew.open_all()?;
    if let Some(member) = &crew.member {
        member.meet(); // all connections are there before the first message
    }
    let under_way = crew.options.window.unwrap_or(1);
    let mut publications = Publications::new(crew);
    publications.begin(crew)?;
    let window = measure(crew, |crew, window| {
        let end = window.end;
        publications.keep_publishing(crew, under_way, end, |server, due, now| window.record_of(server, due, now))
    })?;
    let mut answer = window.finish(crew);
    // What is under way proves that nothing was lost. It does not count, but how long it took does.
    publications.finish(crew, |server, due, now| answer.record(server, now.saturating_duration_since(due)))?;
    if publications.publisher().is_some() {
        answer.all.latencies.reset(); // when a message was due is known where it was published
    }
    Ok(answer)
}

/// So many messages a second, whatever became of those before: an open loop. The rate is given, or a share of what a
/// closed loop reaches before the window. A latency begins when a message was due, as in [`super::paced`].
pub(crate) fn publish(crew: &mut Crew) -> Result<Answer, String> {
    crew.open_all()?;
    let mut publications = Publications::new(crew);
    publications.begin(crew)?;
    let peak = peak(&mut publications, crew)?;
    let rate = crew.options.rate.unwrap_or(peak * crew.options.share.unwrap_or(SHARE));
    publications.finish(crew, |_, _, _| {})?;

    let mut window = Window::begin(crew);
    let end = window.end;
    let mut schedule = Schedule::new(window.begin, rate);
    loop {
        let now = Instant::now();
        schedule.check(now.min(end), "messages")?;
        check_server(&publications, crew, now, rate)
            .map_err(|error| if now < end { error } else { publications.explain(error) })?;
        while let Some((_, due)) = schedule.take(now, end) {
            publications.publish(crew, due)?;
        }
        publications.flush(crew, now)?;
        let until = match now < end {
            true => end.min(schedule.due()),
            false if publications.under_way() > 0 => now + BEHIND,
            false => break,
        };
        crew.wait_quietly(Some(until))?;
        publications.receive(crew, |server, due, now| window.record_of(server, due, now))?;
    }
    publications.check(true)?;
    #[allow(clippy::cast_precision_loss)] // connections
    let offered = rate * crew.clients.len() as f64;
    Ok(Answer { offered: Some(offered), ..window.finish(crew) })
}

/// Publications a second that a closed loop reaches, the first quarter left out.
#[allow(clippy::cast_precision_loss)] // counts
fn peak(publications: &mut Publications, crew: &mut Crew) -> Result<f64, String> {
    let window = crew.options.window.unwrap_or(UNDER_WAY);
    let mut end = Instant::now() + crew.options.warmup / 4;
    publications.keep_publishing(crew, window, end, |_, _, _| {})?;
    let (begin, before) = (Instant::now(), publications.completed());
    end = begin + crew.options.warmup * 3 / 4;
    loop {
        publications.keep_publishing(crew, window, end, |_, _, _| {})?;
        publications.check(false)?;
        let (took, completed) = (begin.elapsed(), publications.completed() - before);
        if completed >= LEAST || took > crew.options.warmup + MOST_SEARCHED {
            if completed == 0 {
                return Err(format!("the server has delivered nothing to everybody in {:.0} s", took.as_secs_f64()));
            }
            return Ok(completed as f64 / took.as_secs_f64());
        }
        end = Instant::now() + Duration::from_millis(50);
    }
}

fn check_server(publications: &Publications, crew: &mut Crew, now: Instant, rate: f64) -> Result<(), String> {
    let late = publications.oldest().is_some_and(|due| now.saturating_duration_since(due) > BEHIND);
    if !late && !crew.behind(now) {
        return Ok(());
    }
    publications.check(false)?;
    let receivers = crew.clients.len();
    Err(format!("the server cannot deliver {rate:.1} messages a second to {receivers} connections"))
}
