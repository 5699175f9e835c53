//! Steps of all connections together: opening, echoing a message, and closing.

use std::thread;
use std::time::{Duration, Instant};

use super::client::{Client, ConnectionChange, REFUSED};
use super::client_pool::{ClientPool, STALLED, unasked};

/// The number of connections that are opened at the same time, except by workloads that measure opening.
const OPENING: usize = 64;

/// How long a server that was just started may refuse connections.
const STARTING: Duration = Duration::from_secs(3);

/// The time without the end of any connection after which waiting for closing handshakes stops.
const CLOSING: Duration = Duration::from_secs(2);

impl ClientPool {
    /// Opens all connections, some at the same time.
    pub(crate) fn open_all(&mut self) -> Result<(), String> {
        self.open_first()?;
        self.open_rest(OPENING, |_, _| {})
    }

    /// Opens connection 0. A server that was just started may refuse it for a while.
    pub(crate) fn open_first(&mut self) -> Result<(), String> {
        let until = Instant::now() + STARTING;
        loop {
            match self.open(1, 1, |_, _| {})? {
                None => return Ok(()),
                Some(reason) if reason == REFUSED && Instant::now() < until => {
                    self.clients.clear();
                    thread::sleep(Duration::from_millis(20));
                }
                Some(reason) => return Err(reason),
            }
        }
    }

    /// Opens the missing connections, `at_once` at the same time. None may fail. `on_open` gets the times at which each
    /// was started and became ready.
    pub(crate) fn open_rest(&mut self, at_once: usize, on_open: impl FnMut(Instant, Instant)) -> Result<(), String> {
        self.open_most(at_once, 0, on_open).map(drop)
    }

    /// Opens the missing connections, of which `may_fail` may fail. Failed ones are dropped. Returns their number.
    pub(crate) fn open_most(
        &mut self,
        at_once: usize,
        may_fail: usize,
        on_open: impl FnMut(Instant, Instant),
    ) -> Result<usize, String> {
        let wanted = self.options.clients();
        let Some(reason) = self.open(wanted, at_once, on_open)? else { return Ok(0) };
        let failed = wanted - self.open_count();
        if failed == 0 || failed > may_fail {
            return Err(format!("{failed} of {wanted} connections could not be opened: {reason}"));
        }
        for client in &mut self.clients {
            *client = client.take().filter(|client| client.is_open);
        }
        Ok(failed)
    }

    /// Opens the missing ones of `wanted` connections, `at_once` at the same time, until one fails. Returns why it
    /// failed. Connections in progress may still succeed. Failed ones are dropped.
    pub(crate) fn open(
        &mut self,
        wanted: usize,
        at_once: usize,
        mut on_open: impl FnMut(Instant, Instant),
    ) -> Result<Option<String>, String> {
        let there = |number: &usize| self.clients.get(*number).is_some_and(Option::is_some);
        let mut missing = (0..wanted).filter(|number| !there(number)).collect::<Vec<_>>().into_iter();
        let mut under_way = 0;
        let mut reason = None;
        let mut answered = Instant::now();
        loop {
            while reason.is_none() && under_way < at_once {
                let Some(number) = missing.next() else { break };
                match self.connect(number) {
                    Ok(()) => under_way += 1,
                    Err(error) => reason = Some(error),
                }
            }
            if under_way == 0 {
                return Ok(reason);
            }
            if answered.elapsed() >= STALLED {
                let stalled = || format!("no opening handshake was answered for {} s", STALLED.as_secs());
                return Ok(Some(reason.unwrap_or_else(stalled)));
            }
            self.wait_quietly(Some(answered + STALLED))?;
            self.serve_each(&mut unasked, |pool, number, found| {
                let Some(client) = &pool.clients[number] else { return Ok(()) };
                match found {
                    ConnectionChange::Opened => {
                        answered = Instant::now();
                        on_open(client.begun, answered);
                        under_way -= 1;
                    }
                    ConnectionChange::Lost(error) => {
                        // The loss of an open connection is a failure as well.
                        under_way -= usize::from(!client.is_open);
                        reason.get_or_insert(error);
                        pool.forget(number);
                    }
                    ConnectionChange::Nothing | ConnectionChange::Closed => {}
                }
                Ok(())
            })?;
        }
    }

    /// Closes all connections with a closing handshake, but does not wait long for slow servers.
    pub(crate) fn close_all(&mut self) -> Result<(), String> {
        let mut left = 0_usize;
        for client in self.clients.iter_mut().flatten() {
            client.close()?;
            left += 1;
        }
        let mut end = Instant::now() + CLOSING;
        while left > 0 && Instant::now() < end {
            self.wait_quietly(Some(end))?;
            self.serve_each(&mut unasked, |pool, number, _| {
                pool.forget(number); // any event ends the wait for it
                left -= 1;
                end = Instant::now() + CLOSING;
                Ok(())
            })?;
        }
        self.clients.clear(); // closing the sockets also removes them from epoll
        Ok(())
    }

    /// Echoes one message on each connection.
    pub(crate) fn echo_all(&mut self, on_reply: impl FnMut(Instant, Instant)) -> Result<(), String> {
        let wanted = self.clients.len();
        let stayed = self.ask_all(on_reply)?;
        if stayed == wanted {
            return Ok(());
        }
        let reason = self.lost.take().unwrap_or_default();
        Err(format!("{} of {wanted} connections have no reply: {reason}", wanted - stayed))
    }

    /// Echoes one message on each connection; connections may be lost. Returns the number of connections without an
    /// outstanding message.
    pub(crate) fn ask_all(&mut self, mut on_reply: impl FnMut(Instant, Instant)) -> Result<usize, String> {
        let now = Instant::now();
        let mut left = 0;
        for client in self.clients.iter_mut().flatten() {
            if client.can_send() {
                let mut connection = client.connection(now, &mut self.content)?;
                connection.send(now)?;
                connection.flush();
            }
            left += client.exchange.due.len();
        }
        let mut answered = now;
        while left > 0 && answered.elapsed() < STALLED {
            self.wait_quietly(Some(answered + STALLED))?;
            left -= self.serve_replies(|due, now| {
                answered = now;
                on_reply(due, now);
            })?;
        }
        if left > 0 {
            let seconds = STALLED.as_secs();
            self.lost.get_or_insert_with(|| format!("{left} messages had no reply within {seconds} s"));
        }
        let stayed = |client: &&Client| client.can_send() && client.exchange.due.is_empty();
        Ok(self.clients.iter().flatten().filter(stayed).count())
    }
}
