//! Engines of one process, on one name: for tests, for examples, and to begin with.
//!
//! Each node has an inbox, bounded in bytes; whoever publishes waits, on its own broker's thread, until it has room.

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
use crate::queue::{Item, To};

/// Bytes that may wait in an inbox.
const LIMIT: usize = 4 << 20;

/// Bytes that are taken out of a queue at once.
const BATCH: usize = 256 * 1024;

/// All names of this process that somebody uses.
static HUBS: Mutex<Option<HashMap<String, Weak<Hub>, RandomState>>> = Mutex::new(None);

/// One name.
#[derive(Default)]
struct Hub {
    inboxes: Mutex<Vec<Arc<Inbox>>>,
}

/// What waits for one node.
#[derive(Default)]
struct Inbox {
    inner: Mutex<Inner>,
    /// There is something.
    some: Notify,
    /// There is room.
    room: Notify,
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<(String, Bytes)>,
    bytes: usize,
    /// What the node wants, with its prefix; the number says nothing.
    wanted: Index<u32>,
    prefix: String,
    closed: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a node off its name when it ends.
struct Membership {
    hub: Arc<Hub>,
    inbox: Arc<Inbox>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        locked(&self.hub.inboxes).retain(|other| !Arc::ptr_eq(other, &self.inbox));
        locked(&self.inbox.inner).closed = true;
        self.inbox.room.notify_waiters();
    }
}

fn join(name: &str, prefix: &str) -> Membership {
    let mut hubs = locked(&HUBS);
    let hubs = hubs.get_or_insert_default();
    hubs.retain(|_, hub| hub.strong_count() > 0);
    let hub = hubs.get(name).and_then(Weak::upgrade).unwrap_or_default();
    hubs.insert(name.to_owned(), Arc::downgrade(&hub));
    let inbox = Arc::new(Inbox::default());
    locked(&inbox.inner).prefix = prefix.to_owned();
    locked(&hub.inboxes).push(Arc::clone(&inbox));
    Membership { hub, inbox }
}

pub(crate) async fn serve(shared: &Shared) {
    let member = join(&shared.address.path, &shared.prefix);
    let tracker = RefCell::new(shared.tracker());
    shared.set_connected();
    let publish = async {
        let mut in_flight = shared.in_flight();
        loop {
            let items = in_flight.take(BATCH);
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
            let changes = shared.take_interests(&mut tracker.borrow_mut());
            tracker.borrow_mut().end(ended(&changes));
            for (pattern, wanted) in changes {
                change(&member.inbox, &pattern, wanted);
                if wanted {
                    tracker.borrow_mut().ask(&pattern);
                    tracker.borrow_mut().confirm(&pattern);
                }
                shared.done(&pattern, wanted);
            }
            shared.wanted.notified().await;
        }
    };
    let receive = async {
        loop {
            let (items, full) = {
                let mut inner = locked(&member.inbox.inner);
                let full = std::mem::take(&mut inner.bytes) >= LIMIT;
                (std::mem::take(&mut inner.waiting), full)
            };
            if full {
                member.inbox.room.notify_waiters();
            }
            if items.is_empty() {
                member.inbox.some.notified().await;
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
    let inboxes = locked(&member.hub.inboxes).clone();
    for inbox in inboxes {
        if Arc::ptr_eq(&inbox, &member.inbox) {
            continue;
        }
        loop {
            let room = inbox.room.notified();
            let mut room = std::pin::pin!(room);
            room.as_mut().enable(); // before the look, so that what changes after it is heard
            if put(&inbox, name, item) {
                break;
            }
            room.await;
        }
    }
}

/// Whether it is there, or not wanted; else there is no room.
fn put(inbox: &Inbox, name: &str, item: &Item) -> bool {
    let mut inner = locked(&inbox.inner);
    let wanted = name.strip_prefix(inner.prefix.as_str()).is_some_and(|name| match &item.to {
        To::All => true,
        // A prefix that one of them has and the other not makes another topic of it.
        To::Topic(_) => {
            wirespeed_engine::topics::Topic::new(name).is_ok_and(|topic| inner.wanted.matching(&topic).next().is_some())
        }
    });
    if inner.closed || !wanted {
        return true;
    }
    if inner.bytes >= LIMIT {
        return false;
    }
    inner.bytes += item.size();
    inner.waiting.push_back((name.to_owned(), item.bytes.clone()));
    drop(inner);
    inbox.some.notify_one();
    true
}

/// Lets the others of this thread have their turn.
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
