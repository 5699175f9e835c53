"""Run tests of the standard library on an event loop of choice, and print how each of them ended, as JSON.

    python stdlib_suite.py LOOP NAME...

LOOP is ``stock`` (as Python comes), ``wirespeed``, or ``oracle`` (wirespeed's loop on the oracle of its selector). NAME
is a module of the package ``test``, such as ``test_asyncio.test_events``, or a test in one, as the results name it.

The loop takes the place of ``asyncio.SelectorEventLoop`` and of all that makes one, the selector that of
``selectors.EpollSelector`` and ``DefaultSelector``: before any test is imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import selectors
import sys
import time
import traceback
import unittest
from pathlib import Path
from typing import Any, cast

__all__ = ["install"]


def install(kind: str) -> None:
    """Replaces the selector loop in the standard library."""
    if kind == "stock":
        return
    from wirespeed.asyncio.loop import EventLoop, Selector

    if kind == "oracle":
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from support.selector_oracle import OracleSelector

        Selector.native_class = cast(Any, OracleSelector.native_class)
    stock = asyncio.SelectorEventLoop
    for name, module in list(sys.modules.items()):
        if name == "asyncio" or name.startswith("asyncio."):
            for attribute, value in list(vars(module).items()):
                if value is stock:
                    setattr(module, attribute, EventLoop)
    policy: Any = importlib.import_module("asyncio.unix_events")
    policy._UnixDefaultEventLoopPolicy._loop_factory = EventLoop
    selectors.EpollSelector = selectors.DefaultSelector = Selector  # type: ignore[assignment, misc]
    for loop in (asyncio.SelectorEventLoop(), asyncio.new_event_loop()):
        assert type(loop) is EventLoop
        assert type(loop._selector) is Selector  # type: ignore[attr-defined]
        loop.close()


class Result(unittest.TestResult):
    """Keeps the outcome of each test by name, with the text of the first failure."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self._start = 0.0

    def _add(self, test: unittest.TestCase, outcome: str, text: str = "") -> None:
        name = test.id()
        # Of several outcomes, such as those of subtests and of tearDown, a failure takes precedence.
        if self.outcomes.get(name, "ok") == "ok":
            self.outcomes[name] = outcome
        if text:
            self.texts.setdefault(name, text)

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        self._start = time.monotonic()

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().stopTest(test)
        self.seconds[test.id()] = time.monotonic() - self._start

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._add(test, "ok")

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._add(test, "error", "".join(traceback.format_exception(*err)))

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._add(test, "failure", "".join(traceback.format_exception(*err)))

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._add(test, "skipped", reason)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._add(test, "expected failure")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._add(test, "unexpected success")

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:  # noqa: N802
        if err is not None:
            self._add(test, "failure", "".join(traceback.format_exception(*err)))


def main(kind: str, names: list[str]) -> None:
    install(kind)
    from test import support  # type: ignore[import-not-found]  # its types are not in typeshed

    # Resources outside this machine and terminals are disabled.
    support.use_resources = ["cpu", "walltime", "subprocess"]
    suite = unittest.defaultTestLoader.loadTestsFromNames([f"test.{name}" for name in names])
    result = Result()
    noise = io.StringIO()
    with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
        suite.run(result)
    prefix = "test."
    report = {
        "outcomes": {name.removeprefix(prefix): outcome for name, outcome in result.outcomes.items()},
        "texts": {name.removeprefix(prefix): text for name, text in result.texts.items()},
        "seconds": {name.removeprefix(prefix): round(seconds, 3) for name, seconds in result.seconds.items()},
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
