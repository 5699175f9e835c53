//! The workloads.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use super::client::{Client, Found};
use super::histogram::Histogram;
use super::{Options, Workload};

/// How long nothing may happen.
const STALLED: Duration = Duration::from_secs(10);

/// Connections that are opened at the same time, at the beginning of a workload that is not about opening them.
const OPENING: usize = 64;

/// How far a run is.
struct Run<'a> {
    options: &'a Options,
    poll: Poll,
    events: Events,
    clients: Vec<Option<Client>>,
    pattern: Vec<u8>,
    latencies: Histogram,
    /// What was counted since the window began.
    count: u64,
    measuring: bool,
    /// Time spent in the poll since then.
    waited: Duration,
}

/// Runs a workload; the line of JSON that tells of it.
pub(crate) fn run(options: &Options) -> Result<String, String> {
    let mut run = Run {
        options,
        poll: Poll::new().map_err(text)?,
        events: Events::with_capacity(1024),
        clients: Vec::new(),
        pattern: (0..options.size).map(|index| (index % 251) as u8).collect(),
        latencies: Histogram::new(),
        count: 0,
        measuring: false,
        waited: Duration::ZERO,
    };
    match options.workload {
        Workload::Echo => run.echo(),
        Workload::FanOut => run.fan_out(),
        Workload::Open => run.open_and_close(),
        Workload::Idle => run.hold(),
    }
}

impl Run<'_> {
    fn connect(&mut self, number: usize) -> Result<(), String> {
        let client = Client::connect(self.options, number)?;
        self.watch(client.socket.raw(), number)?;
        if number == self.clients.len() {
            self.clients.push(Some(client));
        } else {
            self.clients[number] = Some(client);
        }
        Ok(())
    }

    fn watch(&self, fd: RawFd, number: usize) -> Result<(), String> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut SourceFd(&fd), Token(number), interest).map_err(text)
    }

    /// The numbers of the clients that have something to do.
    fn ready(&mut self, most: Duration) -> Result<Vec<usize>, String> {
        let before = Instant::now();
        loop {
            match self.poll.poll(&mut self.events, Some(most.min(STALLED))) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result.map_err(text)?,
            }
        }
        if self.measuring {
            self.waited += before.elapsed();
        }
        if self.events.is_empty() && before.elapsed() >= STALLED {
            return Err(format!("nothing came for {} s", STALLED.as_secs()));
        }
        Ok(self.events.iter().map(|event| event.token().0).collect())
    }

    /// Opens all connections.
    fn open_all(&mut self) -> Result<(), String> {
        let wanted = self.options.connections;
        let (mut begun, mut opened) = (0, 0);
        while opened < wanted {
            while begun < wanted && begun - opened < OPENING {
                self.connect(begun)?;
                begun += 1;
            }
            for number in self.ready(STALLED)? {
                let Some(client) = &mut self.clients[number] else { continue };
                if client.proceed(|_, _| {})? == Found::Opened {
                    opened += 1;
                }
            }
        }
        Ok(())
    }

    /// Calls `step` until the window is over; it returns what it has counted.
    fn measure(&mut self, mut step: impl FnMut(&mut Self) -> Result<u64, String>) -> Result<String, String> {
        let warm = Instant::now() + self.options.warmup;
        while Instant::now() < warm {
            step(self)?;
        }
        self.latencies = Histogram::new();
        self.count = 0;
        self.waited = Duration::ZERO;
        self.measuring = true;
        crate::show("begin\n");
        let before = processor_time();
        let start = Instant::now();
        let end = start + self.options.seconds;
        while Instant::now() < end {
            self.count += step(self)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        let used = processor_time() - before;
        let mut line = String::new();
        let limited = 1.0 - self.waited.as_secs_f64() / seconds;
        writeln!(
            line,
            "{{\"count\": {}, \"seconds\": {seconds:.6}, \"checked\": true, \"cpu\": {used:.6}, \"limited\": {limited:.3}, \
             \"p50\": {:.1}, \"p99\": {:.1}, \"p999\": {:.1}}}",
            self.count,
            self.latencies.quantile(0.5),
            self.latencies.quantile(0.99),
            self.latencies.quantile(0.999),
        )
        .map_err(text)?;
        Ok(line)
    }

    fn echo(&mut self) -> Result<String, String> {
        self.open_all()?;
        let now = Instant::now();
        for client in self.clients.iter_mut().flatten() {
            for _ in 0..self.options.window {
                client.send(&mut self.pattern, now)?;
            }
        }
        self.measure(|run| {
            let mut count = 0;
            for number in run.ready(STALLED)? {
                let Some(client) = &mut run.clients[number] else { continue };
                let mut arrived = 0;
                let mut fault = None;
                let mut expected = *client.expected();
                let now = Instant::now();
                let found = client.proceed(|bytes, sent| {
                    if let Err(error) = Client::check(&mut expected, bytes, &run.pattern) {
                        fault.get_or_insert(error);
                    }
                    if let Some(sent) = sent {
                        run.latencies.record(now.saturating_duration_since(sent));
                    }
                    arrived += 1;
                })?;
                *client.expected() = expected;
                if let Some(fault) = fault {
                    return Err(fault);
                }
                if found == Found::Closed {
                    return Err("the server has closed a connection".into());
                }
                for _ in 0..arrived {
                    client.send(&mut run.pattern, now)?;
                }
                count += arrived;
            }
            Ok(count)
        })
    }

    fn fan_out(&mut self) -> Result<String, String> {
        self.open_all()?;
        let mut number = 0;
        // One round; the first shows that all connections are among those that the server sends to.
        self.measure(|run| {
            let begin = Instant::now();
            let sender = run.clients[0].as_mut().ok_or("it is gone")?;
            sender.send(&mut run.pattern, begin)?;
            let mut left = run.clients.len();
            while left > 0 {
                for index in run.ready(STALLED)? {
                    let Some(client) = &mut run.clients[index] else { continue };
                    let mut fault = None;
                    let mut expected = *client.expected();
                    let now = Instant::now();
                    let found = client.proceed(|bytes, _| {
                        match Client::check(&mut expected, bytes, &run.pattern) {
                            Ok(()) => left = left.saturating_sub(1),
                            Err(error) => {
                                fault.get_or_insert(error);
                            }
                        }
                        run.latencies.record(now.saturating_duration_since(begin));
                    })?;
                    *client.expected() = expected;
                    if let Some(fault) = fault {
                        return Err(fault);
                    }
                    if found == Found::Closed {
                        return Err("the server has closed a connection".into());
                    }
                }
            }
            number += 1;
            Ok(run.clients.len() as u64)
        })
    }

    fn open_and_close(&mut self) -> Result<String, String> {
        let mut serial = 0;
        let mut begun: VecDeque<Instant> = VecDeque::new();
        for number in 0..self.options.connections {
            self.connect(number)?;
            begun.push_back(Instant::now());
            serial += 1;
        }
        self.measure(move |run| {
            let mut count = 0;
            for number in run.ready(STALLED)? {
                let Some(client) = &mut run.clients[number] else { continue };
                match client.proceed(|_, _| {})? {
                    Found::Nothing => {}
                    Found::Opened => {
                        count += 1;
                        run.latencies.record(begun[number].elapsed());
                        client.close()?;
                    }
                    Found::Closed => {
                        let raw = client.socket.raw();
                        let _ = run.poll.registry().deregister(&mut SourceFd(&raw));
                        run.clients[number] = None;
                        serial += 1;
                        let client = Client::connect(run.options, serial)?;
                        run.watch(client.socket.raw(), number)?;
                        run.clients[number] = Some(client);
                        begun[number] = Instant::now();
                    }
                }
            }
            Ok(count)
        })
    }

    /// Every connection has one message echoed.
    fn echo_once(&mut self) -> Result<(), String> {
        let now = Instant::now();
        for client in self.clients.iter_mut().flatten() {
            client.send(&mut self.pattern, now)?;
        }
        let mut left = self.clients.len();
        while left > 0 {
            for number in self.ready(STALLED)? {
                let Some(client) = &mut self.clients[number] else { continue };
                let mut fault = None;
                client.proceed(|bytes, _| {
                    left = left.saturating_sub(1);
                    fault = Client::check(&mut 0, bytes, &self.pattern).err();
                })?;
                if let Some(fault) = fault {
                    return Err(fault);
                }
            }
        }
        Ok(())
    }

    fn hold(&mut self) -> Result<String, String> {
        self.open_all()?;
        self.echo_once()?;
        crate::show("ready\n");
        let stdin = io::stdin();
        self.poll
            .registry()
            .register(&mut SourceFd(&stdin.as_raw_fd()), Token(usize::MAX), Interest::READABLE)
            .map_err(text)?;
        loop {
            match self.poll.poll(&mut self.events, None) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => result.map_err(text)?,
            }
            for number in self.events.iter().map(|event| event.token().0).collect::<Vec<_>>() {
                if number == usize::MAX {
                    return Ok(format!("{{\"count\": {}, \"checked\": true}}\n", self.clients.len()));
                }
                let Some(client) = &mut self.clients[number] else { continue };
                // Pings are answered; there is nothing else to come.
                if client.proceed(|_, _| {})? == Found::Closed {
                    return Err("the server has closed a connection".into());
                }
            }
        }
    }
}

/// Seconds of this process on a processor.
fn processor_time() -> f64 {
    std::fs::read_to_string("/proc/self/schedstat")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok())
        .map_or(0.0, |nanoseconds| nanoseconds / 1e9)
}

fn text(error: impl ToString) -> String {
    error.to_string()
}
