//! What most connections never have, and take no memory for until they do.

/// An empty `T` until it is first changed.
#[derive(Debug)]
pub struct LazyBox<T>(Option<Box<T>>);

impl<T> Default for LazyBox<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Default> LazyBox<T> {
    /// What is there.
    #[must_use]
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    /// The same, to be changed.
    #[must_use]
    #[inline]
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// What is there, empty if it was not.
    pub fn make(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }

    /// Takes it away.
    #[must_use]
    pub fn take(&mut self) -> T {
        self.0.take().map_or_else(T::default, |there| *there)
    }
}
