//! Rarely used state, which takes no heap memory until it is first changed.

/// An empty `T` until it is first changed.
#[derive(Debug)]
pub(super) struct LazyBox<T>(Option<Box<T>>);

impl<T> Default for LazyBox<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Default> LazyBox<T> {
    /// Returns the value, or `None` if it was never changed.
    #[must_use]
    #[inline]
    pub(super) fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    /// Returns the value for changes, or `None` if it was never changed.
    #[must_use]
    #[inline]
    pub(super) fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// Returns the value for changes; creates it if necessary.
    pub(super) fn make(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }

    /// Takes the value and leaves the box empty.
    #[must_use]
    pub(super) fn take(&mut self) -> T {
        self.0.take().map_or_else(T::default, |there| *there)
    }
}
