//! The thread of a client: serves the connection, and starts again after errors and panics.

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
            // A panic in our code is handled like a broken connection.
            let served = catch_unwind(AssertUnwindSafe(|| {
                runtime.block_on(async {
                    let beside = future::join(self.retry_denied_periodically(), self.log_refusals());
                    let transport = std::pin::pin!(future::join(self.serve(), beside));
                    let end = std::pin::pin!(self.end());
                    let defect = std::pin::pin!(self.defect.notified());
                    let ended = future::select(future::select(transport, end), defect).await;
                    matches!(ended, future::Either::Left(_))
                })
            }));
            if !matches!(served, Ok(true)) {
                // The state may be inconsistent after the panic, so these steps may panic as well.
                let _ = catch_unwind(AssertUnwindSafe(|| self.set_disconnected("a defect of ours")));
                let _ = catch_unwind(AssertUnwindSafe(|| {
                    let in_flight = self.queue.inspect(Queue::in_flight); // this statement releases the lock
                    self.mark_unconfirmed(in_flight);
                }));
                self.reset_subscriptions();
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

    /// Sends and receives messages; never returns.
    async fn serve(self: &Arc<Self>) {
        match self.address.kind {
            Kind::Memory => memory::serve(self).await,
            Kind::Nats => nats::serve(self).await,
            Kind::Redis | Kind::Sentinel | Kind::Cluster => redis::serve(self).await,
        }
    }

    /// Retries denied subscriptions with backoff, because an operator may have restored the permission.
    async fn retry_denied_periodically(&self) {
        let mut attempt = 0;
        loop {
            let allowed_since = Instant::now();
            self.subscription_denied.notified().await;
            if allowed_since.elapsed() > backoff::LONGEST_PERMISSION {
                attempt = 0; // this denial does not answer the last retry
            }
            tokio::time::sleep(backoff::permission(attempt)).await;
            attempt = if self.retry_denied() { attempt + 1 } else { 0 };
        }
    }

    /// Waits for a call of `close`, and then, while connected, until the queue is empty or the deadline.
    async fn end(&self) {
        let mut closing = self.closing.subscribe();
        let deadline = match closing.wait_for(Option::is_some).await {
            Ok(deadline) => *deadline,
            Err(_) => None, // unreachable: the sender lives as long as `self`
        };
        let is_early = || deadline.is_some_and(|deadline| Instant::now() < deadline);
        while self.is_connected() && !self.queue.inspect(Queue::is_settled) && is_early() {
            self.flush_requested.store(true, Ordering::Release);
            self.outgoing.notify_one();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
