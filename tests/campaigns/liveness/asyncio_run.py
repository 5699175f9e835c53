"""Executes a schedule on an event loop: actors are tasks; the director gives them steps and checks that all end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import signal
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from interop.asyncio_tools import new_loop, spin, still_watched

from . import opening
from .asyncio_actor import Actor
from .asyncio_calls import ATTEMPT, Calls
from .oracle import judge
from .plan import PEER, RECEIVING, Plan, Step
from .record import DIRECTOR, Call, Link, Poke, Record
from .settling import Deadline, owing
from .watch import Watch, watching

__all__ = ["run"]


def run(plan: Plan, patience: float, *, wrap: Callable[[Any], Any] | None = None) -> list[str]:
    """Executes a schedule; returns the errors.

    Args:
        plan: The schedule.
        patience: Time limit in seconds for every required event.
        wrap: Gets each connection and returns a replacement for the actors, to prove that errors are found.
    """
    loop = new_loop(plan.setting.loop)
    loop.run_until_complete(spin())
    loop.close()
    with watching() as watch:
        record, references = _execute(plan, patience, wrap, watch)
        gc.collect()
        # An exception that a signal handler raises in the loop itself may leave the interrupted object behind.
        poked = any(step.verb == "poke" for step in plan.steps)
        if not record.complaints and not poked and any(reference() is not None for reference in references):
            watch.found.append("a connection is still referred to after its end")
    # A signal between a call and its ``await`` leaves a coroutine that can never be awaited.
    if any(call.result == "interrupted" for call in record.calls):
        watch.found = [found for found in watch.found if not found.endswith("was never awaited")]
    return judge(record, ordered=True) + (watch.found if not record.complaints else [])


def _execute(plan: Plan, patience: float, wrap: Any, watch: Watch) -> tuple[Record, list[Any]]:
    loop = new_loop(plan.setting.loop)
    loop.set_exception_handler(watch.loop_handler)
    run = _Run(plan, patience, wrap)
    handler = signal.signal(signal.SIGALRM, _interrupt)
    try:
        task = loop.create_task(run.main())
        while True:
            # A signal may come while the loop itself runs.
            with contextlib.suppress(Poke):
                loop.run_until_complete(task)
                break
        del task
        signal.setitimer(signal.ITIMER_REAL, 0)
        if not run.record.complaints:
            watch.found += _left(loop)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        loop.run_until_complete(loop.shutdown_asyncgens())
        gc.collect()
        loop.run_until_complete(spin())
        loop.close()
    return run.record, run.references


def _interrupt(_number: int, frame: FrameType | None) -> None:
    if frame is not None and frame.f_code is ATTEMPT:
        raise Poke


def _left(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Returns the objects that are left on a loop."""
    loop.run_until_complete(spin())
    found = [f"task {task!r} is left" for task in asyncio.all_tasks(loop)]
    gc.collect()
    loop.run_until_complete(spin())
    timers = [handle for handle in getattr(loop, "_scheduled", ()) if not handle.cancelled()]
    found += [f"timer {handle!r} is left" for handle in timers]
    return found + still_watched(loop)


class _Run:
    def __init__(self, plan: Plan, patience: float, wrap: Any) -> None:
        self.plan = plan
        self.patience = patience
        self.wrap = wrap or (lambda ws: ws)
        self.record = Record()
        self.references: list[Any] = []
        self.actors: list[Actor] = []
        self.receivers: set[int] = set()
        self.drains: dict[int, asyncio.Future[None]] = {}

    async def main(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            await self._open(stack)
            try:
                await self._play()
            finally:
                await self._stop_draining()
                for link in self.record.links:
                    if self.record.complaints:
                        link.ws.abort()
                    link.ws = None
                    link.peer.stop()
                for actor in self.actors:
                    actor.ending = True
                    actor.steps.clear()
                    actor.task.cancel()
                if self.actors:
                    await asyncio.wait([actor.task for actor in self.actors], timeout=1)
                self.actors.clear()
                self.calls.links = []

    async def _play(self) -> None:
        self.actors = [Actor(number, self.record, self.calls) for number in range(self.plan.options["actors"])]
        for step in self.plan.steps:
            await self._step(step)
            if self.record.complaints:
                return
        await self._check()
        if not self.record.complaints:
            await self._end()

    # ---- opening ----

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        plan, setting = self.plan, self.plan.setting
        place = "wirespeed.compat.websockets.asyncio" if setting.dropin else "wirespeed"
        client = importlib.import_module(f"{place}.client" if setting.dropin else place)
        server = importlib.import_module(f"{place}.server" if setting.dropin else place)
        arguments = opening.arguments(plan)
        if setting.role == "client":
            listener = opening.listening_socket(plan, peer=True)
            pending = opening.Pending(lambda: opening.accept_peer(plan, listener))
            sock = opening.client_socket(plan, listener.getsockname(), peer=False)
            sock.setblocking(False)
            ws = await client.connect(opening.uri(plan), sock=sock, proxy=None, **arguments)
            self._link(ws, pending.result())
        else:
            opened: asyncio.Queue[Any] = asyncio.Queue()
            over = asyncio.Event()
            stack.callback(over.set)

            async def handle(ws: Any) -> None:
                opened.put_nowait(ws)
                del ws
                await over.wait()

            listener = opening.listening_socket(plan, peer=False)
            await stack.enter_async_context(server.serve(handle, sock=listener, **arguments))
            stack.callback(over.set)
            for _ in range(plan.options["links"]):
                pending = opening.Pending(lambda: opening.dial_peer(plan, listener.getsockname()))
                self._link(await opened.get(), pending.result())
        self.calls = Calls(self.record.links, server.broadcast)

    def _link(self, ws: Any, peer: Any) -> None:
        self.references.append(weakref.ref(ws))
        may_tear = self.plan.setting.tls == "context"
        self.record.links.append(Link(len(self.record.links), self.wrap(ws), peer, may_tear=may_tear))

    # ---- steps ----

    async def _step(self, step: Step) -> None:
        verb = step.verb
        if step.is_call:
            self.actors[step.actor].give(step)
            if verb in RECEIVING:
                self.receivers.add(step.actor)
                self.record.single = len(self.receivers) < 2
            await self._turns(step.get("turns", 0))
        elif verb == "cancel":
            self.actors[step.actor].cancel()
        elif verb in PEER:
            self.record.links[step.link].peer.do(verb, **dict(step.more))
        elif verb == "turn":
            await self._turns(step.get("count"))
        elif verb == "nap":
            await asyncio.sleep(step.get("count") / 1000)
            self._pump()
        elif verb == "poke":
            signal.setitimer(signal.ITIMER_REAL, (step.get("count") + 1) / 1e6)
        elif verb == "collect":
            gc.collect()
        else:
            await self._check()

    async def _turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)
            self._pump()

    def _pump(self) -> None:
        if not self.plan.options["threaded"]:
            for link in self.record.links:
                link.peer.pump()

    async def _until(self, condition: Callable[[], bool]) -> bool:
        deadline = Deadline(self.record, self.patience)
        pause = 0.0
        for turn in range(1_000_000):
            if condition():
                return True
            if deadline.look():
                return False
            await asyncio.sleep(0 if turn % 4 else pause)
            pause = min(0.005, pause + 0.0002)
            self._pump()
        return False

    # ---- calls that wait forever ----

    def _owing(self, *, receiving: bool) -> list[str]:
        return owing(self.record, self.actors, receiving=receiving)

    def _drain(self) -> bool:
        """Makes sure that some actor receives the available messages. Always true."""
        for link in self.record.links:
            calls = [actor.call for actor in self.actors if actor.call is not None and actor.call.receives]
            calls = [call for call in calls if call.step.link == link.index]
            drain = self.drains.get(link.index)
            if calls and drain is not None and any(call.step.get("timeout") is not None for call in calls):
                # A returned message may come behind messages that another task has taken by then.
                self.record.single = False
            if not calls and link.outstanding > 0 and (drain is None or drain.done()):
                self.drains[link.index] = asyncio.ensure_future(self._take_all(link))
        return True

    @staticmethod
    async def _take_all(link: Link) -> None:
        try:
            while link.outstanding > 0:
                link.take(DIRECTOR, await link.ws.recv())
        except Exception as exc:
            # The end, or a message received in fragments: the record of the last one shows which is wrong.
            link.refused = f"{type(exc).__name__}: {exc}"

    async def _stop_draining(self) -> None:
        drains = list(self.drains.values())
        self.drains.clear()
        for drain in drains:
            drain.cancel()
        if drains:
            await asyncio.wait(drains, timeout=1)

    async def _check(self) -> None:
        """Waits until everything settles: the peers read and answer, and no call may wait for more."""
        for link in self.record.links:
            link.peer.relax()
        await self._turns(3)
        if not await self._until(lambda: not self._owing(receiving=False)):
            self.record.complaints += self._owing(receiving=False)
        elif not await self._until(lambda: self._drain() and not self._owing(receiving=True)):
            self.record.complaints += self._owing(receiving=True)
        await self._stop_draining()

    # ---- the end ----

    async def _end(self) -> None:
        end = self.plan.options["end"]
        closing = []
        for link in self.record.links:
            if end == "close":
                link.closed = link.closed or link.state == "OPEN"
                closing.append(asyncio.ensure_future(link.ws.close()))
            elif end == "abort":
                link.aborted = True
                link.ws.abort()
            else:
                link.peer.do("close" if end == "peer" else end)
        await self._turns(2)
        over = lambda: self._drain() and all(task.done() for task in closing) and self._is_over()  # noqa: E731
        if not await self._until(over):
            self.record.complaints += self._owing(receiving=True) or [f"the end by {end!r} does not come"]
            return
        for actor in self.actors:
            actor.end()
        if not await self._until(lambda: all(actor.task.done() for actor in self.actors)):
            self.record.complaints.append("an actor does not end")
            return
        await asyncio.gather(*closing)
        await self._stop_draining()
        for link in self.record.links:
            await self._try_after(link)
        if not await self._until(lambda: all(link.peer.ended is not None for link in self.record.links)):
            self.record.complaints.append("the connection is closed, and its socket is not")

    def _is_over(self) -> bool:
        return all(link.state == "CLOSED" for link in self.record.links) and not self._owing(receiving=True)

    async def _try_after(self, link: Link) -> None:
        """Checks that every call raises that the connection is closed."""
        ws = link.ws
        while True:
            try:
                message = await asyncio.wait_for(ws.recv(), self.patience)
            except Exception:
                break  # the loop below checks what it raises
            link.take(DIRECTOR, message)
        for name, arguments in (("send", "x"), ("flush", None), ("recv", None), ("ping", None), ("send_nowait", "x")):
            try:
                await asyncio.wait_for(_awaited(getattr(ws, name), arguments), self.patience)
            except Exception as exc:
                call = Call(len(self.record.calls), DIRECTOR, Step(name, DIRECTOR, link.index))
                call.raised(exc, link.state)
                if "ConnectionClosed" not in call.kinds:
                    self.record.afterwards.append(f"after the end: {call}")
            else:
                self.record.afterwards.append(f"after the end, {name} returns")
        # On a connection that was cut, half a message may be left.
        clean = link.peer.close_sent_first and link.peer.close_received is not None and not link.closed
        if clean and ((stats := ws.stats())["receive_queue_messages"] or stats["send_queue_bytes"]):
            self.record.afterwards.append(f"after the end, something is queued: {stats}")


async def _awaited(method: Any, argument: Any) -> Any:
    result = method() if argument is None else method(argument)
    return await result if result is not None else None
