//! The end of an engine, without haste: nobody is accepted, and sessions are closed a few at a time, so that
//! their clients do not all connect elsewhere at once.
//!
//! Driven by whoever drains: he asks for a step and waits until the next is due, as it suits him. The workers are
//! told by commands.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use wirespeed_driver::protocol::CloseCode;

use crate::session::WorkerHandle;
use crate::worker::{Command, EngineShared};

/// Between batches at least.
const PAUSE: Duration = Duration::from_millis(50);

/// Between batches at most: clients that come back are spread well enough, and a few sessions more than fit into one batch
/// do not make the end much longer.
const SPREAD: Duration = Duration::from_millis(500);

/// Between looks at who is left, once all batches have been told.
const REST: Duration = Duration::from_millis(200);

/// What takes longer takes as long: a hundred years, which clocks can count.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// How to end.
#[derive(Clone, Debug)]
pub struct Drain {
    /// All of it, at most: whoever is left then is cut off.
    pub timeout: Duration,
    /// Sessions that are closed at once, as far as the timeout allows.
    pub batch: usize,
    /// Before anything else happens: `/ready` says so already, and clients are still accepted.
    pub notice: Duration,
    /// The code of the close frames.
    pub code: CloseCode,
    /// Their reason.
    pub reason: String,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            batch: 100,
            notice: Duration::ZERO,
            // RFC 6455 11.7, 1012: "service restart".
            code: CloseCode(1012),
            reason: "service restart".to_owned(),
        }
    }
}

/// What has come of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Sessions that have ended by a closing handshake, or by themselves.
    pub ended: u64,
    /// Sessions that were cut off when the time was over.
    pub cut: u64,
}

/// What one needs to hold to end an engine.
#[derive(Clone)]
pub(crate) struct EngineControl {
    pub(crate) shared: Arc<EngineShared>,
    pub(crate) homes: Vec<Arc<WorkerHandle>>,
}

impl EngineControl {
    fn notify(&self, command: impl Fn(usize) -> Command) {
        for (number, worker) in self.homes.iter().enumerate() {
            let _ = worker.mailbox.put(command(number), 0); // who has ended needs no telling
        }
    }

    fn is_over(&self) -> bool {
        self.shared.metrics.iter().all(|metrics| metrics.ended.load(Ordering::Acquire))
    }
}

enum Stage {
    /// Clients are still accepted, until then.
    Notice(Instant),
    Closing,
    Over,
}

/// An end that is under way: see the module.
pub struct Draining {
    control: EngineControl,
    how: Drain,
    stage: Stage,
    /// When all must be over.
    deadline: Instant,
    /// When the next batch is due, and how many of each worker are in one.
    next: Instant,
    shares: Vec<usize>,
    /// Batches that are left, and what is between them.
    batches: u32,
    pause: Duration,
    /// Sessions that there ever were, less those that were there at first.
    before: u64,
    drained: Drained,
    handed_over: bool,
}

impl Draining {
    /// `handed_over`: somebody else accepts from the same listeners.
    pub(crate) fn begin(control: EngineControl, mut how: Drain, handed_over: bool, now: Instant) -> Self {
        control.shared.leaving.store(true, Ordering::Release);
        how.timeout = how.timeout.min(LONGEST);
        let notice = if handed_over { Duration::ZERO } else { how.notice.min(LONGEST) };
        let total = control.shared.figures().total();
        Self {
            stage: Stage::Notice(now + notice),
            deadline: now + notice + how.timeout,
            next: now,
            shares: Vec::new(),
            batches: 0,
            pause: PAUSE,
            handed_over,
            before: total.sessions_opened - total.sessions,
            drained: Drained::default(),
            control,
            how,
        }
    }

    /// Does what is due. When the next step is; `None`: it is over.
    pub fn step(&mut self, now: Instant) -> Option<Instant> {
        if let Stage::Notice(until) = self.stage {
            if now < until {
                return Some(until);
            }
            // What is kept to be handed over would keep the listeners open.
            self.control.shared.take_listeners();
            let look = !self.handed_over;
            self.control.notify(|_| Command::StopAccepting { accept_backlog: look });
            self.stage = Stage::Closing;
            self.plan(now);
        }
        if matches!(self.stage, Stage::Over) {
            return None;
        }
        let over = self.control.is_over();
        if over || now >= self.deadline {
            let total = self.control.shared.figures().total();
            let all = total.sessions_opened.saturating_sub(self.before);
            let cut = if over { 0 } else { total.sessions };
            self.drained = Drained { ended: all.saturating_sub(cut), cut };
            self.control.shared.end_workers();
            self.stage = Stage::Over;
            return None;
        }
        if now >= self.next {
            let planned = self.batches > 0;
            self.batches = self.batches.saturating_sub(1);
            self.next = if self.batches > 0 { (self.next + self.pause).max(now) } else { now + REST };
            // Who had no session yet when it was planned may have one now.
            let share = |number: usize| if planned { self.shares.get(number).copied() } else { None };
            let reason = self.how.reason.as_str();
            self.control
                .notify(|number| Command::Shed(share(number).unwrap_or(usize::MAX), self.how.code, reason.into()));
        }
        // Sessions end meanwhile, and the sooner it is known the better.
        Some(self.next.min(now + PAUSE).min(self.deadline))
    }

    /// Spreads the batches over three quarters of the time at most: the last ones need some for their closing handshake.
    fn plan(&mut self, now: Instant) {
        let figures = self.control.shared.figures();
        let spread = self.how.timeout.mul_f64(0.75);
        let most = u64::try_from(spread.as_nanos() / PAUSE.as_nanos()).unwrap_or(u64::MAX).max(1);
        let batches = figures.total().sessions.div_ceil(self.how.batch.max(1) as u64).clamp(1, most);
        self.shares = figures.workers.iter().map(|worker| worker.sessions.div_ceil(batches) as usize).collect();
        self.batches = u32::try_from(batches).unwrap_or(u32::MAX);
        self.pause = (spread / self.batches).min(SPREAD);
        self.next = now;
    }

    /// When all must be over.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// What has come of it, once it is over.
    #[must_use]
    pub fn drained(&self) -> Drained {
        self.drained
    }

    /// Goes on until it is over.
    pub fn finish(&mut self) -> Drained {
        while let Some(next) = self.step(Instant::now()) {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        self.drained
    }
}
