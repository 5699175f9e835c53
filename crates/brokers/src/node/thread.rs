//! The thread of a node: it serves, and begins again after whatever breaks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future;
use wirespeed_engine::broker::{Notice, State};
use wirespeed_engine::lock as locked;

use super::Shared;
use crate::address::Kind;
use crate::queue::Queue;
use crate::{backoff, memory, nats, redis};

/// How long what was taken may take to be sent when all ends.
const LINGER: Duration = Duration::from_secs(1);

impl Shared {
    pub(super) fn run(self: &Arc<Self>, runtime: &tokio::runtime::Runtime) {
        let mut attempt = 0;
        while !self.is_closing() {
            // A defect of ours is a connection that broke.
            let served = catch_unwind(AssertUnwindSafe(|| {
                runtime.block_on(async {
                    let transport = std::pin::pin!(self.serve());
                    let end = std::pin::pin!(self.end());
                    let defect = std::pin::pin!(self.defect.notified());
                    let ended = future::select(future::select(transport, end), defect).await;
                    matches!(ended, future::Either::Left(_))
                })
            }));
            if !matches!(served, Ok(true)) {
                // What these steps meet may be what the panic has left.
                let _ = catch_unwind(AssertUnwindSafe(|| self.set_disconnected("a defect of ours")));
                let _ = catch_unwind(AssertUnwindSafe(|| {
                    let under_way = self.queue.look(Queue::under_way); // the lock is given up here
                    self.doubt(under_way);
                }));
                self.forget_interests();
                let pause = backoff::delay(attempt);
                attempt += 1;
                std::thread::sleep(pause);
            }
        }
        let left = self.change(|queue| {
            let left = queue.close();
            self.doubtful.fetch_add(left, Ordering::Relaxed);
            left
        });
        if left > 0 {
            self.tell(Notice::Doubtful(left));
        }
        self.connected.send_replace(false);
        self.tell_room();
        let mut notices = locked(&self.notices);
        notices.state = State::Closed;
        notices.reason = None;
        notices.refusal = None;
    }

    /// Moves messages until it is dropped.
    async fn serve(self: &Arc<Self>) {
        match self.address.kind {
            Kind::Memory => memory::serve(self).await,
            Kind::Nats => nats::serve(self).await,
            Kind::Redis | Kind::Sentinel | Kind::Cluster => redis::serve(self).await,
        }
    }

    /// Waits until all is to end, and then, if there is a connection, a moment for what was taken.
    async fn end(&self) {
        let mut closing = self.closing.subscribe();
        let _ = closing.wait_for(|closing| *closing).await; // its sender is here
        let deadline = tokio::time::Instant::now() + LINGER;
        while self.is_connected() && !self.queue.look(Queue::is_settled) && tokio::time::Instant::now() < deadline {
            self.flushes.store(true, Ordering::Release);
            self.outgoing.notify_one();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
