//! The parts of a worker that use no sockets, compared with simple models.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use wirespeed_engine::config::Policy;
use wirespeed_engine::control::{Mailbox, Refused};
use wirespeed_engine::delivery::{Outbox, Pending, Pushed};
use wirespeed_engine::driver::encoded::{Encoded, FrameBatch};
use wirespeed_engine::driver::protocol::MessageKind;
use wirespeed_engine::util::timer_wheel::{Listed, TICK, TimerWheel};

// ---- the outbox ----

fn message(len: usize, key: Option<u8>) -> Pending {
    let message = Arc::new(Encoded::new(MessageKind::Binary, &vec![0; len]).unwrap());
    Pending { message, key: key.map(|key| key.to_string().into()) }
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize, Option<u8>, usize),
    /// Several messages at once, while other outboxes hold this number of bytes.
    FrameBatch(Vec<usize>, usize),
    Pop,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let push = (0..60_usize, proptest::option::of(0..4_u8), prop_oneof![Just(0_usize), 0..400_usize]);
    let run = (proptest::collection::vec(0..60_usize, 1..5), prop_oneof![3 => Just(0_usize), 1 => 0..400_usize]);
    let step = prop_oneof![
        3 => push.prop_map(|(len, key, beside)| Step::Push(len, key, beside)),
        1 => run.prop_map(|(lens, beside)| Step::FrameBatch(lens, beside)),
        1 => Just(Step::Pop),
    ];
    proptest::collection::vec(step, 1..80)
}

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![Just(Policy::Disconnect), Just(Policy::DropOldest), Just(Policy::DropNewest), Just(Policy::Conflate),]
}

const LIMIT: usize = 500;

proptest! {
    #[test]
    fn outbox_follows_its_policy(policy in policies(), steps in steps()) {
        let mut outbox = Outbox::default();
        let mut model: VecDeque<(usize, Option<u8>)> = VecDeque::new();
        for step in steps {
            match step {
                Step::Pop => {
                    // A batch leaves as a whole, without its dropped messages.
                    let popped = outbox.pop();
                    prop_assert_eq!(popped.is_none(), model.is_empty());
                    let Some(popped) = popped else { continue };
                    prop_assert!(popped.len() > 0);
                    prop_assert_eq!(popped.cost(), model.drain(..popped.len()).map(|(size, _)| size).sum::<usize>());
                }
                Step::FrameBatch(lens, beside) => {
                    let messages: Vec<_> = lens.iter().map(|len| message(*len, None)).collect();
                    let run = Arc::new(FrameBatch::new(messages.iter().map(|message| &*message.message)));
                    let sizes = messages.iter().map(|message| (message.cost(), None));
                    let waiting = outbox.bytes() + beside + sizes.clone().map(|(size, _)| size).sum::<usize>();
                    prop_assert_eq!(outbox.push_batch(&run, beside, LIMIT), waiting <= LIMIT);
                    if waiting <= LIMIT {
                        model.extend(sizes);
                    }
                }
                Step::Push(len, key, beside) => {
                    let new = message(len, key);
                    let size = new.cost();
                    let before = model.len();
                    if policy == Policy::Conflate && key.is_some() {
                        model.retain(|(_, other)| *other != key);
                    }
                    let conflated = before - model.len();
                    let fits = |model: &VecDeque<(usize, Option<u8>)>| {
                        let waiting = model.iter().map(|(size, _)| size).sum::<usize>() + beside;
                        waiting == 0 || waiting + size <= LIMIT
                    };
                    let mut expected = Pushed::Kept { dropped: conflated };
                    if !fits(&model) {
                        expected = match policy {
                            Policy::Disconnect => Pushed::Overflow,
                            Policy::DropNewest => Pushed::Dropped,
                            Policy::DropOldest | Policy::Conflate => {
                                let mut dropped = conflated;
                                // A single message is kept, regardless of other queues.
                                while !fits(&model) && model.pop_front().is_some() {
                                    dropped += 1;
                                }
                                Pushed::Kept { dropped }
                            }
                        };
                    }
                    if matches!(expected, Pushed::Kept { .. }) {
                        model.push_back((size, key));
                    }
                    prop_assert_eq!(outbox.push(new, beside, LIMIT, policy), expected);
                }
            }
            prop_assert_eq!(outbox.len(), model.len());
            prop_assert_eq!(outbox.bytes(), model.iter().map(|(size, _)| size).sum::<usize>());
        }
    }
}

#[test]
fn stale_message_is_never_kept_instead_of_a_new_one() {
    let sizes = |outbox: &mut Outbox| std::iter::from_fn(|| outbox.pop()).map(|one| one.cost()).collect::<Vec<_>>();
    for policy in [Policy::DropOldest, Policy::Conflate] {
        let (old, new) = (message(10, Some(1)), message(100, Some(1)));
        let cost = new.cost();
        // The messages for others have begun to leave, and fill the limit almost or completely.
        for beside in [LIMIT - 150, LIMIT - 20, LIMIT, 10 * LIMIT] {
            let mut outbox = Outbox::default();
            assert_eq!(outbox.push(old.clone(), LIMIT - 150, LIMIT, policy), Pushed::Kept { dropped: 0 });
            assert_eq!(outbox.push(new.clone(), beside, LIMIT, policy), Pushed::Kept { dropped: 1 });
            assert_eq!(sizes(&mut outbox), [cost], "{policy:?} beside {beside}");
        }
    }
}

// ---- the wheel ----

proptest! {
    #[test]
    fn timer_fires_once_and_never_early(
        times in proptest::collection::vec(0..100_000_u64, 1..60),
        looks in proptest::collection::vec(1..30_000_u64, 1..40),
    ) {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut wheel = TimerWheel::new(start);
        let mut waiting: Vec<(u64, usize)> = Vec::new();
        let mut now = 0;
        let mut times = times.into_iter().enumerate();
        for look in looks {
            for (key, time) in times.by_ref().take(3) {
                wheel.set(at(time), key);
                // A time in the past is due at the next tick.
                waiting.push((time.max(now), key));
            }
            if let Some(sleep) = wheel.sleep(at(now)) {
                let earliest = waiting.iter().map(|(time, _)| *time).min().unwrap().max(now);
                prop_assert!(at(now) + sleep <= at(earliest) + TICK, "it sleeps too long");
            } else {
                prop_assert!(waiting.is_empty());
            }
            now += look;
            let mut due = Vec::new();
            wheel.take_due(at(now), &mut due);
            for key in due {
                let index = waiting.iter().position(|(_, other)| *other == key);
                prop_assert!(index.is_some(), "reported twice");
                let (time, _) = waiting.swap_remove(index.unwrap());
                prop_assert!(time <= now, "{time} was told at {now}");
            }
            let draining_input = waiting.iter().filter(|(time, _)| at(*time) + TICK * 2 < at(now)).count();
            prop_assert_eq!(draining_input, 0, "forgotten");
            prop_assert_eq!(wheel.len(), waiting.len());
        }
    }
}

/// A timer that is due now and then, served as a worker does it.
struct Served {
    wheel: TimerWheel<()>,
    listed: Listed,
    due: Option<Instant>,
}

impl Served {
    fn new(start: Instant) -> Self {
        Self { wheel: TimerWheel::new(start), listed: Listed::default(), due: None }
    }

    fn list(&mut self) {
        if let Some(due) = self.due
            && self.listed.add(due)
        {
            self.wheel.set(due, ());
        }
    }

    /// Serves the timers that are due, and returns whether any was.
    fn look(&mut self, now: Instant) -> bool {
        let mut entries = Vec::new();
        self.wheel.take_due(now, &mut entries);
        let mut done = false;
        for () in entries {
            if self.listed.take_due(now) {
                done |= self.due.take_if(|due| *due <= now).is_some();
                self.list();
            }
        }
        done
    }
}

proptest! {
    #[test]
    fn frequent_timers_do_not_delay_others(
        steps in proptest::collection::vec((prop_oneof![0..200_u64, 0..40_000_u64], proptest::option::of(0..60_000_u64)), 1..200),
    ) {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut served = Served::new(start);
        let mut now = 0;
        for (look, due) in steps {
            if let Some(due) = due {
                served.due = Some(at(now + due));
                served.list();
            }
            now += look;
            served.look(at(now));
            if let Some(due) = served.due {
                prop_assert!(at(now) < due + TICK * 2, "{:?} late", at(now) - due);
            }
        }
    }
}

/// A session whose client always sends too much, and whose token expires much later.
#[test]
fn late_timer_is_listed_once_beside_frequent_ones() {
    let start = Instant::now();
    let mut served = Served::new(start);
    let mut now = start;
    for _ in 0..10_000 {
        served.due = Some(start + Duration::from_secs(3600));
        served.list();
        served.due = Some(now + Duration::from_millis(60));
        served.list();
        assert!(served.wheel.len() <= 2, "{} entries", served.wheel.len());
        while !served.look(now) {
            now += TICK;
        }
    }
    served.due = Some(start + Duration::from_secs(3600));
    served.list();
    assert!(!served.look(start + Duration::from_secs(3599)));
    assert!(served.look(start + Duration::from_secs(3600) + TICK));
}

// ---- the mailbox ----

/// A thread that sleeps until it is woken.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    ring: Condvar,
    count: AtomicUsize,
}

impl Bell {
    fn ring(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        *self.rung.lock().unwrap() = true;
        self.ring.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            let (guard, result) = self.ring.wait_timeout(rung, Duration::from_secs(20)).unwrap();
            assert!(!result.timed_out(), "a wakeup was lost");
            rung = guard;
        }
        *rung = false;
    }
}

#[test]
fn no_wakeup_is_lost_and_each_sender_keeps_its_order() {
    const COUNT: usize = 100_000;
    let bell = Arc::new(Bell::default());
    let mailbox = Arc::new(Mailbox::new(
        1000,
        usize::MAX,
        {
            let bell = Arc::clone(&bell);
            Arc::new(move || bell.ring())
        },
        Arc::default(),
    ));
    let senders: Vec<_> = (0..3_usize)
        .map(|sender| {
            let mailbox = Arc::clone(&mailbox);
            std::thread::spawn(move || {
                for number in 0..COUNT {
                    if !mailbox.put((sender, number), 10).unwrap() {
                        mailbox.wait_for_capacity(None).unwrap();
                    }
                }
            })
        })
        .collect();
    let mut next = [0; 3];
    let mut taken = VecDeque::new();
    while next != [COUNT; 3] {
        if !mailbox.take(&mut taken, true) {
            bell.wait();
            continue;
        }
        assert!(taken.len() <= 1000 / 10 + 3, "{} were put where there was room for 100", taken.len());
        for (sender, number) in taken.drain(..) {
            assert_eq!(number, next[sender]);
            next[sender] += 1;
            mailbox.done(10);
        }
    }
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    assert!(bell.count.load(Ordering::Relaxed) <= 3 * COUNT);
}

#[test]
fn full_or_closed_mailbox_refuses_messages() {
    let mailbox = Mailbox::new(10, 40, Arc::new(|| {}), Arc::default());
    assert_eq!((mailbox.put(1, 9), mailbox.has_capacity()), (Ok(true), Ok(true)));
    assert_eq!((mailbox.put(2, 1), mailbox.has_capacity(), mailbox.bytes()), (Ok(false), Ok(false), 10));
    assert_eq!((mailbox.put(5, 30), mailbox.put(6, 1), mailbox.put(7, 0)), (Ok(false), Err(Refused::Full), Ok(false)));
    assert_eq!(mailbox.wait_for_capacity(Some(Instant::now() + Duration::from_millis(10))), Err(Refused::Full));
    let mut taken = VecDeque::new();
    assert!(mailbox.take(&mut taken, false));
    assert_eq!(mailbox.has_capacity(), Ok(false), "the message was taken and is still being processed");
    mailbox.done(40);
    assert_eq!((Vec::from(taken), mailbox.wait_for_capacity(None)), (vec![1, 2, 5, 7], Ok(())));
    mailbox.put(3, 1).unwrap();
    assert_eq!(mailbox.close(), [3]);
    assert_eq!((mailbox.put(4, 1), mailbox.wait_for_capacity(None)), (Err(Refused::Closed), Err(Refused::Closed)));
}
