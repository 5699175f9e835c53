"""Places in the opening handshake, with a manual clock: evictions, their times, and their log records."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import select
import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from interop.flood import raise_descriptors
from interop.serving import LOGGER, logged
from interop.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("the gates are ours")

if IS_WIRESPEED:
    from wirespeed._handshake.eviction import BURST, GRACE, PATIENCE
    from wirespeed._handshake.pending_handshake import PendingHandshake
    from wirespeed.asyncio._handshake_limiter import HandshakeLimiter as LoopGate
    from wirespeed.asyncio._handshake_limiter import HandshakeTask
    from wirespeed.sync import _handshake_limiter as sync_gate

    class Silent(PendingHandshake):
        def has_unread(self) -> bool:
            return False


PEER = ("192.0.2.1", 1234)

# The common data of both limiters: for a client that begins to be late, and for those that are closed at once.
INTERVAL = 0.005
AT_ONCE = 64

# The time that a thread has to close its client.
RELIEF = 0.01


class Client:
    def __init__(self) -> None:
        self.gone = 0

    def has_unread(self) -> bool:
        return False

    def drop(self) -> None:
        self.gone += 1


class Handle:
    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when = when
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """The time of a loop, and its scheduled calls."""

    def __init__(self) -> None:
        self.now = 100.0
        self.handles: list[Handle] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> Handle:
        self.handles.append(Handle(when, call))
        return self.handles[-1]

    def call_later(self, delay: float, call: Callable[[], None]) -> Handle:
        return self.call_at(self.now + delay, call)

    def due(self) -> list[float]:
        return sorted(handle.when for handle in self.handles if not handle.is_cancelled)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        ready = [handle for handle in self.handles if handle.when <= self.now]
        self.handles = [handle for handle in self.handles if handle not in ready]
        for handle in ready:
            if not handle.is_cancelled:
                handle.call()


def loop_gate(limit: int) -> tuple[Any, Loop]:
    loop = Loop()
    arguments: list[Any] = [loop, limit, logging.getLogger(LOGGER)]
    return LoopGate(*arguments), loop


class Clock:
    """The clock of a limiter for threads, and the calls that it made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.freed = 0
        self.woken = 0
        monkeypatch.setattr(sync_gate, "time", SimpleNamespace(monotonic=lambda: self.now))

    def limiter(self, limit: int) -> Any:
        lock = threading.Condition(threading.RLock())

        def freed() -> None:
            self.freed += 1

        def wake() -> None:
            self.woken += 1

        return sync_gate.HandshakeLimiter(lock, limit, logging.getLogger(LOGGER), freed, wake)

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture(params=["loop", "threads"])
def gate_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], tuple[Any, Any]]:
    """Returns a limiter of either kind, and its clock."""
    if request.param == "loop":
        return loop_gate
    clock = Clock(monkeypatch)
    return lambda limit: (clock.limiter(limit), clock)


GateOf = Callable[[int], tuple[Any, Any]]


def come(limiter: Any, count: int) -> list[Client]:
    clients = [Client() for _ in range(count)]
    for client in clients:
        limiter.enter(client, PEER)
    return clients


def gone(clients: list[Client]) -> list[int]:
    return [client.gone for client in clients]


# Both


def test_two_late_clients_are_evicted_for_a_new_one(gate_of: GateOf) -> None:
    """The number thus shrinks; but only surplus clients are evicted."""
    limiter, clock = gate_of(3)
    clients = come(limiter, 5)
    clock.now += PATIENCE - 0.01
    clients += come(limiter, 1)
    assert gone(clients) == [0] * 6
    clock.now += 0.01
    limiter.enter(Client(), PEER)
    assert gone(clients) == [1, 1, 0, 0, 0, 0]
    assert len(limiter) == 5


def test_one_eviction_where_that_is_enough(gate_of: GateOf) -> None:
    limiter, clock = gate_of(3)
    clients = come(limiter, 3)
    clock.now += PATIENCE
    limiter.enter(Client(), PEER)
    assert gone(clients) == [1, 0, 0]
    assert len(limiter) == 3


def test_no_eviction_while_there_are_places(gate_of: GateOf) -> None:
    limiter, clock = gate_of(3)
    clients = come(limiter, 2)
    clock.now += 99
    limiter.enter(Client(), PEER)
    assert gone(clients) == [0, 0]


def test_far_too_many_clients_wait_and_are_evicted(gate_of: GateOf) -> None:
    limiter, clock = gate_of(2)
    clients = come(limiter, 2 * BURST - 1)
    assert limiter.delay() == 0
    clients += come(limiter, 1)
    assert limiter.delay() == pytest.approx(GRACE)
    clock.now += GRACE
    assert limiter.delay() == 0
    # A further client takes the place of the first, late or not.
    clients += come(limiter, 1)
    assert gone(clients) == [1] + [0] * (2 * BURST)
    assert len(limiter) == 2 * BURST


def test_progress_restarts_the_time(gate_of: GateOf) -> None:
    limiter, clock = gate_of(1)
    client = Client()
    entry = limiter.enter(client, PEER)
    clock.now += PATIENCE
    limiter.progress(entry)
    limiter.enter(Client(), PEER)
    assert client.gone == 0


def test_descriptors_are_short(gate_of: GateOf, caplog: pytest.LogCaptureFixture) -> None:
    limiter, clock = gate_of(9)
    assert limiter.evict_one() is None
    with socket.socket() as sock:
        for _ in range(2):
            limiter.enter(Silent(sock, PEER), PEER)
    assert limiter.evict_one() == pytest.approx(GRACE)
    assert len(limiter) == 2
    clock.now += GRACE
    assert limiter.evict_one() == 0
    assert len(limiter) == 1
    limiter.finish()
    assert [line.endswith(": 192.0.2.1, one of 2") for line in logged(caplog)] == [True]


def test_log_records_of_many_clients(gate_of: GateOf, caplog: pytest.LogCaptureFixture) -> None:
    """Clients of one address count together, with any port."""
    limiter, _ = gate_of(9)
    for number in range(3):
        limiter.throttled_log(("192.0.2.1", number), "kind", logging.WARNING, "line %d", number)
        limiter.count("other", logging.ERROR, "other %d", number)
    assert logged(caplog) == ["line 0"]
    limiter.finish()
    assert logged(caplog) == ["line 0", "line 2; 2 more like it", "other 2 (3 times)"]


@pytest.mark.parametrize("kind", ["task", "thread"])
def test_served_client_may_have_sent_data(kind: str) -> None:
    """Its data is left to the code that serves it; its end is readable data too."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        candidate = HandshakeTask(ours, set()) if kind == "task" else sync_gate.HandshakeThread(ours)
        assert not candidate.has_unread()
        theirs.send(b"x")
        assert candidate.has_unread()
        assert ours.recv(9) == b"x"
        assert not candidate.has_unread()
        theirs.close()
        assert candidate.has_unread()


@pytest.mark.skipif(not hasattr(select, "poll"), reason="there is one way only")
def test_thread_looks_without_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """And does not wait either."""
    wait, waits = select.select, []

    def look(read: Any, write: Any, errors: Any, timeout: float) -> Any:
        waits.append(timeout)
        return wait(read, write, errors, timeout)

    monkeypatch.delattr(select, "poll")
    monkeypatch.setattr(select, "select", look)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        candidate = sync_gate.HandshakeThread(ours)
        assert not candidate.has_unread()
        theirs.send(b"x")
        assert candidate.has_unread()
    assert waits == [0, 0]


@pytest.mark.skipif(not hasattr(select, "poll"), reason="there is no other way")
def test_thread_looks_at_any_descriptor() -> None:
    """Descriptors above 1023, which select does not support, occur in a flood."""
    if not raise_descriptors(1200):
        pytest.skip("the hard limit of descriptors is below 1,200")
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD, 1100)) as high:
        candidate = sync_gate.HandshakeThread(high)
        assert not candidate.has_unread()
        theirs.send(b"x")
        assert candidate.has_unread()


def test_thread_wakes_when_its_client_is_evicted() -> None:
    """The thread keeps its socket and closes it, even if late."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        candidate = sync_gate.HandshakeThread(ours)
        candidate.drop()
        assert (ours.recv(1), theirs.recv(1)) == (b"", b"")
        assert ours.fileno() >= 0
        ours.close()
        candidate.drop()


@pytest.mark.parametrize("state", ["open", "closed", "unwatched"])
def test_task_ends_when_its_client_is_evicted(state: str) -> None:
    """Whether the loop watches the socket or the task has closed it; nothing of it is left."""

    class Unwatching(asyncio.SelectorEventLoop):
        def remove_reader(self, fd: Any) -> bool:
            raise NotImplementedError

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            tasks: set[asyncio.Task[None]] = set()
            candidate = HandshakeTask(ours, tasks)
            candidate.drop()  # it has not begun
            candidate.task = loop.create_task(asyncio.sleep(60))
            tasks.add(candidate.task)
            descriptor = ours.fileno()
            if state == "open":
                loop.add_reader(descriptor, ours.recv, 1)
                loop.add_writer(descriptor, ours.send, b"x")
            elif state == "closed":
                ours.close()
            candidate.drop()
            assert (ours.fileno(), theirs.recv(1), tasks) == (-1, b"", set())
            if state == "open":
                assert not loop.remove_reader(descriptor)
                assert not loop.remove_writer(descriptor)
            with pytest.raises(asyncio.CancelledError):
                await candidate.task

    loop = Unwatching() if state == "unwatched" else asyncio.SelectorEventLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


# On a loop


def test_loop_is_notified_of_a_place_only_if_there_was_none() -> None:
    limiter, _ = loop_gate(1)
    calls: list[int] = []
    entries = [limiter.enter(Client(), PEER) for _ in range(BURST)]
    limiter.leave(entries[0])
    limiter.freed = lambda: calls.append(len(limiter))
    limiter.leave(entries[1])
    limiter.leave(None)
    assert calls == []
    last = [limiter.enter(Client(), PEER) for _ in range(2)]
    # It belongs to another object.
    limiter.leave(entries[0])
    assert calls == []
    limiter.leave(last[0])
    assert calls == [BURST - 1]


def test_loop_closes_surplus_clients() -> None:
    """Some immediately, and others a little later, until the allowed number is reached."""
    limiter, loop = loop_gate(AT_ONCE)
    clients = come(limiter, AT_ONCE)
    assert loop.due() == []
    loop.advance(0.25)
    clients += come(limiter, AT_ONCE + 2)
    assert loop.due() == [pytest.approx(100 + PATIENCE)]
    loop.advance(PATIENCE - 0.25)
    assert sum(gone(clients)) == AT_ONCE
    # The next of them is not late yet.
    assert loop.due() == [pytest.approx(101 + 0.25), pytest.approx(102)]
    loop.advance(0.25)
    assert sum(gone(clients)) == AT_ONCE + 2
    assert len(limiter) == AT_ONCE
    assert loop.due() == [pytest.approx(102)]  # the log


def test_loop_pauses_between_evictions() -> None:
    """Between closing a hundred clients, the loop has time for other work."""
    limiter, loop = loop_gate(8)
    clients = come(limiter, 8 + AT_ONCE + 10)
    loop.advance(PATIENCE)
    assert sum(gone(clients)) == AT_ONCE
    assert loop.due()[0] == pytest.approx(loop.now + INTERVAL)
    loop.advance(INTERVAL)
    assert sum(gone(clients)) == AT_ONCE + 10
    assert len(limiter) == 8


def test_loop_has_one_timer_for_the_next_deadline(caplog: pytest.LogCaptureFixture) -> None:
    """One timer, for the next deadline."""
    limiter, loop = loop_gate(1)
    limiter.throttled_log(PEER, "kind", logging.WARNING, "line")
    limiter.throttled_log(PEER, "kind", logging.WARNING, "line")
    assert loop.due() == [160]
    loop.advance(0.5)
    limiter.count("other", logging.WARNING, "other")
    limiter.count("third", logging.WARNING, "third")
    assert loop.due() == [101.5]
    loop.advance(1)
    assert logged(caplog) == ["line", "other", "third"]
    assert loop.due() == [160]
    loop.advance(58.5)
    assert logged(caplog)[3:] == ["line; 1 more like it"]
    assert loop.due() == [161.5]


def test_loop_is_left_without_timers() -> None:
    limiter, loop = loop_gate(1)
    come(limiter, 2)
    limiter.count("other", logging.WARNING, "other")
    assert len(loop.due()) == 2
    limiter.finish()
    assert loop.due() == []
    # New clients are accepted.
    come(limiter, 1)
    limiter.count("other", logging.WARNING, "other")
    assert len(loop.due()) == 2


# With threads


def test_thread_is_notified_of_each_place(clock: Clock) -> None:
    limiter = clock.limiter(1)
    entry = limiter.enter(Client(), PEER)
    assert limiter.leave(entry) is True
    assert clock.freed == 1
    assert limiter.leave(entry) is False
    assert limiter.leave(None) is True
    assert clock.freed == 1


def test_thread_closes_surplus_clients(clock: Clock) -> None:
    """Some immediately, and others a little later; a joining client closes no other."""
    limiter = clock.limiter(AT_ONCE)
    clients = come(limiter, AT_ONCE)
    assert limiter.trim() is None
    clock.now += 0.25
    others = [Client() for _ in range(AT_ONCE + 2)]
    for client in others:
        limiter.join(client, PEER)
    assert limiter.trim() == pytest.approx(PATIENCE - 0.25)
    clock.now += PATIENCE
    assert limiter.trim() == INTERVAL
    assert (sum(gone(clients)), sum(gone(others))) == (AT_ONCE, 0)
    assert limiter.trim() is None
    assert (sum(gone(others)), len(limiter)) == (2, AT_ONCE)


def test_slow_closing_thread(clock: Clock) -> None:
    limiter = clock.limiter(9)
    limiter.enter(Client(), PEER)
    clock.now += GRACE
    assert limiter.evict_one() == RELIEF
    assert len(limiter) == 0


def test_thread_is_woken_for_the_first_log_record(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    limiter = clock.limiter(9)
    assert limiter.log_due() is None
    for _ in range(3):
        limiter.throttled_log(PEER, "kind", logging.WARNING, "line")
    assert clock.woken == 1
    assert limiter.log_due() == 60
    clock.now += 60
    assert limiter.log_due() == 60
    assert logged(caplog) == ["line", "line; 2 more like it"]
    clock.now += 60
    assert limiter.log_due() is None
    with caplog.at_level(logging.ERROR, LOGGER):
        limiter.throttled_log(PEER, "kind", logging.WARNING, "line")
    assert clock.woken == 1


def test_thread_never_polls_for_the_log(clock: Clock) -> None:
    limiter = clock.limiter(9)
    limiter.count("kind", logging.WARNING, "line")
    clock.now += 0.9999
    assert limiter.log_due() == 0.001
