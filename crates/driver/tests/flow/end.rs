//! One end: a flow, the tasks of its loop, and the transport that writes for it.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use wirespeed_driver::drive::{
    Drive, Environment, Flow, Hold, Item, Limits, Marks, Output, Rare, Reading, Receiver, Settling, Step, TellWritable,
    Unparsed, Watchers,
};
use wirespeed_driver::protocol::{CloseCode, Config, Connection, Delivery, MessageKind, Payload, Side};
use wirespeed_driver::{Keepalive, Peer};

/// Numbers that look random: splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Receive(Delivery),
    /// To send a message of this size.
    Send(usize),
    Drain,
    Flush,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Waiting,
    Woken,
    Over,
}

struct Task {
    what: What,
    stage: Stage,
    ticket: u64,
    given: Option<Item<Vec<u8>>>,
}

/// The tasks of an end, and its futures: false, until they are told.
#[derive(Default)]
pub(crate) struct Tasks {
    tasks: RefCell<BTreeMap<usize, Task>>,
    futures: RefCell<BTreeMap<usize, bool>>,
    next: RefCell<usize>,
}

impl Tasks {
    fn number(&self) -> usize {
        *self.next.borrow_mut() += 1;
        *self.next.borrow()
    }

    fn future(&self) -> usize {
        let number = self.number();
        self.futures.borrow_mut().insert(number, false);
        number
    }

    fn tell(&self, future: usize) {
        assert_eq!(self.futures.borrow_mut().insert(future, true), Some(false), "a future is told once");
    }

    fn stage(&self, task: usize) -> Stage {
        self.tasks.borrow()[&task].stage
    }
}

pub(crate) struct Sim;

impl Environment for Sim {
    type Buffer = Vec<u8>;
    type Message = Vec<u8>;
    type Waiter = usize;
    type Future = usize;
    type Source = Vec<u8>;
    type Context<'a> = &'a Tasks;

    fn is_waiting(tasks: &Tasks, waiter: &usize) -> bool {
        tasks.stage(*waiter) == Stage::Waiting
    }

    fn is_holding(tasks: &Tasks, waiter: &usize) -> bool {
        tasks.tasks.borrow()[waiter].given.is_some()
    }

    fn delivery(_: &usize) -> Delivery {
        Delivery::Messages
    }
}

/// Makes messages, and hears of pongs.
struct Maker<'a> {
    tasks: &'a Tasks,
    watchers: &'a mut Rare<Watchers<Sim>>,
}

impl Receiver<Vec<u8>> for Maker<'_> {
    type Message = Vec<u8>;
    type Error = &'static str;

    fn message(&mut self, _: MessageKind, payload: Payload<'_, Vec<u8>>, _: bool) -> Result<Vec<u8>, &'static str> {
        Ok(match payload {
            Payload::Slice(slice) => slice.to_vec(),
            Payload::Buffer(buffer) => buffer,
        })
    }

    fn join(&mut self, _: MessageKind, fragments: Vec<Vec<u8>>) -> Result<Vec<u8>, &'static str> {
        Ok(fragments.concat())
    }

    fn ping(&mut self, _: &[u8]) {}

    fn pong(&mut self, _: &[u8], answered: Option<(Vec<u64>, Duration)>) {
        let Some((answered, _)) = answered else { return };
        for future in self.watchers.take_answered(&answered) {
            self.tasks.tell(future);
        }
    }
}

/// One end: its flow, its tasks, and the transport that writes for it.
pub(crate) struct End {
    pub(crate) flow: Flow<Sim>,
    pub(crate) tasks: Tasks,
    /// Tasks that the loop resumes, in this order.
    pub(crate) ready: VecDeque<usize>,
    /// What the transport has taken and not sent.
    pub(crate) kept: VecDeque<u8>,
    /// Where it says that it has no room; where it says so no more.
    pub(crate) transport: Marks,
    /// It has said so.
    pub(crate) full: bool,
    pub(crate) reading: bool,
    pub(crate) shut: bool,
    pub(crate) iteration: u64,
    /// The loop's next turn looks at what was read.
    pub(crate) serve_soon: bool,
    pub(crate) uncork: bool,
    pub(crate) writable_soon: bool,
    /// Sizes of the messages that were accepted to be sent, and of those that were received.
    pub(crate) sent: Vec<usize>,
    pub(crate) received: Vec<usize>,
    pub(crate) now: Instant,
}

impl End {
    pub(crate) fn new(side: Side, random: &mut Random, now: Instant) -> Self {
        let limits = wirespeed_driver::protocol::Limits { message_size: None, ..Default::default() };
        let connection = Connection::new(Config { limits, ..Config::new(side) });
        let beat = [None, Some(Duration::from_secs(20))][random.below(2)];
        let peer = Peer::new(connection, None, &[], Vec::new(), Keepalive::new(beat, beat, now));
        let high = [0, 100, 1000, 40_000][random.below(4)];
        let limits = Limits {
            messages: Marks::new([1, 4][random.below(2)], 1),
            bytes: Marks::new([1, 500, 4 << 20][random.below(3)], 1),
            write: Marks::new(high, high / 4),
            coalesce: !random.one_in(4),
            yield_after: 1000,
        };
        let drive = Drive::new(peer, None, Some(Duration::from_secs(10)));
        Self {
            flow: Flow::new(drive, limits, false),
            tasks: Tasks::default(),
            ready: VecDeque::new(),
            kept: VecDeque::new(),
            transport: Marks::new(high, high / 4),
            full: false,
            reading: true,
            shut: false,
            iteration: 1,
            serve_soon: false,
            uncork: false,
            writable_soon: false,
            sent: Vec::new(),
            received: Vec::new(),
            now,
        }
    }

    fn take(&mut self) -> Option<Item<Vec<u8>>> {
        let Flow { inbox, drive, watchers, .. } = &mut self.flow;
        inbox.take(&mut drive.peer, Delivery::Messages, &mut Maker { tasks: &self.tasks, watchers }).unwrap()
    }

    // ---- what the environment does ----

    pub(crate) fn settle(&mut self) {
        let now = self.now;
        if self.flow.is_settled(|| now) {
            let step = self.flow.next_step(&mut Settling::default(), &self.tasks, || now);
            assert_eq!(step, Step::Rest, "it has said that nothing is left to do");
            return;
        }
        let mut settling = Settling::default();
        for _ in 0..1000 {
            match self.flow.next_step(&mut settling, &self.tasks, || now) {
                Step::LookKept => self.note_kept(),
                Step::Shut => self.shut = true,
                Step::Write => self.write(),
                Step::TellFlushed => self.tell_flushed(),
                Step::Wake(task) => self.wake(task),
                Step::TellWritable => self.writable_soon = true,
                Step::Pause => self.reading = false,
                Step::Fill => {
                    let Flow { inbox, drive, watchers, .. } = &mut self.flow;
                    let mut maker = Maker { tasks: &self.tasks, watchers };
                    self.serve_soon |= inbox.fill(&mut drive.peer, true, &mut maker).unwrap();
                }
                Step::Resume => self.reading = true,
                Step::Schedule => {}
                Step::Finish => return self.finish(),
                Step::Rest => return,
            }
        }
        panic!("it never settles");
    }

    fn note_kept(&mut self) {
        self.flow.drive.note_kept(!self.kept.is_empty());
        if !self.kept.is_empty() {
            self.ask_when_empty();
        }
    }

    /// The transport is full as long as it keeps anything, and so tells when it is empty.
    fn ask_when_empty(&mut self) {
        if !std::mem::replace(&mut self.flow.outbox.draining, true) {
            self.full = !self.kept.is_empty();
            self.flow.outbox.blocked |= self.full;
        }
    }

    fn write(&mut self) {
        if self.flow.drive.is_over() || self.flow.outbox.blocked {
            return;
        }
        let bytes = self.flow.drive.take_output();
        self.kept.extend(bytes);
        let high = if self.flow.outbox.draining { 0 } else { self.transport.high };
        if self.kept.len() > high {
            self.full = true;
            self.flow.outbox.blocked = true;
        }
    }

    fn tell_flushed(&mut self) {
        if !self.kept.is_empty() {
            return self.ask_when_empty();
        }
        let Flow { drive, outbox, .. } = &mut self.flow;
        let flushed = outbox.take_flushed(drive);
        flushed.into_iter().for_each(|task| self.wake(task));
    }

    fn wake(&mut self, task: usize) {
        let mut tasks = self.tasks.tasks.borrow_mut();
        let task_of = tasks.get_mut(&task).unwrap();
        if task_of.stage == Stage::Waiting {
            task_of.stage = Stage::Woken;
            self.ready.push_back(task);
        }
    }

    fn finish(&mut self) {
        let Some(farewell) = self.flow.finish(false) else { return };
        farewell.waiters.into_iter().chain(farewell.flushes).for_each(|task| self.wake(task));
        farewell.pings.into_iter().chain(farewell.closers).for_each(|future| self.tasks.tell(future));
        self.kept.clear();
    }

    /// Gives what was read to whoever waits; what nobody waits for is queued.
    fn process(&mut self) {
        while let Some(index) = self.flow.next_receiver(&self.tasks) {
            let Some(item) = self.take() else { break };
            let task = self.flow.receivers.remove(index).unwrap();
            self.flow.hand(task);
            self.tasks.tasks.borrow_mut().get_mut(&task).unwrap().given = Some(item);
            self.wake(task);
        }
        if self.flow.next_receiver(&self.tasks).is_none() {
            let Flow { inbox, drive, watchers, .. } = &mut self.flow;
            let mut maker = Maker { tasks: &self.tasks, watchers };
            self.serve_soon |= inbox.fill(&mut drive.peer, true, &mut maker).unwrap();
        }
        self.settle();
    }

    // ---- what happens ----

    /// One turn of the loop.
    pub(crate) fn turn(&mut self) {
        self.iteration += 1;
        for _ in 0..self.ready.len() {
            if let Some(task) = self.ready.pop_front() {
                self.resume(task);
            }
        }
        if std::mem::take(&mut self.serve_soon) {
            if self.flow.inbox.unparsed() == Unparsed::Postponed {
                self.flow.inbox.set_unparsed(Unparsed::Due);
            }
            self.process();
        }
        if std::mem::take(&mut self.uncork) {
            self.flow.outbox.corked = false;
            if self.flow.is_write_due() {
                self.write();
            }
            self.settle();
        }
        if std::mem::take(&mut self.writable_soon) {
            self.flow.outbox.tell_writable = TellWritable::No;
        }
    }

    pub(crate) fn start(&mut self, what: What) {
        let number = self.tasks.number();
        let task = Task { what, stage: Stage::Woken, ticket: 0, given: None };
        self.tasks.tasks.borrow_mut().insert(number, task);
        self.step(number, false);
    }

    fn resume(&mut self, number: usize) {
        let (stage, ticket, what) = {
            let tasks = self.tasks.tasks.borrow();
            (tasks[&number].stage, tasks[&number].ticket, tasks[&number].what)
        };
        if stage != Stage::Woken {
            return; // given up meanwhile
        }
        let turn = self.flow.outbox.take_turn(ticket);
        if turn && !self.flow.outbox.is_first(ticket) && !self.flow.is_finished() {
            return self.park(number);
        }
        if matches!(what, What::Drain | What::Flush) {
            return self.end_task(number);
        }
        self.step(number, turn);
    }

    /// A step of a task; `turn`: it is its turn to send.
    fn step(&mut self, number: usize, turn: bool) {
        let what = self.tasks.tasks.borrow()[&number].what;
        match what {
            What::Receive(_) => {
                let given = self.tasks.tasks.borrow_mut().get_mut(&number).unwrap().given.take();
                if given.is_some() && self.flow.release_handed(&self.tasks) {
                    self.process();
                }
                let waits = self.flow.has_receivers(&self.tasks);
                match given.or_else(|| if waits { None } else { self.take() }) {
                    Some(item) => {
                        self.received.push(item.message.len());
                        self.end_task(number);
                        self.settle();
                    }
                    None => {
                        self.settle();
                        if self.flow.is_finished() {
                            return self.end_task(number);
                        }
                        self.wait(number);
                        self.flow.receivers.push_back(number);
                        self.settle();
                    }
                }
            }
            What::Send(size) => {
                if self.flow.is_closing() {
                    return self.end_task(number);
                }
                if self.flow.must_wait(turn) {
                    return self.park(number);
                }
                self.flow.drive.link_mut().send_message(MessageKind::Binary, &vec![7; size], None).unwrap();
                self.sent.push(size);
                match self.flow.output(self.iteration) {
                    Output::Write => self.write(),
                    Output::Cork => {
                        self.flow.outbox.corked = true;
                        self.uncork = true;
                    }
                    Output::Wait => {}
                }
                self.settle();
                if self.flow.is_crowded() && !self.flow.is_finished() {
                    self.tasks.tasks.borrow_mut().get_mut(&number).unwrap().what = What::Drain;
                    self.wait(number);
                    self.flow.outbox.park_drainer(number);
                    return self.settle();
                }
                self.end_task(number);
            }
            What::Drain => self.end_task(number),
            What::Flush => self.flush(number),
            What::End => {
                self.settle();
                if self.flow.is_finished() {
                    return self.end_task(number);
                }
                self.wait(number);
                self.flow.watchers.make().enders.push(number);
            }
        }
    }

    fn park(&mut self, number: usize) {
        // Who only corked may be waited for.
        self.write();
        self.settle();
        if self.flow.is_finished() {
            return self.end_task(number);
        }
        let kept = self.tasks.tasks.borrow()[&number].ticket;
        let ticket = if kept == 0 { self.flow.outbox.next_ticket() } else { kept };
        self.tasks.tasks.borrow_mut().get_mut(&number).unwrap().ticket = ticket;
        self.wait(number);
        self.flow.outbox.park(ticket, number);
        self.settle();
    }

    fn wait(&self, number: usize) {
        self.tasks.tasks.borrow_mut().get_mut(&number).unwrap().stage = Stage::Waiting;
    }

    fn end_task(&self, number: usize) {
        self.tasks.tasks.borrow_mut().get_mut(&number).unwrap().stage = Stage::Over;
    }

    /// Any task that waits, or was woken and has not run, gives up.
    pub(crate) fn cancel(&mut self, random: &mut Random) {
        let alive: Vec<usize> =
            self.tasks.tasks.borrow().iter().filter(|(_, task)| task.stage != Stage::Over).map(|(at, _)| *at).collect();
        if alive.is_empty() {
            return;
        }
        let number = alive[random.below(alive.len())];
        self.end_task(number);
        let (given, ticket) = {
            let mut tasks = self.tasks.tasks.borrow_mut();
            let task = tasks.get_mut(&number).unwrap();
            (task.given.take(), task.ticket)
        };
        self.flow.receivers.retain(|other| *other != number);
        self.flow.watchers.forget(&number);
        self.flow.outbox.forget(ticket, &number);
        if let Some(item) = given {
            self.flow.release_handed(&self.tasks);
            self.flow.inbox.untake(item, false);
        }
        self.process();
    }

    fn flush(&mut self, number: usize) {
        self.write();
        self.settle();
        let written = self.flow.is_written() && self.kept.is_empty();
        if self.flow.is_finished() || self.flow.drive.link().failure().is_some() || written {
            return self.end_task(number);
        }
        self.wait(number);
        let Flow { drive, outbox, .. } = &mut self.flow;
        outbox.park_flush(drive, number);
        if !self.kept.is_empty() {
            self.tell_flushed();
            self.settle();
        }
    }

    pub(crate) fn ping(&mut self, random: &mut Random) {
        if self.flow.is_closing() {
            return;
        }
        let payload = random.next().to_be_bytes();
        let link = self.flow.drive.link_mut();
        link.send_ping(&payload).unwrap();
        let id = link.keepalive.handle_ping_sent(&payload, self.now);
        let future = self.tasks.future();
        self.flow.watchers.make().pings.push((id, future));
        self.write();
        self.settle();
    }

    pub(crate) fn close(&mut self, keep: bool) {
        self.flow.begin_close(Some(CloseCode::NORMAL_CLOSURE), "", keep, self.now).unwrap();
        self.write();
        self.process();
    }

    /// The transport has sent some of what it keeps.
    pub(crate) fn transport_sent(&mut self, count: usize) -> Vec<u8> {
        let bytes: Vec<u8> = self.kept.drain(..count.min(self.kept.len())).collect();
        let low = if self.flow.outbox.draining { 0 } else { self.transport.low };
        if self.full && self.kept.len() <= low {
            self.full = false;
            self.flow.outbox.blocked = false;
            self.flow.outbox.draining = false;
            self.iteration += 1;
            self.write();
            self.settle();
        }
        bytes
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.iteration += 1;
        self.flow.drive.receive(bytes);
        self.flow.inbox.set_unparsed(Unparsed::New);
        self.process();
    }

    pub(crate) fn receive_end(&mut self) {
        self.flow.drive.receive_end(None);
        self.process();
    }

    pub(crate) fn pass_time(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        if self.flow.drive.deadline(self.now).is_some_and(|due| due <= self.now) {
            let reading = if self.flow.paused { Reading::Paused } else { Reading::Going };
            self.flow.drive.handle_deadline(self.now, reading, self.kept.len() as u64);
        }
        self.write();
        self.settle();
    }

    // ---- the oracle ----

    /// Nobody waits whose condition holds, if nothing is left for the loop to do.
    pub(crate) fn check(&self) {
        if !self.ready.is_empty() || self.serve_soon || self.uncork {
            return;
        }
        let waits = |number: &usize| self.tasks.stage(*number) == Stage::Waiting;
        let tasks = self.tasks.tasks.borrow();
        let waiting: Vec<_> = tasks.iter().filter(|(_, task)| task.stage == Stage::Waiting).collect();
        if self.flow.is_finished() {
            assert!(waiting.is_empty(), "it is over, and somebody waits");
            assert!(self.tasks.futures.borrow().values().all(|told| *told), "it is over, and a future waits");
            return;
        }
        assert!(!self.flow.drive.is_over(), "it is over, and nobody was told");
        if self.flow.receivers.iter().any(waits) {
            assert!(self.flow.inbox.is_empty(), "somebody receives, and a message is there");
            assert!(!self.flow.drive.peer.has_input(), "somebody receives, and bytes are there");
            assert!(self.reading, "somebody receives, and nothing is read");
        }
        if self.flow.has_room() {
            let drains = waiting.iter().any(|(_, task)| task.what == What::Drain);
            assert!(!drains, "there is room, and somebody waits for it");
            if self.flow.outbox.hold == Hold::Free {
                assert!(!waiting.iter().any(|(_, task)| matches!(task.what, What::Send(_))), "there is room to send");
            }
        }
        if self.flow.is_written() && self.kept.is_empty() {
            assert!(!self.flow.outbox.has_flushes(), "everything is written, and somebody waits for that");
        }
        assert!(!self.flow.is_write_due(), "something is to be written, and nobody does it");
        let resumable = self.flow.is_resumable() && !self.flow.is_full();
        assert!(!resumable, "there is room for more, and nothing is read");
        assert_eq!(self.flow.outbox.blocked, self.full, "who has no room is remembered");
    }
}
