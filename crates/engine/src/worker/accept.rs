//! Who comes in: accepting, and openings until they are sessions.

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

/// How long one who was refused may take to read why.
const LINGER: Duration = Duration::from_secs(2);

/// Clients accepted in one turn, of one listener, in some microseconds each: then the others have theirs. As many come
/// while a thousand others are told of what there is for them.
const ACCEPTS: usize = 1024;

/// Of those who were accepted, let in in one turn: no more than may have failed by the next.
const ADMITTED: usize = 64;

/// A part of all descriptors that is large for clients in the opening handshake, who give them back soon.
const CROWDED: usize = 4;

/// How long nobody is accepted when descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who was accepted, and waits to come in.
pub(crate) struct AcceptedSocket {
    entrance: Entrance,
    socket: Socket,
    pub(super) remote: Option<SocketAddr>,
    /// Another worker has accepted it.
    passed: bool,
}

/// How many there may be of them and of those whose request is awaited, `pending` for long, at one of so many workers:
/// they have descriptors, of which others need some.
pub(super) fn max_accepted(pending: usize, workers: usize) -> usize {
    pending.saturating_mul(BURST).min(descriptors::most() / 2 / workers.max(1))
}

/// Has the certificate read again if it has changed.
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

/// Has a client of a relay get what is published on its topic.
fn subscribe(session: &Session, topic: Option<&Topic>) -> Result<(), Refusal> {
    match (&session.route().role, topic) {
        (Role::Relay(relay), Some(topic)) if relay.receive => session.subscribe(&topic.clone().into()).map(drop),
        _ => Ok(()),
    }
}

/// What it is told if it cannot.
fn farewell(refusal: &Refusal) -> (CloseCode, &'static str) {
    match refusal {
        // RFC 6455 7.4.1, 1008: "a message that violates its policy".
        Refusal::TooManySubscriptions(_) => (CloseCode::POLICY_VIOLATION, "too many subscriptions"),
        Refusal::Denied => (CloseCode::POLICY_VIOLATION, "this topic may not be subscribed to"),
        // 1013: "try again later".
        _ => (CloseCode(1013), "too much to do"),
    }
}

/// The same after one was given back.
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
            listen::shut(listener); // there is a copy, at which clients would wait
            let worker = self.worker.worker.index();
            return self.shared.logs.note_as(Cause::Handoff, Level::Error, Instant::now(), || {
                format!("worker {worker} cannot listen: {error}")
            });
        }
        self.listeners.push(door);
        self.note_door(index);
    }

    /// Whether whoever would be told of may become a session: while events have no room each would add one. Of those
    /// who are there when the doors close nobody is turned away.
    pub(super) fn lets_in(&self) -> bool {
        self.roomy || self.draining || self.drain_backlog
    }

    /// Accepts who waits, and lets some of them in.
    pub(super) fn accept(&mut self) {
        if self.accept_after.is_none() && !self.drain_backlog {
            self.gather();
        }
        // Who is here needs no descriptor any more, whatever keeps others from being accepted.
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

    /// Takes who waits in the system's queues, which overflow where thousands come at once: to whoever does not get in
    /// there the system does not answer for a second.
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
                            more.push(door); // the reserve is for one at a time
                            break;
                        }
                    }
                    Ok(None) => break,
                    // A client that left before it was accepted.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // Those who are here go first, and give back what they have if it comes to nothing.
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

    /// Has a client wait to come in, here or at another worker. Whether it has a descriptor that no session is to have.
    fn seat(&mut self, guest: AcceptedSocket) -> bool {
        let descriptor = guest.socket.raw();
        let short = descriptors::is_reserved(descriptor);
        if short {
            self.shared.short.store(true, Ordering::Relaxed);
        }
        let alone = self.pending.is_empty() && self.accepted.is_empty();
        if short && alone && !guest.entrance.internal && descriptors::is_last(descriptor, 0) {
            self.fail(Reason::Full, guest.remote); // no other client could give its own up
        } else if let Some(guest) = self.pass_on(guest) {
            self.accepted.push_back(guest);
        }
        short
    }

    /// Keeps the last descriptors for the application: before the next client would get one of them, silent clients give
    /// their own up. After how long that is possible, if no client is to be accepted until then.
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

    /// For one without a descriptor that a session may have: a silent client gives its own up. Where that is not possible
    /// yet, and clients in the opening handshake have a large part of all descriptors, it may keep the one that it has.
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

    /// All workers accept from the same queue of a Unix socket, and one that is awake would have all clients: they go to
    /// the workers in turn. What is not passed on comes back.
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
            return Some(guest); // it is busy
        }
        // The engine does not end before that worker has looked at it.
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

    /// There are too few descriptors for now: whoever lets us wait gives one, else the others go on. Whether nobody is
    /// to be accepted for a time. `relieved`: one was given for whoever is next, who is still to come.
    fn rest_after(&mut self, error: &io::Error, relieved: &mut bool) -> bool {
        let now = Instant::now();
        let pause = if self.pending.is_empty() { ACCEPT_PAUSE } else { self.evict_one(now) };
        self.shared.logs.note(Cause::AcceptPause, now, || format!("nobody can be accepted for now: {error}"));
        // At once: as fast as others come who only take descriptors. Unless somebody else has taken that one.
        if pause.is_zero() && !std::mem::replace(relieved, true) {
            return false;
        }
        self.accept_after = Some(now + pause.max(RELIEF));
        true
    }

    fn is_inside(&self, door: usize) -> bool {
        self.listeners.get(door).is_some_and(|door| door.entrance.internal)
    }

    /// Whether somebody waits who may come in.
    pub(super) fn has_guests(&self) -> bool {
        self.accept_after.is_none() && !self.accepting.is_empty()
            || !self.accepted.is_empty() && !self.pending.is_full()
    }

    /// Nobody comes in any more, but to the inside. `look`: whoever waits does first, as nobody else would take
    /// him: he would be reset.
    pub(super) fn close_doors(&mut self, look: bool) {
        self.ready.extend(self.awaiting_admission.drain(..)); // they may come in: see `lets_in`
        self.closing.clear();
        for index in 0..self.listeners.len() {
            match self.is_inside(index) {
                true if look => {}
                false if look && !self.draining => self.closing.push((index, 0)),
                // What is handed over is the next engine's to answer.
                _ => self.close_door(index),
            }
        }
        self.sheds = true;
        self.drain_backlog = !self.draining;
        if self.drain_backlog {
            self.accept_last();
        }
    }

    /// Nobody comes any more.
    fn drain(&mut self) {
        self.drain_backlog = false;
        if !std::mem::replace(&mut self.draining, true) {
            self.hurry();
        }
    }

    /// Lets in some of those who were accepted, and then of those who wait at doors that are about to be closed; a door is
    /// when nobody is left there, or as many came as may have waited.
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
                    *count += 1; // before what may panic
                }
                self.start_handshake(guest);
            }
        }
        if self.closing.is_empty() {
            self.drain();
        }
    }

    /// Nobody comes in there any more.
    pub(super) fn close_door(&mut self, index: usize) {
        let Some(listener) = self.listeners.get_mut(index).and_then(|door| door.listener.take()) else { return };
        // Others may have the same socket: the system would go on telling us of it.
        let _ = self.poll.registry().deregister(&mut SourceFd(&listener.as_raw_fd()));
        if self.shared.may_shut() {
            listen::shut(&listener);
        }
    }

    pub(super) fn start_handshake(&mut self, guest: AcceptedSocket) {
        self.current = None; // whoever came before has had its turn
        wirespeed_driver::protocol::failpoint::hit("engine.accept");
        let shared = Arc::clone(&self.shared);
        let AcceptedSocket { entrance: Entrance { tls, unix, internal }, socket, remote, passed } = guest;
        // One that was passed on had come before all doors were closed.
        if self.draining && !internal && !(passed && self.sheds) {
            return self.fail(Reason::Stopping, remote);
        }
        self.metrics.connections.add(1);
        if !unix {
            let _ = socket.options().set_tcp_nodelay(true); // it may have left meanwhile, which is found when it is read
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
        // What is too far for the clock is for ever.
        if let Some(deadline) = Instant::now().checked_add(if self.draining { most.min(IDLE_TIME) } else { most }) {
            self.wheel.set(deadline, key);
        }
        // Most requests are there by now.
        self.open(key);
        self.enter(key, Instant::now());
    }

    fn watch(&self, key: Key, descriptor: RawFd) -> io::Result<()> {
        let token = Token(LISTENERS + key.to_token());
        self.poll.registry().register(&mut SourceFd(&descriptor), token, Interest::READABLE | Interest::WRITABLE)
    }

    /// It is answered once events have room.
    pub(super) fn park(&mut self, key: Key) {
        // All who are parked have a place among the pending: of those who came and went no more are kept than that.
        if self.awaiting_admission.len() > 2 * self.pending.len() + ADMITTED {
            self.awaiting_admission.retain(|key| self.clients.get(*key).is_some());
        }
        self.awaiting_admission.push(key);
    }

    /// TLS cannot begin.
    fn forget_unopened(&self, remote: Option<SocketAddr>) {
        self.fail(Reason::Tls, remote);
        self.forget_connection();
    }

    /// A client gets no session.
    pub(super) fn fail(&self, reason: Reason, remote: Option<SocketAddr>) {
        self.fail_for(reason, None, remote);
    }

    /// Counts and logs an opening handshake that failed.
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
                    self.wheel.set(now + LINGER, key); // beside the time for its opening, as below
                }
                if opening.take_refused() {
                    self.to_be_refused.remove(key);
                    // Beside the time for its opening, of which the first that is over counts.
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
                    // Before the other one is closed: the system watches what both of them are.
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
                self.mark(key); // for the answer, which leaves also where nothing may be read
                self.set_time(key, Instant::now());
                self.read(key); // there may be more than was read
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_cannot_subscribe_is_told_why() {
        let told = |refusal: Refusal| (farewell(&refusal).0.0, farewell(&refusal).1);
        assert_eq!(told(Refusal::TooManySubscriptions(1)), (1008, "too many subscriptions"));
        assert_eq!(told(Refusal::Denied), (1008, "this topic may not be subscribed to"));
        assert_eq!(told(Refusal::Full).0, 1013);
    }
}
