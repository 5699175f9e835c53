"""Programs of a campaign, each in a process of its own, and their protocol.

A question is a line of JSON on standard input, an answer a line of JSON behind ``= ``. A program ends with its input.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support.children import Child

TESTS = Path(__file__).resolve().parents[2]
PAGE = os.sysconf("SC_PAGE_SIZE")


class ProgramError(Exception):
    """A program has ended, does not answer, or reports a problem."""


@dataclasses.dataclass
class Usage:
    """Resources of a process: MiB, descriptors, threads."""

    memory: float
    descriptors: int
    threads: int


def command(*arguments: str) -> list[str]:
    """Returns the command that starts a program.

    Args:
        arguments: Its module below ``campaigns``, and its arguments.
    """
    # Through `env`, because the children of the tests inherit every other variable.
    path = f"PYTHONPATH={TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return ["env", path, sys.executable, "-X", "faulthandler", "-m", "campaigns.common.child", *arguments]


class Program:
    """A running program. It is stopped when its context is left.

    Args:
        name: The name for errors.
        arguments: Its module below ``campaigns``, and its arguments.

    Attributes:
        printed: Lines that are no answers: there should be none.
    """

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        self.child = Child(command(*arguments))
        self.pid = self.child.process.pid
        self.printed: list[str] = []

    def __enter__(self) -> Program:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.child.stop()

    def ask(self, question: dict[str, Any] | None = None) -> None:
        assert self.child.process.stdin is not None
        with contextlib.suppress(OSError):
            self.child.process.stdin.write(json.dumps(question or {}) + "\n")
            self.child.process.stdin.flush()

    def answer(self, seconds: float = 30.0) -> dict[str, Any]:
        """Returns the next answer.

        Args:
            seconds: The time limit; a busy machine has more.

        Raises:
            ProgramError: There is none.
        """
        while True:
            try:
                line = self.child.read_line(seconds)
            except (EOFError, TimeoutError) as exc:
                raise self._error(str(exc)) from None
            if not line.startswith("= "):
                self.printed.append(line)
                continue
            answer: dict[str, Any] = json.loads(line[2:])
            if "problem" in answer:
                raise self._error(answer["problem"])
            return answer

    def _error(self, text: str) -> ProgramError:
        return ProgramError(f"{self.name}: {text}\n" + "\n".join(self.printed[-30:]))

    def usage(self) -> Usage:
        """Returns the resources that the kernel reports."""
        folder = Path(f"/proc/{self.pid}")
        try:
            pages = int((folder / "statm").read_text().split()[1])
            return Usage(pages * PAGE / 2**20, len(os.listdir(folder / "fd")), len(os.listdir(folder / "task")))
        except OSError as exc:
            raise self._error(str(exc)) from None


# ---- inside of a program ----


class Log(logging.Handler):
    """Counts log records about attackers, and keeps records about defects."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0
        self.errors: list[str] = []
        logging.getLogger().addHandler(self)
        threading.excepthook = self._record_exception

    def emit(self, record: logging.LogRecord) -> None:
        # Records of uvicorn itself about bad requests are ignored.
        self.count += not record.name.startswith("uvicorn")
        if record.levelno >= logging.ERROR:
            self.errors.append(logging.Formatter().format(record))

    def _record_exception(self, ended: threading.ExceptHookArgs) -> None:
        """Records the exception that has ended a thread."""
        assert ended.exc_value is not None
        logging.getLogger("campaigns").error("a thread ended", exc_info=ended.exc_value)

    def since_last(self) -> dict[str, Any]:
        """Returns the number of records since the last call, and some of the errors among them."""
        count, errors, self.count, self.errors = self.count, self.errors, 0, []
        return {"logged": count, "errors": errors[:3]}


def answer(data: dict[str, Any]) -> None:
    print("= " + json.dumps(data), flush=True)


def questions() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def serve_questions(state: Callable[[], dict[str, Any]]) -> None:
    """Answers each question with the current state, until the input ends."""
    for _ in questions():
        trim()
        answer(state())


def serve_in_thread(state: Callable[[], dict[str, Any]]) -> None:
    """Answers each question in a thread; the process ends with its input."""

    def run() -> None:
        for _ in questions():
            try:
                found = state()
            except Exception as exc:
                found = {"problem": repr(exc)}
            answer(found)
        os._exit(0)

    # Errors of the peers are not logged; errors of the library are.
    logging.basicConfig(level=logging.ERROR)
    threading.Thread(target=run, daemon=True).start()


def trim() -> None:
    """Returns free memory to the system: memory that the allocator keeps is not a leak."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
