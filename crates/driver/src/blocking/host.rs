//! The interface between a blocking connection and its host, such as a Python interpreter.

use std::io;
use std::time::Instant;

use wirespeed_protocol::{MessageKind, Payload, PayloadBuffer};

use crate::socket::{Readiness, Socket};

/// The host: creates the application's messages, waits, and interrupts calls.
pub trait Host {
    /// The buffer in which messages are assembled.
    type Buffer: PayloadBuffer + Send;
    /// The application's form of a message.
    type Message: Send;
    /// The reason to abandon a call.
    type Interrupt;

    /// Creates a message or, unless `whole`, a fragment; the text of a fragment may end inside a character. It runs
    /// inside the connection's lock and must not call into the connection.
    fn message(
        &self,
        kind: MessageKind,
        payload: Payload<'_, Self::Buffer>,
        whole: bool,
    ) -> Result<Self::Message, Self::Interrupt>;

    /// Creates a message from its fragments, under the same conditions.
    fn join(&self, kind: MessageKind, fragments: Vec<Self::Message>) -> Result<Self::Message, Self::Interrupt>;

    /// Runs `f`, which may block, without the host's own lock.
    fn wait<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R;

    /// Waits cooperatively, for hosts that run other code in the same thread meanwhile: until the socket is ready,
    /// if one is given, or until the deadline. `None`: the host does not support this, use [`Self::wait`]. After an
    /// error of kind `Interrupted`, [`Self::check_interrupt`] returns the reason.
    #[inline]
    fn wait_cooperatively(&self, _: Option<(&Socket, Readiness)>, _: Option<Instant>) -> Option<io::Result<Readiness>> {
        None
    }

    /// Runs `f`, which moves many bytes and does not block; the host may release its own lock meanwhile.
    fn run_bulk_io<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        f()
    }

    /// Called before an operation that moves many bytes under the host's own lock. The source may change now.
    fn before_bulk_io(&self) {}

    /// Returns whether the interpreter is shutting down, so that other threads may no longer run.
    fn is_shutting_down(&self) -> bool {
        false
    }

    /// Called after a signal, outside the connection's lock: it may run any code, including calls on the same
    /// connection.
    fn check_interrupt(&self) -> Result<(), Self::Interrupt>;
}
