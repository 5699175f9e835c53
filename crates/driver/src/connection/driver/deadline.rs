//! Keepalive pings and the close timeout: when the driver must be called, and what it does then.

use std::borrow::Borrow;
use std::time::{Duration, Instant};

use wirespeed_protocol::{CloseCode, PayloadBuffer};

use super::ConnectionDriver;
use crate::endpoint::Failure;
use crate::keepalive::{Due, Silence, Traffic};
use crate::socket::Socket;

/// Time until the next attempt to send a ping that could not be sent inside a frame.
const PING_RETRY: Duration = Duration::from_millis(50);

/// Whether the caller reads from the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// It reads.
    Going,
    /// It does not read at present, by the application's choice.
    Paused,
}

impl<B: PayloadBuffer, S: Borrow<Socket>> ConnectionDriver<B, S> {
    /// Returns when [`Self::handle_deadline`] is due; `None`: never.
    #[must_use]
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        if self.is_over() {
            return None;
        }
        let keepalive = match self.endpoint.send_half().keepalive.poll(now) {
            // An arriving pong sets no timer, so check again when the next ping would be due.
            Due::Nothing(next) => {
                match (next, self.endpoint.send_half().keepalive.next_ping().filter(|ping| *ping > now)) {
                    (Some(next), Some(ping)) => Some(next.min(ping)),
                    (next, ping) => next.or(ping),
                }
            }
            Due::Ping | Due::Check => Some(now),
        };
        match (self.close_deadline.flatten(), keepalive.filter(|_| !self.is_closing())) {
            (Some(finish), Some(next)) => Some(finish.min(next)),
            (finish, next) => finish.or(next),
        }
    }

    /// Sends or checks the pings due at `now`. The caller then flushes, advances, and asks for the next
    /// deadline. A returned time is the earliest useful time of the next call. `backlog`: bytes that an
    /// external transport and the kernel below it have yet to deliver; with a socket, the kernel is asked here.
    pub fn handle_deadline(&mut self, now: Instant, reading: Reading, backlog: u64) -> Option<Instant> {
        wirespeed_protocol::failpoint::hit("driver.deadline");
        let paused = reading == Reading::Paused;
        self.was_paused |= paused;
        if self.is_over() || self.is_closing() {
            return None;
        }
        for _ in 0..2 {
            match self.endpoint.send_half().keepalive.poll(now) {
                Due::Nothing(_) => break,
                Due::Ping => {
                    self.endpoint.send_half_mut().release_idle();
                    let traffic = self.traffic(backlog);
                    self.endpoint.send_half_mut().send_keepalive(now, traffic);
                    self.was_paused = paused;
                    if self.endpoint.send_half().is_mid_frame() {
                        if self.is_silent_in_frame(now, paused, traffic) {
                            self.fail_keepalive();
                            return None;
                        }
                        return Some(now + PING_RETRY); // when the frame is out
                    }
                    self.unsent_ping = None;
                }
                Due::Check if self.was_paused => {
                    // The pong may be behind messages that the application has not received.
                    self.was_paused = paused;
                    self.endpoint.send_half_mut().keepalive.restart(now);
                }
                Due::Check => {
                    let traffic = self.traffic(backlog);
                    if self.endpoint.send_half_mut().keepalive.check(now, traffic) {
                        self.fail_keepalive();
                    }
                    break;
                }
            }
        }
        None
    }

    fn fail_keepalive(&mut self) {
        self.endpoint.fail_with_code(Failure::KeepaliveTimeout, CloseCode::INTERNAL_ERROR, "keepalive ping timeout");
    }

    /// Returns whether a ping has waited too long for the rest of a frame. A peer that acknowledges none of it
    /// during the pong timeout counts as silent, unless reading is paused or everything written is
    /// acknowledged.
    fn is_silent_in_frame(&mut self, now: Instant, paused: bool, traffic: Traffic) -> bool {
        let Some(timeout) = self.endpoint.send_half().keepalive.timeout() else { return false };
        let silence = self.unsent_ping.get_or_insert_with(|| Box::new(Silence::in_frame(now, traffic)));
        if paused || traffic.acknowledged == traffic.written.cast_signed() {
            silence.restart(now);
        }
        silence.check(now, traffic) >= timeout
    }

    /// Returns the number of bytes moved so far. `backlog` counts only without a socket: see
    /// [`Self::handle_deadline`].
    #[must_use]
    pub fn traffic(&self, backlog: u64) -> Traffic {
        let (unread, unacknowledged) = match self.stream.socket() {
            Some(socket) => (socket.unread(), socket.unacknowledged()),
            None => (0, backlog),
        };
        let written = self.endpoint.send_half().written();
        Traffic {
            read: u64::MAX - self.read_limit,
            unread,
            written,
            acknowledged: written.cast_signed() - unacknowledged.cast_signed(),
            queued: self.endpoint.send_half().queued() as u64,
        }
    }

    /// Records that reading was paused or resumed.
    pub fn record_pause(&mut self) {
        self.was_paused = true;
    }
}
