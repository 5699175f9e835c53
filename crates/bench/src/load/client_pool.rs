//! The clients of a run, with their poll and timer.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use wirespeed_driver::protocol::deflate::negotiate;
use wirespeed_driver::protocol::handshake::ClientRequest;

use super::client::{self, Client, ConnectionChange, OpenConnection, Received, UNASKED};
use super::content::Content;
use super::options::Options;
use super::text;
use super::threads::LoadThread;
use super::tls::Tls;

/// The time without any input after which an expected reply counts as missing.
pub(crate) const STALLED: Duration = Duration::from_secs(10);

/// The longest delay of an open loop against its schedule.
pub(crate) const BEHIND: Duration = Duration::from_secs(5);

/// The largest number of bytes queued for the server, on all connections together.
const MOST_QUEUED: usize = 256 << 20;

/// The interval of checks for delays.
const LOOK: Duration = Duration::from_millis(100);

/// The largest number of events of one poll.
const EVENTS: usize = 4096;

const TIMER: Token = Token(usize::MAX);
pub(crate) const STDIN: usize = usize::MAX - 1;

/// A client, by its number, with an event.
#[derive(Clone, Copy)]
pub(crate) struct Ready {
    pub(crate) number: usize,
    /// The server has ended its direction.
    pub(crate) closed: bool,
}

/// Handles messages where none is expected.
pub(crate) fn unasked(_: usize, _: &mut OpenConnection<'_>, _: Received<'_>) -> Result<(), String> {
    Err(UNASKED.into())
}

/// All clients.
pub(crate) struct ClientPool {
    pub(crate) options: Options,
    pub(crate) content: Content,
    /// The clients by number; closed ones leave a gap.
    pub(crate) clients: Vec<Option<Client>>,
    /// The clients with events of the last poll.
    pub(crate) ready: Vec<Ready>,
    /// The time in which this process was idle.
    pub(crate) waited: Duration,
    /// The thread of this pool among several; `None` for a single thread.
    pub(crate) load_thread: Option<LoadThread>,
    /// The first reason for a lost connection, where connections may be lost.
    pub(crate) lost: Option<String>,
    /// The request to each server.
    requests: Vec<ClientRequest>,
    poll: Poll,
    events: Events,
    timer: OwnedFd,
    /// The time to which the timer is set.
    armed: Option<Instant>,
    /// When the last event arrived.
    lively: Instant,
    /// When delays were last checked.
    looked: Instant,
    /// The number of clients started so far, which determines their source addresses.
    serial: usize,
}

impl ClientPool {
    pub(crate) fn new(options: Options) -> Result<Self, String> {
        let mut requests = Vec::new();
        for server in &options.servers {
            let mut request = ClientRequest::new(&server.host, &server.target);
            request.deflate = options.deflate.then(negotiate::Config::client);
            if let Some(token) = options.token() {
                request.headers.push("Cookie", format!("access_token={token}")).map_err(text)?;
            }
            requests.push(request);
        }
        let poll = Poll::new().map_err(text)?;
        // A timeout of epoll is in milliseconds, which is too coarse for scheduled messages.
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK).map_err(text)?;
        poll.registry().register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE).map_err(text)?;
        let now = Instant::now();
        Ok(Self {
            content: Content::new(options.form, options.size),
            options,
            clients: Vec::new(),
            ready: Vec::new(),
            waited: Duration::ZERO,
            load_thread: None,
            lost: None,
            requests,
            poll,
            events: Events::with_capacity(EVENTS),
            timer,
            armed: None,
            lively: now,
            looked: now,
            serial: 0,
        })
    }

    /// Returns the index of a client's server.
    pub(crate) fn server_of(&self, number: usize) -> usize {
        number % self.options.servers.len()
    }

    /// Starts a connection, under a free number.
    pub(crate) fn connect(&mut self, number: usize) -> Result<(), String> {
        let begun = Instant::now();
        let tls = self.options.tls.as_ref().map(Tls::layer).transpose().map_err(text)?;
        let server = self.server_of(number);
        let socket = client::socket(self.options.servers[server].address, self.serial);
        let socket = socket.map_err(|error| client::cannot_connect(&error))?;
        let (client, fd) = Client::begin(socket, &self.requests[server], tls, self.options.greeted(), begun)?;
        self.serial += 1;
        self.watch(&fd, number)?;
        if number >= self.clients.len() {
            self.clients.resize_with(number + 1, || None);
        }
        self.clients[number] = Some(client);
        Ok(())
    }

    /// Watches a socket that is not a client, under an unused number.
    pub(crate) fn watch(&mut self, socket: &impl AsRawFd, number: usize) -> Result<(), String> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut SourceFd(&socket.as_raw_fd()), Token(number), interest).map_err(text)
    }

    /// Drops a client, and everything in flight on it.
    pub(crate) fn forget(&mut self, number: usize) {
        if let Some(client) = self.clients.get_mut(number) {
            *client = None; // closing its socket also removes it from epoll
        }
    }

    /// Watches standard input as client [`STDIN`]. Returns false if it is a file, which cannot be watched and has
    /// ended.
    pub(crate) fn watch_stdin(&mut self) -> Result<bool, String> {
        match self.poll.registry().register(&mut SourceFd(&io::stdin().as_raw_fd()), Token(STDIN), Interest::READABLE) {
            // epoll_ctl(2): EPERM means that the file does not support epoll.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
            result => result.map(|()| true).map_err(text),
        }
    }

    /// Returns an existing client's connection.
    pub(crate) fn connection(&mut self, number: usize, now: Instant) -> Result<OpenConnection<'_>, String> {
        self.clients[number].as_mut().ok_or("a connection is gone")?.connection(now, &mut self.content)
    }

    /// Returns the number of open connections.
    pub(crate) fn open_count(&self) -> usize {
        self.clients.iter().flatten().filter(|client| client.is_open).count()
    }

    /// Returns whether compression was negotiated on all connections, if it was offered.
    pub(crate) fn deflate(&self) -> Option<bool> {
        let mut open = self.clients.iter().flatten().filter(|client| client.is_open).peekable();
        self.options.deflate.then(|| open.peek().is_some() && open.all(Client::has_deflate))
    }

    /// Returns the number of pings answered so far.
    pub(crate) fn pings(&self) -> u64 {
        self.clients.iter().flatten().map(|client| client.exchange.pings).sum()
    }

    /// Waits for events, or until a time. Returns an error if nothing has arrived for long.
    pub(crate) fn wait(&mut self, until: Option<Instant>) -> Result<(), String> {
        self.wait_quietly(until)?;
        if self.lively.elapsed() < STALLED {
            return Ok(());
        }
        Err(format!("nothing came for {} s", STALLED.as_secs()))
    }

    /// Waits for events, or until a time. Input is not required.
    pub(crate) fn wait_quietly(&mut self, until: Option<Instant>) -> Result<(), String> {
        let before = Instant::now();
        let timeout = if until.is_some_and(|until| until <= before) {
            Duration::ZERO
        } else {
            if let Some(until) = until {
                self.arm(before, until)?;
            }
            STALLED
        };
        loop {
            match self.poll.poll(&mut self.events, Some(timeout)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result.map_err(text)?,
            }
        }
        let after = Instant::now();
        self.waited += after - before;
        self.ready.clear();
        for event in &self.events {
            if event.token() == TIMER {
                self.armed = None;
            } else {
                self.ready.push(Ready { number: event.token().0, closed: event.is_read_closed() });
            }
        }
        if !self.ready.is_empty() {
            self.lively = after;
        }
        Ok(())
    }

    /// Restarts the time in which input is required.
    pub(crate) fn expect(&mut self) {
        self.lively = Instant::now();
    }

    fn arm(&mut self, now: Instant, until: Instant) -> Result<(), String> {
        if self.armed == Some(until) {
            return Ok(());
        }
        let left = until.saturating_duration_since(now).max(Duration::from_nanos(1)); // 0 would switch it off
        let it_value = Timespec::try_from(left).map_err(text)?;
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).map_err(text)?;
        self.armed = Some(until);
        Ok(())
    }

    /// Advances all clients with events. `on_received` handles received messages and pongs, and `on_change` changes of
    /// connections.
    pub(crate) fn serve_each(
        &mut self,
        on_received: &mut impl FnMut(usize, &mut OpenConnection<'_>, Received<'_>) -> Result<(), String>,
        mut on_change: impl FnMut(&mut Self, usize, ConnectionChange) -> Result<(), String>,
    ) -> Result<(), String> {
        for index in 0..self.ready.len() {
            let Ready { number, closed } = self.ready[index];
            let Some(client) = self.clients.get_mut(number).and_then(Option::as_mut) else { continue };
            match client.proceed(closed, &mut self.content, &mut |connection, received| {
                on_received(number, connection, received)
            })? {
                ConnectionChange::Nothing => {}
                change => on_change(self, number, change)?,
            }
        }
        Ok(())
    }

    /// Advances all clients with events; a lost connection is an error.
    pub(crate) fn serve(
        &mut self,
        on_received: &mut impl FnMut(usize, &mut OpenConnection<'_>, Received<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        self.serve_each(on_received, |_, _, change| match change {
            ConnectionChange::Lost(reason) => Err(reason),
            _ => Ok(()),
        })
    }

    /// Advances all clients with events; a lost connection is dropped. Returns the number of messages that are no
    /// longer outstanding.
    pub(crate) fn serve_replies(&mut self, mut on_reply: impl FnMut(Instant, Instant)) -> Result<usize, String> {
        let (mut replies, mut dropped) = (0, 0);
        self.serve_each(
            &mut |_, connection, received| {
                on_reply(connection.take(received)?, connection.now);
                replies += 1;
                Ok(())
            },
            |pool, number, change| {
                if let ConnectionChange::Lost(reason) = change {
                    dropped += pool.clients[number].as_ref().map_or(0, |client| client.exchange.due.len());
                    pool.lost.get_or_insert(reason);
                    pool.forget(number);
                }
                Ok(())
            },
        )?;
        Ok(replies + dropped)
    }

    /// Returns whether the oldest outstanding message, or the queued bytes, exceed their limits. Checks only at
    /// intervals.
    pub(crate) fn behind(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.looked) < LOOK {
            return false;
        }
        self.looked = now;
        let oldest = self.clients.iter().flatten().filter_map(|client| client.exchange.due.front()).min();
        oldest.is_some_and(|oldest| now.saturating_duration_since(*oldest) > BEHIND)
            || self.clients.iter().flatten().map(Client::queued).sum::<usize>() > MOST_QUEUED
    }
}
