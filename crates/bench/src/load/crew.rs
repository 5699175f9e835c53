//! The clients of a run and what they wait with: one poll, one timer.

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

use super::client::{self, Came, Client, Found, Line, UNASKED};
use super::content::Content;
use super::options::Options;
use super::team::Member;
use super::text;
use super::tls::Tls;

/// How long nothing may come where something is due.
pub(crate) const STALLED: Duration = Duration::from_secs(10);

/// How much an open loop may be behind what it offers.
pub(crate) const BEHIND: Duration = Duration::from_secs(5);

/// Bytes that may wait for the server, of all connections together, before it counts as behind.
const MOST_QUEUED: usize = 256 << 20;

/// How often it is looked whether anything is behind.
const LOOK: Duration = Duration::from_millis(100);

/// Events that one wait may bring.
const EVENTS: usize = 4096;

const TIMER: Token = Token(usize::MAX);
pub(crate) const STDIN: usize = usize::MAX - 1;

/// A client, by its number, that has something to do.
#[derive(Clone, Copy)]
pub(crate) struct Ready {
    pub(crate) number: usize,
    /// The server has ended its direction.
    pub(crate) closed: bool,
}

/// What takes what came where nothing is due.
pub(crate) fn unasked(_: usize, _: &mut Line<'_>, _: Came<'_>) -> Result<(), String> {
    Err(UNASKED.into())
}

/// All clients.
pub(crate) struct Crew {
    pub(crate) options: Options,
    pub(crate) content: Content,
    /// By their numbers; those that are gone leave a gap.
    pub(crate) clients: Vec<Option<Client>>,
    /// Whom the last wait found.
    pub(crate) ready: Vec<Ready>,
    /// Time in which this process had nothing to do.
    pub(crate) waited: Duration,
    /// Among others; none: it is alone.
    pub(crate) member: Option<Member>,
    /// Why a connection was lost that might be: the first.
    pub(crate) lost: Option<String>,
    /// To each server.
    requests: Vec<ClientRequest>,
    poll: Poll,
    events: Events,
    timer: OwnedFd,
    /// What the timer is set to.
    armed: Option<Instant>,
    /// When something came last.
    lively: Instant,
    /// When it was last looked whether anything is behind.
    looked: Instant,
    /// Clients that were ever begun: each has an address of its own, as far as there are some.
    serial: usize,
}

impl Crew {
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
        // A timeout of the poll counts in milliseconds, which is too coarse for what is due at its time.
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
            member: None,
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

    /// The place of a client's server among all.
    pub(crate) fn server_of(&self, number: usize) -> usize {
        number % self.options.servers.len()
    }

    /// Begins to open a connection, under a number that is free.
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

    /// Watches a socket that is no client, under the number of one that is not there.
    pub(crate) fn watch(&mut self, socket: &impl AsRawFd, number: usize) -> Result<(), String> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut SourceFd(&socket.as_raw_fd()), Token(number), interest).map_err(text)
    }

    /// Forgets a client; whatever it had under way is lost.
    pub(crate) fn forget(&mut self, number: usize) {
        if let Some(client) = self.clients.get_mut(number) {
            *client = None; // what is closed is watched no longer
        }
    }

    /// Tells of standard input too, as client [`STDIN`]; false: it is no pipe or terminal but a file, whose
    /// end is there.
    pub(crate) fn watch_stdin(&mut self) -> Result<bool, String> {
        match self.poll.registry().register(&mut SourceFd(&io::stdin().as_raw_fd()), Token(STDIN), Interest::READABLE) {
            // epoll_ctl(2): EPERM, it does not support epoll.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
            result => result.map(|()| true).map_err(text),
        }
    }

    /// A client that is there, to send on.
    pub(crate) fn line(&mut self, number: usize, now: Instant) -> Result<Line<'_>, String> {
        self.clients[number].as_mut().ok_or("a connection is gone")?.line(now, &mut self.content)
    }

    /// How many connections are open.
    pub(crate) fn open_count(&self) -> usize {
        self.clients.iter().flatten().filter(|client| client.is_open).count()
    }

    /// Whether compression was agreed on, if it was offered.
    pub(crate) fn deflate(&self) -> Option<bool> {
        let mut open = self.clients.iter().flatten().filter(|client| client.is_open).peekable();
        self.options.deflate.then(|| open.peek().is_some() && open.all(Client::has_deflate))
    }

    /// Pings that were answered so far.
    pub(crate) fn pings(&self) -> u64 {
        self.clients.iter().flatten().map(|client| client.exchange.pings).sum()
    }

    /// Waits until a client has something to do, or until that moment. Where something is due: an error if
    /// nothing comes for long.
    pub(crate) fn wait(&mut self, until: Option<Instant>) -> Result<(), String> {
        self.wait_quietly(until)?;
        if self.lively.elapsed() < STALLED {
            return Ok(());
        }
        Err(format!("nothing came for {} s", STALLED.as_secs()))
    }

    /// Waits in the same way; nothing has to come.
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

    /// From now on something is due.
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

    /// Goes on with everybody whom the last wait found: `on_came` takes what came, or finds it wrong, and `on_found` what
    /// became of a connection.
    pub(crate) fn serve_each(
        &mut self,
        on_came: &mut impl FnMut(usize, &mut Line<'_>, Came<'_>) -> Result<(), String>,
        mut on_found: impl FnMut(&mut Self, usize, Found) -> Result<(), String>,
    ) -> Result<(), String> {
        for index in 0..self.ready.len() {
            let Ready { number, closed } = self.ready[index];
            let Some(client) = self.clients.get_mut(number).and_then(Option::as_mut) else { continue };
            match client.proceed(closed, &mut self.content, &mut |line, came| on_came(number, line, came))? {
                Found::Nothing => {}
                found => on_found(self, number, found)?,
            }
        }
        Ok(())
    }

    /// The same where all connections have to stay.
    pub(crate) fn serve(
        &mut self,
        on_came: &mut impl FnMut(usize, &mut Line<'_>, Came<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        self.serve_each(on_came, |_, _, found| match found {
            Found::Lost(reason) => Err(reason),
            _ => Ok(()),
        })
    }

    /// The same where replies come, and connections may be lost: they are forgotten. How many messages are no longer
    /// waited for.
    pub(crate) fn serve_replies(&mut self, mut on_reply: impl FnMut(Instant, Instant)) -> Result<usize, String> {
        let (mut replies, mut dropped) = (0, 0);
        self.serve_each(
            &mut |_, line, came| {
                on_reply(line.take(came)?, line.now);
                replies += 1;
                Ok(())
            },
            |crew, number, found| {
                if let Found::Lost(reason) = found {
                    dropped += crew.clients[number].as_ref().map_or(0, |client| client.exchange.due.len());
                    crew.lost.get_or_insert(reason);
                    crew.forget(number);
                }
                Ok(())
            },
        )?;
        Ok(replies + dropped)
    }

    /// Says every now and then whether something is behind, of connections that are to answer what is due at
    /// its time.
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
