"""The selector alone behaves like ``selectors.EpollSelector``.

The tests also run on the standard library's selector, which validates them, and on the oracle. The standard library's
own selector tests run in ``test_loop_stdlib``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.checks import no_leaks, within
from support.selector_oracle import OracleSelector
from wirespeed.asyncio.loop import Selector

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

pytestmark = [
    pytest.mark.wirespeed_only("the selector is ours"),
    pytest.mark.skipif(not hasattr(selectors, "EpollSelector"), reason="this system has no epoll"),
]

OURS = [OracleSelector, *([Selector] if Selector.native_class is not None else [])]
KINDS: list[Any] = [*([selectors.EpollSelector] if hasattr(selectors, "EpollSelector") else []), *OURS]

Pair = Callable[[], tuple[socket.socket, socket.socket]]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def selector(request: pytest.FixtureRequest) -> Iterator[Any]:
    with request.param() as made:
        yield made


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A factory of connected, non-blocking sockets."""
    with contextlib.ExitStack() as stack:

        def make() -> tuple[socket.socket, socket.socket]:
            made = socket.socketpair()
            for sock in made:
                sock.setblocking(False)
                stack.callback(sock.close)
            return made

        yield make


@contextlib.contextmanager
def alarm(handler: Callable[[], Any], after: float, every: float = 0.0) -> Iterator[list[float]]:
    """Runs ``handler`` by SIGALRM during the block; yields the times of its runs."""
    runs: list[float] = []

    def handle(*_: Any) -> None:
        runs.append(time.monotonic())
        handler()

    previous = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, after, every)
    try:
        yield runs
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@contextlib.contextmanager
def meanwhile(work: Callable[[], Any], after: float = 0.1) -> Iterator[None]:
    """Runs a function in another thread, a little later than the block begins."""
    timer = threading.Timer(after, work)
    timer.start()
    try:
        yield
    finally:
        timer.join()


# Events


def test_hang_up_of_a_pipe(selector: Any) -> None:
    reader, writer = os.pipe()
    selector.register(reader, READ)
    assert selector.select(0) == []
    os.close(writer)
    assert selector.select(1) == [(selector.get_key(reader), READ)]
    selector.modify(reader, WRITE)
    assert selector.select(1) == [(selector.get_key(reader), WRITE)]
    selector.modify(reader, READ | WRITE)
    assert selector.select(1) == [(selector.get_key(reader), READ | WRITE)]
    os.close(reader)


def test_error_of_a_pipe(selector: Any) -> None:
    """A pipe's writing end without a reader is readable and writable, as epoll reports an error."""
    reader, writer = os.pipe()
    os.close(reader)
    selector.register(writer, READ | WRITE)
    assert selector.select(1) == [(selector.get_key(writer), READ | WRITE)]
    selector.modify(writer, READ)
    assert selector.select(1) == [(selector.get_key(writer), READ)]
    os.close(writer)


def test_end_of_a_socket(selector: Any, pair: Pair) -> None:
    ours, theirs = pair()
    selector.register(ours, READ)
    theirs.close()
    assert selector.select(1) == [(selector.get_key(ours), READ)]
    selector.modify(ours, READ | WRITE, "data")
    key, events = selector.select(1)[0]
    assert (key.fileobj, key.data, events) == (ours, "data", READ | WRITE)


def test_refused_connection(selector: Any) -> None:
    """A failed connect makes the socket writable, which a loop waits for."""
    with socket.socket() as unused, socket.socket() as sock:
        unused.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            sock.connect(unused.getsockname())
        selector.register(sock, WRITE)
        assert selector.select(1) == [(selector.get_key(sock), WRITE)]


def test_events_of_modify_are_those_of_its_key(selector: Any, pair: Pair) -> None:
    ours, theirs = pair()
    theirs.send(b"x")
    selector.register(ours, READ)
    assert selector.modify(ours, WRITE).events == WRITE
    assert selector.select(1) == [(selector.get_key(ours), WRITE)]
    selector.modify(ours, READ)
    assert selector.select(1) == [(selector.get_key(ours), READ)]


def test_two_selectors_share_a_file(selector: Any, pair: Pair) -> None:
    ours, theirs = pair()
    with selectors.DefaultSelector() as other:
        selector.register(ours, READ)
        other.register(ours, READ)
        theirs.send(b"x")
        assert len(selector.select(1)) == len(other.select(1)) == 1


def test_all_ready_events_are_returned_at_once(selector: Any, pair: Pair) -> None:
    pairs = [pair() for _ in range(300)]
    for ours, theirs in pairs:
        selector.register(ours, READ)
        theirs.send(b"x")
    assert {key.fd for key, _ in selector.select(1)} == {ours.fileno() for ours, _ in pairs}


# Files that are closed or reused, and invalid ones


@pytest.mark.parametrize("fileobj", [object(), "1", 1.0, None, -1, -10])
def test_not_a_file(selector: Any, fileobj: Any) -> None:
    for method in (functools.partial(selector.register, events=READ), selector.unregister, selector.get_key):
        with pytest.raises(ValueError, match=r"^Invalid file"):
            method(fileobj)
    with pytest.raises(ValueError, match=r"^Invalid file"):
        selector.modify(fileobj, READ)
    for lookup in (selector.get_map().get, selector.get_map().__getitem__):
        with pytest.raises(ValueError, match=r"^Invalid file"):
            lookup(fileobj)


@pytest.mark.parametrize("events", [0, 4, READ | 8, -1])
def test_not_events(selector: Any, pair: Pair, events: int) -> None:
    ours, _ = pair()
    with pytest.raises(ValueError, match=r"^Invalid events"):
        selector.register(ours, events)
    assert len(selector.get_map()) == 0


def test_not_registered(selector: Any, pair: Pair) -> None:
    ours, _ = pair()
    for action in (selector.unregister, selector.get_key, functools.partial(selector.modify, events=READ)):
        with pytest.raises(KeyError, match="is not registered"):
            action(ours)
    assert selector.get_map().get(ours, "nothing") == "nothing"
    assert ours not in selector.get_map()


def test_registered_twice(selector: Any, pair: Pair) -> None:
    ours, _ = pair()
    key = selector.register(ours, READ)
    for again in (ours, ours.fileno()):
        with pytest.raises(KeyError, match="is already registered"):
            selector.register(again, WRITE)
    assert selector.get_key(ours) == key


def test_closed_descriptor(selector: Any) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)
    with pytest.raises(OSError, match="Bad file descriptor"):
        selector.register(reader, READ)
    assert len(selector.get_map()) == 0


def test_regular_file(selector: Any) -> None:
    with tempfile.TemporaryFile() as file:
        with pytest.raises(PermissionError):
            selector.register(file, READ)
        assert file not in selector.get_map()


def test_socket_closed_while_registered(selector: Any, pair: Pair) -> None:
    """The socket is found by the object, although its ``fileno`` is gone."""
    ours, _ = pair()
    key = selector.register(ours, READ)
    ours.close()
    assert selector.get_key(ours) == key
    assert selector.get_map()[ours] == key
    assert selector.select(0) == []
    assert selector.unregister(ours) == key
    with pytest.raises(ValueError, match=r"^Invalid file"):
        selector.unregister(ours)


def test_modify_that_fails_unregisters(selector: Any, pair: Pair) -> None:
    ours, _ = pair()
    selector.register(ours, READ)
    fd = ours.fileno()
    ours.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        selector.modify(fd, WRITE)
    assert len(selector.get_map()) == 0


def test_modify_of_data_makes_no_system_call(selector: Any, pair: Pair) -> None:
    ours, _ = pair()
    selector.register(ours, READ, "old")
    fd = ours.fileno()
    ours.close()
    assert selector.modify(fd, READ, "new").data == "new"
    assert selector.get_key(fd).data == "new"


def test_descriptor_is_reused(selector: Any, pair: Pair) -> None:
    ours, _ = pair()
    other, other_peer = pair()
    selector.register(ours, READ, "old")
    fd = ours.fileno()
    os.dup2(other.fileno(), fd)
    with pytest.raises(KeyError):
        selector.register(fd, READ, "new")
    selector.unregister(fd)
    selector.register(fd, READ, "new")
    other_peer.send(b"x")
    assert [(key.data, events) for key, events in selector.select(1)] == [("new", READ)]


# Time


@pytest.mark.parametrize("timeout", [0.0001, 0.0011, 0.0259])
def test_timeouts_are_never_shorter(selector: Any, timeout: float) -> None:
    start = time.monotonic()
    assert selector.select(timeout) == []
    assert timeout <= time.monotonic() - start < timeout + 1


@pytest.mark.parametrize("timeout", [0, 0.0, -1, -0.001])
def test_no_wait(selector: Any, timeout: float) -> None:
    with within(0.5):
        assert selector.select(timeout) == []


def test_timeout_is_a_number(selector: Any) -> None:
    with pytest.raises(TypeError):
        selector.select("1")


def test_no_timeout(selector: Any, pair: Pair) -> None:
    ours, theirs = pair()
    selector.register(ours, READ)
    with within(5, at_least=0.1), meanwhile(lambda: theirs.send(b"x")):
        assert len(selector.select()) == 1


# Threads


def test_files_come_and_go_while_another_thread_waits(selector: Any, pair: Pair) -> None:
    ours, theirs = pair()
    theirs.send(b"x")

    def change() -> None:
        selector.register(theirs, READ)
        selector.unregister(theirs)
        selector.register(ours, WRITE)
        selector.modify(ours, READ, "data")

    with within(5), meanwhile(change):
        # The waiting thread may see the socket as writable before the change takes effect.
        while not (found := [key for key, events in selector.select() if events == READ]):
            pass
    assert found == [selector.get_key(ours)]


# Signals: PEP 475


def test_handler_runs_and_select_goes_on(selector: Any) -> None:
    with alarm(lambda: None, 0.05, 0.05) as runs, within(2, at_least=0.4):
        assert selector.select(0.4) == []
    assert len(runs) >= 4


def test_handler_makes_a_file_ready(selector: Any, pair: Pair) -> None:
    ours, theirs = pair()
    selector.register(ours, READ)
    with alarm(lambda: theirs.send(b"x"), 0.1), within(5):
        assert len(selector.select()) == 1


def test_handler_raises(selector: Any, pair: Pair) -> None:
    class Interrupted(Exception):
        pass

    def interrupt() -> None:
        raise Interrupted

    ours, theirs = pair()
    key = selector.register(ours, READ)
    with alarm(interrupt, 0.1), within(5), pytest.raises(Interrupted):
        selector.select()
    theirs.send(b"x")
    assert selector.select(1) == [(key, READ)]


# The end


def test_closed(selector: Any, pair: Pair) -> None:
    ours, _ = pair()
    selector.register(ours, READ)
    mapping = selector.get_map()
    selector.close()
    selector.close()
    assert selector.get_map() is None
    assert len(mapping) == 0
    with pytest.raises(RuntimeError, match=r"^Selector is closed$"):
        selector.get_key(ours)
    for action in (selector.unregister, functools.partial(selector.modify, events=READ), mapping.__getitem__):
        with pytest.raises(KeyError):
            action(ours)
    for call in (selector.fileno, selector.select, functools.partial(selector.register, ours, READ)):
        with pytest.raises(ValueError, match="closed"):
            call()
    assert len(mapping) == 0


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_dropped_selector_is_closed(kind: Any, pair: Pair) -> None:
    ours, _ = pair()
    with no_leaks():
        forgotten = kind()
        forgotten.register(ours, READ, forgotten)
        del forgotten


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # where pytest has a thread of its own
def test_child_of_a_fork_closes_its_copy(selector: Any, pair: Pair) -> None:
    ours, theirs = pair()
    key = selector.register(ours, READ)
    child = os.fork()
    if child == 0:
        try:
            selector.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
    theirs.send(b"x")
    assert selector.select(1) == [(key, READ)]


# Features of our selector only


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
class TestBusyPoll:
    def test_wait_is_as_long_as_the_timeout(self, kind: Any, pair: Pair) -> None:
        ours, theirs = pair()
        with kind(busy_poll=0.2) as made:
            made.register(ours, READ)
            for timeout in (0.0, 0.1, 0.3):
                with within(timeout + 1, at_least=timeout):
                    assert made.select(timeout) == []
            with within(5, at_least=0.3), meanwhile(lambda: theirs.send(b"x"), 0.3):
                assert len(made.select()) == 1

    def test_does_not_sleep(self, kind: Any) -> None:
        with kind(busy_poll=0.5) as made:
            before = time.thread_time()
            made.select(0.5)
            # Other processes may need the processor too. Sleeping takes less than a millisecond of it.
            assert time.thread_time() - before > 0.01

    def test_lets_other_threads_run(self, kind: Any, pair: Pair) -> None:
        ours, theirs = pair()
        with kind(busy_poll=10) as made:
            made.register(ours, READ)
            with within(5), meanwhile(lambda: theirs.send(b"x")):
                assert len(made.select(10)) == 1

    def test_handlers_run(self, kind: Any) -> None:
        with kind(busy_poll=10) as made, alarm(lambda: None, 0.05, 0.05) as runs, within(2, at_least=0.4):
            assert made.select(0.4) == []
        assert len(runs) >= 4

    @pytest.mark.parametrize("busy_poll", [-1, -0.001, float("nan"), float("inf")])
    def test_value(self, kind: Any, busy_poll: float) -> None:
        with pytest.raises(ValueError, match="busy_poll"):
            kind(busy_poll=busy_poll)

    @pytest.mark.parametrize("busy_poll", ["1", None, True])
    def test_type(self, kind: Any, busy_poll: Any) -> None:
        with pytest.raises(TypeError, match="busy_poll"):
            kind(busy_poll=busy_poll)


def test_without_epoll() -> None:
    class Nowhere(Selector):
        native_class = None

    with pytest.raises(NotImplementedError, match="epoll"):
        Nowhere()
