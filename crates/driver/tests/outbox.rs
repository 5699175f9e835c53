//! Who may send: room as it is defined, the order of those who wait, what is written when, flushes.

#![allow(clippy::unwrap_used)] // tests fail by panicking

mod support;

use std::time::Duration;

use support::{peer, sockets};
use wirespeed_driver::drive::{
    Drive, End, Environment, Flow, Hold, Large, Limits, Marks, Output, Settling, Step, TellWritable,
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

    fn is_holding((): Self::Context<'_>, _: &Self::Waiter) -> bool {
        false
    }

    fn delivery(_: &u32) -> Delivery {
        Delivery::Messages
    }
}

fn flow(socket: Option<Socket>, write: Marks, coalesce: bool) -> Flow<Numbers> {
    let most = Marks::at(1 << 20);
    let limits = Limits { messages: most, bytes: most, write, coalesce, yield_after: 3 };
    Flow::new(Drive::new(peer(Side::Server, None), socket, None), limits, false)
}

/// Queues a message that takes this many bytes with its header.
fn queue(flow: &mut Flow<Numbers>, bytes: usize) {
    let header = if bytes < 128 { 2 } else { 4 };
    flow.drive.link_mut().send_message(MessageKind::Binary, &vec![0; bytes - header], None).unwrap();
}

/// All who are woken when there is room.
fn woken(flow: &mut Flow<Numbers>) -> Vec<u32> {
    let mut settling = Settling::default();
    let mut found = Vec::new();
    loop {
        match flow.next_step(&mut settling, (), std::time::Instant::now) {
            Step::Wake(waiter) => found.push(waiter),
            Step::Write => settling.fail_write(), // nobody writes here
            Step::Rest => return found,
            _ => {}
        }
    }
}

#[test]
fn there_is_room_up_to_the_low_mark_and_too_much_above_the_high_one() {
    let (ours, _theirs) = sockets(None);
    let mut flow = flow(Some(ours), Marks::new(100, 40), true);
    for (queued, room, above) in [(40, true, false), (41, false, false), (100, false, false), (101, false, true)] {
        queue(&mut flow, queued);
        flow.outbox.blocked = true;
        assert_eq!((flow.has_room(), flow.is_above_high()), (room, above), "{queued}");
        assert_eq!((flow.is_crowded(), flow.must_wait(true)), (above, above), "{queued}");
        // What is corked leaves soon: it is too much only for a socket that takes nothing.
        flow.outbox.blocked = false;
        assert_eq!((flow.has_room(), flow.is_above_high(), flow.is_crowded()), (room, false, false), "{queued}");
        let _ = flow.drive.link_mut().take_output();
    }
}

#[test]
fn a_transport_says_whether_it_has_room_and_a_socket_is_asked() {
    // On a socket that takes nothing there is room as long as little is queued.
    let (ours, _theirs) = sockets(None);
    let mut on_socket = flow(Some(ours), Marks::new(100, 40), true);
    on_socket.outbox.blocked = true;
    assert!(on_socket.has_room() && !on_socket.is_crowded() && !on_socket.must_wait(false));
    let mut on_transport = flow(None, Marks::new(100, 40), true);
    assert!(on_transport.has_room() && !on_transport.must_wait(false));
    on_transport.outbox.blocked = true;
    assert!(!on_transport.has_room() && on_transport.is_crowded() && on_transport.must_wait(true));
    // One that was asked to say when it is empty is not full for that.
    on_transport.outbox.draining = true;
    assert!(on_transport.has_room() && !on_transport.is_crowded());
    on_transport.outbox.draining = false;
    on_transport.drive.end(wirespeed_driver::peer::Failure::Aborted);
    assert!(on_transport.has_room(), "where nothing can be written any more, nobody waits for it");
}

#[test]
fn nothing_is_sent_beside_a_large_message_or_fragments() {
    let mut flow = flow(None, Marks::new(100, 40), true);
    assert!(!flow.must_wait(false) && !flow.must_wait(true));
    let send = flow.drive.link_mut().begin_large(MessageKind::Binary, 1 << 20).unwrap();
    let _ = flow.drive.link_mut().take_output();
    flow.outbox.large = Some(Box::new(Large { send, source: Vec::new(), offset: 0 }));
    assert!(!flow.has_room() && flow.is_crowded() && flow.must_wait(true) && !flow.is_written());
    flow.outbox.large = None;
    for hold in [Hold::Opening, Hold::Fragments(7)] {
        flow.outbox.hold = hold;
        assert!(flow.must_wait(true) && flow.must_wait(false));
        assert!(flow.has_room() && !flow.is_crowded(), "there is room, though nobody may use it");
        assert_eq!(flow.is_connecting(), hold == Hold::Opening);
        // Those who wait to send wait on; who has sent already goes on.
        let ticket = flow.outbox.next_ticket();
        flow.outbox.park(ticket, 1);
        assert!(!flow.is_room_due());
        assert_eq!(woken(&mut flow), []);
        flow.outbox.park_drainer(2);
        assert!(flow.is_room_due());
        assert_eq!(woken(&mut flow), [2]);
        flow.outbox.hold = Hold::Free;
        assert!(flow.is_room_due());
        assert_eq!(woken(&mut flow), [1]);
        assert!(flow.outbox.take_turn(ticket) && !flow.outbox.take_turn(ticket));
    }
}

#[test]
fn who_waits_goes_in_the_order_of_tickets() {
    let mut flow = flow(None, Marks::new(100, 40), true);
    let tickets: Vec<u64> = (0..4).map(|_| flow.outbox.next_ticket()).collect();
    assert!(tickets.windows(2).all(|pair| pair[0] < pair[1]) && tickets[0] > 0, "{tickets:?}");
    // They come back in another order, and one of them was given up.
    for (ticket, waiter) in [(tickets[2], 2), (tickets[0], 0), (tickets[3], 3), (tickets[1], 101)] {
        flow.outbox.park(ticket, waiter);
    }
    assert!(flow.outbox.is_first(tickets[0]) && !flow.outbox.is_first(tickets[1]));
    assert!(flow.must_wait(false), "others were before");
    assert!(!flow.must_wait(true), "but whose turn it is may");
    assert_eq!(woken(&mut flow), [0, 2, 3]);
    // All have their turn until they have used it, and come before whoever has none.
    assert!(flow.must_wait(false) && flow.outbox.is_awaited());
    assert!(flow.outbox.is_first(tickets[0]) && !flow.outbox.is_first(tickets[2]));
    assert!(!flow.outbox.take_turn(tickets[1]), "it had none");
    assert!(flow.outbox.take_turn(tickets[0]));
    assert!(flow.outbox.is_first(tickets[2]));
    // One that found no room, and waits again, is still before the others.
    flow.outbox.park(tickets[2], 2);
    assert!(flow.outbox.take_turn(tickets[2]));
    assert!(!flow.outbox.is_first(tickets[3]));
    flow.outbox.forget(tickets[2], &2);
    assert!(flow.outbox.is_first(tickets[3]));
    flow.outbox.forget(tickets[3], &3);
    assert!(!flow.outbox.is_awaited() && !flow.must_wait(false));
}

#[test]
fn a_listener_is_told_once() {
    let mut flow = flow(None, Marks::new(100, 40), true);
    assert!(!flow.is_room_due(), "nobody waits");
    flow.outbox.tell_writable = TellWritable::Wanted;
    flow.outbox.blocked = true;
    assert!(!flow.is_room_due());
    flow.outbox.blocked = false;
    assert!(flow.is_room_due());
    let mut settling = Settling::default();
    assert_eq!(flow.next_step(&mut settling, (), std::time::Instant::now), Step::TellWritable);
    assert_eq!(flow.next_step(&mut settling, (), std::time::Instant::now), Step::Rest);
    assert_eq!(flow.outbox.tell_writable, TellWritable::Soon);
    assert!(!flow.is_room_due());
}

#[test]
fn the_first_of_an_iteration_is_written_and_what_follows_leaves_together() {
    let mut flow = flow(None, Marks::new(1000, 40), true);
    assert_eq!(flow.output(1), Output::Write);
    let corked = (0..50).filter(|_| flow.output(1) == Output::Cork).count();
    assert!(corked > 40, "{corked}"); // a clock may have been read after a pause
    assert_eq!(flow.output(2), Output::Write, "a new iteration");
    // At twice the high mark it does not wait for the end.
    flow.output(3);
    queue(&mut flow, 1999);
    let _ = flow.output(3);
    queue(&mut flow, 2);
    assert_eq!(flow.output(3), Output::Write);
    flow.outbox.blocked = true;
    assert_eq!(flow.output(4), Output::Wait);
    // Whoever computes in between is no stream.
    let mut slow = self::flow(None, Marks::new(1000, 40), true);
    assert_eq!(slow.output(1), Output::Write);
    assert_eq!(slow.output(1), Output::Cork);
    while slow.output(1) == Output::Cork {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut each = self::flow(None, Marks::new(1000, 40), false);
    assert!((0..10).all(|_| each.output(1) == Output::Write));
    each.outbox.blocked = true;
    assert_eq!(each.output(1), Output::Wait);
}

#[test]
fn what_a_large_write_takes_is_no_pause_of_the_sender() {
    let mut flow = flow(None, Marks::at(1 << 20), true);
    assert_eq!(flow.output(1), Output::Write);
    assert_eq!(flow.output(1), Output::Cork);
    queue(&mut flow, 64 * 1024 - 1);
    while flow.output(1) == Output::Cork {} // the clock is not read each time
    queue(&mut flow, 10);
    assert_eq!(flow.output(1), Output::Write, "64 KiB are queued");
    let _ = flow.drive.take_output();
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(flow.output(1), Output::Cork, "the first one behind it");
    std::thread::sleep(Duration::from_millis(2));
    assert!((0..20).any(|_| flow.output(1) == Output::Write), "a pause of its own");
}

#[test]
fn a_loop_has_a_turn_after_so_many_messages_or_bytes() {
    let mut flow = flow(None, Marks::new(1000, 40), true);
    let due = |flow: &mut Flow<Numbers>, len, iteration| flow.outbox.is_turn_due(len, iteration);
    assert_eq!([1, 1, 1].map(|len| due(&mut flow, len, 1)), [false, false, true]);
    assert_eq!([1, 1].map(|len| due(&mut flow, len, 1)), [false, false], "counted anew");
    assert_eq!([1, 1].map(|len| due(&mut flow, len, 2)), [false, false], "another iteration");
    assert!(due(&mut flow, 0, 2));
    assert!(!due(&mut flow, wirespeed_driver::drive::YIELD_BYTES - 1, 3));
    assert!(due(&mut flow, 1, 3));
}

#[test]
fn a_flush_is_told_when_its_bytes_were_written() {
    let (ours, theirs) = sockets(Some(8 * 1024));
    let mut flow = flow(Some(ours), Marks::new(1 << 20, 0), true);
    queue(&mut flow, 100_000);
    assert!(flow.is_write_due() && !flow.is_written());
    flow.drive.flush();
    {
        let Flow { drive, outbox, .. } = &mut flow;
        outbox.park_flush(drive, 1);
    }
    queue(&mut flow, 100_000);
    {
        let Flow { drive, outbox, .. } = &mut flow;
        outbox.park_flush(drive, 2);
    }
    assert!(flow.outbox.has_flushes() && flow.outbox.is_awaited());
    let (mut read, mut told) = (Vec::with_capacity(1 << 20), Vec::new());
    while told.len() < 2 {
        let _ = theirs.receive(&mut read, 1000, wirespeed_driver::socket::Mode::NonBlocking);
        flow.drive.flush();
        let written = flow.drive.link().written();
        let Flow { drive, outbox, .. } = &mut flow;
        assert_eq!(outbox.is_flush_due(drive), written >= 100_000 && told.is_empty() || written >= 200_000);
        for waiter in outbox.take_flushed(drive) {
            told.push((waiter, written));
        }
    }
    assert_eq!(told.iter().map(|(waiter, _)| *waiter).collect::<Vec<_>>(), [1, 2]);
    assert!(told[0].1 >= 100_000 && told[0].1 < 200_000 && told[1].1 >= 200_000, "{told:?}");
    assert!(!flow.outbox.has_flushes() && !flow.outbox.is_awaited());
    assert!(flow.is_written() && !flow.is_write_due());
}

#[test]
fn a_flush_behind_a_large_message_waits_for_nothing_that_was_sent_later() {
    let (ours, theirs) = sockets(Some(8 * 1024));
    let mut flow = flow(Some(ours), Marks::new(1 << 20, 0), true);
    let payload = vec![7; 200_000];
    let send = flow.drive.link_mut().begin_large(MessageKind::Binary, payload.len()).unwrap();
    flow.outbox.large = Some(Box::new(Large { send, source: Vec::new(), offset: 0 }));
    {
        let Flow { drive, outbox, .. } = &mut flow;
        outbox.park_flush(drive, 1);
    }
    let mut send = flow.outbox.large.take().unwrap().send;
    assert!(flow.drive.link_mut().append_large(&mut send, &payload));
    {
        let Flow { drive, outbox, .. } = &mut flow;
        outbox.note_large_queued(drive);
    }
    queue(&mut flow, 300_000);
    let mut read = Vec::with_capacity(1 << 20);
    let told = loop {
        let _ = theirs.receive(&mut read, 1000, wirespeed_driver::socket::Mode::NonBlocking);
        flow.drive.flush();
        let Flow { drive, outbox, .. } = &mut flow;
        if !outbox.take_flushed(drive).is_empty() {
            break drive.link().written();
        }
    };
    assert!((200_000..400_000).contains(&told), "{told}");
}

#[test]
fn at_the_end_everybody_is_told_once() {
    let mut flow = flow(None, Marks::new(100, 40), true);
    for waiter in 1..4 {
        let ticket = flow.outbox.next_ticket();
        flow.outbox.park(ticket, waiter);
    }
    flow.outbox.park_drainer(4);
    flow.receivers.push_back(5);
    flow.watchers.make().enders.push(6);
    queue(&mut flow, 50);
    {
        let Flow { drive, outbox, .. } = &mut flow;
        outbox.park_flush(drive, 7);
    }
    flow.watchers.make().pings.push((1, 8));
    flow.watchers.make().closers.push(9);
    flow.drive.end(wirespeed_driver::peer::Failure::Aborted);
    let farewell = flow.finish(false).unwrap();
    let mut waiters = farewell.waiters;
    waiters.sort_unstable();
    assert_eq!(waiters, [1, 2, 3, 4, 5, 6]);
    assert_eq!((farewell.flushes, farewell.pings, farewell.closers), (vec![7], vec![8], vec![9]));
    assert_eq!(flow.end, End::Complete);
    assert!(flow.is_finished() && flow.finish(false).is_none());
    // Where a transport has yet to close the socket, those who wait for that wait on.
    let mut lingering = self::flow(None, Marks::new(100, 40), true);
    lingering.watchers.make().closers.push(9);
    lingering.drive.end(wirespeed_driver::peer::Failure::Aborted);
    assert!(lingering.finish(true).unwrap().closers.is_empty());
    assert_eq!((lingering.end, lingering.watchers.take_closers()), (End::Lingering, vec![9]));
}

#[test]
fn of_those_who_wait_there_is_nothing_until_somebody_does() {
    let size = size_of::<Flow<Numbers>>();
    let drive = size_of::<Drive<Vec<u8>>>();
    assert!(size - drive <= 272, "{size} bytes, {drive} of them the drive's");
}
