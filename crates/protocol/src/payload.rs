//! [`PayloadBuffer`]: the buffer, supplied by the caller, into which a message is assembled.

use alloc::vec::Vec;
use core::mem::MaybeUninit;

use crate::event::MessageKind;

/// There is no memory for the bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

/// A buffer into which a message is assembled. It can be the application's own object, so that each byte is copied
/// only once.
///
/// The length only grows. After [`OutOfMemory`] the contents may be lost, and the connection fails.
/// [`Self::spare`] and [`Self::advance`] work like `Vec::spare_capacity_mut` and `Vec::set_len`.
pub trait PayloadBuffer: Sized {
    /// Creates an empty buffer for a message of this kind. `expected` is its size according to the frame header, or 0
    /// if that is unknown. It is within the limits, but the peer may send fewer bytes.
    fn with_capacity(kind: MessageKind, expected: usize) -> Result<Self, OutOfMemory>;

    /// Returns the bytes written so far.
    fn as_slice(&self) -> &[u8];

    /// Returns the bytes written so far, for unmasking in place.
    fn as_mut_slice(&mut self) -> &mut [u8];

    /// Allocates spare room after the written bytes and returns it: at least `additional` bytes, and at least one.
    fn spare(&mut self, additional: usize) -> Result<&mut [MaybeUninit<u8>], OutOfMemory>;

    /// Returns the spare room after the written bytes and never allocates. Unlike all other methods it may be called
    /// by a thread that does not hold the application's lock.
    fn room(&mut self) -> &mut [MaybeUninit<u8>];

    /// Adds the first `written` bytes of the spare room to the written bytes. The spare room is the slice that
    /// [`Self::spare`] or [`Self::room`] returned last.
    ///
    /// # Safety
    ///
    /// `written` is at most the length of that room, and its first `written` bytes are initialised.
    #[allow(unsafe_code)] // as Vec::set_len; a safe version would have to zero the bytes first
    unsafe fn advance(&mut self, written: usize);

    /// Appends a copy of `data`.
    fn extend_from_slice(&mut self, data: &[u8]) -> Result<(), OutOfMemory> {
        if data.is_empty() {
            return Ok(());
        }
        let spare = self.spare(data.len())?.get_mut(..data.len()).ok_or(OutOfMemory)?;
        spare.write_copy_of_slice(data);
        // SAFETY: the line above initialised the first data.len() bytes of the spare room.
        #[allow(unsafe_code)]
        unsafe {
            self.advance(data.len());
        }
        Ok(())
    }
}

impl PayloadBuffer for Vec<u8> {
    fn with_capacity(_: MessageKind, expected: usize) -> Result<Self, OutOfMemory> {
        let mut buffer = Self::new();
        buffer.try_reserve(expected).map_err(|_| OutOfMemory)?;
        Ok(buffer)
    }

    fn as_slice(&self) -> &[u8] {
        self
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        self
    }

    fn spare(&mut self, additional: usize) -> Result<&mut [MaybeUninit<u8>], OutOfMemory> {
        self.try_reserve(additional.max(1)).map_err(|_| OutOfMemory)?;
        Ok(self.spare_capacity_mut())
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        self.spare_capacity_mut()
    }

    #[allow(unsafe_code)] // forwards the caller's promise
    unsafe fn advance(&mut self, written: usize) {
        // SAFETY: the caller promises that these bytes lie within the capacity and are initialised.
        unsafe { self.set_len(self.len() + written) }
    }
}
