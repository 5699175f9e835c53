//! Locks, wakers, containers, timers and file descriptors. Knows nothing of the engine.

pub(crate) mod descriptors;
pub(crate) mod locks;
pub(crate) mod slab;
pub mod timer_wheel;
pub(crate) mod wakers;
