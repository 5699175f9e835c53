//! Accepting clients, and their opening handshakes until they are sessions.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Token};
use wirespeed_driver::opening::handshake_limiter::{BURST, IDLE_TIME};
use wirespeed_driver::protocol::CloseCode;
use wirespeed_driver::socket::Socket;
use wirespeed_driver::tls::{Layer, RustlsLayer};

use super::{Command, Entrance, Key, LISTENERS, Listener, Worker};
use crate::certificate::Certificate;
use crate::config::Role;
use crate::connection::{Accepted, Client, Detail, Established, Opened, Opening};
use crate::descriptors;
use crate::inbound::Meter;
use crate::listen;
use crate::logs::{Cause, Level, Logs};
use crate::reasons::Reason;
use crate::session::{Refusal, Session};
use crate::topics::Topic;

/// How long a refused client may take to read the answer.
const LINGER: Duration = Duration::from_secs(2);

/// The maximum number of clients accepted from one listener in one turn; each takes some microseconds. About as many
/// arrive while a worker handles the events of a thousand clients.
const ACCEPTS: usize = 1024;

/// Handshakes started in one turn: no more than may have failed by the next turn.
const ADMITTED: usize = 64;

/// Handshakes that hold more than one part in this number of all descriptors are many. They return them soon.
const CROWDED: usize = 4;

/// How long no client is accepted when descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An accepted socket whose handshake has not started yet.
pub(crate) struct AcceptedSocket {
    entrance: Entrance,
    socket: Socket,
    pub(super) remote: Option<SocketAddr>,
    /// Another worker has accepted it.
    passed: bool,
}

/// Returns the maximum number of accepted sockets and pending handshakes of one worker. `pending` is the number of
/// handshakes that may wait long. The limit is at most half of the process's descriptors, divided among the workers.
pub(super) fn max_accepted(pending: usize, workers: usize) -> usize {
    pending.saturating_mul(BURST).min(descriptors::most() / 2 / workers.max(1))
}

/// Reads the certificate again if its files have changed.
fn renew(certificate: &Certificate, logs: &Logs) {
    let now = Instant::now();
    match certificate.renew(now) {
        None => {}
        Some(Ok(())) => logs.note(Cause::Certificate, now, || "the certificate was read again".to_owned()),
        Some(Err(error)) => logs.note_as(Cause::Certificate, Level::Error, now, || {
            format!("the certificate has changed, and cannot be used: {error}; the one before stays")
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
fn farewell(refusal: &Refusal) -> (CloseCode, &'static str) {
    match refusal {
        // RFC 6455 7.4.1, 1008: "a message that violates its policy".
        Refusal::TooManySubscriptions(_) => (CloseCode::POLICY_VIOLATION, "too many subscriptions"),
        Refusal::Denied => (CloseCode::POLICY_VIOLATION, "this topic may not be subscribed to"),
        // 1013: "try again later".
        _ => (CloseCode(1013), "too much to do"),
    }
}

/// How long no client is accepted after another client's descriptor was freed.
const RELIEF: Duration = Duration::from_millis(1);

impl Worker {
    pub(super) fn note_door(&mut self, door: usize) {
        if !self.accepting.contains(&door) {
            self.accepting.push(door);
        }
    }

    pub(super) fn open_door(&mut self, door: Listener) {
        let index = self.listeners.len();
        let Some(listener) = &door.listener else { return };
        let watched =
            self.poll.registry().register(&mut SourceFd(&listener.as_raw_fd()), Token(index), Interest::READABLE);
        if let Err(error) = watched {
            listen::shut(listener); // a copy exists, and clients would wait there
            let worker = self.worker.worker.index();
            return self.shared.logs.note_as(Cause::Handoff, Level::Error, Instant::now(), || {
                format!("worker {worker} cannot listen: {error}")
            });
        }
        self.listeners.push(door);
        self.note_door(index);
    }

    /// Returns whether clients whose sessions emit events may become sessions. Each adds an event, so events must have
    /// capacity. While the worker drains its backlog all clients are admitted.
    pub(super) fn lets_in(&self) -> bool {
        self.roomy || self.draining || self.drain_backlog
    }

    /// Accepts waiting clients, and starts the handshakes of some of them.
    pub(super) fn accept(&mut self) {
        if self.accept_after.is_none() && !self.drain_backlog {
            self.gather();
        }
        // Accepted sockets have their descriptor, even if no more can be accepted.
        for _ in 0..ADMITTED {
            if self.accepted.is_empty() {
                return;
            }
            let now = Instant::now();
            if let Some(delay) = self.crowded_for(now) {
                self.accept_after = Some(now + delay);
                return;
            }
            self.let_in_first();
        }
    }

    /// Accepts clients from the system's queues. The queues overflow when thousands of clients connect at once, and
    /// the system does not answer a client for a second if it finds a full queue.
    fn gather(&mut self) {
        let mut more = Vec::new();
        for door in std::mem::take(&mut self.accepting) {
            let mut relieved = false;
            for turn in 0.. {
                let accepted = self.accepted.len();
                if turn == ACCEPTS || accepted >= ADMITTED && accepted + self.pending.len() >= self.max_accepted {
                    more.push(door);
                    break;
                }
                if let Some(pause) = self.spare_descriptors(door, Instant::now()) {
                    self.accept_after = Some(Instant::now() + pause);
                    return;
                }
                let Some(Listener { listener: Some(listener), entrance }) = self.listeners.get(door) else { break };
                match Socket::accept(listener.as_fd()) {
                    Ok(Some((socket, remote))) => {
                        relieved = false;
                        let guest = AcceptedSocket { entrance: entrance.clone(), socket, remote, passed: false };
                        if self.seat(guest) {
                            more.push(door); // reserved descriptors are for one client at a time
                            break;
                        }
                    }
                    Ok(None) => break,
                    // A client that left before it was accepted.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // The accepted clients go first; those that fail return their descriptors.
                    Err(_) if accepted >= ADMITTED => {
                        more.push(door);
                        break;
                    }
                    Err(error) => {
                        if self.rest_after(&error, &mut relieved) {
                            return;
                        }
                    }
                }
            }
        }
        self.accepting = more;
    }

    /// Queues an accepted socket here or at another worker. Returns whether its descriptor is a reserved one.
    fn seat(&mut self, guest: AcceptedSocket) -> bool {
        let descriptor = guest.socket.raw();
        let short = descriptors::is_reserved(descriptor);
        if short {
            self.shared.short.store(true, Ordering::Relaxed);
        }
        let alone = self.pending.is_empty() && self.accepted.is_empty();
        if short && alone && !guest.entrance.internal && descriptors::is_last(descriptor, 0) {
            self.fail(Reason::Full, guest.remote); // there is no other client to evict
        } else if let Some(guest) = self.pass_on(guest) {
            self.accepted.push_back(guest);
        }
        short
    }

    /// Keeps the last descriptors free for the application: evicts silent clients before the next client would get one
    /// of them. Returns how long no client may be accepted, if none can be evicted yet.
    fn spare_descriptors(&mut self, door: usize, now: Instant) -> Option<Duration> {
        if !self.shared.short.load(Ordering::Relaxed) {
            return None;
        }
        // All workers may accept at this moment.
        let others = self.shared.sheets.len() - 1;
        while !self.pending.is_empty() {
            let next = descriptors::next(self.listeners.get(door)?.listener.as_ref()?);
            if next.is_some_and(|next| !descriptors::is_last(next, others)) {
                return None;
            }
            let delay = self.evict_one(now);
            if !delay.is_zero() {
                return Some(delay.max(RELIEF));
            }
        }
        None
    }

    /// Frees a descriptor for a handshake that has a reserved one, by evicting a silent client. If no client can be
    /// evicted yet, and handshakes hold many of all descriptors, the session may keep the reserved one.
    fn find_descriptor(&mut self, key: Key) {
        let short = |opening: &Opening| opening.awaited().is_some() && opening.is_short();
        if !matches!(self.clients.get(key), Some(Client::Opening(opening)) if short(opening)) {
            return;
        }
        self.evict_one(Instant::now());
        let crowded = self.pending.len() * self.shared.sheets.len() * CROWDED >= descriptors::most();
        if let Some(Client::Opening(opening)) = self.clients.get_mut(key) {
            opening.set_crowded(crowded);
        }
    }

    /// Passes a client of a Unix socket to the next worker in turn. All workers accept from the same queue of such a
    /// socket, and a worker that is awake would get all clients. Returns the client if it is to stay here.
    fn pass_on(&self, guest: AcceptedSocket) -> Option<AcceptedSocket> {
        let Some(homes) = self.shared.homes.get() else { return Some(guest) };
        if !guest.entrance.unix || guest.entrance.internal || self.shared.leaving.load(Ordering::Acquire) {
            return Some(guest);
        }
        let number = self.shared.turns.fetch_add(1, Ordering::Relaxed) % homes.len();
        let ended = self.shared.sheets.get(number).is_none_or(|metrics| metrics.ended.load(Ordering::Acquire));
        let Some(worker) = homes.get(number).filter(|_| !ended && number != self.worker.worker.index()) else {
            return Some(guest);
        };
        if worker.arriving.fetch_add(1, Ordering::AcqRel) >= ADMITTED {
            worker.arriving.fetch_sub(1, Ordering::AcqRel);
            return Some(guest); // that worker is busy
        }
        // The engine does not end before that worker has looked at the client.
        self.shared.occupied.fetch_add(1, Ordering::AcqRel);
        let remote = guest.remote;
        if worker.mailbox.put(Command::Welcome(Box::new(AcceptedSocket { passed: true, ..guest })), 0).is_err() {
            self.fail(Reason::Stopping, remote); // the worker has ended at this moment
            self.shared.leave();
        }
        None
    }

    /// Takes a client that another worker has accepted.
    pub(super) fn receive(&mut self, guest: AcceptedSocket) {
        self.worker.arriving.fetch_sub(1, Ordering::AcqRel);
        self.accepted.push_back(guest);
        self.note_vacancy();
        self.shared.leave();
    }

    fn let_in_first(&mut self) {
        if let Some(guest) = self.accepted.pop_front() {
            self.start_handshake(guest);
        }
    }

    /// Handles an error of `accept(2)`, usually a lack of descriptors: evicts a silent client, or pauses accepting.
    /// Returns whether accepting has to pause. `relieved`: a descriptor was freed, and no client has been accepted
    /// since.
    fn rest_after(&mut self, error: &io::Error, relieved: &mut bool) -> bool {
        let now = Instant::now();
        let pause = if self.pending.is_empty() { ACCEPT_PAUSE } else { self.evict_one(now) };
        self.shared.logs.note(Cause::AcceptPause, now, || format!("nobody can be accepted for now: {error}"));
        // Try again at once after an eviction, unless something else has taken the descriptor.
        if pause.is_zero() && !std::mem::replace(relieved, true) {
            return false;
        }
        self.accept_after = Some(now + pause.max(RELIEF));
        true
    }

    fn is_inside(&self, door: usize) -> bool {
        self.listeners.get(door).is_some_and(|door| door.entrance.internal)
    }

    /// Returns whether [`Self::accept`] has something to do.
    pub(super) fn has_guests(&self) -> bool {
        self.accept_after.is_none() && !self.accepting.is_empty()
            || !self.accepted.is_empty() && !self.pending.is_full()
    }

    /// Stops accepting, except at the internal listener. `look`: clients in the backlogs are accepted first; no other
    /// engine would accept them, and they would be reset.
    pub(super) fn close_doors(&mut self, look: bool) {
        self.ready.extend(self.awaiting_admission.drain(..)); // they are admitted: see `lets_in`
        self.closing.clear();
        for index in 0..self.listeners.len() {
            match self.is_inside(index) {
                true if look => {}
                false if look && !self.draining => self.closing.push((index, 0)),
                // The next engine accepts the clients of a listener that was handed over.
                _ => self.close_door(index),
            }
        }
        self.sheds = true;
        self.drain_backlog = !self.draining;
        if self.drain_backlog {
            self.accept_last();
        }
    }

    /// Begins to drain: no more clients are accepted.
    fn drain(&mut self) {
        self.drain_backlog = false;
        if !std::mem::replace(&mut self.draining, true) {
            self.hurry();
        }
    }

    /// Starts handshakes of accepted sockets, then accepts from the listeners that are about to be closed. Each is
    /// closed when its backlog is empty, or when as many clients came as its backlog can hold.
    pub(super) fn accept_last(&mut self) {
        for _ in 0..ADMITTED {
            self.let_in_first();
        }
        if !self.accepted.is_empty() {
            return;
        }
        let most = listen::BACKLOG.unsigned_abs() as usize + 1;
        for place in (0..self.closing.len()).rev() {
            for turn in 0.. {
                let Some(&(door, count)) = self.closing.get(place) else { break };
                if turn == ADMITTED && count < most {
                    break;
                }
                let open = self.listeners.get(door).filter(|_| count < most);
                let accepted = open.and_then(|door| {
                    let (socket, remote) = Socket::accept(door.listener.as_ref()?.as_fd()).ok()??;
                    Some(AcceptedSocket { entrance: door.entrance.clone(), socket, remote, passed: false })
                });
                let Some(guest) = accepted else {
                    self.closing.swap_remove(place);
                    self.close_door(door);
                    break;
                };
                if let Some((_, count)) = self.closing.get_mut(place) {
                    *count += 1; // before the call that may panic
                }
                self.start_handshake(guest);
            }
        }
        if self.closing.is_empty() {
            self.drain();
        }
    }

    /// Closes a listener.
    pub(super) fn close_door(&mut self, index: usize) {
        let Some(listener) = self.listeners.get_mut(index).and_then(|door| door.listener.take()) else { return };
        // Other processes may have the same socket: the system would go on reporting its edges.
        let _ = self.poll.registry().deregister(&mut SourceFd(&listener.as_raw_fd()));
        if self.shared.may_shut() {
            listen::shut(&listener);
        }
    }

    pub(super) fn start_handshake(&mut self, guest: AcceptedSocket) {
        self.current = None; // the handshake before this one had its turn
        wirespeed_driver::protocol::failpoint::reach("engine.accept");
        let shared = Arc::clone(&self.shared);
        let AcceptedSocket { entrance: Entrance { tls, unix, internal }, socket, remote, passed } = guest;
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
        if opening.is_short() {
            self.evict_one(Instant::now());
        }
        if !internal {
            self.make_answerable(Instant::now());
        }
        if !internal && !opening.screen(&shared) {
            self.fail(opening.failure().unwrap_or(Reason::Refused), remote);
            return self.forget_connection();
        }
        let key = self.clients.insert(Client::Opening(Box::new(opening)));
        self.current = Some(key);
        if let Err(error) = self.watch(key, fd) {
            let text = || format!("a client that was accepted cannot be served: {error}");
            self.shared.logs.note(Cause::AcceptPause, Instant::now(), text);
            return self.remove(key);
        }
        let most = shared.config.open_timeout;
        // A deadline beyond the range of the clock never comes.
        if let Some(deadline) = Instant::now().checked_add(if self.draining { most.min(PATIENCE) } else { most }) {
            self.wheel.set(deadline, key);
        }
        // Most requests have arrived by now.
        self.open(key);
        self.enter(key, Instant::now());
    }

    fn watch(&self, key: Key, descriptor: RawFd) -> io::Result<()> {
        let token = Token(LISTENERS + key.to_token());
        self.poll.registry().register(&mut SourceFd(&descriptor), token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Postpones a session until events have capacity.
    pub(super) fn park(&mut self, key: Key) {
        // Live entries are in `pending` too, so a list much longer than that contains removed clients.
        if self.awaiting_admission.len() > 2 * self.pending.len() + ADMITTED {
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
        self.metrics.fail(reason);
        let cause = match detail {
            Some(Detail::Token(denied)) => {
                self.metrics.deny_token(denied);
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
        self.find_descriptor(key);
        self.current = Some(key);
        let (shared, lets_in) = (Arc::clone(&self.shared), self.lets_in());
        let Some(Client::Opening(opening)) = self.clients.get_mut(key) else { return };
        if opening.is_parked() && !lets_in {
            return;
        }
        if opening.is_announced() {
            self.make_answerable(Instant::now());
        }
        let Some(Client::Opening(opening)) = self.clients.get_mut(key) else { return };
        match opening.proceed(&shared) {
            Opened::NotYet => {
                if opening.take_foreseen() {
                    let now = Instant::now();
                    self.to_be_refused.add(key, opening.origin(), now);
                    self.wheel.set(now + LINGER, key); // beside the timeout of the handshake; the earlier one counts
                }
                if opening.take_refused() {
                    self.to_be_refused.remove(key);
                    // As above.
                    self.wheel.set(Instant::now() + LINGER, key);
                }
                if opening.take_relocated() {
                    let origin = opening.origin();
                    if self.pending.remove(key) {
                        self.pending.add(key, origin, Instant::now());
                    }
                }
            }
            Opened::Over => self.remove(key),
            Opened::Session(accepted) if !lets_in && accepted.route.role == Role::Events => {
                opening.park(accepted);
                self.to_be_refused.remove(key);
                self.park(key);
            }
            Opened::Session(accepted) => {
                let Accepted { endpoint, route, about, user, topic, permit } = *accepted;
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
                let session = Session::new(id, key, Arc::clone(&self.worker), Arc::clone(&route), about, user);
                if route.role == Role::Events {
                    self.batch.connected(&session);
                }
                self.metrics.opened.add(1);
                self.metrics.sessions.add(1);
                shared.sessions_registry.add(self.worker.worker.index(), &session);
                let meter = Meter::new(&route.inbound, Instant::now());
                let refused = subscribe(&session, topic.as_ref()).err();
                let mut live =
                    Established::new(session, topic, endpoint, socket, shared.config.close_timeout, permit, meter);
                if let Some((code, reason)) = refused.as_ref().map(farewell) {
                    live.close(code, reason.into(), &shared.config);
                }
                if read_closed {
                    live.note_read_closed();
                }
                self.clients.replace(key, Client::Established(Box::new(live)));
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
        let close = |refusal: Refusal| (farewell(&refusal).0.0, farewell(&refusal).1);
        assert_eq!(close(Refusal::TooManySubscriptions(1)), (1008, "too many subscriptions"));
        assert_eq!(close(Refusal::Denied), (1008, "this topic may not be subscribed to"));
        assert_eq!(close(Refusal::Full).0, 1013);
    }
}
