//! One message for many connections: its frames are made once, and compressed at most once for each way of
//! compressing.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use wirespeed_protocol::deflate::Params;
use wirespeed_protocol::{Config, Connection, MessageKind, PayloadBuffer, SendError, Side};

use crate::endpoint::SendHalf;
use crate::entropy;
use crate::frames::{Account, Frames};

/// Bytes of the longest header of a frame without a mask (RFC 6455 5.2).
const HEADER_MAX: usize = 10;

/// See the module.
pub struct Encoded {
    kind: MessageKind,
    /// Its frame as it is, without a mask; the payload is the end of it.
    plain: Arc<Frames>,
    len: usize,
    compressed: Mutex<Vec<(Params, Arc<Frames>)>>,
    /// Mailboxes in which it is.
    posted: AtomicUsize,
    /// Counts its frames.
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
    /// There is no such message: of a kind that is none, or text that is no UTF-8.
    pub fn new(kind: MessageKind, payload: &[u8]) -> Result<Self, SendError> {
        Self::counted(kind, payload, None)
    }

    /// The same, and its frames are counted for as long as they are there, here or in queues.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn counted(kind: MessageKind, payload: &[u8], account: Option<Arc<dyn Account>>) -> Result<Self, SendError> {
        let plain = encode(kind, payload, None, account.as_ref())?;
        let (compressed, posted) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
        Ok(Self { kind, plain, len: payload.len(), compressed, posted, account })
    }

    /// Of the message.
    #[must_use]
    pub fn kind(&self) -> MessageKind {
        self.kind
    }

    /// What the message says.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.plain.get(self.plain.len() - self.len..).unwrap_or_default()
    }

    /// Bytes that it takes on the wire, uncompressed.
    #[must_use]
    pub fn size(&self) -> usize {
        self.plain.len()
    }

    /// Queues it.
    ///
    /// # Errors
    /// As for [`SendHalf::send_message`].
    pub fn send<B: PayloadBuffer>(&self, send_half: &mut SendHalf<B>) -> Result<(), SendError> {
        if send_half.side() == Side::Client {
            return send_half.send_message(self.kind, self.payload(), None); // each has a mask of its own
        }
        match send_half.deflate().filter(|params| self.len >= params.threshold).copied() {
            None => send_half.send_shared(&self.plain, self.len as u64, false),
            Some(params) => send_half.send_shared(&self.compressed(&params)?, self.len as u64, true),
        }
    }

    /// It is put into a mailbox of somebody who will queue it for connections: one of several, perhaps, of which its
    /// account is told once. [`Self::collect`] then.
    pub fn post(&self) {
        // Nothing is read by what this says: it is counted, no more.
        if self.posted.fetch_add(1, Ordering::Relaxed) == 0
            && let Some(account) = &self.account
        {
            account.post(self.size());
        }
    }

    /// It is in one mailbox fewer.
    pub fn collect(&self) {
        if self.posted.fetch_sub(1, Ordering::Relaxed) == 1
            && let Some(account) = &self.account
        {
            account.collect(self.size());
        }
    }

    fn compressed(&self, params: &Params) -> Result<Arc<Frames>, SendError> {
        // What the peer may send, and whether our window goes on, do not show in one message.
        let key = Params {
            local_no_context_takeover: true,
            remote_no_context_takeover: true,
            remote_window_bits: 15,
            ..*params
        };
        // Whoever else needs it meanwhile waits for it, and does not make it again.
        let mut known = self.compressed.lock().unwrap_or_else(PoisonError::into_inner);
        wirespeed_protocol::failpoint::reach("driver.shared_deflate");
        if let Some((_, frames)) = known.iter().find(|(other, _)| *other == key) {
            return Ok(Arc::clone(frames));
        }
        let frames = encode(self.kind, self.payload(), Some(key), self.account.as_ref())?;
        known.push((key, Arc::clone(&frames)));
        Ok(frames)
    }
}

/// Where a message of a [`FrameBatch`] ends.
#[derive(Clone, Copy, Debug, Default)]
struct End {
    /// In the frames.
    frames: usize,
    /// Payload bytes until there.
    payload: usize,
}

/// Messages for many that leave together: their frames, one after the other, with neither masks nor compression.
pub struct FrameBatch {
    frames: Arc<Frames>,
    /// Of each message.
    ends: Box<[End]>,
}

impl fmt::Debug for FrameBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("len", &self.len()).field("size", &self.frames.len()).finish_non_exhaustive()
    }
}

impl FrameBatch {
    /// Of these messages, in this order. Counted as the first one's frames are.
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

    /// Messages.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes that they take on the wire.
    #[must_use]
    #[inline]
    pub fn size(&self) -> usize {
        self.frames.len()
    }

    /// The same of the first so many.
    #[must_use]
    pub fn size_of_first(&self, count: usize) -> usize {
        self.end(count).frames
    }

    /// Payload bytes of those after the first so many.
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
        out.shrink_to_fit(); // it may wait for long
    }
    Ok(Arc::new(Frames::counted(out, account)))
}
