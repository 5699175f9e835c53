//! What one connection publishes and everybody has to receive, in order, nothing missing. Of several servers that know
//! nothing of each other each has such a connection, and everybody is who is connected there.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::client::{Came, Line, UNASKED};
use super::crew::{Crew, STALLED};
use super::team::Member;

/// How often it is looked whether other threads have received something.
const OTHERS: Duration = Duration::from_micros(200);

/// How long the first messages have until the next one is published: until servers know what is wanted on others,
/// some are missing there.
const FIRST: Duration = Duration::from_millis(50);

/// Messages that not everybody has.
pub(crate) struct Publications {
    /// Client number n is of stream n modulo their number, and client n the publisher of stream n. One, or one for each
    /// server.
    streams: Vec<Stream>,
    /// Whose receivers these are, among several threads.
    member: Option<Member>,
}

/// Of one publisher.
struct Stream {
    /// How many have to receive each message.
    receivers: u64,
    /// The number of the first in `under_way`.
    first: u64,
    /// In the order of publishing.
    under_way: VecDeque<Publication>,
    /// Deliveries that will never come: a later one came instead.
    missing: u64,
}

struct Publication {
    due: Instant,
    /// Deliveries that have not come.
    left: u64,
}

impl Publications {
    /// What is to be published to those who are connected.
    pub(crate) fn new(crew: &Crew) -> Self {
        let streams = if crew.options.apart { crew.options.servers.len() } else { 1 };
        let receivers = crew.clients.len() / streams;
        Self { streams: (0..streams).map(|_| Stream::new(receivers)).collect(), member: crew.member.clone() }
    }

    /// The thread that publishes, if it is another one.
    pub(crate) fn publisher(&self) -> Option<&Member> {
        self.member.as_ref().filter(|member| !member.is_first())
    }

    /// Messages that not everybody has.
    pub(crate) fn under_way(&self) -> usize {
        self.streams.iter().map(|stream| stream.under_way.len()).sum()
    }

    /// Messages that everybody has, of the publisher that has fewest.
    pub(crate) fn completed(&self) -> u64 {
        self.streams.iter().map(|stream| stream.first).min().unwrap_or(0)
    }

    /// When the oldest that not everybody has was due.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        let first = |stream: &Stream| stream.under_way.front().map(|publication| publication.due);
        self.streams.iter().filter_map(first).min()
    }

    /// Queues the next message of every publisher; [`Self::flush`] sends them.
    pub(crate) fn publish(&mut self, crew: &mut Crew, due: Instant) -> Result<(), String> {
        (0..self.streams.len()).try_for_each(|stream| self.publish_on(stream, crew, due))
    }

    fn publish_on(&mut self, number: usize, crew: &mut Crew, due: Instant) -> Result<(), String> {
        let mut line = crew.line(number, due)?;
        line.send(due)?;
        line.exchange.due.clear(); // it is kept here, for everybody
        let stream = &mut self.streams[number];
        stream.under_way.push_back(Publication { due, left: stream.receivers });
        if let Some(member) = &self.member {
            member.publish(stream.published());
        }
        Ok(())
    }

    /// Writes what was published.
    pub(crate) fn flush(&self, crew: &mut Crew, now: Instant) -> Result<(), String> {
        (0..self.streams.len()).try_for_each(|publisher| crew.line(publisher, now).map(|mut line| line.flush()))
    }

    /// Takes what the last wait found: `on_delivery` is told the server that sent it, when it was to be published, and when
    /// it came.
    pub(crate) fn receive(
        &mut self,
        crew: &mut Crew,
        mut on_delivery: impl FnMut(usize, Instant, Instant),
    ) -> Result<(), String> {
        let servers = crew.options.servers.len();
        let result = crew.serve(&mut |client, line, came| {
            on_delivery(client % servers, self.deliver(client, line, came)?, line.now);
            Ok(())
        });
        if let Some(member) = &self.member {
            member.complete(self.completed());
        }
        result
    }

    fn deliver(&mut self, client: usize, line: &mut Line<'_>, came: Came<'_>) -> Result<Instant, String> {
        let Came::Message(kind, bytes) = came else { return Err(UNASKED.into()) };
        let streams = self.streams.len();
        let expected = line.exchange.expected;
        let number = line.content.read(kind, bytes, expected)?;
        if number >= self.streams[0].published()
            && let Some(published) = self.publisher().map(Member::published)
        {
            self.streams[0].learn(published, line.now);
        }
        let due = self.streams[client % streams].count(expected, number)?;
        line.exchange.expected = number + 1;
        Ok(due)
    }

    /// An error if deliveries were left out; `all`: those that have not come count as well.
    pub(crate) fn check(&self, all: bool) -> Result<(), String> {
        let (mut due, mut missing) = (0, 0);
        for stream in &self.streams {
            let left: u64 = stream.under_way.iter().map(|publication| publication.left).sum();
            due += stream.published() * stream.receivers;
            missing += stream.missing + if all { left } else { 0 };
        }
        if missing == 0 { Ok(()) } else { Err(format!("{missing} of {due} deliveries are missing")) }
    }

    /// Publishes until everybody is known to be among those who are sent to. Where it is published the first message
    /// shows it, and nothing may be missing; subscriptions of other servers come about in their time.
    pub(crate) fn begin(&mut self, crew: &mut Crew) -> Result<(), String> {
        if self.publisher().is_some() {
            return Ok(());
        }
        let several = crew.options.servers.len() > self.streams.len();
        let patience = Instant::now() + STALLED;
        crew.expect();
        loop {
            let now = Instant::now();
            self.publish(crew, now)?;
            self.flush(crew, now)?;
            let next = if several { now + FIRST } else { patience };
            while self.under_way() > 0 && Instant::now() < next {
                crew.wait(Some(next)).map_err(|error| self.explain(error))?;
                self.receive(crew, |_, _, _| {})?;
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

    /// Publishes no more, and waits until everybody has everything, or is known to have missed it.
    pub(crate) fn finish(
        &mut self,
        crew: &mut Crew,
        mut on_delivery: impl FnMut(usize, Instant, Instant),
    ) -> Result<(), String> {
        if let Some(member) = &self.member {
            member.meet(); // nobody publishes any more
            self.streams[0].learn(member.published(), Instant::now());
        }
        crew.expect();
        while self.under_way() > 0 {
            crew.wait(None).map_err(|error| self.explain(error))?;
            self.receive(crew, &mut on_delivery)?;
        }
        self.check(true)
    }

    /// Why nothing comes any more: what is missing, if it is that.
    pub(crate) fn explain(&self, error: String) -> String {
        match self.check(true) {
            Err(missing) => format!("{missing}: {error}"),
            Ok(()) => error,
        }
    }

    /// Publishes as long as less than `window` messages of a publisher are under way, unless another thread does, and
    /// takes what comes, until `end`.
    pub(crate) fn keep_publishing(
        &mut self,
        crew: &mut Crew,
        window: usize,
        end: Instant,
        mut on_delivery: impl FnMut(usize, Instant, Instant),
    ) -> Result<(), String> {
        crew.expect();
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(());
            }
            let mut until = end;
            if self.publisher().is_none() {
                for stream in 0..self.streams.len() {
                    while self.streams[stream].ahead(self.member.as_ref()) < window {
                        self.publish_on(stream, crew, now)?;
                    }
                }
                self.flush(crew, now)?;
                // What other threads receive wakes none.
                if self.member.is_some() && self.under_way() < window {
                    until = end.min(now + OTHERS);
                }
            }
            crew.wait(Some(until)).map_err(|error| self.explain(error))?;
            self.receive(crew, &mut on_delivery)?;
        }
    }
}

impl Stream {
    fn new(receivers: usize) -> Self {
        Self { receivers: receivers as u64, first: 0, under_way: VecDeque::new(), missing: 0 }
    }

    /// How many there were.
    fn published(&self) -> u64 {
        self.first + self.under_way.len() as u64
    }

    /// Messages that not everybody has, the connections of other threads among them.
    fn ahead(&self, member: Option<&Member>) -> usize {
        let others = member.map_or(self.first, |member| member.slowest().min(self.first));
        self.under_way.len() + usize::try_from(self.first - others).unwrap_or(usize::MAX)
    }

    /// Expects what another thread has published.
    fn learn(&mut self, published: u64, now: Instant) {
        while self.published() < published {
            self.under_way.push_back(Publication { due: now, left: self.receivers });
        }
    }

    /// Message `number` came to somebody for whom `expected` was due.
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
    fn a_gap_and_what_has_not_come_are_counted() {
        let mut publications = Publications { streams: vec![Stream::new(2)], member: None };
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
