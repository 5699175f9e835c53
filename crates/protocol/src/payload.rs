//! Where the bytes of a message land that does not arrive in one piece: the caller's choice.

use alloc::vec::Vec;
use core::mem::MaybeUninit;

use crate::event::MessageKind;

/// No memory for the bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

/// A buffer that a message is assembled in: an object of the application's own, so that its bytes are written
/// once.
///
/// The length only grows, but where there is no memory: then what was written may be gone, and the connection
/// fails. [`Self::spare`] and [`Self::advance`] work as with `Vec::spare_capacity_mut` and
/// `Vec::set_len`.
pub trait PayloadBuffer: Sized {
    /// An empty buffer for a message of this kind. `expected` is its final size where the frame header tells
    /// it, already checked against the limits, but not yet backed by bytes from the peer; a guess otherwise.
    fn with_capacity(kind: MessageKind, expected: usize) -> Result<Self, OutOfMemory>;

    /// The bytes written so far.
    fn as_slice(&self) -> &[u8];

    /// The bytes written so far, to be unmasked in place.
    fn as_mut_slice(&mut self) -> &mut [u8];

    /// Room for at least one and for `additional` bytes if that many are asked for, behind the bytes written
    /// so far.
    fn spare(&mut self, additional: usize) -> Result<&mut [MaybeUninit<u8>], OutOfMemory>;

    /// The room that there is behind the bytes written so far, without making any: unlike every other method
    /// it may be called from a thread that does not hold the application's own lock.
    fn room(&mut self) -> &mut [MaybeUninit<u8>];

    /// Counts `written` bytes of the room that [`Self::spare`] or [`Self::room`] returned last as written.
    ///
    /// # Safety
    ///
    /// `written` is at most the length of that room, and its first `written` bytes are initialised.
    #[allow(unsafe_code)] // the contract of Vec::set_len, without which the bytes would have to be zeroed first
    unsafe fn advance(&mut self, written: usize);

    /// Appends a copy of `data`.
    fn extend_from_slice(&mut self, data: &[u8]) -> Result<(), OutOfMemory> {
        if data.is_empty() {
            return Ok(());
        }
        let spare = self.spare(data.len())?.get_mut(..data.len()).ok_or(OutOfMemory)?;
        spare.write_copy_of_slice(data);
        // SAFETY: the line above initialised exactly the first data.len() bytes of the spare room.
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
