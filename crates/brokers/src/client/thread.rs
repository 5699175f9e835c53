//! The thread of a node: it serves, and begins again after whatever breaks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future;
use wirespeed_engine::broker::{Notice, State};
use wirespeed_engine::lock as locked;

use super::Shared;
use crate::address::Kind;
use crate::queue::Queue;
use crate::{backoff, memory, nats, redis};

impl Shared {
    pub(super) fn run(self: &Arc<Self>, runtime: &tokio::runtime::Runtime) {
        let mut attempt = 0;
        while !self.is_closing() {
            // A defect of ours is a connection that broke.
            let served = catch_unwind(AssertUnwindSafe(|| {
                runtime.block_on(async {
                    let beside = future::join(self.ask_denied_again_later(), self.log_refusals());
                    let transport = std::pin::pin!(future::join(self.serve(), beside));
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
                    let in_flight = self.queue.look(Queue::in_flight); // the lock is given up here
                    self.mark_unconfirmed(in_flight);
                }));
                self.forget_interests();
                let pause = backoff::delay(attempt);
                attempt += 1;
                std::thread::sleep(pause);
            }
        }
        let left = self.change(|queue| {
            let left = queue.close();
            self.unconfirmed.fetch_add(left, Ordering::Relaxed);
            left
        });
        if left > 0 {
            self.notify(Notice::Unconfirmed(left));
        }
        self.connected.send_replace(false);
        self.notify_capacity();
        let mut notices = locked(&self.notices);
        notices.state = State::Closed;
        notices.reason = None;
        (notices.refusal, notices.denial) = (None, None);
    }

    /// Moves messages until it is dropped.
    async fn serve(self: &Arc<Self>) {
        match self.address.kind {
            Kind::Memory => memory::serve(self).await,
            Kind::Nats => nats::serve(self).await,
            Kind::Redis | Kind::Sentinel | Kind::Cluster => redis::serve(self).await,
        }
    }

    /// Asks for denied subscriptions again, with backoff: an operator may have restored the permission.
    async fn ask_denied_again_later(&self) {
        let mut attempt = 0;
        loop {
            let allowed_since = Instant::now();
            self.denied.notified().await;
            if allowed_since.elapsed() > backoff::LONGEST_PERMISSION {
                attempt = 0; // this denial is not the answer to the last attempt
            }
            tokio::time::sleep(backoff::permission(attempt)).await;
            attempt = if self.ask_denied_again() { attempt + 1 } else { 0 };
        }
    }

    /// Waits for the call to end, and then, while there is a connection, for messages in the queue until the deadline.
    async fn end(&self) {
        let mut closing = self.closing.subscribe();
        let deadline = match closing.wait_for(Option::is_some).await {
            Ok(deadline) => *deadline,
            Err(_) => None, // its sender is here
        };
        let is_early = || deadline.is_some_and(|deadline| Instant::now() < deadline);
        while self.is_connected() && !self.queue.look(Queue::is_settled) && is_early() {
            self.flushes.store(true, Ordering::Release);
            self.outgoing.notify_one();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
