//! Connects engines on many machines over a broker: NATS, Redis and compatible servers, or the memory of one process.
//!
//! [`BrokerConfig`] is passed to an engine as [`wirespeed_engine::Config::broker`]. [`Publisher`] publishes without an
//! engine. Both use a [`BrokerClient`]: a queue to the broker, bounded in bytes; the wanted subscriptions; a tracker of
//! received messages; and one thread with its own event loop, which runs everything else. The modules `nats`, `redis`
//! and `memory` only move bytes.
//!
//! # Backpressure
//! Publishing never waits: the queue accepts or refuses the message. The client's thread waits for the engine: while a
//! worker has no capacity, the thread reads nothing from the broker, which then handles its slow reader. No worker
//! waits for that thread. The client libraries buffer received messages without a limit, but on the same thread: they
//! get ahead by what tokio reads in one turn, some MiB, plus the few turns that [`stall_clock`] grants, in which
//! replies are read and messages sent. Timeouts for replies exclude the time in which this thread was blocked.

// Input from a peer must not cause a panic. Arithmetic overflow is checked in test builds and by the fuzzers.
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod address;
mod backoff;
mod batch;
mod client;
mod envelope;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod memory;
mod nats;
mod publisher;
mod queue;
mod redis;
mod seen;
mod stall_clock;
mod subscriptions;
mod tracker;

pub use address::{Address, InvalidAddress};
pub use client::{BrokerClient, BrokerConfig, PREFIX};
pub use publisher::{Publisher, Refusal};
pub use queue::Policy;
pub use wirespeed_engine as engine;
