//! Several threads that generate load together, each with its part of the connections. Their windows begin at the same
//! moment.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;

use super::answer::Answer;
use super::client_pool::ClientPool;
use super::options::Options;

/// The state shared by the threads.
struct SharedState {
    meeting: Barrier,
    /// The number of messages that the first thread has published.
    published: AtomicU64,
    /// For each thread, the number of messages that all its connections have received.
    completed: Vec<AtomicU64>,
}

/// One of the threads.
#[derive(Clone)]
pub(crate) struct LoadThread {
    shared: Arc<SharedState>,
    number: usize,
}

impl LoadThread {
    /// Returns whether this thread publishes.
    pub(crate) fn is_first(&self) -> bool {
        self.number == 0
    }

    /// Waits for all threads. Returns true in one of them.
    pub(crate) fn meet(&self) -> bool {
        self.shared.meeting.wait().is_leader()
    }

    /// Sets the number of published messages, which the other threads then expect.
    pub(crate) fn publish(&self, count: u64) {
        self.shared.published.store(count, Ordering::Release);
    }

    /// Returns the number of published messages.
    pub(crate) fn published(&self) -> u64 {
        self.shared.published.load(Ordering::Acquire)
    }

    /// Sets the number of messages that all connections of this thread have received.
    pub(crate) fn complete(&self, count: u64) {
        self.shared.completed[self.number].store(count, Ordering::Release);
    }

    /// Returns the number of messages that all connections of all threads have received.
    pub(crate) fn slowest(&self) -> u64 {
        self.shared.completed.iter().map(|count| count.load(Ordering::Acquire)).min().unwrap_or(0)
    }
}

/// Runs a workload in several threads, and returns their common result. If one fails, the others may wait for it
/// forever, so the process has to exit.
pub(crate) fn run(
    options: &Options,
    workload: fn(&mut ClientPool) -> Result<Answer, String>,
) -> Result<Answer, String> {
    let threads = options.threads.min(options.connections);
    let shared = Arc::new(SharedState {
        meeting: Barrier::new(threads),
        published: AtomicU64::new(0),
        completed: (0..threads).map(|_| AtomicU64::new(0)).collect(),
    });
    let (sender, answers) = mpsc::channel();
    for number in 0..threads {
        let connections = options.connections / threads + usize::from(number < options.connections % threads);
        let part = Options { connections, ..options.clone() };
        let (load_thread, sender) = (LoadThread { shared: Arc::clone(&shared), number }, sender.clone());
        thread::spawn(move || {
            let run = || {
                let mut pool = ClientPool::new(part)?;
                pool.load_thread = Some(load_thread);
                workload(&mut pool)
            };
            let failed = || Err("a thread of the load generator has failed".into());
            // After a failure, the receiver may be gone.
            let _ = sender.send(catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| failed()));
        });
    }
    let mut answers = answers.iter().take(threads);
    let first = answers.next().ok_or("there are no threads")??;
    answers.try_fold(first, |all, answer| all.add(answer?))
}
