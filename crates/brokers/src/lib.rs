//! Engines on many machines, over brokers that people already run.
//!
//! [`BrokerConfig`] says which broker and how, and is given to an engine as [`wirespeed_engine::Config::broker`];
//! [`Publisher`] publishes without an engine. What they have in common is [`node`]: a queue to the broker, bounded in
//! bytes; the patterns that are wanted of it; the account of what came; and one thread, with an event loop of its own,
//! on which everything else runs. The brokers themselves, [`nats`], [`redis`] and [`memory`], only move bytes.
//!
//! # Who waits for whom
//! Whoever publishes waits for nobody: the queue takes the message or says that it does not. The thread waits for
//! engines: while a worker has no room it does nothing else, so nothing is read from the broker, whose own means
//! against slow readers apply then. It may, as no worker waits for it. The client libraries read on their own and keep
//! what they have read without a limit, but on the same thread: how far they get ahead is what tokio lets a task read
//! in one turn, some MiB at most, and in the few that [`stalled`] gives them meanwhile, so that answers are read and what is
//! published leaves. Who waits for an answer does not count the time in which nobody could read it.

// What a peer causes is no reason for a panic. Arithmetic is left to the checks of the test builds and of the fuzzers.
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
