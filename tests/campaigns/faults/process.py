"""Faults of the process, not of the network: signals, a fork, lack of descriptors or of names."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from support.checks import open_descriptors

# Rounds of signals: each thread gets one in each round.
ROUNDS = 5
# tgkill(2)
TGKILL = {"x86_64": 234, "aarch64": 131}


class Interrupted(Exception):
    """Raised by a signal handler."""


def _signal_every_thread() -> None:
    """Interrupts every thread, including those that Python does not know."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = TGKILL[platform.machine()]
    for _ in range(ROUNDS):
        for thread in os.listdir("/proc/self/task"):
            libc.syscall(number, os.getpid(), int(thread), signal.SIGUSR1)
        time.sleep(0.01)


def _fork() -> None:
    """Forks a child that collects all inherited objects, and ends."""
    with warnings.catch_warnings():
        # Later versions of Python warn of threads, which do not exist in the child.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        gc.collect()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, "the child did not end well"


def _use_up_descriptors() -> None:
    """Uses up the descriptors, so that none can be opened."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = open_descriptors()
    # The limit is a descriptor number, and there may be free ones below it.
    lowest = next(number for number in range(hard) if number not in found)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))


_LIMITS = resource.getrlimit(resource.RLIMIT_NOFILE)


def give_descriptors_back() -> None:
    """Restores the number of descriptors at import."""
    resource.setrlimit(resource.RLIMIT_NOFILE, _LIMITS)


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        # Not the default: a signal that a thread gets late would end the process.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def _is_calling(frame: FrameType | None) -> bool:
    """Returns whether a call of a conversation is in progress, and not the measuring between two calls."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.parent.name == "faults" and path.name in ("clients.py", "conversation.py"):
            return path.name == "clients.py"
        frame = frame.f_back
    return False


@contextlib.contextmanager
def struck(fault: str) -> Iterator[Callable[[], None]]:
    """Yields the function that triggers a fault; the process is restored when the block has ended."""
    if fault == "signal":
        runs: list[int] = []
        with _handling(lambda number, _: runs.append(number)):
            yield _signal_every_thread
            assert runs
    elif fault == "interrupt":
        raised = threading.Event()

        def interrupt(_: int, frame: FrameType | None) -> None:
            if not raised.is_set() and _is_calling(frame):
                raised.set()
                raise Interrupted

        def interrupt_main() -> None:
            deadline = time.monotonic() + 1
            while not raised.is_set() and time.monotonic() < deadline:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                raised.wait(0.01)

        with _handling(interrupt):
            yield interrupt_main
    elif fault == "fork":
        yield _fork
    elif fault == "descriptors":
        try:
            yield _use_up_descriptors
        finally:
            give_descriptors_back()
    else:
        assert fault == "names"
        yield lambda: None


PROCESS = ("signal", "interrupt", "fork", "descriptors", "names") if sys.platform == "linux" else ()
