//! Encoded frames that several queues share, with optional accounting of their memory.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Accounts for memory, from any thread: it grows when frames are created, and shrinks when the last queue drops
/// them.
pub trait Account: Send + Sync {
    /// Adds bytes.
    fn add(&self, bytes: usize);

    /// Subtracts bytes.
    fn subtract(&self, bytes: usize);

    /// Adds a message of `bytes` bytes that is in a mailbox and was in none: see [`crate::encoded::Encoded::post`].
    fn post(&self, _bytes: usize) {}

    /// Subtracts a message that is in no mailbox any more.
    fn collect(&self, _bytes: usize) {}
}

/// Encoded frames, shared by reference.
pub struct Frames {
    bytes: Vec<u8>,
    account: Option<Arc<dyn Account>>,
}

impl Frames {
    /// Wraps bytes, which count in the account until they are dropped.
    #[must_use]
    pub fn counted(bytes: Vec<u8>, account: Option<&Arc<dyn Account>>) -> Self {
        if let Some(account) = account {
            account.add(bytes.len());
        }
        Self { bytes, account: account.cloned() }
    }
}

impl From<Vec<u8>> for Frames {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, account: None }
    }
}

impl Deref for Frames {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames").field("len", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            account.subtract(self.bytes.len());
        }
    }
}
