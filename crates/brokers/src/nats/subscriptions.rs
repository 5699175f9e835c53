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

/// A received message, with its subject and the pattern of its subscription.
pub(super) struct Received {
    pub(super) via: Option<Arc<Pattern>>,
    pub(super) name: async_nats::Subject,
    pub(super) bytes: Bytes,
}

/// The subscriptions whose channels are not empty.
#[derive(Default)]
struct Ready {
    numbers: Mutex<Vec<u64>>,
    waker: AtomicWaker,
}

/// The waker of one subscription: adds its number to [`Ready`].
struct SubscriptionWaker {
    number: u64,
    /// The number is in the list already.
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for SubscriptionWaker {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.ready.numbers.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
            self.ready.waker.wake();
        }
    }
}

struct Subscription {
    subscriber: Subscriber,
    via: Option<Arc<Pattern>>,
    signal: Arc<SubscriptionWaker>,
    waker: Waker,
}

/// All subscriptions of a client.
#[derive(Default)]
pub(super) struct Subscriptions {
    by_number: HashMap<u64, Subscription>,
    numbers: HashMap<Pattern, u64>,
    /// The subscription to broadcasts.
    all: Option<u64>,
    last: u64,
    /// The number of received messages so far, including our own.
    pub(super) received_count: u64,
    ready: Arc<Ready>,
}

impl Subscriptions {
    pub(super) fn add(&mut self, pattern: Option<&Pattern>, subscriber: Subscriber) {
        self.last += 1;
        let ready = Arc::clone(&self.ready);
        let signal = Arc::new(SubscriptionWaker { number: self.last, queued: AtomicBool::new(false), ready });
        let waker = Waker::from(Arc::clone(&signal));
        let via = pattern.cloned().map(Arc::new);
        waker.wake_by_ref(); // the first poll registers the waker
        self.by_number.insert(self.last, Subscription { subscriber, via, signal, waker });
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

    /// Returns the number of subscriptions.
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Takes all received messages out of all channels at once, because a part could be out of order; see [`super`].
    pub(super) fn poll_take(&mut self, own: &NodeId, cx: &mut Context<'_>, received: &mut Vec<Received>) -> Poll<()> {
        self.ready.waker.register(cx.waker());
        let ready = std::mem::take(&mut *self.ready.numbers.lock().unwrap_or_else(PoisonError::into_inner));
        for number in ready {
            let Some(subscription) = self.by_number.get_mut(&number) else { continue };
            subscription.signal.queued.store(false, Ordering::Release);
            let mut cx = Context::from_waker(&subscription.waker);
            while let Poll::Ready(Some(message)) = subscription.subscriber.poll_next_unpin(&mut cx) {
                self.received_count += 1;
                if DeliveryTracker::is_from(&message.payload, own) {
                    continue;
                }
                let via = subscription.via.clone();
                received.push(Received { via, name: message.subject, bytes: message.payload });
            }
        }
        if received.is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }
}
