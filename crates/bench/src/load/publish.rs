//! One connection publishes so many messages a second, whatever became of those before; everybody has to
//! receive them: an open loop.
//!
//! The rate is given, or a share of what a closed loop reaches before the window. A latency begins when a
//! message was due, as in [`super::paced`].

use std::time::{Duration, Instant};

use super::answer::Answer;
use super::crew::{BEHIND, Crew};
use super::publications::Publications;
use super::schedule::Schedule;
use super::window::Window;

/// Messages under way while the peak is looked for: enough that the server never waits for the next one.
const UNDER_WAY: usize = 4;

/// The peak of fewer messages than this would be chance.
const LEAST: u64 = 10;

/// How long the peak is looked for beyond the warm-up, until there are as many.
const MOST_SEARCHED: Duration = Duration::from_secs(10);

pub(crate) fn run(crew: &mut Crew<'_>) -> Result<Answer, String> {
    crew.open_all()?;
    let mut publications = Publications::new(crew);
    publications.begin(crew)?;
    let peak = peak(&mut publications, crew)?;
    let rate = crew.options.rate.unwrap_or(peak * crew.options.share);
    publications.finish(crew, |_| {})?;

    let mut window = Window::begin(crew);
    let end = window.end;
    let mut schedule = Schedule::new(window.begin, rate);
    loop {
        let now = Instant::now().min(end);
        check_load(&schedule, now, rate)?;
        check_server(&publications, crew, now, rate)?;
        while schedule.due() < end
            && let Some((_, due)) = schedule.take(now)
        {
            publications.publish(crew, due)?;
        }
        publications.flush(crew, now)?;
        if now == end {
            break;
        }
        crew.wait_quietly(Some(end.min(schedule.due())))?;
        publications.receive(crew, |delivery| window.deliver(delivery))?;
    }
    let mut last = end;
    crew.expect();
    while publications.under_way() > 0 {
        crew.wait(None).map_err(|error| publications.explain(error))?;
        publications.receive(crew, |delivery| {
            window.deliver(delivery);
            last = delivery.now;
        })?;
        check_server(&publications, crew, Instant::now(), rate)?;
    }
    publications.check(false)?;
    #[allow(clippy::cast_precision_loss)] // connections
    let offered = rate * crew.clients.len() as f64;
    Ok(Answer { offered: Some(offered), ..window.finish(crew, last) })
}

/// Publications a second that a closed loop reaches, the first quarter left out.
#[allow(clippy::cast_precision_loss)] // counts
fn peak(publications: &mut Publications, crew: &mut Crew<'_>) -> Result<f64, String> {
    let window = crew.options.window.unwrap_or(UNDER_WAY);
    let mut end = Instant::now() + crew.options.warmup / 4;
    publications.keep_publishing(crew, window, end, |_| {})?;
    let (begin, before) = (Instant::now(), publications.completed());
    end = begin + crew.options.warmup * 3 / 4;
    loop {
        publications.keep_publishing(crew, window, end, |_| {})?;
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

fn check_load(schedule: &Schedule, now: Instant, rate: f64) -> Result<(), String> {
    let late = BEHIND.as_secs();
    if now.saturating_duration_since(schedule.due()) <= BEHIND {
        return Ok(());
    }
    Err(format!("the load generator cannot publish {rate:.1} messages a second: it is {late} s late"))
}

fn check_server(publications: &Publications, crew: &mut Crew<'_>, now: Instant, rate: f64) -> Result<(), String> {
    let late = publications.oldest().is_some_and(|due| now.saturating_duration_since(due) > BEHIND);
    if !late && !crew.behind(now) {
        return Ok(());
    }
    publications.check(false)?;
    let receivers = crew.clients.len();
    Err(format!("the server cannot deliver {rate:.1} messages a second to {receivers} connections"))
}
