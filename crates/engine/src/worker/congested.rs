//! Audiences whose publishers should wait: which they are, and when they no longer are.

use std::time::{Duration, Instant};

use super::waiting::CONGESTION_PAUSE;
use super::{Client, Key, Worker};
use crate::connection::Live;
use crate::topics::Topic;

/// Audiences that are known one by one. Where there are more, all of this worker's count for as long as half of these
/// are left: who subscribes with a wildcard may be behind in any number of topics.
const MAX_CONGESTED: usize = 4096;

/// So many times longer the rest waits for most, who may be honest and as fast as their networks are.
const MAJORITY: u32 = 6;

/// Sessions that a message went to, and how many of them are behind.
#[derive(Default)]
pub(super) struct Sent {
    pub(super) all: usize,
    behind: usize,
}

impl Sent {
    pub(super) fn count(&mut self, live: &mut Live, high: usize, now: impl FnOnce() -> Instant) {
        self.add(live.is_behind(high, now));
    }

    fn add(&mut self, behind: bool) {
        self.all += 1;
        self.behind += usize::from(behind);
    }
}

impl Worker {
    /// `sender`: one of the audience, perhaps, that did not get the message.
    pub(super) fn note_sent(&mut self, sent: &Sent, sender: Option<u64>, audience: impl FnOnce() -> Option<Topic>) {
        if sent.behind == 0 {
            return;
        }
        let audience = audience();
        if let Some(last) = self.congested.get_mut(&audience) {
            *last = sender;
        } else if self.congested.len() < MAX_CONGESTED {
            if self.congested.is_empty() {
                self.looked = Instant::now();
            }
            self.congested.insert(audience.clone(), sender);
            self.home.congestion.add(audience);
        } else {
            self.home.congestion.set_all(true);
        }
    }

    /// Who sends to an audience may go on when all of it has caught up that is worth the wait.
    pub(super) fn look_at_congestion(&mut self) {
        if self.congested.is_empty() {
            return;
        }
        let now = Instant::now();
        if now < self.look_after {
            return;
        }
        let waited = now.duration_since(self.looked);
        self.looked = now;
        let mut congested = std::mem::take(&mut self.congested);
        let before = congested.len();
        congested.retain(|audience, sender| {
            let keep = self.is_behind(audience.as_ref(), *sender, now, waited);
            if !keep {
                self.home.congestion.remove(audience);
            }
            keep
        });
        let fewer = congested.len() < before;
        self.congested = congested;
        if self.congested.len() <= MAX_CONGESTED / 2 {
            self.home.congestion.set_all(false);
        }
        // However many they are, looking at them is a small part of the work.
        self.look_after = now + CONGESTION_PAUSE.max(now.elapsed() * 20);
        if fewer {
            self.home.room.tell();
        }
    }

    /// `sender`: of the last message.
    fn is_behind(&mut self, audience: Option<&Topic>, sender: Option<u64>, now: Instant, waited: Duration) -> bool {
        let keys: Vec<Key> = match audience {
            Some(topic) => self.topics.matching(topic).flat_map(|set| set.iter()).collect(),
            None => self.clients.keys(),
        };
        self.published += 1;
        let mut sent = Sent::default();
        let (mut last, mut ready) = (Vec::new(), 0);
        for key in keys {
            let Some(Client::Live(live)) = self.clients.get_mut(key) else { continue };
            // Who subscribes in several ways is one of them, and a broadcast goes to few.
            if std::mem::replace(&mut live.published, self.published) == self.published
                || audience.is_none() && (!live.is_told() || live.is_ending())
            {
                continue;
            }
            // Half of what made it wait: else it would go on for one message.
            let high = live.session.high().div_ceil(2);
            let behind = live.is_behind(high, || now);
            // Whoever sent it has nothing to read, unless others send too.
            if behind || sender != Some(live.session.id()) {
                sent.add(behind);
                if behind {
                    last.push(key);
                } else {
                    ready += usize::from(live.caught_up(high));
                }
            }
            if live.take_asked() {
                self.mark(key);
            }
        }
        // It is too fast for most of those who are there now: for all of them, without end.
        let most = sent.behind * 2 > sent.all;
        if most && ready == 0 {
            return true;
        }
        let waited = if most { waited / MAJORITY } else { waited };
        for key in &last {
            if let Some(Client::Live(live)) = self.clients.get_mut(*key) {
                live.was_waited_for(now, waited);
            }
        }
        !last.is_empty()
    }
}
