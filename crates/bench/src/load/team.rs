//! Several threads that put load on a server together, each with its part of the connections. Their windows
//! begin at the same moment.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;

use super::answer::Answer;
use super::crew::Crew;
use super::options::Options;

/// What the threads share.
struct Team {
    meeting: Barrier,
    /// Messages that the first has published.
    published: AtomicU64,
    /// Of each, messages that all its connections have.
    completed: Vec<AtomicU64>,
}

/// One of the threads.
#[derive(Clone)]
pub(crate) struct Member {
    team: Arc<Team>,
    number: usize,
}

impl Member {
    /// Whether it is the one that publishes.
    pub(crate) fn is_first(&self) -> bool {
        self.number == 0
    }

    /// Waits until all are here. Whether this one is to tell the world.
    pub(crate) fn meet(&self) -> bool {
        self.team.meeting.wait().is_leader()
    }

    /// Tells how many messages were published; the others expect them.
    pub(crate) fn publish(&self, count: u64) {
        self.team.published.store(count, Ordering::Release);
    }

    /// How many were published so far.
    pub(crate) fn published(&self) -> u64 {
        self.team.published.load(Ordering::Acquire)
    }

    /// Tells how many messages all connections of this one have.
    pub(crate) fn complete(&self, count: u64) {
        self.team.completed[self.number].store(count, Ordering::Release);
    }

    /// How many messages all connections of all of them have.
    pub(crate) fn slowest(&self) -> u64 {
        self.team.completed.iter().map(|count| count.load(Ordering::Acquire)).min().unwrap_or(0)
    }
}

/// Runs a workload in as many threads as the options say; what they found together. Where one fails the others may
/// wait for it for ever: the process has to end.
pub(crate) fn run(options: &Options, workload: fn(&mut Crew) -> Result<Answer, String>) -> Result<Answer, String> {
    let members = options.threads.min(options.connections);
    let team = Arc::new(Team {
        meeting: Barrier::new(members),
        published: AtomicU64::new(0),
        completed: (0..members).map(|_| AtomicU64::new(0)).collect(),
    });
    let (sender, answers) = mpsc::channel();
    for number in 0..members {
        let connections = options.connections / members + usize::from(number < options.connections % members);
        let part = Options { connections, ..options.clone() };
        let (member, sender) = (Member { team: Arc::clone(&team), number }, sender.clone());
        thread::spawn(move || {
            let run = || {
                let mut crew = Crew::new(part)?;
                crew.member = Some(member);
                workload(&mut crew)
            };
            let failed = || Err("a thread of the load generator has failed".into());
            // Who has ended needs the answer no more.
            let _ = sender.send(catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| failed()));
        });
    }
    let mut answers = answers.iter().take(members);
    let first = answers.next().ok_or("there are no threads")??;
    answers.try_fold(first, |all, answer| all.add(answer?))
}
