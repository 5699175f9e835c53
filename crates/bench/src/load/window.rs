//! The window: the time in which operations are counted.

use std::time::{Duration, Instant};

use super::answer::{Answer, Part};
use super::client_pool::ClientPool;
use super::threads::LoadThread;

/// The number of seconds with counts of their own.
const SECONDS: usize = 5;

/// A window that has begun, or the warm-up, whose counts are discarded.
pub(crate) struct Window {
    pub(crate) begin: Instant,
    /// The scheduled end.
    pub(crate) end: Instant,
    /// When the last operation was counted.
    last: Instant,
    /// The result so far.
    pub(crate) answer: Answer,
    seconds: [u64; SECONDS],
    /// The processor time of this thread at the beginning, in seconds.
    processor: f64,
}

/// Repeats a step during the warm-up and then during the window, which is returned. A long step checks the
/// [end](Window::end) itself.
pub(crate) fn measure(
    pool: &mut ClientPool,
    mut step: impl FnMut(&mut ClientPool, &mut Window) -> Result<(), String>,
) -> Result<Window, String> {
    let mut window = Window::warm_up(pool);
    while Instant::now() < window.end {
        step(pool, &mut window)?;
    }
    window = Window::begin(pool);
    while Instant::now() < window.end {
        step(pool, &mut window)?;
    }
    Ok(window)
}

impl Window {
    fn new(pool: &ClientPool, length: Duration) -> Self {
        let servers = pool.options.servers.len();
        let servers = (0..servers).filter(|_| servers > 1).map(|_| Part::default()).collect();
        let answer = Answer { servers, ..Answer::default() };
        let (processor, begin) = (processor_time(), Instant::now());
        Self { begin, end: begin + length, last: begin, answer, seconds: [0; SECONDS], processor }
    }

    /// Returns the warm-up, whose counts are discarded.
    pub(crate) fn warm_up(pool: &ClientPool) -> Self {
        Self::new(pool, pool.options.warmup)
    }

    /// Begins the window, and prints that on standard output.
    pub(crate) fn begin(pool: &mut ClientPool) -> Self {
        if pool.load_thread.as_ref().is_none_or(LoadThread::meet) {
            crate::show("begin\n");
        }
        pool.waited = Duration::ZERO;
        Self::new(pool, pool.options.seconds)
    }

    /// Counts checked operations.
    #[inline]
    pub(crate) fn count(&mut self, now: Instant, count: u64) {
        self.answer.all.count += count;
        self.last = now;
        let second = now.saturating_duration_since(self.begin).as_secs() as usize;
        if let Some(counted) = self.seconds.get_mut(second) {
            *counted += count;
        }
    }

    /// Counts one operation and its latency since its scheduled time.
    #[inline]
    pub(crate) fn record(&mut self, due: Instant, now: Instant) {
        self.record_of(0, due, now);
    }

    /// Counts one operation of a server.
    #[inline]
    pub(crate) fn record_of(&mut self, server: usize, due: Instant, now: Instant) {
        self.answer.record(server, now.saturating_duration_since(due));
        if let Some(part) = self.answer.servers.get_mut(server) {
            part.count += 1;
        }
        self.count(now, 1);
    }

    /// Returns the result until the end, or until the last operation, if that was later.
    pub(crate) fn finish(self, pool: &ClientPool) -> Answer {
        let whole = pool.options.seconds.as_secs() as usize;
        let by_second = self.seconds[..if whole < 2 { 0 } else { whole.min(SECONDS) }].to_vec();
        let took = self.last.max(self.end).saturating_duration_since(self.begin);
        Answer { by_second, ..self.finish_after(pool, took) }
    }

    /// Returns the result for a duration of `took`, without the counts of single seconds.
    pub(crate) fn finish_after(self, pool: &ClientPool, took: Duration) -> Answer {
        let seconds = took.as_secs_f64();
        Answer {
            seconds,
            cpu: Some(processor_time() - self.processor),
            limited: Some((1.0 - pool.waited.as_secs_f64() / seconds).clamp(0.0, 1.0)),
            deflate: pool.deflate(),
            ..self.answer
        }
    }
}

/// Returns the processor time of this thread in seconds; 0 if the system does not provide it.
fn processor_time() -> f64 {
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok())
        .map_or(0.0, |nanoseconds| nanoseconds / 1e9)
}
