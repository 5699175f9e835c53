//! Workloads in which one connection publishes to all.

use std::time::{Duration, Instant};

use super::answer::Answer;
use super::client_pool::{BEHIND, ClientPool};
use super::publications::Publications;
use super::schedule::Schedule;
use super::window::{Window, measure};

/// Messages in flight while the peak is measured: enough to keep the server busy.
const UNDER_WAY: usize = 4;

/// The minimum number of messages for a peak that is not chance.
const LEAST: u64 = 10;

/// The longest extension of the warm-up to reach that number.
const MOST_SEARCHED: Duration = Duration::from_secs(10);

/// The default share of the peak.
const SHARE: f64 = 0.5;

/// Sends the next message when all receivers have the previous one: a closed loop. With several threads, the first one
/// publishes, and all receive.
pub(crate) fn fan_out(pool: &mut ClientPool) -> Result<Answer, String> {
    pool.open_all()?;
    if let Some(load_thread) = &pool.load_thread {
        load_thread.meet(); // all connections are open before the first message
    }
    let under_way = pool.options.window.unwrap_or(1);
    let mut publications = Publications::new(pool);
    publications.begin(pool)?;
    let window = measure(pool, |pool, window| {
        let end = window.end;
        publications.keep_publishing(pool, under_way, end, |server, due, now| window.record_of(server, due, now))
    })?;
    let mut answer = window.finish(pool);
    // Outstanding deliveries prove that no message was lost. They do not count, but their latencies do.
    publications.finish(pool, |server, due, now| answer.record(server, now.saturating_duration_since(due)))?;
    if publications.publisher().is_some() {
        answer.all.latencies.reset(); // only the publishing thread knows the scheduled times
    }
    Ok(answer)
}

/// Publishes on a fixed schedule, independent of deliveries: an open loop. The rate is an option, or a share of the
/// peak of a closed loop before the window. A latency begins at the scheduled time, as in [`super::paced`].
pub(crate) fn publish(pool: &mut ClientPool) -> Result<Answer, String> {
    pool.open_all()?;
    let mut publications = Publications::new(pool);
    publications.begin(pool)?;
    let peak = peak(&mut publications, pool)?;
    let rate = pool.options.rate.unwrap_or(peak * pool.options.share.unwrap_or(SHARE));
    publications.finish(pool, |_, _, _| {})?;

    let mut window = Window::begin(pool);
    let end = window.end;
    let mut schedule = Schedule::new(window.begin, rate);
    loop {
        let now = Instant::now();
        schedule.check(now.min(end), "messages")?;
        check_server(&publications, pool, now, rate)
            .map_err(|error| if now < end { error } else { publications.explain(error) })?;
        while let Some((_, due)) = schedule.take(now, end) {
            publications.publish(pool, due)?;
        }
        publications.flush(pool, now)?;
        let until = match now < end {
            true => end.min(schedule.due()),
            false if publications.under_way() > 0 => now + BEHIND,
            false => break,
        };
        pool.wait_quietly(Some(until))?;
        publications.receive(pool, |server, due, now| window.record_of(server, due, now))?;
    }
    publications.check(true)?;
    #[allow(clippy::cast_precision_loss)] // connections
    let offered = rate * pool.clients.len() as f64;
    Ok(Answer { offered: Some(offered), ..window.finish(pool) })
}

/// Returns the peak rate of a closed loop, in messages per second, without the first quarter of the time.
#[allow(clippy::cast_precision_loss)] // counts
fn peak(publications: &mut Publications, pool: &mut ClientPool) -> Result<f64, String> {
    let window = pool.options.window.unwrap_or(UNDER_WAY);
    let mut end = Instant::now() + pool.options.warmup / 4;
    publications.keep_publishing(pool, window, end, |_, _, _| {})?;
    let (begin, before) = (Instant::now(), publications.completed());
    end = begin + pool.options.warmup * 3 / 4;
    loop {
        publications.keep_publishing(pool, window, end, |_, _, _| {})?;
        publications.check(false)?;
        let (took, completed) = (begin.elapsed(), publications.completed() - before);
        if completed >= LEAST || took > pool.options.warmup + MOST_SEARCHED {
            if completed == 0 {
                return Err(format!("the server has delivered nothing to everybody in {:.0} s", took.as_secs_f64()));
            }
            return Ok(completed as f64 / took.as_secs_f64());
        }
        end = Instant::now() + Duration::from_millis(50);
    }
}

fn check_server(publications: &Publications, pool: &mut ClientPool, now: Instant, rate: f64) -> Result<(), String> {
    let late = publications.oldest().is_some_and(|due| now.saturating_duration_since(due) > BEHIND);
    if !late && !pool.behind(now) {
        return Ok(());
    }
    publications.check(false)?;
    let receivers = pool.clients.len();
    Err(format!("the server cannot deliver {rate:.1} messages a second to {receivers} connections"))
}
