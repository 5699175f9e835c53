//! The bytes of an opening over a socket.

use std::io;
use std::time::{Duration, Instant};

use super::{Error, Opening, Stage};
use crate::blocking::{Host, earliest};
use crate::buffer_pool;
use crate::socket::{Mode, Readiness, Socket};
use crate::write_queue::Flushed;

/// How long the body of a refusal is waited for once its head is there, if the deadline is not before that: the status
/// says enough, and a body need not end.
const BODY_PATIENCE: Duration = Duration::from_secs(10);

/// What a call has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// It is done. What is left of the output goes on with what the opening becomes.
    Done,
    /// It has said all that there was to say, which was a refusal, and the other end has read it, or will
    /// not.
    Over,
    /// The socket must be ready for one of these first.
    Waits(Readiness),
}

/// Moves the bytes of an opening over a socket, without waiting.
pub struct Carrier {
    /// Why nothing more can be written. The other end may have said why before it went.
    unsent: Option<io::Error>,
    /// Our direction of TCP was ended.
    shut: bool,
    /// It was called before.
    begun: bool,
    received: usize,
    total: u64,
    /// Bytes that may still come once the opening has failed.
    patience: u64,
}

impl Default for Carrier {
    fn default() -> Self {
        Self::lingering(u64::MAX)
    }
}

impl Carrier {
    /// One that reads so many bytes after an opening has failed, so that its response is not lost to a reset, and
    /// then no more.
    #[must_use]
    pub fn lingering(bytes: u64) -> Self {
        Self { unsent: None, shut: false, begun: false, received: 0, total: 0, patience: bytes }
    }

    /// Bytes that the last read brought, for whoever is told of edges: the rest of what is there has yet to
    /// be read.
    #[must_use]
    pub fn received(&self) -> usize {
        self.received
    }

    /// Bytes that all reads have brought.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Moves what can be moved without waiting. For an opening that has failed with a response, until the
    /// other end has read that.
    ///
    /// # Errors
    /// The opening has failed. What the output holds may say why: it was written as far as the
    /// socket took it.
    pub fn proceed<O: Opening>(&mut self, opening: &mut O, socket: &Socket) -> Result<Moved, Error> {
        // Whoever is told of edges may have been told just now that there is something.
        let mut looked = !std::mem::replace(&mut self.begun, true);
        loop {
            let speaks = !opening.output().is_empty();
            let blocked = self.write(opening, socket)?;
            let stage = opening.stage();
            if stage == Stage::Done {
                return Ok(Moved::Done);
            }
            // The answer to what was said just now is not there yet: no look for it. What came before has been
            // read, unless the last read was full.
            if speaks
                && looked
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
                // With bytes unread, closing would reset the connection before the other end has read why.
                if !std::mem::replace(&mut self.shut, true) {
                    socket.shutdown_write();
                }
            }
            let mut buffer = buffer_pool::take_read();
            let result = socket.receive(&mut buffer, usize::MAX, Mode::NonBlocking);
            looked = true;
            match self.take(opening, socket, &buffer, result)? {
                Some(Moved::Waits(_)) => {
                    return Ok(Moved::Waits(Readiness { readable: true, writable: blocked }));
                }
                Some(moved) => return Ok(moved),
                None => {}
            }
        }
    }

    /// Takes what a read has come to; `None`: it goes on.
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
                    self.patience = self.patience.saturating_sub(received as u64);
                    if self.patience == 0 {
                        return Ok(Some(Moved::Over));
                    }
                }
                if let Err(error) = opening.receive(bytes) {
                    let _ = self.write(opening, socket); // an alert, as far as it goes
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

    /// Writes what there is; whether the socket has no room for all of it.
    fn write<O: Opening>(&mut self, opening: &mut O, socket: &Socket) -> Result<bool, Error> {
        if self.unsent.is_some() {
            opening.output().clear();
            return Ok(false);
        }
        match opening.output().flush(socket, Mode::NonBlocking) {
            Ok(flushed) => Ok(flushed == Flushed::Blocked),
            // A server or proxy that refuses may answer before it has read everything, and close: its answer
            // can still be read.
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                opening.output().clear();
                self.unsent = Some(error);
                Ok(false)
            }
            Err(error) => Err(opening.receive_end(Some(error))),
        }
    }
}

/// Why an opening that a thread waits for did not come to its end.
#[derive(Debug)]
pub enum Stop<I> {
    /// The host wants to stop.
    Interrupted(I),
    /// The deadline has passed, in this stage.
    TimedOut(Stage),
    /// It has failed.
    Failed(Error),
}

/// Moves the bytes of an opening over a socket until it is done, waiting until `deadline` at most. The socket
/// blocks from then on.
///
/// # Errors
/// It is not done; nothing can be done with it any more.
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
    // Not before the other end has something to do.
    socket.set_blocking(true).map_err(|error| Stop::Failed(Error::Io(error)))?;
    loop {
        let interest = match moved {
            Moved::Done => return Ok(()),
            Moved::Over => return Err(Stop::Failed(Error::Io(io::ErrorKind::UnexpectedEof.into()))),
            Moved::Waits(interest) => interest,
        };
        if !refused && opening.is_refused() {
            refused = true;
            deadline = earliest(deadline, Instant::now().checked_add(BODY_PATIENCE));
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // A receive that may sleep costs one system call, and no timer of the processor's, where waiting and
        // then receiving costs two.
        let taken = if let Some(ready) = host.wait_aside(Some((socket, interest)), deadline) {
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
            // It has slept for nothing.
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
