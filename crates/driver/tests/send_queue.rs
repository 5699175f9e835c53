//! Sending through [`WaitState`]: the definition of room, the order of waiting senders, corking, flushes.

#![allow(clippy::unwrap_used)] // tests fail by panicking

mod support;

use std::time::Duration;

use support::{endpoint, sockets};
use wirespeed_driver::connection::{
    Action, ActionCursor, ConnectionDriver, End, Environment, Limits, Output, WaitState, Watermarks,
};
use wirespeed_driver::protocol::{Delivery, MessageKind, Side};
use wirespeed_driver::socket::Socket;

/// An environment with numbers as waiters. Those below 100 still wait; the others have given up.
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

/// Queues a message of `bytes` bytes, including its header.
fn queue(wait_state: &mut WaitState<Numbers>, bytes: usize) {
    let header = if bytes < 128 { 2 } else { 4 };
    wait_state.driver_mut().send_half_mut().send_message(MessageKind::Binary, &vec![0; bytes - header], None).unwrap();
}

/// Queues the rest of a large message.
fn append_large(wait_state: &mut WaitState<Numbers>, payload: &[u8]) {
    while wait_state.send_queue().is_sending_large() {
        // As with masked or encrypted messages, and with an external transport.
        assert!(!wait_state.append_large(payload, |_, _, _| None, std::time::Instant::now));
    }
}

/// Runs all actions and returns the waiters that are woken.
fn woken(wait_state: &mut WaitState<Numbers>) -> Vec<u32> {
    let mut cursor = ActionCursor::default();
    let mut found = Vec::new();
    loop {
        match wait_state.poll_action(&mut cursor, (), std::time::Instant::now) {
            Action::Wake(waiter) => found.push(waiter),
            Action::Write => cursor.fail_write(), // these tests write nothing
            Action::Idle => return found,
            _ => {}
        }
    }
}

#[test]
fn low_and_high_watermarks_define_room() {
    let (ours, _theirs) = sockets(None);
    let mut wait_state = wait_state(Some(ours), Watermarks::new(100, 40), true);
    for (queued, room, above) in [(40, true, false), (41, false, false), (100, false, false), (101, false, true)] {
        queue(&mut wait_state, queued);
        wait_state.send_queue_mut().set_blocked(true);
        assert_eq!((wait_state.has_room(), wait_state.is_above_high()), (room, above), "{queued}");
        assert_eq!((wait_state.should_wait(), wait_state.must_wait(true)), (above, above), "{queued}");
        // Corked bytes are written soon, so they count as too much only if the socket is blocked.
        wait_state.send_queue_mut().set_blocked(false);
        assert_eq!(
            (wait_state.has_room(), wait_state.is_above_high(), wait_state.should_wait()),
            (room, false, false),
            "{queued}"
        );
        let _ = wait_state.driver_mut().send_half_mut().take_output();
    }
}

#[test]
fn room_of_a_transport_and_of_a_socket() {
    // With a blocked socket there is room as long as few bytes are queued.
    let (ours, _theirs) = sockets(None);
    let mut on_socket = wait_state(Some(ours), Watermarks::new(100, 40), true);
    on_socket.send_queue_mut().set_blocked(true);
    assert!(on_socket.has_room() && !on_socket.should_wait() && !on_socket.must_wait(false));
    let mut on_transport = wait_state(None, Watermarks::new(100, 40), true);
    assert!(on_transport.has_room() && !on_transport.must_wait(false));
    on_transport.send_queue_mut().set_blocked(true);
    assert!(!on_transport.has_room() && on_transport.should_wait() && on_transport.must_wait(true));
    // A transport that is being drained does not count as full.
    assert!(on_transport.send_queue_mut().start_draining() && !on_transport.send_queue_mut().start_draining());
    assert!(on_transport.has_room() && !on_transport.should_wait());
    assert!(on_transport.send_queue_mut().stop_draining() && !on_transport.send_queue_mut().stop_draining());
    on_transport.driver_mut().end(wirespeed_driver::endpoint::Failure::Aborted);
    assert!(on_transport.has_room(), "when nothing can be written any more, senders do not wait");
}

#[test]
fn senders_wait_for_a_large_message_or_fragments() {
    let mut wait_state = wait_state(None, Watermarks::new(100, 40), true);
    assert!(!wait_state.must_wait(false) && !wait_state.must_wait(true));
    let payload = vec![0; 1 << 20];
    wait_state.begin_large(MessageKind::Binary, payload.len(), Vec::new()).unwrap();
    let _ = wait_state.driver_mut().take_output();
    assert!(
        !wait_state.has_room() && wait_state.should_wait() && wait_state.must_wait(true) && !wait_state.is_written()
    );
    append_large(&mut wait_state, &payload);
    let _ = wait_state.driver_mut().take_output();
    for opening in [true, false] {
        let send_queue = wait_state.send_queue_mut();
        if opening {
            send_queue.lock_for_opening();
            assert!(!send_queue.begin_fragments(7));
        } else {
            assert!(send_queue.begin_fragments(7) && !send_queue.begin_fragments(8));
            assert_eq!(send_queue.fragment_sender(), Some(7));
        }
        assert!(wait_state.must_wait(true) && wait_state.must_wait(false));
        assert!(wait_state.has_room() && !wait_state.should_wait(), "there is room, but senders must wait");
        assert_eq!(wait_state.is_connecting(), opening);
        // Waiting senders wait on; a sender that has already sent its message continues.
        let ticket = wait_state.send_queue_mut().next_ticket();
        wait_state.send_queue_mut().add_sender(ticket, 1);
        assert!(!wait_state.is_room_due());
        assert_eq!(woken(&mut wait_state), []);
        wait_state.send_queue_mut().add_drainer(2);
        assert!(wait_state.is_room_due());
        assert_eq!(woken(&mut wait_state), [2]);
        let send_queue = wait_state.send_queue_mut();
        if opening {
            send_queue.unlock_after_opening()
        } else {
            send_queue.end_fragments()
        }
        assert!(wait_state.is_room_due());
        assert_eq!(woken(&mut wait_state), [1]);
        assert!(wait_state.send_queue_mut().take_turn(ticket) && !wait_state.send_queue_mut().take_turn(ticket));
    }
}

#[test]
fn waiting_senders_continue_in_ticket_order() {
    let mut wait_state = wait_state(None, Watermarks::new(100, 40), true);
    let tickets: Vec<u64> = (0..4).map(|_| wait_state.send_queue_mut().next_ticket()).collect();
    assert!(tickets.windows(2).all(|pair| pair[0] < pair[1]) && tickets[0] > 0, "{tickets:?}");
    // They park in another order, and one has given up.
    for (ticket, waiter) in [(tickets[2], 2), (tickets[0], 0), (tickets[3], 3), (tickets[1], 101)] {
        wait_state.send_queue_mut().add_sender(ticket, waiter);
    }
    assert!(wait_state.send_queue().is_first(tickets[0]) && !wait_state.send_queue().is_first(tickets[1]));
    assert!(wait_state.must_wait(false), "others were first");
    assert!(!wait_state.must_wait(true), "but a sender whose turn it is may send");
    assert_eq!(woken(&mut wait_state), [0, 2, 3]);
    // A woken sender keeps its turn until it uses it, and goes before senders without a turn.
    assert!(wait_state.must_wait(false) && wait_state.send_queue().has_waiters());
    assert!(wait_state.send_queue().is_first(tickets[0]) && !wait_state.send_queue().is_first(tickets[2]));
    assert!(!wait_state.send_queue_mut().take_turn(tickets[1]), "it had no turn");
    assert!(wait_state.send_queue_mut().take_turn(tickets[0]));
    assert!(wait_state.send_queue().is_first(tickets[2]));
    // A sender that found no room and waits again keeps its position.
    wait_state.send_queue_mut().add_sender(tickets[2], 2);
    assert!(wait_state.send_queue_mut().take_turn(tickets[2]));
    assert!(!wait_state.send_queue().is_first(tickets[3]));
    wait_state.remove_sender(tickets[2], &2);
    assert!(wait_state.send_queue().is_first(tickets[3]));
    wait_state.remove_sender(tickets[3], &3);
    assert!(!wait_state.send_queue().has_waiters() && !wait_state.must_wait(false));
}

#[test]
fn writable_notice_is_sent_once() {
    let mut wait_state = wait_state(None, Watermarks::new(100, 40), true);
    assert!(!wait_state.is_room_due(), "nothing waits");
    wait_state.send_queue_mut().request_writable_notice();
    wait_state.send_queue_mut().set_blocked(true);
    assert!(!wait_state.is_room_due());
    wait_state.send_queue_mut().set_blocked(false);
    assert!(wait_state.is_room_due());
    let mut cursor = ActionCursor::default();
    assert_eq!(wait_state.poll_action(&mut cursor, (), std::time::Instant::now), Action::WritableNotice);
    assert_eq!(wait_state.poll_action(&mut cursor, (), std::time::Instant::now), Action::Idle);
    assert!(!wait_state.is_room_due(), "the notice is scheduled");
    wait_state.send_queue_mut().set_blocked(true);
    assert!(!wait_state.take_writable_notice(), "there is no room any more");
    wait_state.send_queue_mut().set_blocked(false);
    assert!(wait_state.is_room_due(), "it is scheduled again");
    assert!(wait_state.take_writable_notice() && !wait_state.take_writable_notice());
    assert!(!wait_state.is_room_due());
}

#[test]
fn first_message_of_an_iteration_is_written_and_the_rest_corked() {
    let mut wait_state = wait_state(None, Watermarks::new(1000, 40), true);
    assert_eq!(wait_state.output(1), Output::Write);
    let corked = (0..50).filter(|_| wait_state.output(1) == Output::Cork).count();
    assert!(corked > 40, "{corked}"); // a delay of this thread may uncork some
    assert_eq!(wait_state.output(2), Output::Write, "a new iteration");
    // At twice the high watermark it writes before the end of the iteration.
    wait_state.output(3);
    queue(&mut wait_state, 1999);
    let _ = wait_state.output(3);
    queue(&mut wait_state, 2);
    assert_eq!(wait_state.output(3), Output::Write);
    wait_state.send_queue_mut().set_blocked(true);
    assert_eq!(wait_state.output(4), Output::Wait);
    // A sender that pauses between its messages is not corked.
    let mut slow = self::wait_state(None, Watermarks::new(1000, 40), true);
    assert_eq!(slow.output(1), Output::Write);
    assert_eq!(slow.output(1), Output::Cork);
    while slow.output(1) == Output::Cork {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut each = self::wait_state(None, Watermarks::new(1000, 40), false);
    assert!((0..10).all(|_| each.output(1) == Output::Write));
    each.send_queue_mut().set_blocked(true);
    assert_eq!(each.output(1), Output::Wait);
}

#[test]
fn time_of_a_large_write_does_not_count_as_a_pause() {
    let mut wait_state = wait_state(None, Watermarks::at(1 << 20), true);
    assert_eq!(wait_state.output(1), Output::Write);
    assert_eq!(wait_state.output(1), Output::Cork);
    queue(&mut wait_state, 64 * 1024 - 1);
    while wait_state.output(1) == Output::Cork {} // the clock is not read in each call
    queue(&mut wait_state, 10);
    assert_eq!(wait_state.output(1), Output::Write, "64 KiB are queued");
    let _ = wait_state.driver_mut().take_output();
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(wait_state.output(1), Output::Cork, "the first message after the write");
    std::thread::sleep(Duration::from_millis(2));
    assert!((0..20).any(|_| wait_state.output(1) == Output::Write), "a pause of the sender");
}

#[test]
fn loop_turn_is_due_after_a_number_of_messages_or_bytes() {
    let mut wait_state = wait_state(None, Watermarks::new(1000, 40), true);
    let due =
        |wait_state: &mut WaitState<Numbers>, len, iteration| wait_state.send_queue_mut().is_yield_due(len, iteration);
    assert_eq!([1, 1, 1].map(|len| due(&mut wait_state, len, 1)), [false, false, true]);
    assert_eq!([1, 1].map(|len| due(&mut wait_state, len, 1)), [false, false], "the count restarts");
    assert_eq!([1, 1].map(|len| due(&mut wait_state, len, 2)), [false, false], "another iteration");
    assert!(due(&mut wait_state, 0, 2));
    assert!(!due(&mut wait_state, wirespeed_driver::connection::YIELD_BYTES - 1, 3));
    assert!(due(&mut wait_state, 1, 3));
}

#[test]
fn flush_completes_when_its_bytes_are_written() {
    let (ours, theirs) = sockets(Some(8 * 1024));
    let mut wait_state = wait_state(Some(ours), Watermarks::new(1 << 20, 0), true);
    queue(&mut wait_state, 100_000);
    assert!(wait_state.is_write_due() && !wait_state.is_written());
    let _ = wait_state.driver_mut().flush();
    wait_state.add_flush(1);
    queue(&mut wait_state, 100_000);
    wait_state.add_flush(2);
    assert!(wait_state.send_queue().has_flushes() && wait_state.send_queue().has_waiters());
    let (mut read, mut flushed) = (Vec::with_capacity(1 << 20), Vec::new());
    while flushed.len() < 2 {
        let _ = theirs.receive(&mut read, 1000, wirespeed_driver::socket::Mode::NonBlocking);
        let _ = wait_state.driver_mut().flush();
        let written = wait_state.driver().send_half().written();
        let done = wait_state.take_flushed();
        assert_eq!(!done.is_empty(), written >= 100_000 && flushed.is_empty() || written >= 200_000);
        flushed.extend(done.into_iter().map(|waiter| (waiter, written)));
    }
    assert_eq!(flushed.iter().map(|(waiter, _)| *waiter).collect::<Vec<_>>(), [1, 2]);
    assert!(flushed[0].1 >= 100_000 && flushed[0].1 < 200_000 && flushed[1].1 >= 200_000, "{flushed:?}");
    assert!(!wait_state.send_queue().has_flushes() && !wait_state.send_queue().has_waiters());
    assert!(wait_state.is_written() && !wait_state.is_write_due());
}

#[test]
fn flush_after_a_large_message_does_not_wait_for_later_messages() {
    let (ours, theirs) = sockets(Some(8 * 1024));
    let mut wait_state = wait_state(Some(ours), Watermarks::new(1 << 20, 0), true);
    let payload = vec![7; 200_000];
    wait_state.begin_large(MessageKind::Binary, payload.len(), Vec::new()).unwrap();
    wait_state.add_flush(1);
    append_large(&mut wait_state, &payload);
    queue(&mut wait_state, 300_000);
    let mut read = Vec::with_capacity(1 << 20);
    let written = loop {
        let _ = theirs.receive(&mut read, 1000, wirespeed_driver::socket::Mode::NonBlocking);
        let _ = wait_state.driver_mut().flush();
        if !wait_state.take_flushed().is_empty() {
            break wait_state.driver().send_half().written();
        }
    };
    assert!((200_000..400_000).contains(&written), "{written}");
}

#[test]
fn end_wakes_every_waiter_once() {
    let mut wait_state = wait_state(None, Watermarks::new(100, 40), true);
    for waiter in 1..4 {
        let ticket = wait_state.send_queue_mut().next_ticket();
        wait_state.send_queue_mut().add_sender(ticket, waiter);
    }
    wait_state.send_queue_mut().add_drainer(4);
    wait_state.add_receiver(5);
    wait_state.add_end_waiter(6);
    queue(&mut wait_state, 50);
    wait_state.add_flush(7);
    wait_state.send_ping(b"ping", 8, std::time::Instant::now()).unwrap();
    wait_state.add_closer(9);
    wait_state.driver_mut().end(wirespeed_driver::endpoint::Failure::Aborted);
    let teardown = wait_state.finish(false).unwrap();
    let mut waiters = teardown.waiters;
    waiters.sort_unstable();
    assert_eq!(waiters, [1, 2, 3, 4, 5, 6]);
    assert_eq!((teardown.flushes, teardown.pings, teardown.closers), (vec![7], vec![8], vec![9]));
    assert_eq!(wait_state.end(), End::Complete);
    assert!(wait_state.is_finished() && wait_state.finish(false).is_none());
    // While a transport has not closed the socket, waiters for the close wait on.
    let mut lingering = self::wait_state(None, Watermarks::new(100, 40), true);
    lingering.add_closer(9);
    lingering.driver_mut().end(wirespeed_driver::endpoint::Failure::Aborted);
    assert!(lingering.finish(true).unwrap().closers.is_empty());
    assert_eq!((lingering.end(), lingering.record_transport_closed()), (End::Lingering, vec![9]));
    assert_eq!(lingering.end(), End::Complete);
}

#[test]
fn wait_state_without_waiters_is_small() {
    let size = size_of::<WaitState<Numbers>>();
    let driver = size_of::<ConnectionDriver<Vec<u8>>>();
    assert!(size - driver <= 272, "{size} bytes, {driver} of them for the driver");
}
