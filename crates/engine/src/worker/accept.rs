//! Accepting clients, and their opening handshakes until they are sessions.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Token};
use wirespeed_driver::accept::{BURST, IDLE_TIME};
use wirespeed_driver::protocol::CloseCode;
use wirespeed_driver::socket::Socket;
use wirespeed_driver::tls::{Layer, RustlsLayer};

use super::{LISTENERS, Worker};
use crate::config::Role;
use crate::connection::meter::Meter;
use crate::connection::{Accepted, Client, Detail, Established, Opened, Opening};
use crate::control::Command;
use crate::listen;
use crate::listen::{AcceptedSocket, Certificate, Listener, ListenerOptions};
use crate::logs::{Cause, Level, Logs};
use crate::metrics::WorkerMetrics;
use crate::reasons::Reason;
use crate::session::{Refusal, Session};
use crate::topics::Topic;
use crate::util::descriptors;
use crate::util::slab::Key;

/// How long a refused client may take to read the answer.
const LINGER: Duration = Duration::from_secs(2);

/// The maximum number of clients accepted from one listener in one turn; each takes some microseconds. About as many
/// arrive while a worker handles the events of a thousand clients.
const MAX_ACCEPTS: usize = 1024;

/// Handshakes started in one turn: no more than may have failed by the next turn.
const MAX_HANDSHAKES_STARTED: usize = 64;

/// Handshakes that hold more than one part in this number of all descriptors are many. They return them soon.
const LARGE_PART: usize = 4;

/// How long no client is accepted when descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Returns the maximum number of accepted sockets and pending handshakes of one worker. `pending` is the number of
/// handshakes that may wait long. The limit is at most half of the process's descriptors, divided among the workers.
pub(super) fn max_accepted(pending: usize, workers: usize) -> usize {
    pending.saturating_mul(BURST).min(descriptors::limit() / 2 / workers.max(1))
}

/// Reads the certificate again if its files have changed.
fn renew(certificate: &Certificate, logs: &Logs) {
    let now = Instant::now();
    match certificate.renew(now) {
        None => {}
        Some(Ok(())) => logs.note(Cause::Certificate, now, || "the certificate was read again".to_owned()),
        Some(Err(error)) => logs.note_as(Cause::Certificate, Level::Error, now, || {
            format!("the certificate has changed, and cannot be used: {error}; the previous one stays in use")
        }),
    }
}

/// Subscribes a client of a relay to its topic, if it receives messages.
fn subscribe(session: &Session, topic: Option<&Topic>) -> Result<(), Refusal> {
    match (&session.route().role, topic) {
        (Role::Relay(relay), Some(topic)) if relay.receive => session.subscribe(&topic.clone().into()).map(drop),
        _ => Ok(()),
    }
}

/// Returns the close code and reason for a session that cannot subscribe.
fn close_reason(refusal: &Refusal) -> (CloseCode, &'static str) {
    match refusal {
        // RFC 6455 7.4.1, 1008: "a message that violates its policy".
        Refusal::TooManySubscriptions(_) => (CloseCode::POLICY_VIOLATION, "too many subscriptions"),
        Refusal::Denied => (CloseCode::POLICY_VIOLATION, "this topic may not be subscribed to"),
        // 1013: "try again later".
        _ => (CloseCode(1013), "too much to do"),
    }
}

/// How long no client is accepted after another client's descriptor was freed.
const EVICTION_PAUSE: Duration = Duration::from_millis(1);

impl Worker {
    pub(super) fn mark_accepting(&mut self, index: usize) {
        if !self.accepting.contains(&index) {
            self.accepting.push(index);
        }
    }

    pub(super) fn add_listener(&mut self, listener: Listener) {
        let index = self.listeners.len();
        let Some(socket) = &listener.socket else { return };
        let watched =
            self.poll.registry().register(&mut SourceFd(&socket.as_raw_fd()), Token(index), Interest::READABLE);
        if let Err(error) = watched {
            listen::shut_down(socket); // a copy exists, and clients would wait there
            let worker = self.worker.worker.index();
            return self.shared.logs.note_as(Cause::Handoff, Level::Error, Instant::now(), || {
                format!("worker {worker} cannot listen: {error}")
            });
        }
        self.listeners.push(listener);
        self.mark_accepting(index);
    }

    /// Returns whether clients whose sessions emit events may become sessions. Each adds an event, so events must have
    /// capacity. While the worker drains its backlog all clients are admitted.
    pub(super) fn admits_sessions(&self) -> bool {
        self.events_have_capacity || self.draining || self.drain_backlog
    }

    /// Accepts waiting clients, and starts the handshakes of some of them.
    pub(super) fn accept(&mut self) {
        if self.accept_after.is_none() && !self.drain_backlog {
            self.accept_sockets();
        }
        // Accepted sockets have their descriptor, even if no more can be accepted.
        for _ in 0..MAX_HANDSHAKES_STARTED {
            if self.accepted.is_empty() {
                return;
            }
            let now = Instant::now();
            if let Some(delay) = self.handshake_delay(now) {
                self.accept_after = Some(now + delay);
                return;
            }
            self.start_next_handshake();
        }
    }

    /// Accepts clients from the system's queues. The queues overflow when thousands of clients connect at once, and
    /// the system does not answer a client for a second if it finds a full queue.
    fn accept_sockets(&mut self) {
        let mut more = Vec::new();
        for index in std::mem::take(&mut self.accepting) {
            let mut evicted = false;
            for turn in 0.. {
                let accepted = self.accepted.len();
                if turn == MAX_ACCEPTS
                    || accepted >= MAX_HANDSHAKES_STARTED && accepted + self.pending.len() >= self.max_accepted
                {
                    more.push(index);
                    break;
                }
                if let Some(pause) = self.keep_descriptors_free(index, Instant::now()) {
                    self.accept_after = Some(Instant::now() + pause);
                    return;
                }
                let Some(Listener { socket: Some(listener), options }) = self.listeners.get(index) else { break };
                match Socket::accept(listener.as_fd()) {
                    Ok(Some((socket, remote))) => {
                        evicted = false;
                        let incoming = AcceptedSocket { options: options.clone(), socket, remote, passed: false };
                        if self.enqueue(incoming) {
                            more.push(index); // reserved descriptors are for one client at a time
                            break;
                        }
                    }
                    Ok(None) => break,
                    // A client that left before it was accepted.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // The accepted clients go first; those that fail return their descriptors.
                    Err(_) if accepted >= MAX_HANDSHAKES_STARTED => {
                        more.push(index);
                        break;
                    }
                    Err(error) => {
                        if self.pause_after(&error, &mut evicted) {
                            return;
                        }
                    }
                }
            }
        }
        self.accepting = more;
    }

    /// Queues an accepted socket here or at another worker. Returns whether its descriptor is a reserved one.
    fn enqueue(&mut self, incoming: AcceptedSocket) -> bool {
        let descriptor = incoming.socket.raw();
        let short = descriptors::is_reserved(descriptor);
        if short {
            self.shared.descriptors_short.store(true, Ordering::Relaxed);
        }
        let alone = self.pending.is_empty() && self.accepted.is_empty();
        if short && alone && !incoming.options.internal && descriptors::is_reserved_for_application(descriptor, 0) {
            self.fail(Reason::Full, incoming.remote); // there is no other client to evict
        } else if let Some(incoming) = self.pass_to_worker(incoming) {
            self.accepted.push_back(incoming);
        }
        short
    }

    /// Keeps the last descriptors free for the application: evicts silent clients before the next client would get one
    /// of them. Returns how long no client may be accepted, if none can be evicted yet.
    fn keep_descriptors_free(&mut self, index: usize, now: Instant) -> Option<Duration> {
        if !self.shared.descriptors_short.load(Ordering::Relaxed) {
            return None;
        }
        // All workers may accept at this moment.
        let others = self.shared.metrics.len() - 1;
        while !self.pending.is_empty() {
            let next = descriptors::next_free(self.listeners.get(index)?.socket.as_ref()?);
            if next.is_some_and(|next| !descriptors::is_reserved_for_application(next, others)) {
                return None;
            }
            let delay = self.evict_one(now);
            if !delay.is_zero() {
                return Some(delay.max(EVICTION_PAUSE));
            }
        }
        None
    }

    /// Frees a descriptor for a handshake that has a reserved one, by evicting a silent client. If no client can be
    /// evicted yet, and handshakes hold many of all descriptors, the session may keep the reserved one.
    fn ensure_descriptor(&mut self, key: Key) {
        let short = |opening: &Opening| opening.awaited().is_some() && opening.lacks_descriptor();
        if !matches!(self.clients.get(key), Some(Client::Opening(opening)) if short(opening)) {
            return;
        }
        self.evict_one(Instant::now());
        let many_handshakes = self.handshakes_of_all_workers() * LARGE_PART >= descriptors::limit();
        if let Some(Client::Opening(opening)) = self.clients.get_mut(key) {
            opening.set_may_use_reserved(many_handshakes);
        }
    }

    /// The number of handshakes in all workers. The system may give one worker far more clients than another.
    fn handshakes_of_all_workers(&self) -> usize {
        let handshakes = |metrics: &WorkerMetrics| metrics.connections.value().saturating_sub(metrics.sessions.value());
        let total = self.shared.metrics.iter().map(|metrics| handshakes(metrics)).sum::<u64>();
        usize::try_from(total).unwrap_or(usize::MAX)
    }

    /// Passes a client of a Unix socket to the next worker in turn. All workers accept from the same queue of such a
    /// socket, and a worker that is awake would get all clients. Returns the client if it is to stay here.
    fn pass_to_worker(&self, incoming: AcceptedSocket) -> Option<AcceptedSocket> {
        let Some(handles) = self.shared.handles.get() else { return Some(incoming) };
        if !incoming.options.unix || incoming.options.internal || self.shared.leaving.load(Ordering::Acquire) {
            return Some(incoming);
        }
        let number = self.shared.next_worker.fetch_add(1, Ordering::Relaxed) % handles.len();
        let ended = self.shared.metrics.get(number).is_none_or(|metrics| metrics.ended.load(Ordering::Acquire));
        let Some(worker) = handles.get(number).filter(|_| !ended && number != self.worker.worker.index()) else {
            return Some(incoming);
        };
        if worker.arriving.fetch_add(1, Ordering::AcqRel) >= MAX_HANDSHAKES_STARTED {
            worker.arriving.fetch_sub(1, Ordering::AcqRel);
            return Some(incoming); // that worker is busy
        }
        // The engine does not end before that worker has looked at the client.
        self.shared.occupied_workers.fetch_add(1, Ordering::AcqRel);
        let remote = incoming.remote;
        if worker.mailbox.put(Command::Accepted(Box::new(AcceptedSocket { passed: true, ..incoming })), 0).is_err() {
            self.fail(Reason::Stopping, remote); // the worker has ended at this moment
            self.shared.release_occupied();
        }
        None
    }

    /// Takes a client that another worker has accepted.
    pub(super) fn receive(&mut self, incoming: AcceptedSocket) {
        self.worker.arriving.fetch_sub(1, Ordering::AcqRel);
        self.accepted.push_back(incoming);
        self.update_vacant();
        self.shared.release_occupied();
    }

    fn start_next_handshake(&mut self) {
        if let Some(incoming) = self.accepted.pop_front() {
            self.start_handshake(incoming);
        }
    }

    /// Handles an error of `accept(2)`, usually a lack of descriptors: evicts a silent client, or pauses accepting.
    /// Returns whether accepting has to pause. `evicted`: a descriptor was freed, and no client has been accepted
    /// since.
    fn pause_after(&mut self, error: &io::Error, evicted: &mut bool) -> bool {
        let now = Instant::now();
        let pause = if self.pending.is_empty() { ACCEPT_PAUSE } else { self.evict_one(now) };
        self.shared.logs.note(Cause::AcceptPause, now, || format!("no client can be accepted for now: {error}"));
        // Try again at once after an eviction, unless something else has taken the descriptor.
        if pause.is_zero() && !std::mem::replace(evicted, true) {
            return false;
        }
        self.accept_after = Some(now + pause.max(EVICTION_PAUSE));
        true
    }

    fn is_internal(&self, index: usize) -> bool {
        self.listeners.get(index).is_some_and(|listener| listener.options.internal)
    }

    /// Returns whether [`Self::accept`] has something to do.
    pub(super) fn can_accept(&self) -> bool {
        self.accept_after.is_none() && !self.accepting.is_empty()
            || !self.accepted.is_empty() && !self.pending.is_full()
    }

    /// Stops accepting, except at the internal listener. `accept_backlog`: clients in the backlogs are accepted first,
    /// as no other engine would accept them, and they would be reset.
    pub(super) fn stop_accepting(&mut self, accept_backlog: bool) {
        self.ready.extend(self.awaiting_admission.drain(..)); // they are admitted: see `admits_sessions`
        self.closing.clear();
        for index in 0..self.listeners.len() {
            match self.is_internal(index) {
                true if accept_backlog => {}
                false if accept_backlog && !self.draining => self.closing.push((index, 0)),
                // The next engine accepts the clients of a listener that was handed over.
                _ => self.close_listener(index),
            }
        }
        self.sheds = true;
        self.drain_backlog = !self.draining;
        if self.drain_backlog {
            self.accept_backlogs();
        }
    }

    /// Begins to drain: no more clients are accepted.
    fn drain(&mut self) {
        self.drain_backlog = false;
        if !std::mem::replace(&mut self.draining, true) {
            self.shorten_deadlines();
        }
    }

    /// Starts handshakes of accepted sockets, then accepts from the listeners that are about to be closed. Each is
    /// closed when its backlog is empty, or when as many clients came as its backlog can hold.
    pub(super) fn accept_backlogs(&mut self) {
        for _ in 0..MAX_HANDSHAKES_STARTED {
            self.start_next_handshake();
        }
        if !self.accepted.is_empty() {
            return;
        }
        let most = listen::BACKLOG.unsigned_abs() as usize + 1;
        for place in (0..self.closing.len()).rev() {
            for turn in 0.. {
                let Some(&(index, count)) = self.closing.get(place) else { break };
                if turn == MAX_HANDSHAKES_STARTED && count < most {
                    break;
                }
                let open = self.listeners.get(index).filter(|_| count < most);
                let accepted = open.and_then(|listener| {
                    let (socket, remote) = Socket::accept(listener.socket.as_ref()?.as_fd()).ok()??;
                    Some(AcceptedSocket { options: listener.options.clone(), socket, remote, passed: false })
                });
                let Some(incoming) = accepted else {
                    self.closing.swap_remove(place);
                    self.close_listener(index);
                    break;
                };
                if let Some((_, count)) = self.closing.get_mut(place) {
                    *count += 1; // before the call that may panic
                }
                self.start_handshake(incoming);
            }
        }
        if self.closing.is_empty() {
            self.drain();
        }
    }

    /// Closes a listener.
    pub(super) fn close_listener(&mut self, index: usize) {
        let Some(socket) = self.listeners.get_mut(index).and_then(|listener| listener.socket.take()) else { return };
        // Other processes may have the same socket: the system would go on reporting its edges.
        let _ = self.poll.registry().deregister(&mut SourceFd(&socket.as_raw_fd()));
        if self.shared.may_shut_down() {
            listen::shut_down(&socket);
        }
    }

    pub(super) fn start_handshake(&mut self, incoming: AcceptedSocket) {
        self.current = None; // the handshake before this one had its turn
        wirespeed_driver::protocol::failpoint::hit("engine.accept");
        let shared = Arc::clone(&self.shared);
        let AcceptedSocket { options: ListenerOptions { tls, unix, internal }, socket, remote, passed } = incoming;
        // A client that another worker has passed on was accepted before all listeners were closed.
        if self.draining && !internal && !(passed && self.sheds) {
            return self.fail(Reason::Stopping, remote);
        }
        self.metrics.connections.add(1);
        if !unix {
            let _ = socket.options().set_tcp_nodelay(true); // a client that has left is found when it is read
            socket.limit_unsent();
        }
        let layer: Option<Box<dyn Layer>> = match &tls {
            None => None,
            Some(certificate) => {
                renew(certificate, &shared.logs);
                match RustlsLayer::server(certificate.current()) {
                    Ok(layer) => Some(Box::new(layer)),
                    Err(_) => return self.forget_unopened(remote),
                }
            }
        };
        let fd = socket.raw();
        let opening = Opening::new(socket, remote, layer, &shared.config, internal);
        let Some(mut opening) = opening else { return self.forget_unopened(remote) };
        if opening.lacks_descriptor() {
            self.evict_one(Instant::now());
        }
        if !internal {
            self.evict_refused(Instant::now());
        }
        if !internal && !opening.count_connection(&shared) {
            self.fail(opening.failure().unwrap_or(Reason::Refused), remote);
            return self.forget_connection();
        }
        let key = self.clients.insert(Client::Opening(Box::new(opening)));
        self.current = Some(key);
        if let Err(error) = self.watch(key, fd) {
            let text = || format!("an accepted client cannot be served: {error}");
            self.shared.logs.note(Cause::AcceptPause, Instant::now(), text);
            return self.remove(key);
        }
        let most = shared.config.open_timeout;
        // A deadline beyond the range of the clock never comes.
        if let Some(deadline) = Instant::now().checked_add(if self.draining { most.min(IDLE_TIME) } else { most }) {
            self.wheel.set(deadline, key);
        }
        // Most requests have arrived by now.
        self.open(key);
        self.add_pending(key, Instant::now());
    }

    fn watch(&self, key: Key, descriptor: RawFd) -> io::Result<()> {
        let token = Token(LISTENERS + key.to_token());
        self.poll.registry().register(&mut SourceFd(&descriptor), token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Postpones a session until events have capacity.
    pub(super) fn await_admission(&mut self, key: Key) {
        // Live entries are in `pending` too, so a list much longer than that contains removed clients.
        if self.awaiting_admission.len() > 2 * self.pending.len() + MAX_HANDSHAKES_STARTED {
            self.awaiting_admission.retain(|key| self.clients.get(*key).is_some());
        }
        self.awaiting_admission.push(key);
    }

    /// Counts a connection on which TLS could not begin.
    fn forget_unopened(&self, remote: Option<SocketAddr>) {
        self.fail(Reason::Tls, remote);
        self.forget_connection();
    }

    /// Counts and logs a client that gets no session.
    pub(super) fn fail(&self, reason: Reason, remote: Option<SocketAddr>) {
        self.fail_for(reason, None, remote);
    }

    /// Counts and logs a failed opening handshake.
    pub(super) fn fail_for(&self, reason: Reason, detail: Option<&Detail>, remote: Option<SocketAddr>) {
        self.metrics.count_failure(reason);
        let cause = match detail {
            Some(Detail::Token(denied)) => {
                self.metrics.count_denied_token(denied);
                Cause::Token(denied.index())
            }
            _ => Cause::Handshake(reason),
        };
        self.shared.logs.note(cause, Instant::now(), || {
            let whose = match remote {
                Some(remote) => format!("the opening handshake of {remote}"),
                None => "an opening handshake on a Unix socket".to_owned(),
            };
            let detail = detail.map_or_else(String::new, |detail| format!(": {detail}"));
            format!("{whose} failed: {reason}{detail}")
        });
    }

    pub(super) fn forget_connection(&self) {
        self.metrics.connections.subtract(1);
    }

    pub(super) fn open(&mut self, key: Key) {
        // A session needs a descriptor that is not reserved.
        self.ensure_descriptor(key);
        self.current = Some(key);
        let (shared, admits_sessions) = (Arc::clone(&self.shared), self.admits_sessions());
        let Some(Client::Opening(opening)) = self.clients.get_mut(key) else { return };
        if opening.awaits_admission() && !admits_sessions {
            return;
        }
        if opening.awaits_proxy_header() {
            self.evict_refused(Instant::now());
        }
        let Some(Client::Opening(opening)) = self.clients.get_mut(key) else { return };
        match opening.proceed(&shared) {
            Opened::NotYet => {
                if opening.take_to_be_refused() {
                    let now = Instant::now();
                    self.to_be_refused.add(key, opening.origin(), now);
                    self.wheel.set(now + LINGER, key); // beside the timeout of the handshake; the earlier one counts
                }
                if opening.take_refused() {
                    self.to_be_refused.remove(key);
                    // Beside the timeout of the handshake; the earlier one counts.
                    self.wheel.set(Instant::now() + LINGER, key);
                }
                if opening.take_origin_changed() {
                    let origin = opening.origin();
                    if self.pending.remove(key) {
                        self.pending.add(key, origin, Instant::now());
                    }
                }
            }
            Opened::Over => self.remove(key),
            Opened::Session(accepted) if !admits_sessions && accepted.route.role == Role::Events => {
                opening.await_admission(accepted);
                self.to_be_refused.remove(key);
                self.await_admission(key);
            }
            Opened::Session(accepted) => {
                let Accepted { endpoint, route, info, user, topic, permit } = *accepted;
                let read_closed = opening.is_read_closed();
                let lowered = opening.take_lowered();
                let Some(mut socket) = opening.take_socket() else { return self.remove(key) };
                if let Some(lowered) = lowered {
                    // Before the other one is closed: epoll watches the open file of both descriptors.
                    let _ = self.poll.registry().deregister(&mut SourceFd(&socket.raw())); // it is registered
                    socket = lowered;
                    if self.watch(key, socket.raw()).is_err() {
                        return self.remove(key);
                    }
                }
                self.pending.remove(key);
                self.to_be_refused.remove(key);
                let id = shared.last_id.fetch_add(1, Ordering::Relaxed) + 1;
                let session = Session::new(id, key, Arc::clone(&self.worker), Arc::clone(&route), info, user);
                if route.role == Role::Events {
                    self.batch.connected(&session);
                }
                self.metrics.opened.add(1);
                self.metrics.sessions.add(1);
                shared.sessions.add(self.worker.worker.index(), &session);
                let meter = Meter::new(&route.settings.inbound, Instant::now());
                let refused = subscribe(&session, topic.as_ref()).err();
                let mut client =
                    Established::new(session, topic, endpoint, socket, shared.config.close_timeout, permit, meter);
                if let Some((code, reason)) = refused.as_ref().map(close_reason) {
                    client.close(code, reason.into(), &shared.config);
                }
                if read_closed {
                    client.note_read_closed();
                }
                self.clients.replace(key, Client::Established(Box::new(client)));
                self.mark(key); // for the response, which is sent even while reading is paused
                self.set_time(key, Instant::now());
                self.read(key); // frames may have arrived with the request
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_subscription_names_its_reason() {
        let close = |refusal: Refusal| (close_reason(&refusal).0.0, close_reason(&refusal).1);
        assert_eq!(close(Refusal::TooManySubscriptions(1)), (1008, "too many subscriptions"));
        assert_eq!(close(Refusal::Denied), (1008, "this topic may not be subscribed to"));
        assert_eq!(close(Refusal::Full).0, 1013);
    }
}
