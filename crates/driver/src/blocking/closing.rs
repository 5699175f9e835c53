//! The closing handshake and the end of TCP.

use std::time::{Duration, Instant};

use wirespeed_protocol::{CloseCode, PayloadBuffer, State as ProtocolState};

use super::sending::Stop;
use super::{Blocking, Error, Guard, Host, earliest};
use crate::connection::{Progress, Wanted};
use crate::endpoint::Failure;
use crate::socket::{Mode, Readiness};

impl<B: PayloadBuffer + Send, M: Send> Blocking<B, M> {
    /// Performs the closing handshake (RFC 6455 7.1.2) and ends TCP, within the close timeout. Messages that arrive
    /// meanwhile are queued up to the queue's limits. Does nothing on a closed connection.
    pub fn close<H: Host<Buffer = B, Message = M>>(
        &self,
        host: &H,
        code: Option<CloseCode>,
        reason: &str,
    ) -> Result<(), Error<H::Interrupt>> {
        let mut state = self.lock(host);
        let deadline = state.driver.close_timeout().and_then(|timeout| Instant::now().checked_add(timeout));
        // The thread that is sending may be in the middle of a frame.
        while state.sending && !state.driver.is_over() {
            state = match self.wait_for_change(state, host, deadline) {
                Ok(state) => state,
                Err(Error::TimedOut) => {
                    self.end(&mut self.lock(host), Failure::CloseTimeout);
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
        }
        if state.driver.is_over() {
            return Ok(());
        }
        if state.driver.send_half().state() == ProtocolState::Open {
            state.driver.send_half_mut().send_close(code, reason).map_err(Error::Refused)?;
        }
        state.driver.limit_close_deadline(deadline);
        self.complete_closing(state, host)
    }

    /// Sets the timeout of a closing handshake that begins later.
    pub fn set_close_timeout<H: Host<Buffer = B, Message = M>>(&self, host: &H, timeout: Option<Duration>) {
        self.lock(host).driver.set_close_timeout(timeout);
    }

    /// Sends a close frame without waiting, if the socket has room for it, and ends TCP.
    pub fn close_now<H: Host<Buffer = B, Message = M>>(&self, host: &H, code: CloseCode) {
        let mut state = self.lock(host);
        // A thread that sends may be in the middle of a frame.
        if state.driver.send_half().state() == ProtocolState::Open
            && !state.sending
            && state.driver.send_half_mut().send_close(Some(code), "").is_ok()
        {
            self.flush_some(&mut state);
        }
        self.end(&mut state, Failure::Aborted);
    }

    /// Limits the closing handshake to `limit` from now and to the close timeout, which a later [`Self::close`]
    /// does not extend, and to `bytes` of further input.
    pub fn limit_closing<H: Host<Buffer = B, Message = M>>(&self, host: &H, limit: Duration, bytes: u64) {
        let mut state = self.lock(host);
        let limit = state.driver.close_timeout().map_or(limit, |timeout| timeout.min(limit));
        state.driver.limit_close_deadline(Instant::now().checked_add(limit));
        state.driver.limit_reading(bytes);
    }

    /// Waits for the peer's close frame and ends TCP, within the remaining close timeout.
    fn complete_closing<'a, H: Host<Buffer = B, Message = M>>(
        &'a self,
        mut state: Guard<'a, B, M>,
        host: &H,
    ) -> Result<(), Error<H::Interrupt>> {
        // The application no longer receives, so messages that do not fit the queue are dropped.
        state.inbox.limit_wanted(false);
        loop {
            self.fill_queue(&mut state, host)?;
            if self.is_over(&state) {
                return self.finish(state, host, None);
            }
            let now = Instant::now();
            let deadline = state.driver.start_close_timeout(now);
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.end(&mut state, Failure::CloseTimeout);
                return Ok(());
            }
            state = match self.pump(state, host, deadline) {
                Ok(state) => state,
                Err(Error::Closed) => return self.finish(self.lock(host), host, None),
                Err(Error::TimedOut) => self.lock(host),
                Err(error) => return Err(error),
            };
        }
    }

    /// Waits until the connection is over, without closing it. Returns whether it is over. Messages that arrive
    /// meanwhile are queued up to the queue's limits.
    ///
    /// # Errors
    /// Fails if the host interrupts the call, or if the queue is full, no thread receives and there is no deadline.
    pub fn wait_closed<H: Host<Buffer = B, Message = M>>(
        &self,
        host: &H,
        deadline: Option<Instant>,
    ) -> Result<bool, Error<H::Interrupt>> {
        let mut state = self.lock(host);
        let mut waited = false;
        loop {
            self.fill_queue(&mut state, host)?;
            if self.is_over(&state) {
                if !state.driver.is_over() {
                    // An end that has already arrived is found without waiting too.
                    if !state.reading {
                        state = self
                            .read(state, host, None, |socket, operation| operation.read(socket, Mode::NonBlocking))
                            .0;
                    }
                    self.finish(state, host, deadline)?;
                    state = self.lock(host);
                }
                return Ok(state.driver.is_over());
            }
            if waited && deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(false);
            }
            waited = true;
            state = match self.pump(state, host, deadline) {
                Ok(state) => state,
                Err(Error::Closed | Error::TimedOut) => self.lock(host),
                Err(error) => return Err(error),
            };
        }
    }

    /// Ends TCP immediately.
    pub fn abort<H: Host<Buffer = B, Message = M>>(&self, host: &H) {
        self.end(&mut self.lock(host), Failure::Aborted);
    }

    /// Ends the connection for a caller that can no longer send: reads earlier input, perhaps a close frame with
    /// its reason, and ends TCP.
    pub(super) fn wait_for_end<H: Host<Buffer = B, Message = M>>(&self, host: &H) -> Result<(), Error<H::Interrupt>> {
        let mut state = self.lock(host);
        // Our closing handshake is in progress. If a thread is in close(), this one waits for the end as well.
        // Without one, messages may have to be received first.
        if state.driver.send_half().state() == ProtocolState::CloseSent && state.driver.send_half().failure().is_none()
        {
            return if state.inbox.wanted() == Wanted::WithRoom { self.complete_closing(state, host) } else { Ok(()) };
        }
        // Writing to the socket has failed: take the input that is available without waiting. After a protocol
        // error of the peer, writing still works, and our close frame must not be lost to a reset.
        let is_broken = |state: &Guard<'_, B, M>| {
            state.driver.send_half().failure().is_some_and(|failure| !failure.is_sent_to_peer())
        };
        while is_broken(&state) && !state.driver.is_over() && !state.reading {
            self.fill_queue(&mut state, host)?;
            if state.driver.send_half().is_eof() || self.is_queue_full(&state) || self.is_over(&state) {
                self.end(&mut state, Failure::Aborted);
                return Ok(());
            }
            let (next, result) =
                self.read(state, host, None, |socket, operation| operation.read(socket, Mode::NonBlocking));
            state = next;
            if result.is_err() {
                self.end(&mut state, Failure::Aborted);
                return Ok(());
            }
        }
        self.complete_closing(state, host)
    }

    /// Writes queued bytes such as the close frame and ends TCP, which the server does first (RFC 6455 7.1.1),
    /// after the last input. Returns early, without loss, at `return_by`.
    pub(super) fn finish<'a, H: Host<Buffer = B, Message = M>>(
        &'a self,
        mut state: Guard<'a, B, M>,
        host: &H,
        return_by: Option<Instant>,
    ) -> Result<(), Error<H::Interrupt>> {
        // No more messages are received, so arriving bytes are read and dropped.
        state.inbox.limit_wanted(false);
        loop {
            // Parse to drop arriving bytes and to notice the end of the stream.
            if !state.reading {
                self.fill_queue(&mut state, host)?;
            }
            let now = Instant::now();
            if state.driver.advance(|| now) == Progress::Over {
                self.notify_ended(&mut state);
                return Ok(());
            }
            // Write the close_notify alert of TLS.
            if state.driver.send_half().queued() > 0 && !state.sending {
                self.flush_some(&mut state);
                if state.driver.send_half().queued() == 0 {
                    continue;
                }
            }
            let by = state.driver.start_close_timeout(now);
            let deadline = earliest(by, return_by);
            if return_by.is_some_and(|return_by| return_by <= now) {
                return Ok(()); // a later call continues
            }
            let step = if state.reading || state.sending {
                self.wait_for_change(state, host, deadline)
            } else if state.driver.send_half().queued() > 0 {
                match self.drain_slowly(state, host, deadline) {
                    Ok(state) => Ok(state),
                    Err(Stop::Error(error)) => Err(error),
                    Err(Stop::Signal) => {
                        host.check_interrupt().map_err(Error::Interrupted)?;
                        Ok(self.lock(host))
                    }
                }
            } else {
                self.read_rest(state, host, deadline)
            };
            state = match step {
                Ok(state) => state,
                Err(Error::Interrupted(interrupt)) => return Err(Error::Interrupted(interrupt)),
                Err(Error::Closed) => {
                    let mut state = self.lock(host);
                    self.end(&mut state, Failure::Aborted);
                    return Ok(());
                }
                Err(_) => self.lock(host),
            };
        }
    }

    fn read_rest<'a, H: Host<Buffer = B, Message = M>>(
        &'a self,
        state: Guard<'a, B, M>,
        host: &H,
        deadline: Option<Instant>,
    ) -> Result<Guard<'a, B, M>, Error<H::Interrupt>> {
        let interest = Readiness { readable: true, writable: false };
        let (state, result) = self.read(state, host, Some((interest, deadline)), move |socket, operation| {
            socket.wait(interest, deadline)?;
            operation.read(socket, Mode::NonBlocking)
        });
        match result {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {
                drop(state);
                host.check_interrupt().map_err(Error::Interrupted)?;
                Ok(self.lock(host))
            }
            _ => Ok(state),
        }
    }
}
