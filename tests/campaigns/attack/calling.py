"""Attacked clients, in a process of their own, beside honest servers: ``child.py calling KIND``.

Kinds are ``client-sync``, ``client-asyncio-fd`` and ``client-asyncio-transport``. Each question gives the address of
the honest server, of the hostile one if there is one, and the duration: ``honest``, ``hostile``, ``seconds``, and
``how`` the latter is used: ``receive``, ``idle``, ``send``, ``close`` or ``reconnect``. The honest traffic is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import wirespeed
from wirespeed.exceptions import WebSocketException
from wirespeed.sync import connect

from .answering import Log, answer, questions, trim
from .honest import LONG, PAUSE, Measured

__all__ = ["OPEN_TIMEOUT", "main"]

# The number of clients of the hostile server at the same time.
CLIENTS = 4

OPEN_TIMEOUT = 1.0
# Exceptions of a client that is not answered.
DEADLINES: dict[str, Any] = {
    "open_timeout": OPEN_TIMEOUT, "close_timeout": 0.5, "ping_interval": 0.5, "ping_timeout": 0.5, "proxy": None,
}  # fmt: skip

# All exceptions that a server can cause. Any other is a defect.
EXPECTED = (WebSocketException, OSError, TimeoutError)

DATA = bytes(60_000)


class Attempts(Measured):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.longest = 0.0

    def tried(self, since: float) -> None:
        self.count += 1
        self.longest = max(self.longest, time.monotonic() - since)

    def report(self) -> dict[str, Any]:
        return {**super().report(), "attempts": self.count, "longest_opening": self.longest}


def options(question: dict[str, Any]) -> dict[str, Any]:
    return {**DEADLINES, "ssl": wirespeed.TLS(verify=False)} if question["hostile"].startswith("wss") else DEADLINES


class OnLoop:
    """The clients of an event loop, with one I/O backend."""

    def __init__(self, question: dict[str, Any], port: str) -> None:
        self.question = question
        self.port = port
        self.attempts = Attempts()

    async def run(self) -> dict[str, Any]:
        end = time.monotonic() + self.question["seconds"]
        work: list[Coroutine[Any, Any, None]] = [self.stay(end), self.stay(end), self.come(end)]
        victims: list[asyncio.Task[None]] = []
        if self.question.get("hostile"):
            victims = [asyncio.create_task(self.guarded(self.suffer())) for _ in range(CLIENTS)]
        await asyncio.gather(*(self.guarded(coroutine) for coroutine in work))
        for task in victims:
            task.cancel()
        await asyncio.gather(*victims, return_exceptions=True)
        return {**self.attempts.report(), "tasks": len(asyncio.all_tasks())}

    async def guarded(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            await coroutine
        except Exception as exc:
            self.attempts.problems.append(repr(exc))

    async def converse(self, ws: Any, message: str) -> None:
        began = time.monotonic()
        await ws.send(message)
        if await ws.recv() != message:
            raise ValueError("another echo")
        self.attempts.late.append(time.monotonic() - began)

    async def stay(self, end: float) -> None:
        async with wirespeed.connect(self.question["honest"], proxy=None, open_timeout=LONG) as ws:
            number = 0
            while not number or time.monotonic() < end:
                number += 1
                await self.converse(ws, f"{number}")
                await asyncio.sleep(PAUSE)

    async def come(self, end: float) -> None:
        while True:
            began = time.monotonic()
            async with wirespeed.connect(self.question["honest"], proxy=None, open_timeout=LONG) as ws:
                await self.converse(ws, "here")
                self.attempts.opened.append(time.monotonic() - began)
            if time.monotonic() > end:
                return
            await asyncio.sleep(10 * PAUSE)

    async def suffer(self) -> None:
        given = {**options(self.question), "io_backend": self.port}
        if self.question["how"] == "reconnect":
            async for ws in wirespeed.connect(self.question["hostile"], **given):
                self.attempts.count += 1
                with contextlib.suppress(*EXPECTED):
                    await ws.recv()
            return
        while True:
            began = time.monotonic()
            try:
                ws = await wirespeed.connect(self.question["hostile"], **given)
            except EXPECTED:
                continue
            finally:
                self.attempts.tried(began)
            with contextlib.suppress(*EXPECTED):
                async with ws:
                    await self.use(ws)

    async def use(self, ws: Any) -> None:
        how = self.question["how"]
        if how == "receive":
            async for _ in ws:
                pass
        elif how == "idle":
            await ws.wait_closed()
        elif how == "send":
            while True:
                await ws.send(DATA)


class InThreads:
    """The clients of threads."""

    def __init__(self, question: dict[str, Any]) -> None:
        self.question = question
        self.attempts = Attempts()

    def run(self) -> dict[str, Any]:
        self.end = time.monotonic() + self.question["seconds"]
        work: list[Callable[[], None]] = [self.stay, self.stay, self.come]
        if self.question.get("hostile"):
            work += [self.suffer] * CLIENTS
        threads = [threading.Thread(target=self.guarded, args=[what]) for what in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.attempts.report()

    def is_over(self) -> bool:
        return bool(time.monotonic() > self.end)

    def guarded(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception as exc:
            self.attempts.problems.append(repr(exc))

    def converse(self, ws: Any, message: str) -> None:
        began = time.monotonic()
        ws.send(message)
        if ws.recv(LONG) != message:
            raise ValueError("another echo")
        self.attempts.late.append(time.monotonic() - began)

    def stay(self) -> None:
        with connect(self.question["honest"], proxy=None, open_timeout=LONG) as ws:
            number = 0
            while not number or not self.is_over():
                number += 1
                self.converse(ws, f"{number}")
                time.sleep(PAUSE)

    def come(self) -> None:
        while True:
            began = time.monotonic()
            with connect(self.question["honest"], proxy=None, open_timeout=LONG) as ws:
                self.converse(ws, "here")
                self.attempts.opened.append(time.monotonic() - began)
            if self.is_over():
                return
            time.sleep(10 * PAUSE)

    def suffer(self) -> None:
        given = options(self.question)
        while not self.is_over():
            began = time.monotonic()
            try:
                ws = connect(self.question["hostile"], **given)
            except EXPECTED:
                continue
            finally:
                self.attempts.tried(began)
            with contextlib.suppress(*EXPECTED), ws:
                self.use(ws)

    def use(self, ws: Any) -> None:
        how = self.question["how"]
        while how in ("receive", "idle", "send") and not self.is_over():
            if how == "send":
                ws.send(DATA)
            else:
                # Idle: one message is received now and then.
                time.sleep(0.2 if how == "idle" else 0)
                ws.recv(0.2)


def main(kind: str) -> None:
    log = Log()
    answer({"ports": {}})
    for question in questions():
        if kind == "client-sync":
            figures = InThreads(question).run()
        else:
            figures = asyncio.run(OnLoop(question, kind.rpartition("-")[2]).run())
        trim()
        answer({**figures, "connections": 0, **log.told()})
