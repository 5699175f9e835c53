//! Wakers, and a list of them.

/// Wakes a thread or an event loop that waits.
pub trait Wake: Send + Sync {
    /// Wakes it, so that it checks what it waits for. Called in any thread.
    fn wake(&self);
}

/// Any closure is a waker.
impl<F: Fn() + Send + Sync> Wake for F {
    fn wake(&self) {
        self();
    }
}

/// Wakers, each with a number by which it is removed.
pub(crate) struct Wakers<T> {
    /// In the order of notification.
    list: Vec<(u64, T)>,
    last: u64,
}

impl<T> Default for Wakers<T> {
    fn default() -> Self {
        Self { list: Vec::new(), last: 0 }
    }
}

impl<T> Wakers<T> {
    /// Adds a waker, and returns its number.
    pub(crate) fn add(&mut self, watch: T) -> u64 {
        self.last += 1;
        self.list.push((self.last, watch));
        self.last
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let index = self.list.iter().position(|(other, _)| *other == number)?;
        Some(self.list.remove(index).1)
    }

    /// Moves a waker to the end of the list, and returns it.
    pub(crate) fn move_to_end(&mut self, number: u64) -> Option<&mut T> {
        let index = self.list.iter().position(|(other, _)| *other == number)?;
        self.list.get_mut(index..)?.rotate_left(1);
        self.list.last_mut().map(|(_, watch)| watch)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.list.iter().map(|(_, watch)| watch)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.list.iter_mut().map(|(_, watch)| watch)
    }
}
