"""Executes a schedule on an event loop: actors are tasks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

from campaigns.common.calls import attempt
from support.asyncio_tools import new_loop, spin, still_watched

from . import opening
from .actor import TaskActor
from .calls import ATTEMPT, Calls
from .director import Director
from .oracle import judge
from .plan import Plan, Step
from .record import DIRECTOR, Link, Poke, Record
from .watch import Watch, watching


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
    run = _TaskDirector(plan, patience, wrap)
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


class _TaskDirector(Director):
    actors: list[TaskActor]

    def __init__(self, plan: Plan, patience: float, wrap: Any) -> None:
        super().__init__(plan, patience, wrap)
        self.actors = []
        self.drains: dict[int, asyncio.Future[None]] = {}

    async def main(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            calls = await self._open(stack)
            try:
                self.actors = [TaskActor(number, self.record, calls) for number in range(self.plan.options["actors"])]
                await self.play()
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
                calls.links = []

    async def _open(self, stack: contextlib.AsyncExitStack) -> Calls:
        client, server, arguments = self.modules("asyncio", "wirespeed")
        if self.plan.setting.role == "client":
            sock, pending = self.dial(blocking=False)
            ws = await client.connect(opening.uri(self.plan), sock=sock, proxy=None, **arguments)
            self.link(ws, pending.result())
        else:
            opened: asyncio.Queue[Any] = asyncio.Queue()
            over = asyncio.Event()
            stack.callback(over.set)

            async def handle(ws: Any) -> None:
                opened.put_nowait(ws)
                del ws
                await over.wait()

            listener = opening.listening_socket(self.plan, peer=False)
            await stack.enter_async_context(server.serve(handle, sock=listener, **arguments))
            stack.callback(over.set)
            for _ in range(self.plan.options["links"]):
                pending = opening.Pending(lambda: opening.dial_peer(self.plan, listener.getsockname()))
                self.link(await opened.get(), pending.result())
        return Calls(blocking=False, links=self.record.links, broadcast=server.broadcast)

    # ---- steps ----

    async def other_step(self, step: Step) -> None:
        if step.verb == "cancel":
            self.actors[step.actor].cancel()
        elif step.verb == "nap":
            await asyncio.sleep(step.get("count") / 1000)
            self._pump()
        elif step.verb == "poke":
            signal.setitimer(signal.ITIMER_REAL, (step.get("count") + 1) / 1e6)
        else:
            assert step.verb == "collect"
            gc.collect()

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)
            self._pump()

    async def pause(self, turn: int, seconds: float) -> None:
        await asyncio.sleep(0 if turn % 4 else seconds)
        self._pump()

    def _pump(self) -> None:
        if not self.plan.options["threaded"]:
            for link in self.record.links:
                link.peer.pump()

    # ---- calls that wait forever ----

    def drain(self) -> bool:
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

    async def check(self) -> None:
        await super().check()
        await self._stop_draining()

    # ---- the end ----

    async def end(self) -> None:
        self.begin_end()
        closing = []
        for link in self.record.links:
            if self.plan.options["end"] == "close":
                link.closed = link.closed or link.state == "OPEN"
                closing.append(asyncio.ensure_future(link.ws.close()))
        await self.turns(2)
        over = lambda: self.drain() and all(task.done() for task in closing) and self._is_over()  # noqa: E731
        if not await self.until(over):
            missing = f"the end by {self.plan.options['end']!r} does not come"
            self.record.complaints += self.owing(receiving=True) or [missing]
            return
        for actor in self.actors:
            actor.end()
        if not await self.until(lambda: all(actor.task.done() for actor in self.actors)):
            self.record.complaints.append("an actor does not end")
            return
        await asyncio.gather(*closing)
        await self._stop_draining()
        await self.check_after(lambda *call: asyncio.wait_for(attempt(*call), self.patience))

    def _is_over(self) -> bool:
        return all(link.state == "CLOSED" for link in self.record.links) and not self.owing(receiving=True)
