"""Honest clients: ``child.py honest`` measures the latency of their echoes at each question.

Some stay connected, others reconnect all the time. Each question gives the addresses and the duration: ``uris``,
``seconds``, and optionally ``headers``, ``ca`` and ``hosts``, addresses to connect from.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import wirespeed
from wirespeed.sync import ClientConnection, connect

from .answering import answer, questions

__all__ = ["Measured", "main"]

PAUSE = 0.005
# Longer than any echo may take.
LONG = 30.0


class Measured:
    """Measurements of several threads or tasks; times are in seconds."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self.opened: list[float] = []
        self.problems: list[str] = []

    def report(self) -> dict[str, Any]:
        late = sorted(self.late)
        figures: dict[str, Any] = {
            "count": len(late),
            "opened": len(self.opened),
            "opened_last": max(self.opened, default=0),
            "problems": self.problems[:5],
        }
        if late:
            figures |= {"p50": late[len(late) // 2], "p99": late[len(late) * 99 // 100]}
        return figures


class Clients:
    def __init__(self, question: dict[str, Any]) -> None:
        self.uris: list[str] = question["uris"]
        self.hosts: list[str] = question.get("hosts") or ["127.0.0.1", "127.0.0.2"]
        self.options: dict[str, Any] = {
            "proxy": None,
            "open_timeout": LONG,
            "additional_headers": question.get("headers"),
        }
        if "ca" in question:
            self.options["ssl"] = wirespeed.TLS(ca=question["ca"])
        self.end = time.monotonic() + question["seconds"]
        self.measured = Measured()

    def is_over(self) -> bool:
        return bool(time.monotonic() > self.end)

    def dial(self, number: int) -> ClientConnection:
        uri, host = self.uris[number % len(self.uris)], self.hosts[number % len(self.hosts)]
        return connect(uri, local_addr=(host, 0), **self.options)

    def converse(self, ws: ClientConnection, message: str) -> None:
        began = time.monotonic()
        ws.send(message)
        if ws.recv(LONG) != message:
            raise ValueError("another echo")
        self.measured.late.append(time.monotonic() - began)

    def stay(self, number: int) -> None:
        with self.dial(number) as ws:
            turn = 0
            # At least one, however late.
            while not turn or not self.is_over():
                turn += 1
                self.converse(ws, f"{number} {turn}")
                time.sleep(PAUSE)

    def come(self, number: int) -> None:
        while True:
            began = time.monotonic()
            with self.dial(number) as ws:
                self.converse(ws, f"{number}")
                self.measured.opened.append(time.monotonic() - began)
            if self.is_over():
                return
            number += 1
            time.sleep(10 * PAUSE)

    def run(self) -> dict[str, Any]:
        def guarded(task: Any, number: int) -> None:
            try:
                task(number)
            except Exception as exc:
                self.measured.problems.append(repr(exc))

        threads = [threading.Thread(target=guarded, args=(self.stay, number)) for number in range(4)]
        threads.append(threading.Thread(target=guarded, args=(self.come, 4)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.measured.report()


def main() -> None:
    for question in questions():
        answer(Clients(question).run())
