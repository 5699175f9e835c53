//! Published messages, which all receivers must get in order and completely. With several independent servers, each has
//! a publisher and receivers of its own.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::client::{OpenConnection, Received, UNASKED};
use super::client_pool::{ClientPool, STALLED};
use super::threads::LoadThread;

/// The interval of checks for messages received by other threads.
const OTHERS: Duration = Duration::from_micros(200);

/// The interval between the first messages. Until subscriptions have reached the other servers, messages are lost
/// there.
const FIRST: Duration = Duration::from_millis(50);

/// The messages that some receivers do not have yet.
pub(crate) struct Publications {
    /// Client n belongs to stream n modulo the number of streams, and client n is the publisher of stream n. There is
    /// one stream in total, or one for each server.
    streams: Vec<Stream>,
    /// The thread of these receivers, if there are several.
    load_thread: Option<LoadThread>,
}

/// The messages of one publisher.
struct Stream {
    /// The number of receivers of each message.
    receivers: u64,
    /// The number of the first message in `under_way`.
    first: u64,
    /// The messages in flight, in the order of publishing.
    under_way: VecDeque<Publication>,
    /// Deliveries that were skipped, as a later message arrived instead.
    missing: u64,
}

struct Publication {
    due: Instant,
    /// The number of outstanding deliveries.
    left: u64,
}

impl Publications {
    /// Returns an account for the connected clients.
    pub(crate) fn new(pool: &ClientPool) -> Self {
        let streams = if pool.options.apart { pool.options.servers.len() } else { 1 };
        let receivers = pool.clients.len() / streams;
        Self { streams: (0..streams).map(|_| Stream::new(receivers)).collect(), load_thread: pool.load_thread.clone() }
    }

    /// Returns the thread that publishes, if it is another one.
    pub(crate) fn publisher(&self) -> Option<&LoadThread> {
        self.load_thread.as_ref().filter(|load_thread| !load_thread.is_first())
    }

    /// Returns the number of messages in flight.
    pub(crate) fn under_way(&self) -> usize {
        self.streams.iter().map(|stream| stream.under_way.len()).sum()
    }

    /// Returns the number of completely delivered messages, of the slowest publisher.
    pub(crate) fn completed(&self) -> u64 {
        self.streams.iter().map(|stream| stream.first).min().unwrap_or(0)
    }

    /// Returns the scheduled time of the oldest message in flight.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        let first = |stream: &Stream| stream.under_way.front().map(|publication| publication.due);
        self.streams.iter().filter_map(first).min()
    }

    /// Queues the next message of every publisher; [`Self::flush`] sends them.
    pub(crate) fn publish(&mut self, pool: &mut ClientPool, due: Instant) -> Result<(), String> {
        (0..self.streams.len()).try_for_each(|stream| self.publish_on(stream, pool, due))
    }

    fn publish_on(&mut self, number: usize, pool: &mut ClientPool, due: Instant) -> Result<(), String> {
        let mut connection = pool.connection(number, due)?;
        connection.send(due)?;
        connection.exchange.due.clear(); // `under_way` contains it, for all receivers
        let stream = &mut self.streams[number];
        stream.under_way.push_back(Publication { due, left: stream.receivers });
        if let Some(load_thread) = &self.load_thread {
            load_thread.publish(stream.published());
        }
        Ok(())
    }

    /// Writes the published messages.
    pub(crate) fn flush(&self, pool: &mut ClientPool, now: Instant) -> Result<(), String> {
        (0..self.streams.len())
            .try_for_each(|publisher| pool.connection(publisher, now).map(|mut connection| connection.flush()))
    }

    /// Handles the events of the last wait. `on_delivery` gets the sending server, the scheduled time and the time of
    /// receipt.
    pub(crate) fn receive(
        &mut self,
        pool: &mut ClientPool,
        mut on_delivery: impl FnMut(usize, Instant, Instant),
    ) -> Result<(), String> {
        let servers = pool.options.servers.len();
        let result = pool.serve(&mut |client, connection, received| {
            on_delivery(client % servers, self.deliver(client, connection, received)?, connection.now);
            Ok(())
        });
        if let Some(load_thread) = &self.load_thread {
            load_thread.complete(self.completed());
        }
        result
    }

    fn deliver(
        &mut self,
        client: usize,
        connection: &mut OpenConnection<'_>,
        received: Received<'_>,
    ) -> Result<Instant, String> {
        let Received::Message(kind, bytes) = received else { return Err(UNASKED.into()) };
        let streams = self.streams.len();
        let expected = connection.exchange.expected;
        let number = connection.content.read(kind, bytes, expected)?;
        if number >= self.streams[0].published()
            && let Some(published) = self.publisher().map(LoadThread::published)
        {
            self.streams[0].learn(published, connection.now);
        }
        let due = self.streams[client % streams].count(expected, number)?;
        connection.exchange.expected = number + 1;
        Ok(due)
    }

    /// Returns an error if deliveries were skipped. `all`: outstanding ones count as well.
    pub(crate) fn check(&self, all: bool) -> Result<(), String> {
        let (mut due, mut missing) = (0, 0);
        for stream in &self.streams {
            let left: u64 = stream.under_way.iter().map(|publication| publication.left).sum();
            due += stream.published() * stream.receivers;
            missing += stream.missing + if all { left } else { 0 };
        }
        if missing == 0 { Ok(()) } else { Err(format!("{missing} of {due} deliveries are missing")) }
    }

    /// Publishes until all receivers are known to be subscribed. On the publisher's server, nothing may be missing.
    /// Subscriptions take a while to reach the other servers, so the first messages may be missing there.
    pub(crate) fn begin(&mut self, pool: &mut ClientPool) -> Result<(), String> {
        if self.publisher().is_some() {
            return Ok(());
        }
        let several = pool.options.servers.len() > self.streams.len();
        let patience = Instant::now() + STALLED;
        pool.expect();
        loop {
            let now = Instant::now();
            self.publish(pool, now)?;
            self.flush(pool, now)?;
            let next = if several { now + FIRST } else { patience };
            while self.under_way() > 0 && Instant::now() < next {
                pool.wait(Some(next)).map_err(|error| self.explain(error))?;
                self.receive(pool, |_, _, _| {})?;
            }
            if self.under_way() == 0 {
                break;
            }
            if Instant::now() >= patience {
                return Err(self.explain(format!("not everybody had a message after {} s", STALLED.as_secs())));
            }
        }
        if several {
            self.streams.iter_mut().for_each(|stream| stream.missing = 0);
        }
        self.check(false)
    }

    /// Stops publishing, and waits until all receivers have all messages, or have skipped them.
    pub(crate) fn finish(
        &mut self,
        pool: &mut ClientPool,
        mut on_delivery: impl FnMut(usize, Instant, Instant),
    ) -> Result<(), String> {
        if let Some(load_thread) = &self.load_thread {
            load_thread.meet(); // no thread publishes from here on
            self.streams[0].learn(load_thread.published(), Instant::now());
        }
        pool.expect();
        while self.under_way() > 0 {
            pool.wait(None).map_err(|error| self.explain(error))?;
            self.receive(pool, &mut on_delivery)?;
        }
        self.check(true)
    }

    /// Adds missing deliveries to an error, if there are any.
    pub(crate) fn explain(&self, error: String) -> String {
        match self.check(true) {
            Err(missing) => format!("{missing}: {error}"),
            Ok(()) => error,
        }
    }

    /// Publishes while fewer than `window` messages of a publisher are in flight, unless another thread does, and
    /// handles deliveries, until `end`.
    pub(crate) fn keep_publishing(
        &mut self,
        pool: &mut ClientPool,
        window: usize,
        end: Instant,
        mut on_delivery: impl FnMut(usize, Instant, Instant),
    ) -> Result<(), String> {
        pool.expect();
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(());
            }
            let mut until = end;
            if self.publisher().is_none() {
                for stream in 0..self.streams.len() {
                    while self.streams[stream].ahead(self.load_thread.as_ref()) < window {
                        self.publish_on(stream, pool, now)?;
                    }
                }
                self.flush(pool, now)?;
                // Messages received by other threads do not wake this one.
                if self.load_thread.is_some() && self.under_way() < window {
                    until = end.min(now + OTHERS);
                }
            }
            pool.wait(Some(until)).map_err(|error| self.explain(error))?;
            self.receive(pool, &mut on_delivery)?;
        }
    }
}

impl Stream {
    fn new(receivers: usize) -> Self {
        Self { receivers: receivers as u64, first: 0, under_way: VecDeque::new(), missing: 0 }
    }

    /// Returns the number of messages published so far.
    fn published(&self) -> u64 {
        self.first + self.under_way.len() as u64
    }

    /// Returns the number of messages in flight, including those to connections of other threads.
    fn ahead(&self, load_thread: Option<&LoadThread>) -> usize {
        let others = load_thread.map_or(self.first, |load_thread| load_thread.slowest().min(self.first));
        self.under_way.len() + usize::try_from(self.first - others).unwrap_or(usize::MAX)
    }

    /// Adds messages that another thread has published.
    fn learn(&mut self, published: u64, now: Instant) {
        while self.published() < published {
            self.under_way.push_back(Publication { due: now, left: self.receivers });
        }
    }

    /// Counts the delivery of message `number` to a receiver that expects message `expected`.
    fn count(&mut self, expected: u64, number: u64) -> Result<Instant, String> {
        if number < expected {
            return Err(format!("message {number} came where {expected} was due: again, or out of order"));
        }
        if number >= self.published() {
            return Err(format!("message {number} came, which was not sent"));
        }
        for skipped in expected..number {
            self.missing += 1;
            self.arrived(skipped);
        }
        let due = self.arrived(number).ok_or("a message came more often than there are connections")?;
        while self.under_way.front().is_some_and(|publication| publication.left == 0) {
            self.under_way.pop_front();
            self.first += 1;
        }
        Ok(due)
    }

    fn arrived(&mut self, number: u64) -> Option<Instant> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let publication = self.under_way.get_mut(index)?;
        publication.left = publication.left.checked_sub(1)?;
        Some(publication.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_and_outstanding_deliveries_are_counted() {
        let mut publications = Publications { streams: vec![Stream::new(2)], load_thread: None };
        publications.streams[0].learn(5, Instant::now());
        for number in 0..5 {
            assert!(publications.streams[0].count(number, number).is_ok());
        }
        assert!(publications.streams[0].count(0, 0).is_ok());
        assert_eq!((publications.completed(), publications.under_way()), (1, 4));
        assert_eq!(publications.check(false), Ok(()));
        assert_eq!(publications.check(true), Err("4 of 10 deliveries are missing".into()));
        assert!(publications.streams[0].count(1, 4).is_ok(), "1, 2 and 3 were left out");
        assert_eq!(publications.check(false), Err("3 of 10 deliveries are missing".into()));
        assert_eq!((publications.completed(), publications.under_way()), (5, 0));
    }
}
