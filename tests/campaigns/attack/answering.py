"""The protocol of this package's programs: a line of JSON on standard input, and an answer that begins with ``= ``.

The programs end with their input.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from interop.children import Child

__all__ = ["Log", "answer", "ask", "heard", "questions", "serve_questions", "trim"]


class Log(logging.Handler):
    """Counts log records about attackers, and keeps records about defects."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0
        self.errors: list[str] = []
        logging.getLogger().addHandler(self)
        threading.excepthook = self._tell

    def emit(self, record: logging.LogRecord) -> None:
        # Records of uvicorn itself about bad requests are ignored.
        self.count += not record.name.startswith("uvicorn")
        if record.levelno >= logging.ERROR:
            self.errors.append(logging.Formatter().format(record))

    def _tell(self, ended: threading.ExceptHookArgs) -> None:
        """Records the exception that has ended a thread."""
        assert ended.exc_value is not None
        logging.getLogger("attack").error("a thread ended", exc_info=ended.exc_value)

    def told(self) -> dict[str, Any]:
        """Returns the number of records since the last call, and some of the errors among them."""
        count, errors, self.count, self.errors = self.count, self.errors, 0, []
        return {"logged": count, "errors": errors[:3]}


def answer(data: dict[str, Any]) -> None:
    print("= " + json.dumps(data), flush=True)


def questions() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def serve_questions(state: Callable[[], dict[str, Any]]) -> None:
    """Answers each question with the current state."""
    for _ in questions():
        trim()
        answer(state())


def trim() -> None:
    """Returns free memory to the system: memory that the allocator keeps is not a leak."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def ask(child: Child, question: dict[str, Any] | None = None) -> None:
    assert child.process.stdin is not None
    child.process.stdin.write(json.dumps(question or {}) + "\n")
    child.process.stdin.flush()


def heard(child: Child, timeout: float) -> dict[str, Any]:
    """Returns the program's answer; earlier output appears only in the error."""
    said: dict[str, Any] = json.loads(child.read_until("= ", timeout))
    return said
