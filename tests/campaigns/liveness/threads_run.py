"""Executes a schedule on the blocking API: actors are threads; the director checks that all end."""

from __future__ import annotations

import contextlib
import gc
import importlib
import queue
import signal
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from . import opening
from .oracle import judge
from .plan import PEER, RECEIVING, Plan, Step
from .record import DIRECTOR, Call, Link, Poke, Record
from .settling import Deadline, owing
from .threads_actor import Actor, perform
from .threads_calls import ATTEMPT, Calls
from .watch import watching

__all__ = ["run"]

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
        running = _Run(plan, patience, wrap)
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


class _Run:
    def __init__(self, plan: Plan, patience: float, wrap: Any) -> None:
        self.plan = plan
        self.patience = patience
        self.wrap = wrap or (lambda ws: ws)
        self.record = Record()
        self.references: list[Any] = []
        self.actors: list[Actor] = []
        self.helpers: list[Actor] = []
        self.receivers: set[int] = set()
        self.calls = Calls()

    def main(self) -> None:
        with contextlib.ExitStack() as stack:
            self._open(stack)
            try:
                self._play()
            finally:
                everybody = [*self.actors, *self.helpers]
                for link in self.record.links:
                    if self.record.complaints:
                        link.ws.abort()
                for actor in everybody:
                    actor.end(at_once=True)
                for actor in everybody:
                    actor.join(2)
                    if actor.is_alive():
                        self.record.complaints.append(f"even abort does not end it: {actor.call}")
                for link in self.record.links:
                    link.peer.stop()
                    link.ws = None
                self.actors.clear()
                self.helpers.clear()

    def _play(self) -> None:
        self.actors = [Actor(number, self.record, self.calls) for number in range(self.plan.options["actors"])]
        # One for each connection and action, so that a hanging one delays no other.
        self.helpers = [Actor(_HELPER - number, self.record, self.calls) for number in range(2)]
        for step in self.plan.steps:
            self._step(step)
            if self.record.complaints:
                return
        self._check()
        if not self.record.complaints:
            self._end()

    # ---- opening ----

    def _open(self, stack: contextlib.ExitStack) -> None:
        plan, setting = self.plan, self.plan.setting
        place = "wirespeed.compat.websockets.sync" if setting.dropin else "wirespeed.sync"
        client = importlib.import_module(f"{place}.client" if setting.dropin else place)
        server = importlib.import_module(f"{place}.server" if setting.dropin else place)
        arguments = opening.arguments(plan)
        if setting.role == "client":
            listener = opening.listening_socket(plan, peer=True)
            pending = opening.Pending(lambda: opening.accept_peer(plan, listener))
            sock = opening.client_socket(plan, listener.getsockname(), peer=False)
            ws = client.connect(opening.uri(plan), sock=sock, proxy=None, **arguments)
            self._link(ws, pending.result())
            return
        opened: queue.SimpleQueue[Any] = queue.SimpleQueue()
        over = threading.Event()

        def handle(ws: Any) -> None:
            opened.put(ws)
            del ws
            over.wait()

        listener = opening.listening_socket(plan, peer=False)
        serving = stack.enter_context(server.serve(handle, sock=listener, **arguments))
        thread = threading.Thread(target=serving.serve_forever, name="liveness-server", daemon=True)
        thread.start()
        stack.callback(thread.join, 5)
        stack.callback(serving.shutdown)
        stack.callback(over.set)
        for _ in range(plan.options["links"]):
            pending = opening.Pending(lambda: opening.dial_peer(plan, listener.getsockname()))
            self._link(opened.get(timeout=10), pending.result())

    def _link(self, ws: Any, peer: Any) -> None:
        self.references.append(weakref.ref(ws))
        may_tear = self.plan.setting.tls == "context"
        self.record.links.append(Link(len(self.record.links), self.wrap(ws), peer, may_tear=may_tear))

    # ---- steps ----

    def _step(self, step: Step) -> None:
        verb = step.verb
        if step.is_call:
            self.actors[step.actor].give(step)
            if verb in RECEIVING:
                self.receivers.add(step.actor)
                self.record.single = len(self.receivers) < 2
            self._turns(step.get("turns", 0))
        elif verb in PEER:
            self.record.links[step.link].peer.do(verb, **dict(step.more))
        elif verb == "turn":
            self._turns(step.get("count"))
        elif verb == "nap":
            time.sleep(step.get("count") / 1000)
        elif verb == "poke":
            self._poke(step)
        else:
            self._check()

    @staticmethod
    def _turns(count: int) -> None:
        for _ in range(count):
            time.sleep(0.0002)

    def _poke(self, step: Step) -> None:
        """Makes a call in the main thread, which a signal handler leaves by an exception."""
        what = Step(step.get("call"), DIRECTOR, step.link, step.more)
        if what.verb in RECEIVING:
            self.record.single = False
        # Repeated until it is in the call.
        signal.setitimer(signal.ITIMER_REAL, (step.get("count") + 1) / 1e6, 0.001)
        try:
            perform(DIRECTOR, what, self.record, self.calls)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _until(self, condition: Callable[[], bool]) -> bool:
        deadline = Deadline(self.record, self.patience)
        pause = 0.0
        while not condition():
            if deadline.look():
                return False
            time.sleep(pause)
            pause = min(0.005, pause + 0.0002)
        return True

    # ---- calls that wait forever ----

    def _owing(self, *, receiving: bool) -> list[str]:
        return owing(self.record, [*self.actors, *self.helpers], receiving=receiving, driven=False)

    def _ask(self, helper: int, step: Step) -> None:
        """Gives a helper a task, unless it is busy."""
        actor = self.helpers[helper]
        if actor.call is None and not actor.steps:
            actor.give(step)

    def _drain(self, *, to_the_end: bool = False) -> bool:
        """Makes sure that some actor receives the available messages. Always true."""
        for link in self.record.links:
            calls = [actor.call for actor in self.actors if actor.call is not None and actor.call.receives]
            receives = any(call.step.link == link.index for call in calls)
            if not receives and link.state != "CLOSED" and (link.outstanding > 0 or to_the_end):
                # With a timeout it soon yields to other receivers.
                self._ask(0, Step("recv_many", 0, link.index, (("limit", 1000), ("timeout", 0.02))))
        return True

    def _complete(self) -> bool:
        """Sends data that a call has left unsent: nothing is sent without a call. Always true."""
        for link in self.record.links:
            if link.state != "OPEN" or not link.ws.stats()["send_queue_bytes"]:
                continue
            # The kernel's buffer was never full: then no call may leave anything unsent.
            blocked = any(call.idents for call in self.record.of(link))
            blocked = blocked or any(step.verb in ("pause", "dribble") for step in self.plan.steps)
            # A call on this connection writes queued data; one on another connection does not.
            busy = any(actor.call is not None and actor.call.step.link == link.index for actor in self.actors)
            if blocked and not busy:
                self._ask(1, Step("flush", 1, link.index))
        return True

    def _check(self) -> None:
        """Waits until everything settles: the peers read and answer, and no call may wait for more."""
        for link in self.record.links:
            link.peer.relax()
        sent = lambda: self._complete() and not self._owing(receiving=False)  # noqa: E731
        if not self._until(sent):
            self.record.complaints += self._owing(receiving=False)
        # A receiver may leave a ping unsent, where the kernel had no room for it yet.
        elif not self._until(lambda: self._drain() and self._complete() and not self._owing(receiving=True)):
            self.record.complaints += self._owing(receiving=True)

    # ---- the end ----

    def _end(self) -> None:
        end = self.plan.options["end"]
        for link in self.record.links:
            if end == "abort":
                link.aborted = True
                link.ws.abort()
            elif end != "close":
                link.peer.do("close" if end == "peer" else end)
        if end != "close":
            # Only a call notices the end.
            learned = lambda: self._drain(to_the_end=True) and all(link.state != "OPEN" for link in self.record.links)  # noqa: E731
            if not self._until(learned):
                self.record.complaints.append(f"the end by {end!r} does not come")
                return
        for link in self.record.links:
            # In either case this ends TCP; receivers get the messages that had arrived before.
            link.closed = link.closed or (end == "close" and link.state == "OPEN")
            helper = Actor(_HELPER - 2, self.record, self.calls)
            self.helpers.append(helper)
            closing = Step("close", 0, link.index, (("code", 1000),))
            closed = link.closed
            helper.give(closing)
            if not self._until(lambda helper=helper: helper.call is None and not helper.steps):  # type: ignore[misc]
                self.record.complaints.append("close does not return")
                return
            link.closed = closed
        if not self._until(lambda: not self._owing(receiving=True)):
            self.record.complaints += self._owing(receiving=True)
            return
        for link in self.record.links:
            self._try_after(link)
        if not self._until(lambda: all(link.peer.ended is not None for link in self.record.links)):
            self.record.complaints.append("the connection is closed, and its socket is not")

    def _try_after(self, link: Link) -> None:
        """Checks that every call raises that the connection is closed, after the arrived messages are received."""
        ws = link.ws
        while True:
            try:
                message = ws.recv(self.patience)
            except Exception as exc:
                self._expect_closed("recv", link, exc)
                break
            link.take(DIRECTOR, message)
        for name, arguments in (("send", ("x",)), ("flush", ()), ("ping", ())):
            try:
                getattr(ws, name)(*arguments)
            except Exception as exc:
                self._expect_closed(name, link, exc)
            else:
                self.record.afterwards.append(f"after the end, {name} returns")

    def _expect_closed(self, name: str, link: Link, exc: Exception) -> None:
        call = Call(len(self.record.calls), DIRECTOR, Step(name, DIRECTOR, link.index))
        call.raised(exc, link.state)
        if "ConnectionClosed" not in call.kinds:
            self.record.afterwards.append(f"after the end: {call}")
