//! What all connections do together: they are opened, echo a message, and are closed.

use std::thread;
use std::time::{Duration, Instant};

use super::client::{Client, Found, REFUSED};
use super::crew::{Crew, STALLED, unasked};

/// Connections that are opened at the same time, by workloads that are not about opening them.
const OPENING: usize = 64;

/// How long a server that has just been started may refuse connections.
const STARTING: Duration = Duration::from_secs(3);

/// How long no connection may have ended where all are closed.
const CLOSING: Duration = Duration::from_secs(2);

impl Crew {
    /// Opens as many connections as the options say, some at a time.
    pub(crate) fn open_all(&mut self) -> Result<(), String> {
        self.open_first()?;
        self.open_rest(OPENING, |_, _| {})
    }

    /// Opens connection 0. A server that has just been started may refuse it for a while.
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

    /// Opens those that are not open yet, so many at a time. None may fail; `on_open` is told when each was begun, and
    /// ready.
    pub(crate) fn open_rest(&mut self, at_once: usize, on_open: impl FnMut(Instant, Instant)) -> Result<(), String> {
        self.open_most(at_once, 0, on_open).map(drop)
    }

    /// The same where so many may fail; how many did. They are forgotten.
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

    /// Opens those that are missing of so many connections, until one fails, so many at a time; why it failed. Those
    /// that are under way then may still succeed. Who fails is forgotten.
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
            self.serve_each(&mut unasked, |crew, number, found| {
                let Some(client) = &crew.clients[number] else { return Ok(()) };
                match found {
                    Found::Opened => {
                        answered = Instant::now();
                        on_open(client.begun, answered);
                        under_way -= 1;
                    }
                    Found::Lost(error) => {
                        // Who was open does not stay, which is a failure as well.
                        under_way -= usize::from(!client.is_open);
                        reason.get_or_insert(error);
                        crew.forget(number);
                    }
                    Found::Nothing | Found::Closed => {}
                }
                Ok(())
            })?;
        }
    }

    /// Closes all connections, each with its handshake; a server that is slow with that is not waited for long.
    pub(crate) fn close_all(&mut self) -> Result<(), String> {
        let mut left = 0_usize;
        for client in self.clients.iter_mut().flatten() {
            client.close()?;
            left += 1;
        }
        let mut end = Instant::now() + CLOSING;
        while left > 0 && Instant::now() < end {
            self.wait_quietly(Some(end))?;
            self.serve_each(&mut unasked, |crew, number, _| {
                crew.forget(number); // however it ends, it is closed
                left -= 1;
                end = Instant::now() + CLOSING;
                Ok(())
            })?;
        }
        self.clients.clear(); // what is closed is watched no longer
        Ok(())
    }

    /// Every connection has one message echoed.
    pub(crate) fn echo_all(&mut self, on_reply: impl FnMut(Instant, Instant)) -> Result<(), String> {
        let wanted = self.clients.len();
        let stayed = self.ask_all(on_reply)?;
        if stayed == wanted {
            return Ok(());
        }
        let reason = self.lost.take().unwrap_or_default();
        Err(format!("{} of {wanted} connections have no reply: {reason}", wanted - stayed))
    }

    /// The same where some may be lost; how many are left that have no message under way.
    pub(crate) fn ask_all(&mut self, mut on_reply: impl FnMut(Instant, Instant)) -> Result<usize, String> {
        let now = Instant::now();
        let mut left = 0;
        for client in self.clients.iter_mut().flatten() {
            if client.can_send() {
                let mut line = client.line(now, &mut self.content)?;
                line.send(now)?;
                line.flush();
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
