//! One end of a connection: its `WaitState`, the tasks of its event loop, and its transport.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use wirespeed_driver::connection::{
    Action, ActionCursor, ConnectionDriver, Environment, Item, Limits, Output, Receiver, Unparsed, WaitState,
    Watermarks,
};
use wirespeed_driver::protocol::{CloseCode, Config, Connection, Delivery, MessageKind, Payload, Side};
use wirespeed_driver::{Endpoint, Keepalive};

/// A reproducible random generator, splitmix64.
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

/// The call that a task makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Receive(Delivery),
    /// Sends a message of this size.
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
    call: Call,
    stage: Stage,
    ticket: u64,
    given: Option<Item<Vec<u8>>>,
}

/// The tasks of an end, and its futures with the flag whether they are resolved.
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

    fn resolve(&self, future: usize) {
        assert_eq!(self.futures.borrow_mut().insert(future, true), Some(false), "a future is resolved only once");
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

    fn has_assigned_message(tasks: &Tasks, waiter: &usize) -> bool {
        tasks.tasks.borrow()[waiter].given.is_some()
    }

    fn delivery(_: &usize) -> Delivery {
        Delivery::Messages
    }
}

/// Creates messages.
struct Maker;

impl Receiver<Vec<u8>> for Maker {
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

    fn pong(&mut self, _: &[u8]) {}
}

/// One end of a connection: its `WaitState`, its tasks, and its transport.
pub(crate) struct End {
    pub(crate) wait_state: WaitState<Sim>,
    pub(crate) tasks: Tasks,
    /// Tasks that the event loop resumes, in order.
    pub(crate) ready: VecDeque<usize>,
    /// Bytes in the buffer of the transport.
    pub(crate) buffered: VecDeque<u8>,
    /// The watermarks of the transport's buffer.
    pub(crate) transport: Watermarks,
    /// Whether the buffer exceeded the high watermark and has not fallen to the low one since.
    pub(crate) full: bool,
    /// Whether the high watermark is 0, so that the transport reports when its buffer is empty.
    pub(crate) draining: bool,
    pub(crate) reading: bool,
    pub(crate) shut: bool,
    pub(crate) iteration: u64,
    /// Whether the next turn of the loop processes received bytes.
    pub(crate) process_soon: bool,
    pub(crate) uncork: bool,
    pub(crate) writable_soon: bool,
    /// Sizes of the sent and of the received messages.
    pub(crate) sent: Vec<usize>,
    pub(crate) received: Vec<usize>,
    pub(crate) now: Instant,
}

impl End {
    pub(crate) fn new(side: Side, random: &mut Random, now: Instant) -> Self {
        let limits = wirespeed_driver::protocol::Limits { message_size: None, ..Default::default() };
        let connection = Connection::new(Config { limits, ..Config::new(side) });
        let beat = [None, Some(Duration::from_secs(20))][random.below(2)];
        let endpoint = Endpoint::new(connection, None, &[], Vec::new(), Keepalive::new(beat, beat, now));
        let high = [0, 100, 1000, 40_000][random.below(4)];
        let limits = Limits {
            messages: Watermarks::new([1, 4][random.below(2)], 1),
            bytes: Watermarks::new([1, 500, 4 << 20][random.below(3)], 1),
            write: Watermarks::new(high, high / 4),
            coalesce: !random.one_in(4),
            yield_after: 1000,
        };
        let driver = ConnectionDriver::new(endpoint, None, Some(Duration::from_secs(10)));
        Self {
            wait_state: WaitState::new(driver, limits, false),
            tasks: Tasks::default(),
            ready: VecDeque::new(),
            buffered: VecDeque::new(),
            transport: Watermarks::new(high, high / 4),
            full: false,
            draining: false,
            reading: true,
            shut: false,
            iteration: 1,
            process_soon: false,
            uncork: false,
            writable_soon: false,
            sent: Vec::new(),
            received: Vec::new(),
            now,
        }
    }

    fn take(&mut self) -> Option<Item<Vec<u8>>> {
        let taken = self.wait_state.take(Delivery::Messages, &mut Maker).unwrap();
        self.resolve_answered_pings();
        taken
    }

    fn fill(&mut self) {
        self.process_soon |= self.wait_state.fill(&mut Maker).unwrap();
        self.resolve_answered_pings();
    }

    fn resolve_answered_pings(&mut self) {
        for (future, _) in self.wait_state.take_answered_pings() {
            self.tasks.resolve(future);
        }
    }

    // ---- actions of the environment ----

    pub(crate) fn run_actions(&mut self) {
        let now = self.now;
        if self.wait_state.is_quiescent(|| now) {
            let step = self.wait_state.poll_action(&mut ActionCursor::default(), &self.tasks, || now);
            assert_eq!(step, Action::Idle, "a quiescent state has no action");
            return;
        }
        let mut cursor = ActionCursor::default();
        for _ in 0..1000 {
            match self.wait_state.poll_action(&mut cursor, &self.tasks, || now) {
                Action::CheckTransportBuffer => self.set_transport_buffered(),
                Action::ShutdownWrite => self.shut = true,
                Action::Write => self.write(),
                Action::NotifyFlushed => self.notify_flushed(),
                Action::Wake(task) => self.wake(task),
                Action::WritableNotice => self.writable_soon = true,
                Action::Pause => self.reading = false,
                Action::Fill => self.fill(),
                Action::Resume => self.reading = true,
                Action::Schedule => {}
                Action::Finish => return self.finish(),
                Action::Idle => return,
            }
        }
        panic!("the actions never end");
    }

    fn set_transport_buffered(&mut self) {
        self.wait_state.driver_mut().set_transport_buffered(!self.buffered.is_empty());
        if !self.buffered.is_empty() {
            self.notify_when_empty();
        }
    }

    /// Sets the watermarks of the transport to zero, so that it reports when its buffer is empty.
    fn notify_when_empty(&mut self) {
        if self.wait_state.send_queue_mut().start_draining() {
            self.draining = true;
            self.full = !self.buffered.is_empty();
            if self.full {
                self.wait_state.send_queue_mut().set_blocked(true);
            }
        }
    }

    fn write(&mut self) {
        if self.wait_state.driver().is_over() || !self.wait_state.send_queue().accepts_output() {
            return;
        }
        let bytes = self.wait_state.begin_transport_write();
        assert!(bytes.is_empty() || !self.wait_state.send_queue().accepts_output(), "other calls cannot overtake");
        self.wait_state.send_queue_mut().end_transport_write();
        self.buffered.extend(bytes);
        let high = if self.draining { 0 } else { self.transport.high };
        if self.buffered.len() > high {
            self.full = true;
            self.wait_state.send_queue_mut().set_blocked(true);
        }
    }

    fn notify_flushed(&mut self) {
        if !self.buffered.is_empty() {
            return self.notify_when_empty();
        }
        let flushed = self.wait_state.take_flushed();
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
        let Some(teardown) = self.wait_state.finish(false) else { return };
        teardown.waiters.into_iter().chain(teardown.flushes).for_each(|task| self.wake(task));
        teardown.pings.into_iter().chain(teardown.closers).for_each(|future| self.tasks.resolve(future));
        self.buffered.clear();
    }

    /// Assigns received messages to waiting tasks and queues the others.
    fn process(&mut self) {
        while let Some(index) = self.wait_state.next_receiver(&self.tasks) {
            let Some(item) = self.take() else { break };
            let task = self.wait_state.take_receiver(index).unwrap();
            self.wait_state.assign(task);
            self.tasks.tasks.borrow_mut().get_mut(&task).unwrap().given = Some(item);
            self.wake(task);
        }
        if self.wait_state.next_receiver(&self.tasks).is_none() {
            self.fill();
        }
        self.run_actions();
    }

    // ---- events of a schedule ----

    /// Runs one turn of the event loop.
    pub(crate) fn turn(&mut self) {
        self.iteration += 1;
        for _ in 0..self.ready.len() {
            if let Some(task) = self.ready.pop_front() {
                self.resume(task);
            }
        }
        if std::mem::take(&mut self.process_soon) {
            if self.wait_state.inbox().unparsed() == Unparsed::Postponed {
                self.wait_state.inbox_mut().set_unparsed(Unparsed::Due);
            }
            self.process();
        }
        if std::mem::take(&mut self.uncork) {
            self.wait_state.send_queue_mut().uncork();
            if self.wait_state.is_write_due() {
                self.write();
            }
            self.run_actions();
        }
        if std::mem::take(&mut self.writable_soon) {
            self.wait_state.take_writable_notice();
        }
    }

    pub(crate) fn start(&mut self, call: Call) {
        let number = self.tasks.number();
        let task = Task { call, stage: Stage::Woken, ticket: 0, given: None };
        self.tasks.tasks.borrow_mut().insert(number, task);
        self.step(number, false);
    }

    fn resume(&mut self, number: usize) {
        let (stage, ticket, call) = {
            let tasks = self.tasks.tasks.borrow();
            (tasks[&number].stage, tasks[&number].ticket, tasks[&number].call)
        };
        if stage != Stage::Woken {
            return; // the task has given up meanwhile
        }
        let turn = self.wait_state.send_queue_mut().take_turn(ticket);
        if turn && !self.wait_state.send_queue().is_first(ticket) && !self.wait_state.is_finished() {
            return self.park(number);
        }
        if matches!(call, Call::Drain | Call::Flush) {
            return self.end_task(number);
        }
        self.step(number, turn);
    }

    /// Runs a step of a task. `turn`: it is the task's turn to send.
    fn step(&mut self, number: usize, turn: bool) {
        let call = self.tasks.tasks.borrow()[&number].call;
        match call {
            Call::Receive(_) => {
                let given = self.tasks.tasks.borrow_mut().get_mut(&number).unwrap().given.take();
                if given.is_some() && self.wait_state.release_assigned(&self.tasks) {
                    self.process();
                }
                let waits = self.wait_state.has_receivers(&self.tasks);
                match given.or_else(|| if waits { None } else { self.take() }) {
                    Some(item) => {
                        self.received.push(item.message.len());
                        self.end_task(number);
                        self.run_actions();
                    }
                    None => {
                        self.run_actions();
                        if self.wait_state.is_finished() {
                            return self.end_task(number);
                        }
                        self.wait(number);
                        self.wait_state.add_receiver(number);
                        self.run_actions();
                    }
                }
            }
            Call::Send(size) => {
                if self.wait_state.is_closing() {
                    return self.end_task(number);
                }
                if self.wait_state.must_wait(turn) {
                    return self.park(number);
                }
                self.wait_state
                    .driver_mut()
                    .send_half_mut()
                    .send_message(MessageKind::Binary, &vec![7; size], None)
                    .unwrap();
                self.sent.push(size);
                match self.wait_state.output(self.iteration) {
                    Output::Write => self.write(),
                    Output::Cork => {
                        self.wait_state.send_queue_mut().cork();
                        self.uncork = true;
                    }
                    Output::Wait => {}
                }
                self.run_actions();
                if self.wait_state.should_wait() && !self.wait_state.is_finished() {
                    self.tasks.tasks.borrow_mut().get_mut(&number).unwrap().call = Call::Drain;
                    self.wait(number);
                    self.wait_state.send_queue_mut().add_drainer(number);
                    return self.run_actions();
                }
                self.end_task(number);
            }
            Call::Drain => self.end_task(number),
            Call::Flush => self.flush(number),
            Call::End => {
                self.run_actions();
                if self.wait_state.is_finished() {
                    return self.end_task(number);
                }
                self.wait(number);
                self.wait_state.add_end_waiter(number);
            }
        }
    }

    fn park(&mut self, number: usize) {
        // The bytes before may be corked, and then they must be written.
        self.write();
        self.run_actions();
        if self.wait_state.is_finished() {
            return self.end_task(number);
        }
        let kept = self.tasks.tasks.borrow()[&number].ticket;
        let ticket = if kept == 0 { self.wait_state.send_queue_mut().next_ticket() } else { kept };
        self.tasks.tasks.borrow_mut().get_mut(&number).unwrap().ticket = ticket;
        self.wait(number);
        self.wait_state.send_queue_mut().add_sender(ticket, number);
        self.run_actions();
    }

    fn wait(&self, number: usize) {
        self.tasks.tasks.borrow_mut().get_mut(&number).unwrap().stage = Stage::Waiting;
    }

    fn end_task(&self, number: usize) {
        self.tasks.tasks.borrow_mut().get_mut(&number).unwrap().stage = Stage::Over;
    }

    /// Cancels a random task that waits, or that was woken and has not run.
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
        self.wait_state.remove_receiver(&number);
        self.wait_state.remove_sender(ticket, &number);
        if let Some(item) = given {
            self.wait_state.release_assigned(&self.tasks);
            self.wait_state.inbox_mut().put_back_fragment(item, false);
        }
        self.process();
    }

    fn flush(&mut self, number: usize) {
        self.write();
        self.run_actions();
        let written = self.wait_state.is_written() && self.buffered.is_empty();
        if self.wait_state.is_finished() || self.wait_state.driver().send_half().failure().is_some() || written {
            return self.end_task(number);
        }
        self.wait(number);
        self.wait_state.add_flush(number);
        if !self.buffered.is_empty() {
            self.notify_flushed();
            self.run_actions();
        }
    }

    pub(crate) fn ping(&mut self, random: &mut Random) {
        if self.wait_state.is_closing() {
            return;
        }
        let payload = random.next().to_be_bytes();
        let future = self.tasks.future();
        self.wait_state.send_ping(&payload, future, self.now).unwrap();
        self.write();
        self.run_actions();
    }

    pub(crate) fn close(&mut self, keep: bool) {
        self.wait_state.begin_close(Some(CloseCode::NORMAL_CLOSURE), "", keep, self.now).unwrap();
        self.write();
        self.process();
    }

    /// Lets the transport send up to `count` bytes of its buffer. Returns them.
    pub(crate) fn transport_sent(&mut self, count: usize) -> Vec<u8> {
        let bytes: Vec<u8> = self.buffered.drain(..count.min(self.buffered.len())).collect();
        let low = if self.draining { 0 } else { self.transport.low };
        if self.full && self.buffered.len() <= low {
            self.full = false;
            self.wait_state.send_queue_mut().set_blocked(false);
            assert_eq!(self.wait_state.send_queue_mut().stop_draining(), std::mem::take(&mut self.draining));
            self.iteration += 1;
            self.write();
            self.run_actions();
        }
        bytes
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.iteration += 1;
        self.wait_state.receive(bytes);
        self.process();
    }

    pub(crate) fn receive_end(&mut self) {
        self.wait_state.driver_mut().receive_end(None);
        self.process();
    }

    pub(crate) fn pass_time(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        if self.wait_state.driver().deadline(self.now).is_some_and(|due| due <= self.now) {
            self.wait_state.handle_deadline(self.now, self.buffered.len() as u64);
        }
        self.write();
        self.run_actions();
    }

    // ---- invariants ----

    /// Checks that no task waits although its condition holds, when the loop has nothing to do.
    pub(crate) fn check(&self) {
        if !self.ready.is_empty() || self.process_soon || self.uncork {
            return;
        }
        let tasks = self.tasks.tasks.borrow();
        let waiting: Vec<_> = tasks.iter().filter(|(_, task)| task.stage == Stage::Waiting).collect();
        if self.wait_state.is_finished() {
            assert!(waiting.is_empty(), "the connection is over, and a task waits");
            assert!(
                self.tasks.futures.borrow().values().all(|resolved| *resolved),
                "the connection is over, and a future is unresolved"
            );
            return;
        }
        assert!(!self.wait_state.driver().is_over(), "the connection is over, and the state is not finished");
        if waiting.iter().any(|(_, task)| matches!(task.call, Call::Receive(_))) {
            assert!(self.wait_state.inbox().is_empty(), "a task receives, and a message is queued");
            assert!(!self.wait_state.driver().endpoint().has_input(), "a task receives, and input is unparsed");
            assert!(self.reading, "a task receives, and reading is paused");
        }
        if self.wait_state.has_room() {
            let drains = waiting.iter().any(|(_, task)| task.call == Call::Drain);
            assert!(!drains, "there is room, and a task waits for it");
            if !self.wait_state.send_queue().is_locked() {
                assert!(
                    !waiting.iter().any(|(_, task)| matches!(task.call, Call::Send(_))),
                    "there is room, and a task waits to send"
                );
            }
        }
        if self.wait_state.is_written() && self.buffered.is_empty() {
            assert!(!self.wait_state.send_queue().has_flushes(), "everything is written, and a flush waits");
        }
        assert!(!self.wait_state.is_write_due(), "a write is due");
        let resumable = self.wait_state.is_resumable() && !self.wait_state.is_full();
        assert!(!resumable, "there is room for input, and reading is paused");
        assert_eq!(
            self.wait_state.send_queue().is_blocked(),
            self.full,
            "the state knows whether the transport is full"
        );
    }
}
