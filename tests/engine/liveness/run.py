"""Executes a plan. Every wait has a time limit; exceeding it is a complaint with all stacks."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import gc
import io
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from wirespeed import InvalidState
from wirespeed.engine import Batch, Connected, Disconnected, Engine, Message, Session

from .clients import Clients
from .oracle import DRAIN, ECHO, judge
from .plan import CLIENTS, Plan, Step
from .record import Call, Record, make, read

__all__ = ["PATIENCE", "execute"]

PATIENCE = 20.0
"""Seconds that anything may take which has to happen."""

_ENGINE_OPTIONS = (
    "workers", "policy", "outbox_limit", "mailbox_limit", "max_events", "max_event_bytes", "compression", "busy_poll"
)  # fmt: skip


def execute(plan: Plan, patience: float = PATIENCE) -> list[str]:
    """Runs a schedule; returns the errors."""
    before = _descriptors(), _tasks()
    run = _Run(plan, patience)
    run.run()
    found = judge(run.record, plan.options)
    del run
    return found + _left_behind(*before)


def _descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def _tasks() -> int:
    return len(os.listdir("/proc/self/task"))


def _left_behind(descriptors: set[str], tasks: int) -> list[str]:
    deadline = time.monotonic() + 3
    while True:
        gc.collect()
        opened, running = len(_descriptors()) - len(descriptors), _tasks() - tasks
        if opened <= 0 and running <= 0:
            return []
        if time.monotonic() > deadline:
            return [f"{opened} descriptors and {running} threads are left"]
        time.sleep(0.005)


class _Run:
    def __init__(self, plan: Plan, patience: float) -> None:
        self.plan = plan
        self.options = plan.options
        self.record = Record()
        self.engine = Engine("127.0.0.1", close_timeout=2, **{name: plan.options[name] for name in _ENGINE_OPTIONS})
        self.deadline = time.monotonic() + patience
        self.threads: list[threading.Thread] = []
        self.numbers: dict[int, int] = {}

    # The complete run

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            self.engine.start()
            stack.callback(self.engine.stop)
            takers = self._begin_taking()
            clients = Clients(self.record, self.engine.addresses[0], deflate=self.options["compression"])
            stack.callback(clients.stop)
            for index in range(self.options["clients"]):
                clients.do("early", {"client": index})
            if not self._wait(lambda: len(self.record.told) >= self.options["clients"], "sessions of all clients"):
                return
            actors = [self._begin(name, target) for name, target in self._actors(clients)]
            if self.options["end"] in ("stop", "both"):
                self._end_meanwhile(actors)
            for thread in actors:
                self._join(thread)
            # From now on all clients read.
            clients.do("read", {})
            if self.options["end"] == "drain" and not self.record.complaints:
                self._end_in_order()
            self.engine.stop()
            for thread in takers:
                self._join(thread)
            self._look_at_the_end()

    def _end_meanwhile(self, actors: list[threading.Thread]) -> None:
        time.sleep(0.001 * (self.plan.seed % 20))
        stoppers = [self._begin("stop", self.engine.stop) for _ in range(1 + self.plan.seed % 3)]
        if self.options["end"] == "both":
            with contextlib.suppress(InvalidState):
                self.engine._drain(DRAIN)
        for thread in stoppers:
            self._join(thread)

    def _end_in_order(self) -> None:
        def all_messages_arrived() -> bool:
            """Returns whether all messages of the remaining clients have arrived."""
            told = {one.index: one for one in self.record.told.values()}
            return all(
                len(told[seen.index].messages) == seen.said
                for seen in self.record.seen.values()
                if seen.index in told and seen.ended is None and seen.close is None and not seen.left
            )

        if not self._wait(all_messages_arrived, "what clients have said"):
            for seen in self.record.seen.values():
                self.record.complaints.append(f"client {seen.index}: {seen.said} said, {seen.ended} {seen.close}")
            return
        self.engine._drain(DRAIN)
        if self._wait(lambda: not self.engine.stats()["connections"], "the end of all connections"):
            # The clients' sockets have reported the end as well.
            self._wait(lambda: all(seen.ended for seen in self.record.seen.values()), "the clients' end")
            self.record.orderly = True

    def _look_at_the_end(self) -> None:
        stats = self.engine.stats()
        self.record.dropped = stats["messages_dropped"]
        wrong = {name: stats[name] for name in ("connections", "sessions", "events_waiting") if stats[name]}
        if wrong and not self.record.complaints:
            self.record.complaints.append(f"when all is over there is left: {wrong}")
        for one in self.record.told.values():
            if one.session.is_open:
                self.record.complaints.append(f"the session of client {one.index} is still open")
            try:
                one.session.send("late")
                self.record.complaints.append(f"the session of client {one.index} takes what is sent to it")
            except InvalidState:
                pass

    # Threads

    def _begin(self, name: str, target: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                target()
            except BaseException as exc:
                self.record.complaints.append(f"{name} has ended with {exc!r}")

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def _join(self, thread: threading.Thread) -> None:
        thread.join(max(0.0, self.deadline - time.monotonic()))
        if thread.is_alive():
            self.record.complaints.append(f"{thread.name} hangs\n{_stacks()}")

    def _wait(self, condition: Callable[[], bool], what: str) -> bool:
        while not condition():
            if time.monotonic() > self.deadline:
                self.record.complaints.append(f"it waits for {what}: {self.engine.stats()}\n{_stacks()}")
                return False
            time.sleep(0.0005)
        return True

    # The consumer of events

    def _begin_taking(self) -> list[threading.Thread]:
        engine = self.engine
        kind = self.options["taker"]
        if kind in ("serve", "run", "pool"):
            engine.on_connect(lambda session: self._note(Connected, session))
            engine.on_disconnect(lambda session, code, reason: self._note(Disconnected, session, code))
            if kind == "serve":

                async def message(session: Session, data: str | bytes) -> None:
                    if len(data) % 2:
                        await asyncio.sleep(0)
                    self._note(Message, session, data)

                engine.on_message(message)
                return [self._begin("serve", lambda: asyncio.run(engine.serve(max_handlers=5)))]
            engine.on_message(lambda session, data: self._note(Message, session, data))
            return [self._begin(kind, lambda: engine.run(threads=2 if kind == "pool" else 0))]
        if kind == "asyncio":

            async def iterate() -> None:
                async for batch in engine:
                    self._take(batch)

            return [self._begin(kind, lambda: asyncio.run(iterate()))]

        def drain() -> None:
            for batch in engine.batches(max_events=self.options["batch"]):
                self._take(batch)

        return [self._begin(kind, drain) for _ in range(3 if kind == "threads" else 1)]

    def _take(self, batch: Batch) -> None:
        for event in batch:
            match event:
                case Connected(session):
                    self._note(Connected, session)
                case Message(session, data):
                    self._note(Message, session, data)
                case Disconnected(session, code):
                    self._note(Disconnected, session, code, event.failure)

    def _note(self, kind: type, session: Session, what: Any = None, failure: str | None = None) -> None:
        told = self.record.tell(session)
        if kind is Connected:
            told.connected += 1
            told.late += bool(told.messages or told.disconnected)
        elif kind is Disconnected:
            told.disconnected.append((what, failure))
        else:
            told.late += not told.connected or bool(told.disconnected)
            ident = read(what)
            if self.options["echoes"] and self.options["taker"] != "threads":
                call = Call(ECHO + told.index, "send", {"client": told.index}, (ECHO + told.index, ident[1]))
                self._call(call, lambda: session.send(make((ECHO + told.index, ident[1]), 40, text=True)))
            # After the answer: the end begins when all messages have arrived.
            told.messages.append(ident)

    # The actors

    def _actors(self, clients: Clients) -> Iterator[tuple[str, Callable[[], object]]]:
        tasks: list[int] = []
        for actor in self.plan.actors:
            steps = self.plan.of(actor)
            if actor == CLIENTS:
                yield "clients-actor", functools.partial(self._direct, clients, steps)
            elif actor in self.options["tasks"]:
                tasks.append(actor)
            else:
                yield f"actor-{actor}", functools.partial(self._act, steps)
        if tasks:

            async def act(steps: list[Step]) -> None:
                for step in steps:
                    self._step(step)
                    await asyncio.sleep(0)

            async def main() -> None:
                await asyncio.gather(*(act(self.plan.of(actor)) for actor in tasks))

            yield "tasks", lambda: asyncio.run(main())

    def _direct(self, clients: Clients, steps: list[Step]) -> None:
        for step in steps:
            clients.do(step.verb, step.more)

    def _act(self, steps: list[Step]) -> None:
        for step in steps:
            self._step(step)

    def _step(self, step: Step) -> None:
        more = step.more
        if step.verb == "nap":
            time.sleep(more["seconds"])
        elif step.verb == "collect":
            gc.collect()
        elif step.verb in ("send", "publish", "broadcast"):
            for _ in range(more["times"]):
                self._send(step)
        else:
            self._call(Call(step.actor, step.verb, more), self._other(step))

    def _send(self, step: Step) -> None:
        more = dict(step.more)
        self.numbers[step.actor] = number = self.numbers.get(step.actor, 0) + 1
        ident = (step.actor, number)
        message = make(ident, more["size"], text=more["text"])
        target = self.record.session(more["client"]) if step.verb == "send" else None
        exclude = None if more.get("exclude") is None else self.record.session(more["exclude"])
        more["excluded"] = exclude is not None
        call = Call(step.actor, step.verb, more, ident)
        if step.verb == "send":
            if target is not None:
                self._call(call, lambda: target.send(message))
        elif step.verb == "broadcast":
            self._call(call, lambda: self.engine.broadcast(message, exclude=exclude))
        else:
            self._call(call, lambda: self.engine.publish(more["topic"], message, exclude=exclude, key=more["key"]))

    def _other(self, step: Step) -> Callable[[], object]:
        more = step.more
        session = self.record.session(more["client"]) if "client" in more else None
        match step.verb:
            case "subscribe" if session is not None:
                return lambda: session.subscribe(more["pattern"])
            case "unsubscribe" if session is not None:
                return lambda: session.unsubscribe(more["pattern"])
            case "close" if session is not None:
                return lambda: session.close(more["code"])
            case "room":
                return lambda: self._room(more["topic"])
            case "look":
                return lambda: [
                    self.engine.stats(),
                    self.engine.has_room(),
                    self.engine.has_room("a.b"),
                    self.engine.subscribers("a.b"),
                ]
        return lambda: "closed"

    def _room(self, topic: str | None) -> object:
        # A publisher waits for clients that read, but at most five seconds for those that read too slowly.
        return self.engine.wait_for_room(topic, timeout=PATIENCE * 0.75) or f"no room for {topic}"

    def _call(self, call: Call, function: Callable[[], object]) -> None:
        call.began = time.monotonic_ns()
        try:
            call.result = function()
        except InvalidState:
            call.result = "closed"
        except BlockingIOError:
            call.result = "full"
        except Exception as exc:
            call.result = f"{type(exc).__name__}: {exc}"
        call.ended = time.monotonic_ns()
        self.record.calls.append(call)


def _stacks() -> str:
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file=file, all_threads=True)
        file.seek(io.SEEK_SET)
        return file.read().decode()
