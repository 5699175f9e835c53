//! Frames that many queues share, and whose memory somebody may count.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Counts memory: told when frames begin to exist, and when the last queue has let go of them. From any thread.
pub trait Account: Send + Sync {
    /// So many bytes more.
    fn add(&self, bytes: usize);

    /// So many fewer.
    fn subtract(&self, bytes: usize);

    /// A message of so many bytes is in a mailbox, where it was in none: see [`crate::encoded::Encoded::post`].
    fn post(&self, _bytes: usize) {}

    /// It is in none any more.
    fn collect(&self, _bytes: usize) {}
}

/// See the module.
pub struct Frames {
    bytes: Vec<u8>,
    account: Option<Arc<dyn Account>>,
}

impl Frames {
    /// These bytes, counted for as long as they are there.
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
