//! The state that all workers of an engine share, with the engine's handles.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use wirespeed_driver::encoded::Encoded;
use wirespeed_driver::frames::Account;
use wirespeed_driver::protocol::{MessageKind, SendError};

use crate::admission::Admission;
use crate::admission::operator_tokens::OperatorTokens;
use crate::auth::Jwt;
use crate::broker::Slot;
use crate::config::{Config, Place, Role, Route};
use crate::control::WorkerHandle;
use crate::delivery::memory::MemoryAccounting;
use crate::delivery::slow_consumer::Budgets;
use crate::events::Events;
use crate::listen::ListenerSet;
use crate::logs::{Cause, Logs};
use crate::metrics::{Figures, WorkerFigures, WorkerMetrics};
use crate::session::registry::SessionRegistry;
use crate::util::locks::lock;

/// The state that all workers share.
pub(crate) struct EngineShared {
    pub(crate) config: Config,
    pub(crate) admission: Arc<Admission>,
    /// The number of handshakes of one worker that may wait long for their request.
    pub(crate) pending: usize,
    pub(crate) events: Arc<Events>,
    /// The metrics of each worker, by its number.
    pub(crate) metrics: Vec<Arc<WorkerMetrics>>,
    pub(crate) stop: AtomicBool,
    pub(crate) last_id: AtomicU64,
    /// The engine is shutting down: no more clients should come.
    pub(crate) leaving: AtomicBool,
    /// The handles of all workers, by their numbers.
    pub(crate) handles: OnceLock<Vec<Arc<WorkerHandle>>>,
    /// Copies of the listeners, for a handoff.
    pub(crate) listeners: Mutex<Vec<ListenerSet>>,
    /// Another engine has copies of the listeners, or is about to: they are closed without `shutdown(2)`. Set under
    /// the lock of `listeners`.
    pub(crate) checked_out: AtomicBool,
    pub(crate) logs: Arc<Logs>,
    /// Counts requests for the metrics and the page with a wrong token.
    pub(crate) operator_tokens: OperatorTokens,
    /// Messages that the application did not understand.
    pub(crate) invalid_messages: AtomicU64,
    /// All sessions, by their numbers.
    pub(crate) sessions: SessionRegistry,
    /// The list of topics for the live page, and when it was made: see [`crate::http`].
    pub(crate) page_topics: Mutex<Option<(Instant, serde_json::Value)>>,
    /// The memory of all messages that wait.
    pub(crate) memory: Arc<MemoryAccounting>,
    pub(crate) start: Instant,
    /// Workers that have not ended.
    pub(crate) alive: AtomicUsize,
    /// Counts clients of Unix sockets. All workers share the queue of such a socket, and take its clients in turn.
    pub(crate) next_worker: AtomicUsize,
    /// Workers that have clients, or may get some. No worker ends before this is 0, as any client may need all
    /// workers.
    pub(crate) occupied_workers: AtomicUsize,
    /// A client once got a descriptor that is reserved for the application. From then on workers check descriptors
    /// before they accept: one free lower descriptor says nothing about the ones after it.
    pub(crate) descriptors_short: AtomicBool,
    /// How long slow sessions may delay publishers.
    pub(crate) budgets: Budgets,
    /// The connection to other engines.
    pub(crate) broker: Slot,
    /// The routes of sessions that [`Config::admit`] has accepted.
    pub(crate) default_routes: [Arc<Route>; 2],
}

impl EngineShared {
    /// Returns the engine's own settings as a route, for a session with this role.
    pub(crate) fn default_route(&self, role: Role) -> Arc<Route> {
        match self.default_routes.iter().find(|route| route.role == role) {
            Some(route) => Arc::clone(route),
            None => Arc::new(Route::new(role, self.config.route_settings())),
        }
    }

    /// Returns the metrics of each worker, and those of the engine.
    pub(crate) fn figures(&self) -> Figures {
        let (events_waiting, event_bytes_waiting) = self.events.waiting();
        let files = self.jwts().filter(|jwt| jwt.key_file_error().is_some());
        let of = |(number, metrics): (usize, &Arc<WorkerMetrics>)| {
            let worker = self.handles.get().and_then(|handles| handles.get(number));
            WorkerFigures { mailbox_bytes: worker.map_or(0, |worker| worker.mailbox.bytes() as u64), ..metrics.read() }
        };
        Figures {
            workers: self.metrics.iter().enumerate().map(of).collect(),
            events_waiting,
            event_bytes_waiting,
            oldest_event: self.events.oldest(self.since_start()),
            key_files_failed: files.count(),
            operator_tokens_refused: self.operator_tokens.refused(),
            messages_invalid: self.invalid_messages.load(Ordering::Relaxed),
            total_outbox_bytes: self.total_memory(),
            broker: self.broker.get().map(|broker| broker.status()),
        }
    }

    /// Iterates over the token verifiers of the engine and its routes, each once.
    fn jwts(&self) -> impl Iterator<Item = &Arc<Jwt>> {
        let routes = self.config.routes.iter().flat_map(|routes| routes.all());
        let mut seen = Vec::new();
        self.config.auth.iter().chain(routes.filter_map(|route| route.settings.auth.as_ref())).filter(move |jwt| {
            let new = !seen.contains(&Arc::as_ptr(jwt));
            seen.push(Arc::as_ptr(jwt));
            new
        })
    }

    /// Returns the time since the start, in nanoseconds.
    pub(crate) fn since_start(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Logs that the application does not take events: its thread has died, or is busy with something else.
    pub(crate) fn log_stalled_events(&self, oldest: Duration) {
        self.logs.note(Cause::EventsLate, Instant::now(), || {
            format!("the application takes no events: the oldest has waited for {} s", oldest.as_secs())
        });
    }

    pub(crate) fn least_outbox(&self) -> usize {
        let config = &self.config;
        config.routes.as_ref().and_then(|routes| routes.min_outbox_limit()).unwrap_or(config.outbox_limit)
    }

    /// Returns the memory, in bytes, of everything that waits for sessions.
    pub(crate) fn total_memory(&self) -> usize {
        let buffered_bytes: u64 = self.metrics.iter().map(|metrics| metrics.buffered_bytes.value()).sum();
        self.memory.sum() + buffered_bytes as usize
    }

    /// Returns the memory that sessions hold, without messages that wait for workers. Mailboxes have a limit of their
    /// own, and a message in a mailbox stays allocated even if every session drops it.
    pub(crate) fn session_memory(&self) -> usize {
        self.total_memory().saturating_sub(self.memory.in_mailboxes())
    }

    /// Encodes a message whose memory is counted.
    pub(crate) fn encode(&self, kind: MessageKind, payload: &[u8]) -> Result<Arc<Encoded>, SendError> {
        let account: Arc<dyn Account> = Arc::<MemoryAccounting>::clone(&self.memory);
        Encoded::counted(kind, payload, Some(account)).map(Arc::new)
    }

    /// Ends all workers immediately.
    pub(crate) fn end_workers(&self) {
        self.stop.store(true, Ordering::Release);
        self.handles.get().into_iter().flatten().for_each(|worker| worker.mailbox.wake());
    }

    /// Notes that one worker fewer has clients. When the last one has none, all workers end.
    pub(crate) fn release_occupied(&self) {
        if self.occupied_workers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end_workers();
        }
    }

    pub(crate) fn take_listeners(&self) {
        lock(&self.listeners).clear();
    }

    /// Copies the listeners for another engine.
    pub(crate) fn copy_listeners(&self) -> io::Result<Vec<(Place, Vec<OwnedFd>)>> {
        let copy = |offer: &ListenerSet| {
            let listeners = offer.listeners.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
            Ok((offer.place.clone(), listeners))
        };
        let listeners = lock(&self.listeners);
        self.checked_out.store(true, Ordering::Release);
        listeners.iter().map(copy).collect()
    }

    /// Returns whether listeners may be ended by `shutdown(2)`: no other engine has copies, or will have; forked
    /// children may.
    pub(crate) fn may_shut_down(&self) -> bool {
        let mut listeners = lock(&self.listeners);
        let may = !self.checked_out.load(Ordering::Acquire);
        if may {
            listeners.clear();
        }
        may
    }
}
