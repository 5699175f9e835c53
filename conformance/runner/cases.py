"""Runs one case after the other and collects the report."""

from __future__ import annotations

import sys
import time

from .errors import Limit, RunError
from .suite import START_TIMEOUT
from .testees import Testee

__all__ = ["run_all"]

# Seconds. Case 12.5.18 is the longest: 1000 messages of 128 KiB, compressed by the suite in Python 2.
CASE_TIMEOUT = 120.0
REPORT_TIMEOUT = 60.0


def run_all(testee: Testee, agent: str, server: str, seconds: float) -> int:
    """Runs all cases that the server has; returns their number.

    Exceptions of the client, which the suite cannot see, are added to the problems of the testee.
    """
    start = time.monotonic()
    count = int(testee.ask(f"{server}/getCaseCount", Limit(START_TIMEOUT, "asking for the number of cases")))
    for number in range(1, count + 1):
        show_progress(number, count, start)
        if time.monotonic() - start > seconds:
            raise RunError(f"only {number - 1} of {count} cases ran in {seconds:.0f} s")
        run_case(testee, f"{server}/runCase?case={number}&agent={agent}", number)
    show_progress(count, count, start, end="\n")
    # The suite answers the handshake only after it has written all reports.
    testee.drain(f"{server}/updateReports?agent={agent}", Limit(REPORT_TIMEOUT, "writing the reports"))
    return count


def run_case(testee: Testee, uri: str, number: int) -> None:
    known = len(testee.problems)
    try:
        testee.echo(uri, Limit(CASE_TIMEOUT, f"case number {number}"))
    except RunError:
        raise
    except Exception as exc:
        testee.problems.append(f"{type(exc).__name__}: {exc}")
    testee.problems[known:] = [f"case number {number}: {text}" for text in testee.problems[known:]]


def show_progress(number: int, count: int, start: float, end: str = "") -> None:
    # A terminal shows one line that changes, a log some lines.
    if sys.stderr.isatty():
        print(f"\r{number}/{count} cases, {time.monotonic() - start:.0f} s", end=end, file=sys.stderr, flush=True)
    elif (number % 50 == 0 and not end) or (number == count and end):
        print(f"{number}/{count} cases, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
