//! What one connection publishes and everybody has to receive, in order, nothing missing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use wirespeed_driver::protocol::MessageKind;

use super::client::Line;
use super::content::Content;
use super::crew::Crew;
use super::team::Member;

/// The connection that publishes, and receives like all others.
const PUBLISHER: usize = 0;

/// How often it is looked whether other threads have received something.
const OTHERS: Duration = Duration::from_micros(200);

/// Messages that not everybody has.
pub(crate) struct Publications {
    /// How many have to receive each.
    receivers: u64,
    /// The number of the first in `under_way`.
    first: u64,
    /// In the order of publishing.
    under_way: VecDeque<Publication>,
    /// Deliveries that will never come: a later one came instead.
    missing: u64,
    /// Whose receivers these are, among several threads.
    member: Option<Member>,
}

struct Publication {
    due: Instant,
    /// Deliveries that have not come.
    left: u64,
}

impl Publications {
    pub(crate) fn new(receivers: usize) -> Self {
        Self { receivers: receivers as u64, first: 0, under_way: VecDeque::new(), missing: 0, member: None }
    }

    /// The same for one of several threads.
    pub(crate) fn of(self, member: Member) -> Self {
        Self { member: Some(member), ..self }
    }

    /// Messages that not everybody has.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Messages that everybody has.
    pub(crate) fn completed(&self) -> u64 {
        self.first
    }

    /// Messages that not everybody has, the connections of other threads among them.
    fn ahead(&self) -> usize {
        let others = self.member.as_ref().map_or(self.first, |member| member.slowest().min(self.first));
        self.under_way() + usize::try_from(self.first - others).unwrap_or(usize::MAX)
    }

    /// When the oldest that not everybody has was due.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.under_way.front().map(|publication| publication.due)
    }

    /// Queues the next message; [`flush`] sends it.
    pub(crate) fn publish(&mut self, crew: &mut Crew<'_>, due: Instant) -> Result<(), String> {
        let publisher = crew.clients[PUBLISHER].as_mut().ok_or("the publisher is gone")?;
        let mut line = publisher.line(due)?;
        line.send(&mut crew.content, due)?;
        line.exchange.due.clear(); // it is kept here, for everybody
        self.under_way.push_back(Publication { due, left: self.receivers });
        if let Some(member) = &self.member {
            member.publish(self.first + self.under_way.len() as u64);
        }
        Ok(())
    }

    /// Takes what the last wait found. `on_delivery` is told when each was due, and came.
    pub(crate) fn receive(
        &mut self,
        crew: &mut Crew<'_>,
        mut on_delivery: impl FnMut(Instant, Instant),
    ) -> Result<(), String> {
        let result = crew.serve(&mut |_, line, content, kind, bytes| {
            let due = self.deliver(line, content, kind, bytes)?;
            on_delivery(due, line.now);
            Ok(())
        });
        if let Some(member) = &self.member {
            member.complete(self.first);
        }
        result
    }

    /// Expects what another thread has published.
    fn learn(&mut self, member: &Member, now: Instant) {
        let published = member.published();
        while self.first + (self.under_way.len() as u64) < published {
            self.under_way.push_back(Publication { due: now, left: self.receivers });
        }
    }

    fn deliver(
        &mut self,
        line: &mut Line<'_>,
        content: &Content,
        kind: MessageKind,
        bytes: &[u8],
    ) -> Result<Instant, String> {
        let expected = line.exchange.expected;
        let number = content.read(kind, bytes, expected)?;
        if number >= self.first + self.under_way.len() as u64
            && let Some(member) = self.member.clone().filter(|member| !member.is_first())
        {
            self.learn(&member, line.now);
        }
        let due = self.count(expected, number)?;
        line.exchange.expected = number + 1;
        Ok(due)
    }

    /// Message `number` came to somebody for whom `expected` was due.
    fn count(&mut self, expected: u64, number: u64) -> Result<Instant, String> {
        if number < expected {
            return Err(format!("message {number} came where {expected} was due: again, or out of order"));
        }
        let last = self.first + self.under_way.len() as u64;
        if number >= last {
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

    /// An error if deliveries were left out; `all`: those that have not come count as well.
    pub(crate) fn check(&self, all: bool) -> Result<(), String> {
        let due = (self.first + self.under_way.len() as u64) * self.receivers;
        let left: u64 = self.under_way.iter().map(|publication| publication.left).sum();
        let missing = self.missing + if all { left } else { 0 };
        if missing == 0 { Ok(()) } else { Err(format!("{missing} of {due} deliveries are missing")) }
    }

    /// Waits until everybody has everything, or is known to have missed it.
    pub(crate) fn finish(
        &mut self,
        crew: &mut Crew<'_>,
        mut on_delivery: impl FnMut(Instant, Instant),
    ) -> Result<(), String> {
        crew.expect();
        while !self.under_way.is_empty() {
            crew.wait(None).map_err(|error| self.explain(error))?;
            self.receive(crew, &mut on_delivery)?;
        }
        self.check(false)
    }

    /// Why nothing comes any more: what is missing, if it is that.
    pub(crate) fn explain(&self, error: String) -> String {
        match self.check(true) {
            Err(missing) => format!("{missing}: {error}"),
            Ok(()) => error,
        }
    }
}

/// Writes what was published.
pub(crate) fn flush(crew: &mut Crew<'_>, now: Instant) -> Result<(), String> {
    crew.clients[PUBLISHER].as_mut().ok_or("the publisher is gone")?.line(now)?.flush();
    Ok(())
}

/// Publishes as long as less than `window` messages are under way, and takes what comes, until `end`.
pub(crate) fn keep_publishing(
    publications: &mut Publications,
    crew: &mut Crew<'_>,
    window: usize,
    end: Instant,
    mut on_delivery: impl FnMut(Instant, Instant),
) -> Result<(), String> {
    crew.expect();
    loop {
        let now = Instant::now();
        if now >= end {
            return Ok(());
        }
        while publications.ahead() < window {
            publications.publish(crew, now)?;
        }
        flush(crew, now)?;
        // What other threads receive wakes none.
        let others = publications.member.is_some() && publications.under_way() < window;
        let until = if others { end.min(now + OTHERS) } else { end };
        crew.wait(Some(until)).map_err(|error| publications.explain(error))?;
        publications.receive(crew, &mut on_delivery)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(count: usize, receivers: usize) -> Publications {
        let mut publications = Publications::new(receivers);
        for _ in 0..count {
            let left = receivers as u64;
            publications.under_way.push_back(Publication { due: Instant::now(), left });
        }
        publications
    }

    #[test]
    fn a_message_is_complete_when_everybody_has_it() {
        let mut publications = published(2, 2);
        assert!(publications.count(0, 0).is_ok());
        assert!(publications.count(1, 1).is_ok());
        assert_eq!((publications.completed(), publications.under_way()), (0, 2));
        assert!(publications.count(0, 0).is_ok());
        assert_eq!((publications.completed(), publications.under_way()), (1, 1));
        assert!(publications.count(1, 1).is_ok());
        assert_eq!((publications.completed(), publications.under_way()), (2, 0));
        assert_eq!(publications.check(true), Ok(()));
    }

    #[test]
    fn a_gap_is_counted_and_named() {
        let mut publications = published(5, 2);
        for number in 0..5 {
            assert!(publications.count(number, number).is_ok());
        }
        assert!(publications.count(0, 0).is_ok());
        assert!(publications.count(1, 4).is_ok(), "1, 2 and 3 were left out");
        assert_eq!(publications.check(false), Err("3 of 10 deliveries are missing".into()));
        assert_eq!(publications.under_way(), 0);
    }

    #[test]
    fn what_has_not_come_is_missing_at_the_end() {
        let mut publications = published(2, 3);
        assert!(publications.count(0, 0).is_ok());
        assert_eq!(publications.check(false), Ok(()));
        assert_eq!(publications.check(true), Err("5 of 6 deliveries are missing".into()));
    }

    #[test]
    fn again_is_an_error_and_so_is_what_was_not_sent() {
        let mut publications = published(2, 1);
        assert!(publications.count(0, 0).is_ok());
        assert!(publications.count(1, 0).is_err());
        assert!(publications.count(1, 2).is_err());
    }
}
