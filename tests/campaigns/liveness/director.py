"""The director of a run on either kind of API: gives the actors their steps, and checks that all calls end."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from typing import Any

from campaigns.common.calls import attempt

from . import opening
from .plan import PEER, RECEIVING, Plan, Step
from .record import DIRECTOR, Call, Link, Record
from .settling import Acting, Deadline, owing


class Director:
    """One run. The blocking API runs it without an event loop.

    Args:
        plan: The schedule.
        patience: Time limit in seconds for every required event.
        wrap: Gets each connection and returns a replacement for the actors, to prove that errors are found.
    """

    def __init__(self, plan: Plan, patience: float, wrap: Callable[[Any], Any] | None) -> None:
        self.plan = plan
        self.patience = patience
        self.wrap = wrap or (lambda ws: ws)
        self.record = Record()
        self.references: list[Any] = []
        self.receivers: set[int] = set()

    # ---- what the kinds of API have differently ----

    actors: list[Any]

    async def turns(self, count: int) -> None:
        """Lets the actors work for some turns."""
        raise NotImplementedError

    async def pause(self, turn: int, seconds: float) -> None:
        """Waits between two looks at a condition."""
        raise NotImplementedError

    async def other_step(self, step: Step) -> None:
        """Makes a step that is neither a call nor one of the peer."""
        raise NotImplementedError

    def acting(self) -> list[Acting]:
        """Returns all actors."""
        return list(self.actors)

    def complete(self) -> bool:
        """Makes sure that queued data is sent. Always true."""
        return True

    def drain(self) -> bool:
        """Makes sure that some actor receives the available messages. Always true."""
        raise NotImplementedError

    async def end(self) -> None:
        """Ends the connections as planned, and checks them."""
        raise NotImplementedError

    # ---- opening ----

    def modules(self, flavour: str, own: str) -> tuple[Any, Any, dict[str, Any]]:
        """Returns the modules with ``connect`` and ``serve``, and the arguments for both."""
        if self.plan.setting.dropin:
            place = f"wirespeed.compat.websockets.{flavour}"
            names = f"{place}.client", f"{place}.server"
        else:
            names = own, own
        client, server = map(importlib.import_module, names)
        return client, server, opening.arguments(self.plan)

    def dial(self, *, blocking: bool) -> tuple[Any, opening.Pending[Any]]:
        """Returns a socket that is connected to a peer, and the peer, which waits for the handshake."""
        listener = opening.listening_socket(self.plan, peer=True)
        pending = opening.Pending(lambda: opening.accept_peer(self.plan, listener))
        sock = opening.client_socket(self.plan, listener.getsockname(), peer=False)
        if not blocking:
            sock.setblocking(False)
        return sock, pending

    def link(self, ws: Any, peer: Any) -> None:
        self.references.append(weakref.ref(ws))
        may_tear = self.plan.setting.tls == "context"
        self.record.links.append(Link(len(self.record.links), self.wrap(ws), peer, may_tear=may_tear))

    # ---- steps ----

    async def play(self) -> None:
        """Makes all steps, waits until everything settles, and ends the connections."""
        for step in self.plan.steps:
            await self._step(step)
            if self.record.complaints:
                return
        await self.check()
        if not self.record.complaints:
            await self.end()

    async def _step(self, step: Step) -> None:
        verb = step.verb
        if step.is_call:
            self.actors[step.actor].give(step)
            if verb in RECEIVING:
                self.receivers.add(step.actor)
                self.record.single = len(self.receivers) < 2
            await self.turns(step.get("turns", 0))
        elif verb in PEER:
            self.record.links[step.link].peer.do(verb, **dict(step.more))
        elif verb == "turn":
            await self.turns(step.get("count"))
        elif verb == "check":
            await self.check()
        else:
            await self.other_step(step)

    async def until(self, condition: Callable[[], bool]) -> bool:
        deadline = Deadline(self.record, self.patience)
        pause = 0.0
        for turn in range(1, 1_000_000):
            if condition():
                return True
            if deadline.look():
                return False
            await self.pause(turn, pause)
            pause = min(0.005, pause + 0.0002)
        return False

    # ---- calls that wait forever ----

    def owing(self, *, receiving: bool) -> list[str]:
        return owing(self.record, self.acting(), receiving=receiving, driven=not self.plan.setting.blocking)

    async def check(self) -> None:
        """Waits until everything settles: the peers read and answer, and no call may wait for more."""
        for link in self.record.links:
            link.peer.relax()
        await self.turns(3)
        if not await self.until(lambda: self.complete() and not self.owing(receiving=False)):
            self.record.complaints += self.owing(receiving=False)
        # A receiver may leave a ping unsent, where the kernel had no room for it yet.
        elif not await self.until(lambda: self.drain() and self.complete() and not self.owing(receiving=True)):
            self.record.complaints += self.owing(receiving=True)

    # ---- the end ----

    def begin_end(self) -> None:
        """Ends the connections that are not closed by a call."""
        end = self.plan.options["end"]
        for link in self.record.links:
            if end == "abort":
                link.aborted = True
                link.ws.abort()
            elif end != "close":
                link.peer.do("close" if end == "peer" else end)

    async def check_after(self, wait: Callable[..., Any] = attempt) -> None:
        """Checks that every call raises that the connection is closed, and that every peer sees the end."""
        for link in self.record.links:
            await self._try_after(link, wait)
        if not await self.until(lambda: all(link.peer.ended is not None for link in self.record.links)):
            self.record.complaints.append("the connection is closed, and its socket is not")

    async def _try_after(self, link: Link, wait: Callable[..., Any]) -> None:
        ws, blocking = link.ws, self.plan.setting.blocking
        limit = [self.patience] if blocking else []
        while True:
            try:
                message = await wait(ws.recv, *limit)
            except Exception as exc:
                if blocking:
                    self._expect_closed("recv", link, exc)
                break
            link.take(DIRECTOR, message)
        for name, arguments in (("send", "x"), ("flush", ""), ("recv", ""), ("ping", ""), ("send_nowait", "x")):
            if blocking and name in ("recv", "send_nowait"):
                continue
            try:
                await wait(getattr(ws, name), *arguments)
            except Exception as exc:
                self._expect_closed(name, link, exc)
            else:
                self.record.afterwards.append(f"after the end, {name} returns")
        # On a connection that was cut, half a message may be left.
        clean = link.peer.close_sent_first and link.peer.close_received is not None and not link.closed
        stats = ws.stats()
        if clean and not blocking and (stats["receive_queue_messages"] or stats["send_queue_bytes"]):
            self.record.afterwards.append(f"after the end, something is queued: {stats}")

    def _expect_closed(self, name: str, link: Link, exc: Exception) -> None:
        call = Call(len(self.record.calls), DIRECTOR, Step(name, DIRECTOR, link.index))
        call.raised(exc, link.state)
        if "ConnectionClosed" not in call.kinds:
            self.record.afterwards.append(f"after the end: {call}")
