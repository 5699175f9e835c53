//! The subscriptions of a client of the library, and the messages that they deliver.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use async_nats::Subscriber;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::task::AtomicWaker;
use wirespeed_engine::topics::Pattern;

use crate::envelope::NodeId;
use crate::tracker::DeliveryTracker;

/// What came: by which subscription, under which name.
pub(super) struct Came {
    pub(super) via: Option<Arc<Pattern>>,
    pub(super) name: async_nats::Subject,
    pub(super) bytes: Bytes,
}

/// Subscriptions in whose channels is something.
#[derive(Default)]
struct Ready {
    numbers: Mutex<Vec<u64>>,
    waker: AtomicWaker,
}

/// Tells that there is something in one.
struct Bell {
    number: u64,
    /// It is in the list.
    rung: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.ready.numbers.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
            self.ready.waker.wake();
        }
    }
}

struct Subscription {
    subscriber: Subscriber,
    via: Option<Arc<Pattern>>,
    bell: Arc<Bell>,
    waker: Waker,
}

/// All subscriptions.
#[derive(Default)]
pub(super) struct Subscriptions {
    by_number: HashMap<u64, Subscription>,
    numbers: HashMap<Pattern, u64>,
    /// The subscription to broadcasts.
    all: Option<u64>,
    last: u64,
    /// Messages that arrived so far, our own included.
    pub(super) heard: u64,
    ready: Arc<Ready>,
}

impl Subscriptions {
    pub(super) fn add(&mut self, pattern: Option<&Pattern>, subscriber: Subscriber) {
        self.last += 1;
        let ready = Arc::clone(&self.ready);
        let bell = Arc::new(Bell { number: self.last, rung: AtomicBool::new(false), ready });
        let waker = Waker::from(Arc::clone(&bell));
        let via = pattern.cloned().map(Arc::new);
        waker.wake_by_ref(); // to be looked at once
        self.by_number.insert(self.last, Subscription { subscriber, via, bell, waker });
        match pattern {
            Some(pattern) => drop(self.numbers.insert(pattern.clone(), self.last)),
            None => self.all = Some(self.last),
        }
    }

    pub(super) fn remove(&mut self, pattern: Option<&Pattern>) -> Option<Subscriber> {
        let number = match pattern {
            Some(pattern) => self.numbers.remove(pattern),
            None => self.all.take(),
        }?;
        self.by_number.remove(&number).map(|subscription| subscription.subscriber)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Takes out everything that came. Not in parts: see [`super`].
    pub(super) fn poll_take(&mut self, own: &NodeId, cx: &mut Context<'_>, came: &mut Vec<Came>) -> Poll<()> {
        self.ready.waker.register(cx.waker());
        let ready = std::mem::take(&mut *self.ready.numbers.lock().unwrap_or_else(PoisonError::into_inner));
        for number in ready {
            let Some(subscription) = self.by_number.get_mut(&number) else { continue };
            subscription.bell.rung.store(false, Ordering::Release);
            let mut cx = Context::from_waker(&subscription.waker);
            while let Poll::Ready(Some(message)) = subscription.subscriber.poll_next_unpin(&mut cx) {
                self.heard += 1;
                if DeliveryTracker::is_from(&message.payload, own) {
                    continue;
                }
                let via = subscription.via.clone();
                came.push(Came { via, name: message.subject, bytes: message.payload });
            }
        }
        if came.is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }
}
