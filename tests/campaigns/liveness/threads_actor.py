"""Actors of the blocking API: each is a thread that makes one call after the other. It may hang: waits for it are
short.
"""

from __future__ import annotations

import collections
import threading

from .plan import Step
from .record import Call, Poke, Record
from .threads_calls import Calls

__all__ = ["Actor", "perform"]


def perform(actor: int, step: Step, record: Record, calls: Calls) -> Call:
    """Makes one call, and records its outcome."""
    call = Call(0, actor, step)
    _begin(call, record)
    _finish(call, record, calls)
    return call


def _begin(call: Call, record: Record) -> None:
    with record.lock:
        call.order = len(record.calls)
        record.calls.append(call)


def _finish(call: Call, record: Record, calls: Calls) -> None:
    link = record.links[call.step.link]
    try:
        calls.make(call, link)
        call.result = "returned"
    except (Exception, Poke) as exc:
        call.raised(exc, link.state)
        if isinstance(exc, UnicodeDecodeError):
            link.take(call.actor, exc.object)  # the message was assigned to the call, which could not decode it
        link.lost += call.receives and call.result == "interrupted"


class Actor(threading.Thread):
    """A thread that makes calls.

    Args:
        number: The number in its messages.
        record: The record of its calls.
        calls: Makes them.
    """

    def __init__(self, number: int, record: Record, calls: Calls) -> None:
        super().__init__(name=f"liveness-actor-{number}", daemon=True)
        self.number = number
        self.record = record
        self.calls = calls
        self.steps: collections.deque[Step] = collections.deque()
        self.call: Call | None = None
        self._changed = threading.Condition()
        self._ending = False
        self.start()

    def give(self, step: Step) -> None:
        with self._changed:
            self.steps.append(step)
            self._changed.notify()

    def end(self, *, at_once: bool = False) -> None:
        with self._changed:
            self._ending = True
            if at_once:
                self.steps.clear()
            self._changed.notify()

    def run(self) -> None:
        while True:
            with self._changed:
                self.call = None
                while not self.steps and not self._ending:
                    self._changed.wait()
                if not self.steps:
                    return
                # Both at once: observers find it either waiting or at work.
                call = self.call = Call(0, self.number, self.steps[0])
                self.steps.popleft()
            if (before := call.step.get("before")) is not None:
                self.record.links[call.step.link].peer.do(before)
            _begin(call, self.record)
            _finish(call, self.record, self.calls)
