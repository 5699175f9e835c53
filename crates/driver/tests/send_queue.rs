//! Who may send: room as it is defined, the order of those who wait, what is written when, flushes.

#![allow(clippy::unwrap_used)] // tests fail by panicking

mod support;

use std::time::Duration;

use support::{endpoint, sockets};
use wirespeed_driver::connection::{
    Action, ActionCursor, ConnectionDriver, End, Environment, Hold, Large, Limits, Output, WaitState, Watermarks,
    WritableNotice,
};
use wirespeed_driver::protocol::{Delivery, MessageKind, Side};
use wirespeed_driver::socket::Socket;

/// Waiters are numbers; those below 100 wait.
struct Numbers;

impl Environment for Numbers {
    type Buffer = Vec<u8>;
    type Message = Vec<u8>;
    type Waiter = u32;
    type Future = u32;
    type Source = Vec<u8>;
    type Context<'a> = ();

    fn is_waiting((): (), waiter: &u32) -> bool {
        *waiter < 100
    }

    fn has_assigned_message((): Self::Context<'_>, _: &Self::Waiter) -> bool {
        false
    }

    fn delivery(_: &u32) -> Delivery {
        Delivery::Messages
    }
}

fn wait_state(socket: Option<Socket>, write: Watermarks, coalesce: bool) -> WaitState<Numbers> {
    let most = Watermarks::at(1 << 20);
    let limits = Limits { messages: most, bytes: most, write, coalesce, yield_after: 3 };
    WaitState::new(ConnectionDriver::new(endpoint(Side::Server, None), socket, None), limits, false)
}

/// Queues a message that takes this many bytes with its header.
fn queue(wait_state: &mut WaitState<Numbers>, bytes: usize) {
    let header = if bytes < 128 { 2 } else { 4 };
    wait_state.driver.send_half_mut().send_message(MessageKind::Binary, &vec![0; bytes - header], None).unwrap();
}

/// All who are woken when there is room.
fn woken(wait_state: &mut WaitState<Numbers>) -> Vec<u32> {
    let mut cursor = ActionCursor::default();
    let mut found = Vec::new();
    loop {
        match wait_state.poll_action(&mut cursor, (), std::time::Instant::now) {
            Action::Wake(waiter) => found.push(waiter),
            Action::Write => cursor.fail_write(), // nobody writes here
            Action::Idle => return found,
            _ => {}
        }
    }
}

#[test]
fn there_is_room_up_to_the_low_mark_and_too_much_above_the_high_one() {
    let (ours, _theirs) = sockets(None);
    let mut wait_state = wait_state(Some(ours), Watermarks::new(100, 40), true);
    for (queued, room, above) in [(40, true, false), (41, false, false), (100, false, false), (101, false, true)] {
        queue(&mut wait_state, queued);
        wait_state.send_queue.blocked = true;
        assert_eq!((wait_state.has_room(), wait_state.is_above_high()), (room, above), "{queued}");
        assert_eq!((wait_state.should_wait(), wait_state.must_wait(true)), (above, above), "{queued}");
        // What is corked leaves soon: it is too much only for a socket that takes nothing.
        wait_state.send_queue.blocked = false;
        assert_eq!(
            (wait_state.has_room(), wait_state.is_above_high(), wait_state.should_wait()),
            (room, false, false),
            "{queued}"
        );
        let _ = wait_state.driver.send_half_mut().take_output();
    }
}

#[test]
fn a_transport_says_whether_it_has_room_and_a_socket_is_asked() {
    // On a socket that takes nothing there is room as long as little is queued.
    let (ours, _theirs) = sockets(None);
    let mut on_socket = wait_state(Some(ours), Watermarks::new(100, 40), true);
    on_socket.send_queue.blocked = true;
    assert!(on_socket.has_room() && !on_socket.should_wait() && !on_socket.must_wait(false));
    let mut on_transport = wait_state(None, Watermarks::new(100, 40), true);
    assert!(on_transport.has_room() && !on_transport.must_wait(false));
    on_transport.send_queue.blocked = true;
    assert!(!on_transport.has_room() && on_transport.should_wait() && on_transport.must_wait(true));
    // One that was asked to say when it is empty is not full for that.
    on_transport.send_queue.draining = true;
    assert!(on_transport.has_room() && !on_transport.should_wait());
    on_transport.send_queue.draining = false;
    on_transport.driver.end(wirespeed_driver::endpoint::Failure::Aborted);
    assert!(on_transport.has_room(), "where nothing can be written any more, nobody waits for it");
}

#[test]
fn nothing_is_sent_beside_a_large_message_or_fragments() {
    let mut wait_state = wait_state(None, Watermarks::new(100, 40), true);
    assert!(!wait_state.must_wait(false) && !wait_state.must_wait(true));
    let send = wait_state.driver.send_half_mut().begin_large(MessageKind::Binary, 1 << 20).unwrap();
    let _ = wait_state.driver.send_half_mut().take_output();
    wait_state.send_queue.large = Some(Box::new(Large { send, source: Vec::new(), offset: 0 }));
    assert!(
        !wait_state.has_room() && wait_state.should_wait() && wait_state.must_wait(true) && !wait_state.is_written()
    );
    wait_state.send_queue.large = None;
    for hold in [Hold::Opening, Hold::Fragments(7)] {
        wait_state.send_queue.hold = hold;
        assert!(wait_state.must_wait(true) && wait_state.must_wait(false));
        assert!(wait_state.has_room() && !wait_state.should_wait(), "there is room, though nobody may use it");
        assert_eq!(wait_state.is_connecting(), hold == Hold::Opening);
        // Those who wait to send wait on; who has sent already goes on.
        let ticket = wait_state.send_queue.next_ticket();
        wait_state.send_queue.add_sender(ticket, 1);
        assert!(!wait_state.is_room_due());
        assert_eq!(woken(&mut wait_state), []);
        wait_state.send_queue.add_drainer(2);
        assert!(wait_state.is_room_due());
        assert_eq!(woken(&mut wait_state), [2]);
        wait_state.send_queue.hold = Hold::Free;
        assert!(wait_state.is_room_due());
        assert_eq!(woken(&mut wait_state), [1]);
        assert!(wait_state.send_queue.take_turn(ticket) && !wait_state.send_queue.take_turn(ticket));
    }
}

#[test]
fn who_waits_goes_in_the_order_of_tickets() {
    let mut wait_state = wait_state(None, Watermarks::new(100, 40), true);
    let tickets: Vec<u64> = (0..4).map(|_| wait_state.send_queue.next_ticket()).collect();
    assert!(tickets.windows(2).all(|pair| pair[0] < pair[1]) && tickets[0] > 0, "{tickets:?}");
    // They come back in another order, and one of them was given up.
    for (ticket, waiter) in [(tickets[2], 2), (tickets[0], 0), (tickets[3], 3), (tickets[1], 101)] {
        wait_state.send_queue.add_sender(ticket, waiter);
    }
    assert!(wait_state.send_queue.is_first(tickets[0]) && !wait_state.send_queue.is_first(tickets[1]));
    assert!(wait_state.must_wait(false), "others were before");
    assert!(!wait_state.must_wait(true), "but whose turn it is may");
    assert_eq!(woken(&mut wait_state), [0, 2, 3]);
    // All have their turn until they have used it, and come before whoever has none.
    assert!(wait_state.must_wait(false) && wait_state.send_queue.has_waiters());
    assert!(wait_state.send_queue.is_first(tickets[0]) && !wait_state.send_queue.is_first(tickets[2]));
    assert!(!wait_state.send_queue.take_turn(tickets[1]), "it had none");
    assert!(wait_state.send_queue.take_turn(tickets[0]));
    assert!(wait_state.send_queue.is_first(tickets[2]));
    // One that found no room, and waits again, is still before the others.
    wait_state.send_queue.add_sender(tickets[2], 2);
    assert!(wait_state.send_queue.take_turn(tickets[2]));
    assert!(!wait_state.send_queue.is_first(tickets[3]));
    wait_state.send_queue.remove_waiter(tickets[2], &2);
    assert!(wait_state.send_queue.is_first(tickets[3]));
    wait_state.send_queue.remove_waiter(tickets[3], &3);
    assert!(!wait_state.send_queue.has_waiters() && !wait_state.must_wait(false));
}

#[test]
fn a_listener_is_told_once() {
    let mut wait_state = wait_state(None, Watermarks::new(100, 40), true);
    assert!(!wait_state.is_room_due(), "nobody waits");
    wait_state.send_queue.writable_notice = WritableNotice::Wanted;
    wait_state.send_queue.blocked = true;
    assert!(!wait_state.is_room_due());
    wait_state.send_queue.blocked = false;
    assert!(wait_state.is_room_due());
    let mut cursor = ActionCursor::default();
    assert_eq!(wait_state.poll_action(&mut cursor, (), std::time::Instant::now), Action::WritableNotice);
    assert_eq!(wait_state.poll_action(&mut cursor, (), std::time::Instant::now), Action::Idle);
    assert_eq!(wait_state.send_queue.writable_notice, WritableNotice::Soon);
    assert!(!wait_state.is_room_due());
}

#[test]
fn the_first_of_an_iteration_is_written_and_what_follows_leaves_together() {
    let mut wait_state = wait_state(None, Watermarks::new(1000, 40), true);
    assert_eq!(wait_state.output(1), Output::Write);
    let corked = (0..50).filter(|_| wait_state.output(1) == Output::Cork).count();
    assert!(corked > 40, "{corked}"); // a clock may have been read after a pause
    assert_eq!(wait_state.output(2), Output::Write, "a new iteration");
    // At twice the high mark it does not wait for the end.
    wait_state.output(3);
    queue(&mut wait_state, 1999);
    let _ = wait_state.output(3);
    queue(&mut wait_state, 2);
    assert_eq!(wait_state.output(3), Output::Write);
    wait_state.send_queue.blocked = true;
    assert_eq!(wait_state.output(4), Output::Wait);
    // Whoever computes in between is no stream.
    let mut slow = self::wait_state(None, Watermarks::new(1000, 40), true);
    assert_eq!(slow.output(1), Output::Write);
    assert_eq!(slow.output(1), Output::Cork);
    while slow.output(1) == Output::Cork {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut each = self::wait_state(None, Watermarks::new(1000, 40), false);
    assert!((0..10).all(|_| each.output(1) == Output::Write));
    each.send_queue.blocked = true;
    assert_eq!(each.output(1), Output::Wait);
}

#[test]
fn what_a_large_write_takes_is_no_pause_of_the_sender() {
    let mut wait_state = wait_state(None, Watermarks::at(1 << 20), true);
    assert_eq!(wait_state.output(1), Output::Write);
    assert_eq!(wait_state.output(1), Output::Cork);
    queue(&mut wait_state, 64 * 1024 - 1);
    while wait_state.output(1) == Output::Cork {} // the clock is not read each time
    queue(&mut wait_state, 10);
    assert_eq!(wait_state.output(1), Output::Write, "64 KiB are queued");
    let _ = wait_state.driver.take_output();
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(wait_state.output(1), Output::Cork, "the first one behind it");
    std::thread::sleep(Duration::from_millis(2));
    assert!((0..20).any(|_| wait_state.output(1) == Output::Write), "a pause of its own");
}

#[test]
fn a_loop_has_a_turn_after_so_many_messages_or_bytes() {
    let mut wait_state = wait_state(None, Watermarks::new(1000, 40), true);
    let due = |wait_state: &mut WaitState<Numbers>, len, iteration| wait_state.send_queue.is_yield_due(len, iteration);
    assert_eq!([1, 1, 1].map(|len| due(&mut wait_state, len, 1)), [false, false, true]);
    assert_eq!([1, 1].map(|len| due(&mut wait_state, len, 1)), [false, false], "counted anew");
    assert_eq!([1, 1].map(|len| due(&mut wait_state, len, 2)), [false, false], "another iteration");
    assert!(due(&mut wait_state, 0, 2));
    assert!(!due(&mut wait_state, wirespeed_driver::connection::YIELD_BYTES - 1, 3));
    assert!(due(&mut wait_state, 1, 3));
}

#[test]
fn a_flush_is_told_when_its_bytes_were_written() {
    let (ours, theirs) = sockets(Some(8 * 1024));
    let mut wait_state = wait_state(Some(ours), Watermarks::new(1 << 20, 0), true);
    queue(&mut wait_state, 100_000);
    assert!(wait_state.is_write_due() && !wait_state.is_written());
    wait_state.driver.flush();
    {
        let WaitState { driver, send_queue, .. } = &mut wait_state;
        send_queue.add_flush(driver, 1);
    }
    queue(&mut wait_state, 100_000);
    {
        let WaitState { driver, send_queue, .. } = &mut wait_state;
        send_queue.add_flush(driver, 2);
    }
    assert!(wait_state.send_queue.has_flushes() && wait_state.send_queue.has_waiters());
    let (mut read, mut told) = (Vec::with_capacity(1 << 20), Vec::new());
    while told.len() < 2 {
        let _ = theirs.receive(&mut read, 1000, wirespeed_driver::socket::Mode::NonBlocking);
        wait_state.driver.flush();
        let written = wait_state.driver.send_half().written();
        let WaitState { driver, send_queue, .. } = &mut wait_state;
        assert_eq!(send_queue.is_flush_due(driver), written >= 100_000 && told.is_empty() || written >= 200_000);
        for waiter in send_queue.take_flushed(driver) {
            told.push((waiter, written));
        }
    }
    assert_eq!(told.iter().map(|(waiter, _)| *waiter).collect::<Vec<_>>(), [1, 2]);
    assert!(told[0].1 >= 100_000 && told[0].1 < 200_000 && told[1].1 >= 200_000, "{told:?}");
    assert!(!wait_state.send_queue.has_flushes() && !wait_state.send_queue.has_waiters());
    assert!(wait_state.is_written() && !wait_state.is_write_due());
}

#[test]
fn a_flush_behind_a_large_message_waits_for_nothing_that_was_sent_later() {
    let (ours, theirs) = sockets(Some(8 * 1024));
    let mut wait_state = wait_state(Some(ours), Watermarks::new(1 << 20, 0), true);
    let payload = vec![7; 200_000];
    let send = wait_state.driver.send_half_mut().begin_large(MessageKind::Binary, payload.len()).unwrap();
    wait_state.send_queue.large = Some(Box::new(Large { send, source: Vec::new(), offset: 0 }));
    {
        let WaitState { driver, send_queue, .. } = &mut wait_state;
        send_queue.add_flush(driver, 1);
    }
    let mut send = wait_state.send_queue.large.take().unwrap().send;
    assert!(wait_state.driver.send_half_mut().append_large(&mut send, &payload));
    {
        let WaitState { driver, send_queue, .. } = &mut wait_state;
        send_queue.record_large_queued(driver);
    }
    queue(&mut wait_state, 300_000);
    let mut read = Vec::with_capacity(1 << 20);
    let told = loop {
        let _ = theirs.receive(&mut read, 1000, wirespeed_driver::socket::Mode::NonBlocking);
        wait_state.driver.flush();
        let WaitState { driver, send_queue, .. } = &mut wait_state;
        if !send_queue.take_flushed(driver).is_empty() {
            break driver.send_half().written();
        }
    };
    assert!((200_000..400_000).contains(&told), "{told}");
}

#[test]
fn at_the_end_everybody_is_told_once() {
    let mut wait_state = wait_state(None, Watermarks::new(100, 40), true);
    for waiter in 1..4 {
        let ticket = wait_state.send_queue.next_ticket();
        wait_state.send_queue.add_sender(ticket, waiter);
    }
    wait_state.send_queue.add_drainer(4);
    wait_state.receivers.push_back(5);
    wait_state.watchers.make().error_waiters.push(6);
    queue(&mut wait_state, 50);
    {
        let WaitState { driver, send_queue, .. } = &mut wait_state;
        send_queue.add_flush(driver, 7);
    }
    wait_state.watchers.make().pings.push((1, 8));
    wait_state.watchers.make().closers.push(9);
    wait_state.driver.end(wirespeed_driver::endpoint::Failure::Aborted);
    let farewell = wait_state.finish(false).unwrap();
    let mut waiters = farewell.waiters;
    waiters.sort_unstable();
    assert_eq!(waiters, [1, 2, 3, 4, 5, 6]);
    assert_eq!((farewell.flushes, farewell.pings, farewell.closers), (vec![7], vec![8], vec![9]));
    assert_eq!(wait_state.end, End::Complete);
    assert!(wait_state.is_finished() && wait_state.finish(false).is_none());
    // Where a transport has yet to close the socket, those who wait for that wait on.
    let mut lingering = self::wait_state(None, Watermarks::new(100, 40), true);
    lingering.watchers.make().closers.push(9);
    lingering.driver.end(wirespeed_driver::endpoint::Failure::Aborted);
    assert!(lingering.finish(true).unwrap().closers.is_empty());
    assert_eq!((lingering.end, lingering.watchers.take_closers()), (End::Lingering, vec![9]));
}

#[test]
fn of_those_who_wait_there_is_nothing_until_somebody_does() {
    let size = size_of::<WaitState<Numbers>>();
    let driver = size_of::<ConnectionDriver<Vec<u8>>>();
    assert!(size - driver <= 272, "{size} bytes, {driver} of them the drive's");
}
