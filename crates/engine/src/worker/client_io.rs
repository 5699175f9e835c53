//! Reading, writing and removing the clients of a worker.

use std::time::Instant;

use wirespeed_driver::connection::Progress;

use super::{Key, Worker};
use crate::connection::{Client, Turn};
use crate::logs::Cause;

impl Worker {
    pub(super) fn edge(&mut self, key: Key, event: &mio::event::Event) {
        self.current = Some(key);
        match self.clients.get_mut(key) {
            None => {}
            Some(Client::Opening(opening)) => {
                if event.is_read_closed() {
                    opening.note_read_closed();
                    if opening.is_parked() {
                        return self.remove(key); // it has left, and no event has announced it
                    }
                }
                if event.is_readable() && opening.awaited().is_some() {
                    let now = Instant::now();
                    self.pending.progress(key, now);
                    self.to_be_refused.progress(key, now);
                }
                self.open(key);
            }
            Some(Client::Established(live)) => {
                if event.is_read_closed() {
                    live.note_read_closed();
                }
                let answers = event.is_writable() && live.waits_to_answer();
                if event.is_writable() && !self.write(key) {
                    return;
                }
                if event.is_readable() || answers {
                    self.read_unless_listed(key);
                }
            }
        }
    }

    pub(super) fn read_unless_listed(&mut self, key: Key) {
        match self.clients.get_mut(key) {
            Some(Client::Established(live)) if !live.unread => self.read(key),
            Some(Client::Established(live)) if !self.roomy && live.is_ending() => self.read_late(key),
            _ => {}
        }
    }

    /// Reads a closing client although events are full. It keeps its place in `paused`.
    pub(super) fn read_late(&mut self, key: Key) {
        self.current = Some(key);
        let Some(Client::Established(live)) = self.clients.get_mut(key) else { return };
        let turn = live.read_late(&mut self.batch, &self.shared);
        self.run_actions(key);
        match turn {
            Turn::Over => self.remove(key),
            Turn::Again => self.draining_input.push(key),
            _ => {}
        }
        if self.batch.is_full() {
            self.hand_on();
        }
    }

    /// Follows up after a session was read or written: counts the traffic, notifies senders of new capacity, and ends
    /// the subscriptions of a closing session.
    fn run_actions(&mut self, key: Key) {
        wirespeed_driver::protocol::failpoint::hit("engine.settle");
        let Some(Client::Established(live)) = self.clients.get_mut(key) else { return };
        live.account(&self.metrics);
        if live.recount() {
            self.worker.room.notify();
        }
        if live.is_ending() && !live.subscriptions.is_empty() {
            let (id, subscriptions) = (live.session.id(), std::mem::take(&mut live.subscriptions));
            self.forget_topics(key, id, &subscriptions);
        }
    }

    pub(super) fn read(&mut self, key: Key) {
        self.current = Some(key);
        let lets_in = self.lets_in();
        let live = match self.clients.get_mut(key) {
            None => return,
            // It became ready when events had capacity; other clients may have filled them since.
            Some(Client::Opening(opening)) if opening.is_parked() && !lets_in => return self.park(key),
            Some(Client::Opening(_)) => return self.open(key),
            Some(Client::Established(live)) => live,
        };
        live.unread = false;
        let turn = live.read(&mut self.batch, self.roomy, &self.shared);
        if matches!(turn, Turn::Idle | Turn::Held | Turn::Limited | Turn::Stopped | Turn::BackpressureWaiters { .. }) {
            live.release_input();
        }
        self.run_actions(key);
        let Some(Client::Established(live)) = self.clients.get_mut(key) else { return };
        match turn {
            Turn::Idle => {
                if live.is_ending() {
                    self.set_time(key, Instant::now());
                }
            }
            Turn::Again => {
                live.unread = true;
                self.ready.push_back(key);
            }
            Turn::Held => {
                live.unread = true;
                self.paused.push(key);
            }
            Turn::Limited => {
                live.unread = true;
                self.metrics.delayed.add(1);
                self.set_time(key, Instant::now());
            }
            // Until the handler resumes reading, or the session closes.
            Turn::Stopped => (live.unread, live.stopped) = (true, true),
            Turn::BackpressureWaiters { moved } => {
                live.unread = true;
                self.backpressured.add(key, moved, &self.worker.room, &self.wake);
            }
            Turn::Over => self.remove(key),
        }
        if self.batch.is_full() {
            self.hand_on();
        }
    }

    pub(super) fn set_reading(&mut self, key: Key) {
        if let Some(Client::Established(live)) = self.clients.get_mut(key) {
            let reads = live.session.take_reading();
            live.paused = !reads;
            if reads && std::mem::take(&mut live.stopped) {
                self.read(key);
            }
        }
    }

    /// Writes the queued messages. Returns false if the connection is over.
    pub(super) fn write(&mut self, key: Key) -> bool {
        wirespeed_driver::protocol::failpoint::hit("engine.write");
        let Some(Client::Established(live)) = self.clients.get_mut(key) else { return false };
        let progress = live.write(Instant::now);
        if live.dropped > 0 {
            self.shared.logs.note(Cause::SlowConsumer, Instant::now(), || live.describe_slow());
        }
        self.run_actions(key);
        if progress == Progress::Over {
            self.remove(key);
            return false;
        }
        let Some(Client::Established(live)) = self.clients.get_mut(key) else { return false };
        // A session that begins to close is always marked as dirty.
        if live.is_ending() {
            if live.take_roomless() || std::mem::take(&mut live.stopped) {
                self.ready.push_back(key); // for the client's close frame
            }
            self.set_time(key, Instant::now());
        }
        true
    }

    pub(super) fn write_dirty(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for key in dirty.drain(..) {
            self.current = Some(key);
            if let Some(Client::Established(live)) = self.clients.get_mut(key) {
                live.dirty = false;
                self.write(key);
            }
        }
        self.dirty = dirty;
    }

    pub(super) fn remove(&mut self, key: Key) {
        match self.clients.remove(key) {
            None => return,
            Some(Client::Opening(opening)) => {
                self.pending.remove(key);
                self.to_be_refused.remove(key);
                if let Some(reason) = opening.failure() {
                    self.fail_for(reason, opening.detail(), opening.remote());
                }
            }
            Some(Client::Established(mut live)) => {
                wirespeed_driver::protocol::failpoint::hit("engine.remove");
                live.session.set_closed();
                live.session.set_figures(live.figures());
                live.forget_account(&self.metrics);
                self.forget_topics(key, live.session.id(), &live.subscriptions);
                self.shared.sessions_registry.remove(self.worker.worker.index(), live.session.id());
                self.metrics.sessions.subtract(1);
                if live.is_told() {
                    self.batch.disconnected(&live.session, live.ended());
                }
            }
        }
        self.forget_connection();
    }
}
