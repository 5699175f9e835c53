//! The kinds of operations that can be awaited on a connection.

use std::ffi::c_char;

use wirespeed_driver::protocol::Delivery;

use super::raw::c;

/// The purpose of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationKind {
    /// Receives one message.
    Receive,
    /// Receives one message, or ends the iteration.
    Next,
    /// Receives all messages that have arrived.
    ReceiveMany,
    /// Receives a fragment, its kind and whether it is the last.
    Fragment,
    /// Sends a message that had to wait for room in the send queue.
    Send,
    /// Sends the messages of an iterator.
    SendMany,
    /// Waits until the caller may queue a message.
    SendTurn,
    /// Waits until the send queue has room again.
    Drain,
    /// Waits until everything is written.
    Flush,
    /// Yields to the loop once.
    Yield,
    /// Waits for the end of the connection, then raises its exception.
    Closed,
    /// Does nothing: it is complete.
    Done,
}

impl OperationKind {
    pub(super) fn receives(self) -> bool {
        matches!(self, Self::Receive | Self::Next | Self::ReceiveMany | Self::Fragment)
    }
}

/// Returns the name of the coroutine.
pub(super) fn method_name(kind: OperationKind) -> *const c_char {
    match kind {
        OperationKind::Receive => c!("recv"),
        OperationKind::Next => c!("__anext__"),
        OperationKind::ReceiveMany => c!("recv_many"),
        OperationKind::Fragment => c!("recv_streaming"),
        OperationKind::SendMany => c!("send_many"),
        OperationKind::Flush => c!("flush"),
        _ => c!("send"),
    }
}

/// Returns whether an operation receives fragments or whole messages.
pub(super) fn delivery(kind: OperationKind) -> Delivery {
    if kind == OperationKind::Fragment { Delivery::Fragments } else { Delivery::Messages }
}
