"""Executes a schedule on the blocking API: actors are threads."""

from __future__ import annotations

import contextlib
import gc
import queue
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from campaigns.common.calls import complete

from . import opening
from .actor import ThreadActor, perform
from .calls import ATTEMPT, Calls
from .director import Director
from .oracle import judge
from .plan import RECEIVING, SENDING, Plan, Step
from .record import DIRECTOR, Call, Poke
from .settling import Acting
from .watch import watching

# Helpers for calls that the director must not wait for.
_HELPER = -2


def run(plan: Plan, patience: float, *, wrap: Callable[[Any], Any] | None = None) -> list[str]:
    """Executes a schedule; returns the errors.

    Args:
        plan: The schedule.
        patience: Time limit in seconds for every required event.
        wrap: Gets each connection and returns a replacement for the actors, to prove that errors are found.
    """
    with watching() as watch:
        running = _ThreadDirector(plan, patience, wrap)
        in_main = threading.current_thread() is threading.main_thread()
        handler = signal.signal(signal.SIGALRM, _interrupt) if in_main else None
        try:
            running.main()
        finally:
            if in_main:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, handler)
        record, references = running.record, running.references
        del running
        gc.collect()
        # An exception that a signal handler raises inside an ssl.SSLContext is kept as the cause of the connection's
        # end.
        poked = plan.setting.tls == "context" and any(step.verb == "poke" for step in plan.steps)
        if not record.complaints and not poked and any(reference() is not None for reference in references):
            watch.found.append("a connection is still referred to after its end")
    return judge(record, ordered=False) + (watch.found if not record.complaints else [])


def _interrupt(_number: int, frame: FrameType | None) -> None:
    # In the call, or in the drop-in's code around it.
    inner = frame.f_back if frame is not None and "compat" in frame.f_code.co_filename else frame
    if inner is not None and inner.f_code is ATTEMPT:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise Poke


class _ThreadDirector(Director):
    actors: list[ThreadActor]

    def __init__(self, plan: Plan, patience: float, wrap: Any) -> None:
        super().__init__(plan, patience, wrap)
        self.actors = []
        self.helpers: list[ThreadActor] = []
        self.calls = Calls(blocking=True, links=self.record.links)

    def main(self) -> None:
        with contextlib.ExitStack() as stack:
            self._open(stack)
            try:
                self.actors = [self._actor(number) for number in range(self.plan.options["actors"])]
                # One for each action, so that a hanging one delays no other.
                self.helpers = [self._actor(_HELPER - number) for number in range(2)]
                complete(self.play())
            finally:
                for link in self.record.links:
                    if self.record.complaints:
                        link.ws.abort()
                for actor in [*self.actors, *self.helpers]:
                    actor.end()
                for actor in [*self.actors, *self.helpers]:
                    actor.join(2)
                    if actor.is_alive():
                        self.record.complaints.append(f"even abort does not end it: {actor.call}")
                for link in self.record.links:
                    link.peer.stop()
                    link.ws = None
                self.actors.clear()
                self.helpers.clear()

    def _actor(self, number: int) -> ThreadActor:
        return ThreadActor(number, self.record, self.calls)

    def _open(self, stack: contextlib.ExitStack) -> None:
        client, server, arguments = self.modules("sync", "wirespeed.sync")
        if self.plan.setting.role == "client":
            sock, pending = self.dial(blocking=True)
            ws = client.connect(opening.uri(self.plan), sock=sock, proxy=None, **arguments)
            self.link(ws, pending.result())
            return
        opened: queue.SimpleQueue[Any] = queue.SimpleQueue()
        over = threading.Event()

        def handle(ws: Any) -> None:
            opened.put(ws)
            del ws
            over.wait()

        listener = opening.listening_socket(self.plan, peer=False)
        serving = stack.enter_context(server.serve(handle, sock=listener, **arguments))
        thread = threading.Thread(target=serving.serve_forever, name="liveness-server", daemon=True)
        thread.start()
        stack.callback(thread.join, 5)
        stack.callback(serving.shutdown)
        stack.callback(over.set)
        for _ in range(self.plan.options["links"]):
            pending = opening.Pending(lambda: opening.dial_peer(self.plan, listener.getsockname()))
            self.link(opened.get(timeout=10), pending.result())

    # ---- steps ----

    async def other_step(self, step: Step) -> None:
        if step.verb == "nap":
            time.sleep(step.get("count") / 1000)
        else:
            assert step.verb == "poke"
            self._poke(step)

    async def turns(self, count: int) -> None:
        for _ in range(count):
            time.sleep(0.0002)

    async def pause(self, turn: int, seconds: float) -> None:
        time.sleep(seconds)

    def _poke(self, step: Step) -> None:
        """Makes a call in the main thread, which a signal handler leaves by an exception."""
        call = Call(0, DIRECTOR, Step(step.get("call"), DIRECTOR, step.link, step.more))
        if call.verb in RECEIVING:
            self.record.single = False
        # Repeated until it is in the call.
        signal.setitimer(signal.ITIMER_REAL, (step.get("count") + 1) / 1e6, 0.001)
        try:
            complete(perform(call, self.record, self.calls))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    # ---- calls that wait forever ----

    def acting(self) -> list[Acting]:
        return [*self.actors, *self.helpers]

    def _ask(self, helper: int, step: Step) -> None:
        """Gives a helper a task, unless it is busy."""
        actor = self.helpers[helper]
        if actor.call is None and not actor.steps:
            actor.give(step)

    def drain(self, *, to_the_end: bool = False) -> bool:
        for link in self.record.links:
            calls = [actor.call for actor in self.actors if actor.call is not None and actor.call.receives]
            receives = any(call.step.link == link.index for call in calls)
            if not receives and link.state != "CLOSED" and (link.outstanding > 0 or to_the_end):
                # With a timeout it soon yields to other receivers.
                self._ask(0, Step("recv_many", 0, link.index, (("limit", 1000), ("timeout", 0.02))))
        return True

    def complete(self) -> bool:
        # Nothing is sent without a call.
        for link in self.record.links:
            if link.state != "OPEN" or not link.ws.stats()["send_queue_bytes"]:
                continue
            # The kernel's buffer was never full: then no call may leave anything unsent.
            blocked = any(call.idents for call in self.record.of(link))
            blocked = blocked or any(step.verb in ("pause", "dribble") for step in self.plan.steps)
            # A call on this connection writes queued data; one on another connection does not. Data that a signal
            # handler left in the queue is written by the next call: a thread that waits in the socket does not notice.
            interrupted = any(step.verb == "poke" for step in self.plan.steps)
            calls = [actor.call for actor in self.actors if actor.call is not None]
            writers = [call for call in calls if call.verb in SENDING] if interrupted else calls
            busy = any(call.step.link == link.index for call in writers)
            if blocked and not busy:
                self._ask(1, Step("flush", 1, link.index))
        return True

    # ---- the end ----

    async def end(self) -> None:
        end = self.plan.options["end"]
        self.begin_end()
        if end != "close":
            # Only a call notices the end.
            noticed = lambda: self.drain(to_the_end=True) and all(link.state != "OPEN" for link in self.record.links)  # noqa: E731
            if not await self.until(noticed):
                self.record.complaints.append(f"the end by {end!r} does not come")
                return
        for link in self.record.links:
            # In either case this ends TCP; receivers get the messages that had arrived before.
            closed = link.closed = link.closed or (end == "close" and link.state == "OPEN")
            helper = self._actor(_HELPER - 2)
            self.helpers.append(helper)
            helper.give(Step("close", 0, link.index, (("code", 1000),)))
            if not await self.until(lambda helper=helper: helper.call is None and not helper.steps):  # type: ignore[misc]
                self.record.complaints.append("close does not return")
                return
            link.closed = closed
        if not await self.until(lambda: not self.owing(receiving=True)):
            self.record.complaints += self.owing(receiving=True)
            return
        await self.check_after()
