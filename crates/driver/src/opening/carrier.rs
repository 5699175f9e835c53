//! Moves the bytes of an opening over a socket.

use std::io;
use std::time::{Duration, Instant};

use super::{Error, Opening, Stage};
use crate::blocking::{Host, earliest};
use crate::buffer_pool;
use crate::socket::{Mode, Readiness, Socket};
use crate::write_queue::Flushed;

/// Time limit for the body of a refusal once its head has arrived, unless the deadline is earlier. The status is
/// sufficient, and a body need not end.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The result of a call of [`Carrier::proceed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// The opening is done. The rest of its output passes to the endpoint.
    Done,
    /// The opening has sent its refusal, and the peer has read it or will not read it.
    Over,
    /// The socket must become ready first.
    Waits(Readiness),
}

/// Moves the bytes of an opening over a socket without blocking.
pub struct Carrier {
    /// Why nothing more can be written. The peer may have sent the reason before it closed.
    unsent: Option<io::Error>,
    /// Our direction of TCP was ended.
    write_ended: bool,
    /// [`Self::proceed`] was called before.
    called: bool,
    received: usize,
    total: u64,
    /// Number of bytes that may still be read once the opening has failed.
    linger_bytes: u64,
}

impl Default for Carrier {
    fn default() -> Self {
        Self::lingering(u64::MAX)
    }
}

impl Carrier {
    /// Creates a carrier that reads at most `bytes` bytes after an opening has failed. Reading keeps its response
    /// from being lost to a reset.
    #[must_use]
    pub fn lingering(bytes: u64) -> Self {
        Self { unsent: None, write_ended: false, called: false, received: 0, total: 0, linger_bytes: bytes }
    }

    /// Returns the number of bytes of the last read. With edge-triggered polling, more may be available.
    #[must_use]
    pub fn received(&self) -> usize {
        self.received
    }

    /// Returns the number of bytes of all reads.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Moves bytes until the socket would block. After an opening has failed with a response, it continues until
    /// the peer has read the response.
    ///
    /// # Errors
    /// Fails if the opening has failed. The output may hold the reason, and is written as far as the socket takes
    /// it.
    pub fn proceed<O: Opening>(&mut self, opening: &mut O, socket: &Socket) -> Result<Moved, Error> {
        // With edge-triggered polling, the edge of the first call may report input.
        let mut has_read = !std::mem::replace(&mut self.called, true);
        loop {
            let wrote = !opening.output().is_empty();
            let blocked = self.write(opening, socket)?;
            let stage = opening.stage();
            if stage == Stage::Done {
                return Ok(Moved::Done);
            }
            // The reply to bytes written just now has not arrived, so do not try to read it. Earlier input has been
            // read, unless the last read was full.
            if wrote
                && has_read
                && self.unsent.is_none()
                && stage != Stage::Failed
                && self.received < buffer_pool::SMALL_READ_SIZE
            {
                return Ok(Moved::Waits(Readiness { readable: true, writable: blocked }));
            }
            if stage == Stage::Failed && !blocked {
                if self.unsent.is_some() {
                    return Ok(Moved::Over);
                }
                // Closing with unread bytes would reset the connection before the peer has read the reason.
                if !std::mem::replace(&mut self.write_ended, true) {
                    socket.shutdown_write();
                }
            }
            let mut buffer = buffer_pool::take_read();
            let result = socket.receive(&mut buffer, usize::MAX, Mode::NonBlocking);
            has_read = true;
            match self.take(opening, socket, &buffer, result)? {
                Some(Moved::Waits(_)) => {
                    return Ok(Moved::Waits(Readiness { readable: true, writable: blocked }));
                }
                Some(moved) => return Ok(moved),
                None => {}
            }
        }
    }

    /// Takes the result of a read; `None`: continue.
    fn take<O: Opening>(
        &mut self,
        opening: &mut O,
        socket: &Socket,
        bytes: &[u8],
        result: io::Result<usize>,
    ) -> Result<Option<Moved>, Error> {
        let failed = opening.stage() == Stage::Failed;
        match result {
            Ok(0) if failed => Ok(Some(Moved::Over)),
            Ok(0) => Err(opening.receive_end(self.unsent.take())),
            Ok(received) => {
                self.received = received;
                self.total += received as u64;
                if failed {
                    self.linger_bytes = self.linger_bytes.saturating_sub(received as u64);
                    if self.linger_bytes == 0 {
                        return Ok(Some(Moved::Over));
                    }
                }
                if let Err(error) = opening.receive(bytes) {
                    let _ = self.write(opening, socket); // an alert, as far as the socket takes it
                    return Err(error);
                }
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Ok(Some(Moved::Waits(Readiness { readable: true, writable: false })))
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(_) if failed => Ok(Some(Moved::Over)),
            Err(error) => Err(opening.receive_end(Some(self.unsent.take().unwrap_or(error)))),
        }
    }

    /// Writes queued bytes. Returns whether the socket has no room for all of them.
    fn write<O: Opening>(&mut self, opening: &mut O, socket: &Socket) -> Result<bool, Error> {
        if self.unsent.is_some() {
            opening.output().clear();
            return Ok(false);
        }
        match opening.output().flush(socket, Mode::NonBlocking) {
            Ok(flushed) => Ok(flushed == Flushed::Blocked),
            // A server or proxy that refuses may respond and close before it has read everything: its response can
            // still be read.
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                opening.output().clear();
                self.unsent = Some(error);
                Ok(false)
            }
            Err(error) => Err(opening.receive_end(Some(error))),
        }
    }
}

/// Why an opening that a thread waits for is not done.
#[derive(Debug)]
pub enum Stop<I> {
    /// The host interrupts the call.
    Interrupted(I),
    /// The deadline has passed in this stage.
    TimedOut(Stage),
    /// The opening has failed.
    Failed(Error),
}

/// Moves the bytes of an opening over a socket until it is done, blocking until `deadline` at most. Afterwards the
/// socket is in blocking mode.
///
/// # Errors
/// Fails if the opening is not done; it cannot be used any more.
pub fn complete<H: Host, O: Opening>(
    opening: &mut O,
    socket: &Socket,
    host: &H,
    deadline: Option<Instant>,
) -> Result<(), Stop<H::Interrupt>> {
    let mut carrier = Carrier::default();
    let mut deadline = deadline;
    let mut refused = false;
    let mut moved = carrier.proceed(opening, socket).map_err(Stop::Failed)?;
    // Only now, so that the peer has its first bytes as early as possible.
    socket.set_blocking(true).map_err(|error| Stop::Failed(Error::Io(error)))?;
    loop {
        let interest = match moved {
            Moved::Done => return Ok(()),
            Moved::Over => return Err(Stop::Failed(Error::Io(io::ErrorKind::UnexpectedEof.into()))),
            Moved::Waits(interest) => interest,
        };
        if !refused && opening.is_refused() {
            refused = true;
            deadline = earliest(deadline, Instant::now().checked_add(BODY_TIMEOUT));
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // A blocking receive costs one system call and no timer interrupt, where waiting and then receiving costs
        // two calls.
        let taken = if let Some(ready) = host.wait_cooperatively(Some((socket, interest)), deadline) {
            ready.map(|ready| (ready == Readiness::default()).then_some(moved))
        } else if !interest.writable && socket.set_receive_wait(left).unwrap_or(false) {
            let mut buffer = buffer_pool::take_read();
            match host.wait(|| socket.receive(&mut buffer, usize::MAX, Mode::Blocking)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
                result => Ok(carrier.take(opening, socket, &buffer, result).map_err(Stop::Failed)?),
            }
        } else {
            host.wait(|| socket.wait(interest, deadline)).map(|ready| (ready == Readiness::default()).then_some(moved))
        };
        moved = match taken {
            Ok(None) => carrier.proceed(opening, socket).map_err(Stop::Failed)?,
            // The wait has ended without input.
            Ok(Some(waits @ Moved::Waits(_))) => {
                if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                    let stage = opening.stage();
                    return Err(opening.give_up().map_or(Stop::TimedOut(stage), Stop::Failed));
                }
                waits
            }
            Ok(Some(moved)) => moved,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                host.check_interrupt().map_err(Stop::Interrupted)?;
                moved
            }
            Err(error) => return Err(Stop::Failed(opening.receive_end(Some(error)))),
        };
    }
}
