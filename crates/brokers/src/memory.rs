//! An in-process broker: connects the engines of one process that use the same name. For tests, examples and first
//! steps.
//!
//! Each client has an inbox, bounded in bytes. A publishing client's thread waits until all inboxes have capacity.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;

use bytes::Bytes;
use foldhash::fast::RandomState;
use futures_util::future;
use tokio::sync::Notify;
use wirespeed_engine::topics::{Index, Pattern};

use crate::client::{Shared, ended};
use crate::queue::{Destination, Item};

/// The largest number of bytes in an inbox.
const INBOX_LIMIT: usize = 4 << 20;

/// The number of bytes that are taken out of the queue at once.
const BATCH_BYTES: usize = 256 * 1024;

/// All names in use in this process.
static BUSES: Mutex<Option<HashMap<String, Weak<Bus>, RandomState>>> = Mutex::new(None);

/// The clients that use one name.
#[derive(Default)]
struct Bus {
    inboxes: Mutex<Vec<Arc<Inbox>>>,
}

/// Messages that wait for one client.
#[derive(Default)]
struct Inbox {
    inner: Mutex<InboxState>,
    /// The inbox is not empty.
    not_empty: Notify,
    /// The inbox has capacity.
    capacity: Notify,
}

#[derive(Default)]
struct InboxState {
    waiting: VecDeque<(String, Bytes)>,
    bytes: usize,
    /// The subscriptions of the client, without the prefix; the value is unused.
    wanted: Index<u32>,
    prefix: String,
    closed: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes a client from its name when dropped.
struct Membership {
    bus: Arc<Bus>,
    inbox: Arc<Inbox>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        locked(&self.bus.inboxes).retain(|other| !Arc::ptr_eq(other, &self.inbox));
        locked(&self.inbox.inner).closed = true;
        self.inbox.capacity.notify_waiters();
    }
}

fn join(name: &str, prefix: &str) -> Membership {
    let mut buses = locked(&BUSES);
    let buses = buses.get_or_insert_default();
    buses.retain(|_, bus| bus.strong_count() > 0);
    let bus = buses.get(name).and_then(Weak::upgrade).unwrap_or_default();
    buses.insert(name.to_owned(), Arc::downgrade(&bus));
    let inbox = Arc::new(Inbox::default());
    locked(&inbox.inner).prefix = prefix.to_owned();
    locked(&bus.inboxes).push(Arc::clone(&inbox));
    Membership { bus, inbox }
}

pub(crate) async fn serve(shared: &Shared) {
    let member = join(&shared.address.path, &shared.prefix);
    let tracker = RefCell::new(shared.tracker());
    shared.set_connected();
    let publish = async {
        let mut in_flight = shared.in_flight();
        loop {
            let items = in_flight.take(BATCH_BYTES);
            if items.is_empty() {
                shared.outgoing.notified().await;
            }
            for item in items {
                send(&member, &shared.name(&item.to), &item).await;
                in_flight.settle(1);
            }
        }
    };
    let subscribe = async {
        loop {
            let changes = shared.take_changes(&mut tracker.borrow_mut());
            tracker.borrow_mut().end(ended(&changes));
            for (pattern, wanted) in changes {
                change(&member.inbox, &pattern, wanted);
                if wanted {
                    tracker.borrow_mut().request(&pattern);
                    tracker.borrow_mut().confirm(&pattern);
                }
                shared.mark_applied(&pattern, wanted);
            }
            shared.subscriptions_changed.notified().await;
        }
    };
    let receive = async {
        loop {
            let (items, full) = {
                let mut inner = locked(&member.inbox.inner);
                let full = std::mem::take(&mut inner.bytes) >= INBOX_LIMIT;
                (std::mem::take(&mut inner.waiting), full)
            };
            if full {
                member.inbox.capacity.notify_waiters();
            }
            if items.is_empty() {
                member.inbox.not_empty.notified().await;
            }
            for (name, bytes) in items {
                shared.arrive(&mut tracker.borrow_mut(), &name, None, &bytes);
            }
            yield_now().await;
        }
    };
    future::join3(publish, subscribe, receive).await;
}

fn change(inbox: &Inbox, pattern: &Pattern, wanted: bool) {
    let mut inner = locked(&inbox.inner);
    match wanted {
        true => inner.wanted.insert(pattern, 0),
        false => inner.wanted.remove(pattern, 0),
    };
}

async fn send(member: &Membership, name: &str, item: &Item) {
    let inboxes = locked(&member.bus.inboxes).clone();
    for inbox in inboxes {
        if Arc::ptr_eq(&inbox, &member.inbox) {
            continue;
        }
        loop {
            let capacity = inbox.capacity.notified();
            let mut capacity = std::pin::pin!(capacity);
            capacity.as_mut().enable(); // before the check, so that no later notification is missed
            if put(&inbox, name, item) {
                break;
            }
            capacity.await;
        }
    }
}

/// Returns whether the message was queued or is not wanted; `false` if the inbox is full.
fn put(inbox: &Inbox, name: &str, item: &Item) -> bool {
    let mut inner = locked(&inbox.inner);
    let wanted = name.strip_prefix(inner.prefix.as_str()).is_some_and(|name| match &item.to {
        Destination::All => true,
        // Clients with different prefixes see different topics.
        Destination::Topic(_) => {
            wirespeed_engine::topics::Topic::new(name).is_ok_and(|topic| inner.wanted.matching(&topic).next().is_some())
        }
    });
    if inner.closed || !wanted {
        return true;
    }
    if inner.bytes >= INBOX_LIMIT {
        return false;
    }
    inner.bytes += item.size();
    inner.waiting.push_back((name.to_owned(), item.bytes.clone()));
    drop(inner);
    inbox.not_empty.notify_one();
    true
}

/// Lets the other tasks of this thread run.
async fn yield_now() {
    let mut yielded = false;
    future::poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
