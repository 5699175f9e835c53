//! Two [`WaitState`](wirespeed_driver::connection::WaitState)s on simulated event loops, with simulated transports and
//! time, in random schedules. No task waits although its condition holds, each message arrives once, and all tasks end.

#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_possible_truncation)] // tests fail by panicking

mod end;

use std::collections::VecDeque;
use std::time::Instant;

use end::{Call, End, Random};
use wirespeed_driver::endpoint::Failure;
use wirespeed_driver::protocol::{Delivery, Side};

/// Both ends and the bytes in transit.
struct World {
    ends: [End; 2],
    /// Bytes in transit to each end, and whether the stream ends after them.
    pipes: [VecDeque<u8>; 2],
    ended: [bool; 2],
    end_delivered: [bool; 2],
}

impl World {
    fn new(random: &mut Random) -> Self {
        let now = Instant::now();
        let ends = [End::new(Side::Client, random, now), End::new(Side::Server, random, now)];
        Self { ends, pipes: Default::default(), ended: [false; 2], end_delivered: [false; 2] }
    }

    /// Moves up to `most` bytes from the transport of an end into the pipe.
    fn carry(&mut self, from: usize, most: usize) {
        let bytes = self.ends[from].transport_sent(most);
        self.pipes[1 - from].extend(bytes);
        let end = &self.ends[from];
        self.ended[1 - from] |= end.wait_state.driver().is_over() || end.shut && end.buffered.is_empty();
    }

    /// Lets an end read up to `most` bytes from its pipe.
    fn deliver(&mut self, to: usize, most: usize) {
        if self.ends[to].wait_state.driver().is_over() {
            self.pipes[to].clear();
            return;
        }
        if !self.ends[to].reading {
            return;
        }
        let bytes: Vec<u8> = {
            let count = most.min(self.pipes[to].len());
            self.pipes[to].drain(..count).collect()
        };
        if !bytes.is_empty() {
            self.ends[to].receive(&bytes);
        } else if self.ended[to] && !std::mem::replace(&mut self.end_delivered[to], true) {
            self.ends[to].receive_end();
        }
    }

    fn check(&self) {
        self.ends.iter().for_each(End::check);
    }

    /// Runs both ends until nothing changes any more.
    fn run_until_idle(&mut self) {
        for _ in 0..10_000 {
            let before = self.fingerprint();
            for at in 0..2 {
                self.carry(at, usize::MAX);
                self.deliver(at, usize::MAX);
                self.ends[at].turn();
                self.check();
            }
            if self.fingerprint() == before && self.ends.iter().all(|end| end.ready.is_empty() && !end.process_soon) {
                return;
            }
        }
        panic!("the ends never become idle");
    }

    fn fingerprint(&self) -> Vec<usize> {
        let of = |end: &End| {
            let send_half = end.wait_state.driver().send_half();
            [
                end.buffered.len(),
                send_half.written() as usize,
                send_half.queued(),
                end.received.len(),
                end.wait_state.inbox().len(),
                end.sent.len(),
            ]
        };
        let piped = self.pipes.iter().map(VecDeque::len);
        self.ends.iter().flat_map(of).chain(piped).chain(self.end_delivered.map(usize::from)).collect()
    }
}

/// Runs a random schedule. With `ends` it includes closing, aborting and the passing of time.
fn run(seed: u64, ends: bool) {
    let mut random = Random(seed);
    let mut world = World::new(&mut random);
    for _ in 0..random.below(120) {
        let at = random.below(2);
        let end = &mut world.ends[at];
        match random.below(if ends { 16 } else { 12 }) {
            0..=2 => {
                let size = [0, 1, 50, 300, 5000, 70_000][random.below(6)];
                end.start(Call::Send(size));
            }
            3 | 4 => end.start(Call::Receive(Delivery::Messages)),
            5 => end.start(Call::Flush),
            6 => end.ping(&mut random),
            7 => end.turn(),
            8 => end.cancel(&mut random),
            9 => world.carry(at, [1, 100, 100_000][random.below(3)]),
            10 | 11 => world.deliver(at, [1, 3, 100, 100_000][random.below(4)]),
            12 => end.start(Call::End),
            13 if random.one_in(3) => end.close(random.one_in(2)),
            14 if random.one_in(6) => {
                end.wait_state.driver_mut().end(Failure::Aborted);
                end.run_actions();
            }
            15 => end.pass_time([1, 6, 25][random.below(3)]),
            _ => {}
        }
        world.check();
    }
    world.run_until_idle();
    if ends {
        for at in 0..2 {
            world.ends[at].close(false);
        }
        for _ in 0..3 {
            world.run_until_idle();
            world.ends.iter_mut().for_each(|end| end.pass_time(11));
        }
        world.run_until_idle();
        assert!(world.ends.iter().all(|end| end.wait_state.is_finished()), "both ends finish in time");
        return;
    }
    // New tasks receive the remaining messages: each accepted message arrives once.
    for at in 0..2 {
        while world.ends[1 - at].received.len() < world.ends[at].sent.len() {
            let before = world.ends[1 - at].received.len();
            world.ends[1 - at].start(Call::Receive(Delivery::Messages));
            world.run_until_idle();
            assert!(world.ends[1 - at].received.len() > before, "a message is lost, or its task is not woken");
        }
        assert_eq!(world.ends[1 - at].received, world.ends[at].sent, "messages arrive in order, even if tasks give up");
    }
}

/// Returns the number of schedules: 500, or the value of `WIRESPEED_SCHEDULES`.
fn schedules() -> u64 {
    std::env::var("WIRESPEED_SCHEDULES").ok().and_then(|count| count.parse().ok()).unwrap_or(500)
}

#[test]
fn no_task_waits_while_its_condition_holds() {
    for seed in 0..schedules() {
        let result = std::panic::catch_unwind(|| run(seed, false));
        assert!(result.is_ok(), "seed {seed}");
    }
}

#[test]
fn all_tasks_end_after_close() {
    for seed in 0..schedules() {
        let result = std::panic::catch_unwind(|| run(seed, true));
        assert!(result.is_ok(), "seed {seed}");
    }
}
