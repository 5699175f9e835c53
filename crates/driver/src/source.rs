//! The bytes of a message that the application sends: blocking connections and those of an event loop read them alike.

use std::ops::Range;

/// The bytes of a message to send. Other threads may write to them while the host's lock is released, so they are
/// read in pieces and only under that lock.
pub trait Source {
    /// Returns the number of bytes.
    fn len(&self) -> usize;

    /// Returns whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of a range.
    fn piece(&self, range: Range<usize>) -> &[u8];
}

impl Source for [u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn piece(&self, range: Range<usize>) -> &[u8] {
        #[allow(clippy::indexing_slicing, reason = "the ranges are within the length that was queried")]
        &self[range]
    }
}
