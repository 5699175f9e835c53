//! One message for many connections: it is encoded once, and compressed at most once for each set of parameters.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use wirespeed_protocol::deflate::Params;
use wirespeed_protocol::{Config, Connection, MessageKind, PayloadBuffer, SendError, Side};

use crate::endpoint::SendHalf;
use crate::entropy;
use crate::frames::{Account, Frames};

/// Length of the longest header of a frame without a mask (RFC 6455 5.2).
const HEADER_MAX: usize = 10;

/// One message, encoded for many connections.
pub struct Encoded {
    kind: MessageKind,
    /// The uncompressed frame without a mask, which ends with the payload.
    plain: Arc<Frames>,
    len: usize,
    compressed: Mutex<Vec<(Params, Arc<Frames>)>>,
    /// Number of mailboxes that hold the message.
    posted: AtomicUsize,
    /// Accounts for the frames.
    account: Option<Arc<dyn Account>>,
}

impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoded").field("kind", &self.kind).field("len", &self.len).finish_non_exhaustive()
    }
}

impl Encoded {
    /// Encodes a message.
    ///
    /// # Errors
    /// Fails if the kind is invalid, or if the text is not UTF-8.
    pub fn new(kind: MessageKind, payload: &[u8]) -> Result<Self, SendError> {
        Self::counted(kind, payload, None)
    }

    /// Encodes a message whose frames are accounted for as long as they exist, here or in queues.
    ///
    /// # Errors
    /// Fails like [`Self::new`].
    pub fn counted(kind: MessageKind, payload: &[u8], account: Option<Arc<dyn Account>>) -> Result<Self, SendError> {
        let plain = encode(kind, payload, None, account.as_ref())?;
        let (compressed, posted) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
        Ok(Self { kind, plain, len: payload.len(), compressed, posted, account })
    }

    /// Returns the kind of the message.
    #[must_use]
    pub fn kind(&self) -> MessageKind {
        self.kind
    }

    /// Returns the payload of the message.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.plain.get(self.plain.len() - self.len..).unwrap_or_default()
    }

    /// Returns its uncompressed size on the wire, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.plain.len()
    }

    /// Queues the message on a connection.
    ///
    /// # Errors
    /// Fails like [`SendHalf::send_message`].
    pub fn send<B: PayloadBuffer>(&self, send_half: &mut SendHalf<B>) -> Result<(), SendError> {
        if send_half.side() == Side::Client {
            return send_half.send_message(self.kind, self.payload(), None); // each frame has its own mask
        }
        match send_half.deflate().filter(|params| self.len >= params.threshold).copied() {
            None => send_half.send_shared(&self.plain, self.len as u64, false),
            Some(params) => send_half.send_shared(&self.compressed(&params)?, self.len as u64, true),
        }
    }

    /// Records that the message is in one more mailbox, from which another thread queues it for connections. The
    /// account counts it once, however many there are. [`Self::collect`] must follow.
    pub fn post(&self) {
        // Relaxed: the counter orders no other access.
        if self.posted.fetch_add(1, Ordering::Relaxed) == 0
            && let Some(account) = &self.account
        {
            account.post(self.size());
        }
    }

    /// Records that the message is in one mailbox fewer.
    pub fn collect(&self) {
        if self.posted.fetch_sub(1, Ordering::Relaxed) == 1
            && let Some(account) = &self.account
        {
            account.collect(self.size());
        }
    }

    fn compressed(&self, params: &Params) -> Result<Arc<Frames>, SendError> {
        // The peer's parameters, and whether our window continues, do not affect a single message.
        let key = Params {
            local_no_context_takeover: true,
            remote_no_context_takeover: true,
            remote_window_bits: 15,
            ..*params
        };
        // Other threads that need the frames wait here instead of compressing too.
        let mut known = self.compressed.lock().unwrap_or_else(PoisonError::into_inner);
        wirespeed_protocol::failpoint::hit("driver.shared_deflate");
        if let Some((_, frames)) = known.iter().find(|(other, _)| *other == key) {
            return Ok(Arc::clone(frames));
        }
        let frames = encode(self.kind, self.payload(), Some(key), self.account.as_ref())?;
        known.push((key, Arc::clone(&frames)));
        Ok(frames)
    }
}

/// The end of a message of a [`FrameBatch`].
#[derive(Clone, Copy, Debug, Default)]
struct End {
    /// The position in the frames.
    frames: usize,
    /// Number of payload bytes up to here.
    payload: usize,
}

/// Messages for many connections that are sent together: consecutive frames without masks or compression.
pub struct FrameBatch {
    frames: Arc<Frames>,
    /// The end of each message.
    ends: Box<[End]>,
}

impl fmt::Debug for FrameBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("len", &self.len()).field("size", &self.frames.len()).finish_non_exhaustive()
    }
}

impl FrameBatch {
    /// Joins these messages, in this order. Their bytes count in the account of the first.
    pub fn new<'a, I: Iterator<Item = &'a Encoded> + Clone>(messages: I) -> Self {
        let size = messages.clone().map(Encoded::size).sum();
        let account = messages.clone().next().and_then(|first| first.account.as_ref());
        let mut bytes = Vec::with_capacity(size);
        let mut end = End::default();
        let ends = messages.map(|message| {
            bytes.extend_from_slice(&message.plain);
            end = End { frames: bytes.len(), payload: end.payload + message.len };
            end
        });
        let ends = ends.collect();
        Self { frames: Arc::new(Frames::counted(bytes, account)), ends }
    }

    /// Returns the number of messages.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are no messages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns their size on the wire, in bytes.
    #[must_use]
    #[inline]
    pub fn size(&self) -> usize {
        self.frames.len()
    }

    /// Returns the size of the first `count` messages on the wire, in bytes.
    #[must_use]
    pub fn size_of_first(&self, count: usize) -> usize {
        self.end(count).frames
    }

    /// Returns the number of payload bytes after the first `count` messages.
    #[must_use]
    pub fn payload_after(&self, count: usize) -> usize {
        self.end(self.len()).payload - self.end(count).payload
    }

    pub(crate) fn frames(&self) -> &Arc<Frames> {
        &self.frames
    }

    fn end(&self, count: usize) -> End {
        let last = count.min(self.len()).checked_sub(1);
        last.and_then(|last| self.ends.get(last)).copied().unwrap_or_default()
    }
}

fn encode(
    kind: MessageKind,
    payload: &[u8],
    deflate: Option<Params>,
    account: Option<&Arc<dyn Account>>,
) -> Result<Arc<Frames>, SendError> {
    let mut connection: Connection<Vec<u8>> = Connection::new(Config { deflate, ..Config::new(Side::Server) });
    let mut out = Vec::with_capacity(payload.len() + HEADER_MAX);
    connection.send_message(kind, payload, None, entropy::draw_key, &mut out)?;
    if deflate.is_some() {
        out.shrink_to_fit(); // the frames may wait in queues for a long time
    }
    Ok(Arc::new(Frames::counted(out, account)))
}
