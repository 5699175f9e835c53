//! The graceful shutdown of an engine: it stops accepting and closes sessions in batches, so that their clients do not
//! all reconnect at once.
//!
//! The caller drives [`Draining`] step by step and waits between the steps as it likes. Workers receive commands.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::config::Drain;
use crate::control::{Command, WorkerHandle};
use crate::shared::EngineShared;

/// The minimum time between two batches.
const MIN_PAUSE: Duration = Duration::from_millis(50);

/// The maximum time between two batches. It spreads the reconnecting clients well enough, and keeps the shutdown short
/// if few sessions remain after the first batch.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// The time between two checks for remaining sessions, once all batches are closed.
const FINAL_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The maximum of a configured duration, a hundred years, which clocks can represent.
const MAX_DURATION: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The result of a graceful shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Sessions that ended by a closing handshake or on their own.
    pub ended: u64,
    /// Sessions that were disconnected at the timeout.
    pub cut: u64,
}

/// The parts of an engine that are needed to shut it down.
#[derive(Clone)]
pub(crate) struct EngineControl {
    pub(crate) shared: Arc<EngineShared>,
    pub(crate) workers: Vec<Arc<WorkerHandle>>,
}

impl EngineControl {
    fn send(&self, command: impl Fn(usize) -> Command) {
        for (number, worker) in self.workers.iter().enumerate() {
            let _ = worker.mailbox.put(command(number), 0); // a worker that has ended needs no command
        }
    }

    fn is_over(&self) -> bool {
        self.shared.metrics.iter().all(|metrics| metrics.ended.load(Ordering::Acquire))
    }
}

enum Stage {
    /// Clients are still accepted until this time.
    Notice(Instant),
    Closing,
    Over,
}

/// A graceful shutdown in progress. Call [`Self::step`] until it returns `None`, then [`Self::drained`]; or call
/// [`Self::finish`], which blocks.
pub struct Draining {
    control: EngineControl,
    settings: Drain,
    stage: Stage,
    /// When the shutdown must be complete.
    deadline: Instant,
    /// When the next batch is due, and the number of each worker's sessions in it.
    next: Instant,
    shares: Vec<usize>,
    /// The remaining batches, and the time between them.
    batches: u32,
    pause: Duration,
    /// The number of sessions that had ended before the shutdown began.
    ended_before: u64,
    drained: Drained,
    handed_over: bool,
}

impl Draining {
    /// Starts the shutdown. `handed_over`: another engine accepts from the same listeners.
    pub(crate) fn begin(control: EngineControl, mut settings: Drain, handed_over: bool, now: Instant) -> Self {
        control.shared.leaving.store(true, Ordering::Release);
        settings.timeout = settings.timeout.min(MAX_DURATION);
        let notice = if handed_over { Duration::ZERO } else { settings.notice.min(MAX_DURATION) };
        let total = control.shared.figures().total();
        Self {
            stage: Stage::Notice(now + notice),
            deadline: now + notice + settings.timeout,
            next: now,
            shares: Vec::new(),
            batches: 0,
            pause: MIN_PAUSE,
            handed_over,
            ended_before: total.sessions_opened - total.sessions,
            drained: Drained::default(),
            control,
            settings,
        }
    }

    /// Performs the steps that are due. Returns when the next one is; `None`: the shutdown is complete.
    pub fn step(&mut self, now: Instant) -> Option<Instant> {
        if let Stage::Notice(until) = self.stage {
            if now < until {
                return Some(until);
            }
            // The copies for a handoff would keep the listeners open.
            self.control.shared.take_listeners();
            let look = !self.handed_over;
            self.control.send(|_| Command::StopAccepting { accept_backlog: look });
            self.stage = Stage::Closing;
            self.plan(now);
        }
        if matches!(self.stage, Stage::Over) {
            return None;
        }
        let over = self.control.is_over();
        if over || now >= self.deadline {
            let total = self.control.shared.figures().total();
            let all = total.sessions_opened.saturating_sub(self.ended_before);
            let cut = if over { 0 } else { total.sessions };
            self.drained = Drained { ended: all.saturating_sub(cut), cut };
            self.control.shared.end_workers();
            self.stage = Stage::Over;
            return None;
        }
        if now >= self.next {
            let planned = self.batches > 0;
            self.batches = self.batches.saturating_sub(1);
            self.next = if self.batches > 0 { (self.next + self.pause).max(now) } else { now + FINAL_CHECK_INTERVAL };
            // Sessions that opened after the plan was made are in no batch: after the batches, all are closed.
            let share = |number: usize| if planned { self.shares.get(number).copied() } else { None };
            let reason = self.settings.reason.as_str();
            self.control
                .send(|number| Command::Shed(share(number).unwrap_or(usize::MAX), self.settings.code, reason.into()));
        }
        // Return early, to notice soon when the last session has ended.
        Some(self.next.min(now + MIN_PAUSE).min(self.deadline))
    }

    /// Spreads the batches over at most three quarters of the timeout, to leave time for the last closing handshakes.
    fn plan(&mut self, now: Instant) {
        let figures = self.control.shared.figures();
        let spread = self.settings.timeout.mul_f64(0.75);
        let most = u64::try_from(spread.as_nanos() / MIN_PAUSE.as_nanos()).unwrap_or(u64::MAX).max(1);
        let batches = figures.total().sessions.div_ceil(self.settings.batch.max(1) as u64).clamp(1, most);
        self.shares = figures.workers.iter().map(|worker| worker.sessions.div_ceil(batches) as usize).collect();
        self.batches = u32::try_from(batches).unwrap_or(u32::MAX);
        self.pause = (spread / self.batches).min(MAX_PAUSE);
        self.next = now;
    }

    /// Returns when the shutdown must be complete.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns the result once the shutdown is complete.
    #[must_use]
    pub fn drained(&self) -> Drained {
        self.drained
    }

    /// Blocks until the shutdown is complete.
    pub fn finish(&mut self) -> Drained {
        while let Some(next) = self.step(Instant::now()) {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        self.drained
    }
}
