//! Reading, writing and removing the clients of a worker.

use std::time::Instant;

use wirespeed_driver::connection::Progress;

use super::Worker;
use crate::connection::{Client, Turn};
use crate::logs::Cause;
use crate::util::slab::Key;

impl Worker {
    pub(super) fn edge(&mut self, key: Key, event: &mio::event::Event) {
        self.current = Some(key);
        match self.clients.get_mut(key) {
            None => {}
            Some(Client::Opening(opening)) => {
                if event.is_read_closed() {
                    opening.note_read_closed();
                    if opening.awaits_admission() {
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
            Some(Client::Established(client)) => {
                if event.is_read_closed() {
                    client.note_read_closed();
                }
                let answers = event.is_writable() && client.waits_to_answer();
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
            Some(Client::Established(client)) if !client.read_pending => self.read(key),
            Some(Client::Established(client)) if !self.events_have_capacity && client.is_ending() => {
                self.read_while_closing(key)
            }
            _ => {}
        }
    }

    /// Reads a closing client although events are full. It keeps its place in `paused`.
    pub(super) fn read_while_closing(&mut self, key: Key) {
        self.current = Some(key);
        let Some(Client::Established(client)) = self.clients.get_mut(key) else { return };
        let turn = client.read_while_closing(&mut self.batch, &self.shared);
        self.follow_up(key);
        match turn {
            Turn::Over => self.remove(key),
            Turn::Ready => self.draining_input.push(key),
            _ => {}
        }
        if self.batch.is_full() {
            self.hand_on();
        }
    }

    /// Follows up after a session was read or written: counts the traffic, notifies senders of new capacity, and ends
    /// the subscriptions of a closing session.
    fn follow_up(&mut self, key: Key) {
        wirespeed_driver::protocol::failpoint::hit("engine.settle");
        let Some(Client::Established(client)) = self.clients.get_mut(key) else { return };
        client.report(&self.metrics);
        if client.update_queued() {
            self.worker.capacity.notify();
        }
        if client.is_ending() && !client.subscriptions.is_empty() {
            let (id, subscriptions) = (client.session.id(), std::mem::take(&mut client.subscriptions));
            self.forget_topics(key, id, &subscriptions);
        }
    }

    pub(super) fn read(&mut self, key: Key) {
        self.current = Some(key);
        let admits_sessions = self.admits_sessions();
        let client = match self.clients.get_mut(key) {
            None => return,
            // It became ready when events had capacity; other clients may have filled them since.
            Some(Client::Opening(opening)) if opening.awaits_admission() && !admits_sessions => {
                return self.await_admission(key);
            }
            Some(Client::Opening(_)) => return self.open(key),
            Some(Client::Established(client)) => client,
        };
        client.read_pending = false;
        let turn = client.read(&mut self.batch, self.events_have_capacity, &self.shared);
        if matches!(
            turn,
            Turn::Idle | Turn::Paused | Turn::RateLimited | Turn::ReadingDisabled | Turn::Backpressured { .. }
        ) {
            client.release_input();
        }
        self.follow_up(key);
        let Some(Client::Established(client)) = self.clients.get_mut(key) else { return };
        match turn {
            Turn::Idle => {
                if client.is_ending() {
                    self.set_time(key, Instant::now());
                }
            }
            Turn::Ready => {
                client.read_pending = true;
                self.ready.push_back(key);
            }
            Turn::Paused => {
                client.read_pending = true;
                self.paused.push(key);
            }
            Turn::RateLimited => {
                client.read_pending = true;
                self.metrics.delayed.add(1);
                self.set_time(key, Instant::now());
            }
            // Until the handler resumes reading, or the session closes.
            Turn::ReadingDisabled => (client.read_pending, client.read_skipped) = (true, true),
            Turn::Backpressured { published } => {
                client.read_pending = true;
                self.backpressured.add(key, published, &self.worker.capacity, &self.wake);
            }
            Turn::Over => self.remove(key),
        }
        if self.batch.is_full() {
            self.hand_on();
        }
    }

    pub(super) fn set_reading(&mut self, key: Key) {
        if let Some(Client::Established(client)) = self.clients.get_mut(key) {
            let reads = client.session.take_reading();
            client.reading_disabled = !reads;
            if reads && std::mem::take(&mut client.read_skipped) {
                self.read(key);
            }
        }
    }

    /// Writes the queued messages. Returns false if the connection is over.
    pub(super) fn write(&mut self, key: Key) -> bool {
        wirespeed_driver::protocol::failpoint::hit("engine.write");
        let Some(Client::Established(client)) = self.clients.get_mut(key) else { return false };
        let progress = client.write(Instant::now);
        if client.dropped > 0 {
            self.shared.logs.note(Cause::SlowConsumer, Instant::now(), || client.describe_slow());
        }
        self.follow_up(key);
        if progress == Progress::Over {
            self.remove(key);
            return false;
        }
        let Some(Client::Established(client)) = self.clients.get_mut(key) else { return false };
        // A session that begins to close is always marked as dirty.
        if client.is_ending() {
            if client.take_backpressured() || std::mem::take(&mut client.read_skipped) {
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
            if let Some(Client::Established(client)) = self.clients.get_mut(key) {
                client.dirty = false;
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
            Some(Client::Established(mut client)) => {
                wirespeed_driver::protocol::failpoint::hit("engine.remove");
                client.session.set_closed();
                client.session.set_figures(client.figures());
                client.clear_reported(&self.metrics);
                self.forget_topics(key, client.session.id(), &client.subscriptions);
                self.shared.sessions.remove(self.worker.worker.index(), client.session.id());
                self.metrics.sessions.subtract(1);
                if client.emits_events() {
                    self.batch.disconnected(&client.session, client.ended());
                }
            }
        }
        self.forget_connection();
    }
}
