//! What can be awaited of a connection.

use std::ffi::c_char;

use wirespeed_driver::protocol::Delivery;

use super::raw::c;

/// What an operation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One message.
    Receive,
    /// One message, or the end of the iteration.
    Next,
    /// All messages that are there.
    ReceiveMany,
    /// A fragment, its kind and whether it is the last.
    Fragment,
    /// To send a message that must wait for room.
    Send,
    /// To send the messages of an iterator.
    SendMany,
    /// To wait until it is one's turn to queue something.
    Room,
    /// To wait until there is room again.
    Drain,
    /// To wait until everything is written.
    Flush,
    /// To give the loop a turn.
    Yield,
    /// To wait for the end of the connection, which it then raises.
    End,
    /// Nothing: it is done.
    Done,
}

impl Kind {
    pub(super) fn receives(self) -> bool {
        matches!(self, Self::Receive | Self::Next | Self::ReceiveMany | Self::Fragment)
    }
}

/// What the coroutine is called.
pub(super) fn method_name(kind: Kind) -> *const c_char {
    match kind {
        Kind::Receive => c!("recv"),
        Kind::Next => c!("__anext__"),
        Kind::ReceiveMany => c!("recv_many"),
        Kind::Fragment => c!("recv_streaming"),
        Kind::SendMany => c!("send_many"),
        Kind::Flush => c!("flush"),
        _ => c!("send"),
    }
}

/// What a coroutine that waits in a fragment or a message wants.
pub(super) fn delivery(kind: Kind) -> Delivery {
    if kind == Kind::Fragment { Delivery::Fragments } else { Delivery::Messages }
}
