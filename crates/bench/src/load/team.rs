//! Several threads that put load on a server together, each with its part of the connections. Their windows
//! begin at the same moment.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use super::answer::Answer;
use super::crew::Crew;
use super::options::Options;

/// What the threads share.
struct Team {
    members: usize,
    meeting: Mutex<Meeting>,
    moved: Condvar,
    /// Messages that the first has published.
    published: AtomicU64,
    /// It publishes no more.
    over: AtomicBool,
    /// Of each, messages that all its connections have.
    completed: Vec<AtomicU64>,
}

#[derive(Default)]
struct Meeting {
    /// How many wait.
    arrived: usize,
    /// How often all have met.
    met: usize,
    /// Somebody will not come.
    failed: bool,
}

impl Team {
    fn new(members: usize) -> Self {
        let completed = (0..members).map(|_| AtomicU64::new(0)).collect();
        let (published, over) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { members, meeting: Mutex::default(), moved: Condvar::new(), published, over, completed }
    }

    fn fail(&self) {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner).failed = true;
        self.moved.notify_all();
    }
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

    /// Waits until all are here, or somebody has failed. Whether this one came last: it tells the world.
    pub(crate) fn meet(&self) -> bool {
        let mut meeting = self.team.meeting.lock().unwrap_or_else(PoisonError::into_inner);
        meeting.arrived += 1;
        if meeting.arrived == self.team.members {
            meeting.arrived = 0;
            meeting.met += 1;
            self.team.moved.notify_all();
            return true;
        }
        let met = meeting.met;
        while meeting.met == met && !meeting.failed {
            meeting = self.team.moved.wait(meeting).unwrap_or_else(PoisonError::into_inner);
        }
        false
    }

    /// Whether one of them has failed: then all have.
    pub(crate) fn has_failed(&self) -> bool {
        self.team.meeting.lock().unwrap_or_else(PoisonError::into_inner).failed
    }

    /// Tells how many messages were published; the others expect them.
    pub(crate) fn publish(&self, count: u64) {
        self.team.published.store(count, Ordering::Release);
    }

    /// No more will be.
    pub(crate) fn end(&self) {
        self.team.over.store(true, Ordering::Release);
    }

    /// How many there are if there will be no more.
    pub(crate) fn all_published(&self) -> Option<u64> {
        self.team.over.load(Ordering::Acquire).then(|| self.published())
    }

    /// How many were published so far.
    pub(crate) fn published(&self) -> u64 {
        self.team.published.load(Ordering::Acquire)
    }

    /// Tells how many messages all connections of this one have.
    pub(crate) fn complete(&self, count: u64) {
        if let Some(completed) = self.team.completed.get(self.number) {
            completed.store(count, Ordering::Release);
        }
    }

    /// How many messages all connections of all of them have.
    pub(crate) fn slowest(&self) -> u64 {
        self.team.completed.iter().map(|count| count.load(Ordering::Acquire)).min().unwrap_or(0)
    }
}

/// Runs a workload in as many threads as the options say; what they found together.
pub(crate) fn run(
    options: &Options,
    workload: impl Fn(&mut Crew<'_>) -> Result<Answer, String> + Sync,
) -> Result<Answer, String> {
    let members = options.threads.min(options.connections);
    let team = Arc::new(Team::new(members));
    let parts: Vec<Options> = (0..members)
        .map(|member| {
            let connections = options.connections / members + usize::from(member < options.connections % members);
            Options { connections, ..options.clone() }
        })
        .collect();
    let answers = thread::scope(|scope| {
        let threads: Vec<_> = parts
            .iter()
            .enumerate()
            .map(|(number, part)| {
                let (member, workload) = (Member { team: Arc::clone(&team), number }, &workload);
                scope.spawn(move || {
                    let answer = Crew::new(part).and_then(|mut crew| {
                        crew.member = Some(member.clone());
                        workload(&mut crew)
                    });
                    if answer.is_err() {
                        member.team.fail();
                    }
                    answer
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread of the load generator has failed".into())))
            .collect::<Result<Vec<_>, String>>()
    })?;
    Answer::together(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(count: usize) -> Vec<Member> {
        let team = Arc::new(Team::new(count));
        (0..count).map(|number| Member { team: Arc::clone(&team), number }).collect()
    }

    #[test]
    fn all_meet_again_and_again_and_one_is_the_last() {
        let members = members(3);
        let last: usize = thread::scope(|scope| {
            let meet = |member: &Member| (0..100).filter(|_| member.meet()).count();
            let threads: Vec<_> = members.iter().map(|member| scope.spawn(move || meet(member))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!(last, 100);
    }

    #[test]
    fn nobody_waits_for_one_that_failed() {
        let members = members(2);
        let last = thread::scope(|scope| {
            let waiting = scope.spawn(|| members[0].meet());
            members[1].team.fail();
            waiting.join().expect("no panic")
        });
        assert!(!last);
    }

    #[test]
    fn the_slowest_counts() {
        let members = members(2);
        members[0].complete(7);
        assert_eq!((members[0].slowest(), members[1].slowest()), (0, 0));
        members[1].complete(5);
        assert_eq!(members[0].slowest(), 5);
        members[0].publish(9);
        assert_eq!((members[1].published(), members[1].all_published()), (9, None));
        members[0].end();
        assert_eq!(members[1].all_published(), Some(9));
    }
}
