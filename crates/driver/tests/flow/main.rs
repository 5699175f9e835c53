//! Two ends of a connection on simulated loops, over a simulated transport and time: whatever happens, in
//! whatever order, nobody waits whose condition holds, nothing is lost or doubled, and everything ends.

#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_possible_truncation)] // tests fail by panicking

mod end;

use std::collections::VecDeque;
use std::time::Instant;

use end::{End, Random, What};
use wirespeed_driver::endpoint::Failure;
use wirespeed_driver::protocol::{Delivery, Side};

/// Both ends, and what is on its way.
struct World {
    ends: [End; 2],
    /// Bytes to each end, and whether the stream ends behind them.
    pipes: [VecDeque<u8>; 2],
    ended: [bool; 2],
    told_end: [bool; 2],
}

impl World {
    fn new(random: &mut Random) -> Self {
        let now = Instant::now();
        let ends = [End::new(Side::Client, random, now), End::new(Side::Server, random, now)];
        Self { ends, pipes: Default::default(), ended: [false; 2], told_end: [false; 2] }
    }

    /// Moves some bytes from an end to the other.
    fn carry(&mut self, from: usize, most: usize) {
        let bytes = self.ends[from].transport_sent(most);
        self.pipes[1 - from].extend(bytes);
        let end = &self.ends[from];
        self.ended[1 - from] |= end.wait_state.driver.is_over() || end.shut && end.kept.is_empty();
    }

    /// An end reads what has come.
    fn deliver(&mut self, to: usize, most: usize) {
        if self.ends[to].wait_state.driver.is_over() {
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
        } else if self.ended[to] && !std::mem::replace(&mut self.told_end[to], true) {
            self.ends[to].receive_end();
        }
    }

    fn check(&self) {
        self.ends.iter().for_each(End::check);
    }

    /// Lets everything come to rest; the tasks that wait for messages get all that there are.
    fn rest(&mut self) {
        for _ in 0..10_000 {
            let before = self.fingerprint();
            for at in 0..2 {
                self.carry(at, usize::MAX);
                self.deliver(at, usize::MAX);
                self.ends[at].turn();
                self.check();
            }
            if self.fingerprint() == before && self.ends.iter().all(|end| end.ready.is_empty() && !end.serve_soon) {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    fn fingerprint(&self) -> Vec<usize> {
        let of = |end: &End| {
            let send_half = end.wait_state.driver.send_half();
            [
                end.kept.len(),
                send_half.written() as usize,
                send_half.queued(),
                end.received.len(),
                end.wait_state.inbox.len(),
                end.sent.len(),
            ]
        };
        let piped = self.pipes.iter().map(VecDeque::len);
        self.ends.iter().flat_map(of).chain(piped).chain(self.told_end.map(usize::from)).collect()
    }
}

/// One schedule; `ends`: closing, aborting and time take part.
fn run(seed: u64, ends: bool) {
    let mut random = Random(seed);
    let mut world = World::new(&mut random);
    for _ in 0..random.below(120) {
        let at = random.below(2);
        let end = &mut world.ends[at];
        match random.below(if ends { 16 } else { 12 }) {
            0..=2 => {
                let size = [0, 1, 50, 300, 5000, 70_000][random.below(6)];
                end.start(What::Send(size));
            }
            3 | 4 => end.start(What::Receive(Delivery::Messages)),
            5 => end.start(What::Flush),
            6 => end.ping(&mut random),
            7 => end.turn(),
            8 => end.cancel(&mut random),
            9 => world.carry(at, [1, 100, 100_000][random.below(3)]),
            10 | 11 => world.deliver(at, [1, 3, 100, 100_000][random.below(4)]),
            12 => end.start(What::End),
            13 if random.one_in(3) => end.close(random.one_in(2)),
            14 if random.one_in(6) => {
                end.wait_state.driver.end(Failure::Aborted);
                end.run_actions();
            }
            15 => end.pass_time([1, 6, 25][random.below(3)]),
            _ => {}
        }
        world.check();
    }
    world.rest();
    if ends {
        for at in 0..2 {
            world.ends[at].close(false);
        }
        for _ in 0..3 {
            world.rest();
            world.ends.iter_mut().for_each(|end| end.pass_time(11));
        }
        world.rest();
        assert!(world.ends.iter().all(|end| end.wait_state.is_finished()), "it ends in time");
        return;
    }
    // What is left is taken by tasks that come now: everything that was accepted arrives, once.
    for at in 0..2 {
        while world.ends[1 - at].received.len() < world.ends[at].sent.len() {
            let before = world.ends[1 - at].received.len();
            world.ends[1 - at].start(What::Receive(Delivery::Messages));
            world.rest();
            assert!(world.ends[1 - at].received.len() > before, "a message is lost, or nobody is woken for it");
        }
        assert_eq!(world.ends[1 - at].received, world.ends[at].sent, "in this order, whoever gives up");
    }
}

/// How many; more than the ordinary by `WIRESPEED_SCHEDULES`.
fn schedules() -> u64 {
    std::env::var("WIRESPEED_SCHEDULES").ok().and_then(|count| count.parse().ok()).unwrap_or(500)
}

#[test]
fn nobody_waits_for_ever() {
    for seed in 0..schedules() {
        let result = std::panic::catch_unwind(|| run(seed, false));
        assert!(result.is_ok(), "seed {seed}");
    }
}

#[test]
fn everything_ends() {
    for seed in 0..schedules() {
        let result = std::panic::catch_unwind(|| run(seed, true));
        assert!(result.is_ok(), "seed {seed}");
    }
}
