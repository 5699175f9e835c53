//! What the workers of an engine have in common.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use wirespeed_driver::encoded::Encoded;
use wirespeed_driver::frames::Account;
use wirespeed_driver::protocol::{MessageKind, SendError};

use crate::admission::Admission;
use crate::auth::Jwt;
use crate::broker::Slot;
use crate::config::{Config, Place, Role};
use crate::events::Events;
use crate::handoff::ListenerSet;
use crate::locks::lock;
use crate::logs::{Cause, Logs};
use crate::memory::MemoryAccounting;
use crate::metrics::{Figures, WorkerFigures, WorkerMetrics};
use crate::operator_tokens::OperatorTokens;
use crate::page;
use crate::routes::Route;
use crate::session::WorkerHandle;
use crate::session_registry::SessionRegistry;
use crate::slow_consumer::Budgets;

/// What all workers share.
pub(crate) struct EngineShared {
    pub(crate) config: Config,
    pub(crate) admission: Arc<Admission>,
    /// Clients of one worker whose request may be awaited for long.
    pub(crate) pending: usize,
    pub(crate) events: Arc<Events>,
    /// Of each worker, by its number.
    pub(crate) sheets: Vec<Arc<WorkerMetrics>>,
    pub(crate) stop: AtomicBool,
    pub(crate) last_id: AtomicU64,
    /// Nobody should come any more.
    pub(crate) leaving: AtomicBool,
    /// Where what others want is put, by the numbers of the workers.
    pub(crate) homes: OnceLock<Vec<Arc<WorkerHandle>>>,
    /// Copies of the listeners, to be handed over.
    pub(crate) listeners: Mutex<Vec<ListenerSet>>,
    /// Another engine has copies of them, or is about to: they are closed, and not ended. Set under their lock.
    pub(crate) checked_out: AtomicBool,
    pub(crate) logs: Arc<Logs>,
    /// Requests with a wrong token for the metrics and the page.
    pub(crate) operator_tokens: OperatorTokens,
    /// Messages that the application did not understand.
    pub(crate) invalid: AtomicU64,
    /// Who is there.
    pub(crate) sessions_registry: SessionRegistry,
    /// For the page: what it has asked for.
    pub(crate) page: page::Kept,
    /// What all messages hold that wait.
    pub(crate) memory: Arc<MemoryAccounting>,
    pub(crate) start: Instant,
    /// Workers that have not ended.
    pub(crate) alive: AtomicUsize,
    /// Clients of Unix sockets, where all workers have the same queue, go to them in turn.
    pub(crate) turns: AtomicUsize,
    /// Those that have clients, or may get some: none ends before there are none, as all are wanted while anybody is there.
    pub(crate) occupied: AtomicUsize,
    /// A client once got a descriptor that no session is to have. From then on workers look before they accept: a lower
    /// one that is free says nothing about the next but one.
    pub(crate) short: AtomicBool,
    /// For how long slow sessions may delay publishers.
    pub(crate) budgets: Budgets,
    /// What connects it with other engines.
    pub(crate) broker: Slot,
    /// Of sessions that [`Config::admit`] has let in.
    pub(crate) plain: [Arc<Route>; 2],
}

impl EngineShared {
    /// The settings of the engine, for a session with this role.
    pub(crate) fn plain(&self, role: Role) -> Arc<Route> {
        match self.plain.iter().find(|route| route.role == role) {
            Some(route) => Arc::clone(route),
            None => Arc::new(Route::new(role, &self.config)),
        }
    }

    /// What has been counted, of each worker.
    pub(crate) fn figures(&self) -> Figures {
        let (events_waiting, event_bytes_waiting) = self.events.waiting();
        let files = self.jwts().filter(|jwt| jwt.key_file_error().is_some());
        let of = |(number, metrics): (usize, &Arc<WorkerMetrics>)| {
            let worker = self.homes.get().and_then(|homes| homes.get(number));
            WorkerFigures { mailbox_bytes: worker.map_or(0, |worker| worker.mailbox.bytes() as u64), ..metrics.read() }
        };
        Figures {
            workers: self.sheets.iter().enumerate().map(of).collect(),
            events_waiting,
            event_bytes_waiting,
            oldest_event: self.events.oldest(self.since_start()),
            key_files_failed: files.count(),
            operator_tokens_refused: self.operator_tokens.refused(),
            messages_invalid: self.invalid.load(Ordering::Relaxed),
            total_outbox_bytes: self.total_waiting(),
            broker: self.broker.get().map(|broker| broker.status()),
        }
    }

    /// What verifies tokens, each once.
    fn jwts(&self) -> impl Iterator<Item = &Arc<Jwt>> {
        let routes = self.config.routes.iter().flat_map(|routes| routes.each());
        let mut seen = Vec::new();
        self.config.auth.iter().chain(routes.filter_map(|route| route.auth.as_ref())).filter(move |jwt| {
            let new = !seen.contains(&Arc::as_ptr(jwt));
            seen.push(Arc::as_ptr(jwt));
            new
        })
    }

    /// In nanoseconds.
    pub(crate) fn since_start(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The application takes no events: a thread that was to take them has died, or is kept by something else.
    pub(crate) fn note_late_events(&self, oldest: Duration) {
        self.logs.note(Cause::EventsLate, Instant::now(), || {
            format!("events are not taken by the application: the oldest has waited for {} s", oldest.as_secs())
        });
    }

    pub(super) fn least_outbox(&self) -> usize {
        let config = &self.config;
        config.routes.as_ref().and_then(|routes| routes.least_outbox()).unwrap_or(config.outbox_limit)
    }

    /// Bytes of memory that wait for sessions.
    pub(crate) fn total_waiting(&self) -> usize {
        let buffered_bytes: u64 = self.sheets.iter().map(|metrics| metrics.buffered_bytes.value()).sum();
        self.memory.sum() + buffered_bytes as usize
    }

    /// The same without what waits for workers, which is limited by itself, and is no session's to give: as long as a
    /// message is in one mailbox its memory is not free, however many sessions let go of it.
    pub(crate) fn held_by_sessions(&self) -> usize {
        self.total_waiting().saturating_sub(self.memory.posted())
    }

    /// A message that is counted.
    pub(crate) fn encode(&self, kind: MessageKind, payload: &[u8]) -> Result<Arc<Encoded>, SendError> {
        let account: Arc<dyn Account> = Arc::<MemoryAccounting>::clone(&self.memory);
        Encoded::counted(kind, payload, Some(account)).map(Arc::new)
    }

    /// Ends all workers now.
    pub(crate) fn end_workers(&self) {
        self.stop.store(true, Ordering::Release);
        self.homes.get().into_iter().flatten().for_each(|worker| worker.mailbox.wake());
    }

    /// One worker fewer has clients: the last one's end is that of all.
    pub(super) fn leave(&self) {
        if self.occupied.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end_workers();
        }
    }

    pub(crate) fn take_listeners(&self) {
        lock(&self.listeners).clear();
    }

    /// For another engine.
    pub(crate) fn copy_listeners(&self) -> io::Result<Vec<(Place, Vec<OwnedFd>)>> {
        let copy = |offer: &ListenerSet| {
            let listeners = offer.listeners.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
            Ok((offer.place.clone(), listeners))
        };
        let listeners = lock(&self.listeners);
        self.checked_out.store(true, Ordering::Release);
        listeners.iter().map(copy).collect()
    }

    /// Whether the listeners may be ended for all who have copies: none has, or will have, but children of ours.
    pub(crate) fn may_shut(&self) -> bool {
        let mut listeners = lock(&self.listeners);
        let may = !self.checked_out.load(Ordering::Acquire);
        if may {
            listeners.clear();
        }
        may
    }
}
