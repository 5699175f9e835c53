"""The handshake limiters of both APIs, with a manual clock: timers, callbacks and log records.

Which client is evicted, and when, is tested in crates/driver/tests/accept.rs.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from support.flood import raise_descriptors
from support.serving import LOGGER, logged
from support.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("the limiters are ours")

if IS_WIRESPEED:
    from wirespeed._native import origin_of
    from wirespeed._server.accept import BURST, GRACE, IDLE_TIME
    from wirespeed.asyncio._accept import HandshakeLimiter as LoopLimiter
    from wirespeed.asyncio._accept import HandshakeTask
    from wirespeed.sync import _accept as sync_accept


PEER = ("192.0.2.1", 1234)

# The common data of both limiters: for a client that begins to be late, and for those that are closed at once.
INTERVAL = 0.005
AT_ONCE = 64

# The time that a thread has to close its client.
RELIEF = 0.01


class Client:
    def __init__(self) -> None:
        self.gone = 0

    def drop(self) -> None:
        self.gone += 1


def enter(limiter: Any, client: Client | None = None, **options: Any) -> Any:
    return limiter.enter(PEER, None, (client or Client()).drop, **options)


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


def loop_limiter(limit: int) -> tuple[Any, Loop]:
    loop = Loop()
    arguments: list[Any] = [loop, limit, logging.getLogger(LOGGER)]
    return LoopLimiter(*arguments), loop


class Clock:
    """The clock of a limiter for threads, and the calls that it made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.freed = 0
        self.woken = 0
        monkeypatch.setattr(sync_accept, "time", SimpleNamespace(monotonic=lambda: self.now))

    def limiter(self, limit: int) -> Any:
        lock = threading.Condition(threading.RLock())

        def freed() -> None:
            self.freed += 1

        def wake() -> None:
            self.woken += 1

        return sync_accept.HandshakeLimiter(lock, limit, logging.getLogger(LOGGER), freed, wake)

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture(params=["loop", "threads"])
def limiter_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], tuple[Any, Any]]:
    """Returns a limiter of either kind, and its clock."""
    if request.param == "loop":
        return loop_limiter
    clock = Clock(monkeypatch)
    return lambda limit: (clock.limiter(limit), clock)


LimiterOf = Callable[[int], tuple[Any, Any]]


def come(limiter: Any, count: int) -> list[Client]:
    clients = [Client() for _ in range(count)]
    for client in clients:
        enter(limiter, client)
    return clients


def gone(clients: list[Client]) -> list[int]:
    return [client.gone for client in clients]


# Both


def test_two_late_clients_are_evicted_for_a_new_one(limiter_of: LimiterOf) -> None:
    """The number thus shrinks; but only surplus clients are evicted."""
    limiter, clock = limiter_of(3)
    clients = come(limiter, 5)
    clock.now += IDLE_TIME - 0.01
    clients += come(limiter, 1)
    assert gone(clients) == [0] * 6
    clock.now += 0.01
    enter(limiter)
    assert gone(clients) == [1, 1, 0, 0, 0, 0]
    assert len(limiter) == 5


def test_descriptors_are_short(limiter_of: LimiterOf, caplog: pytest.LogCaptureFixture) -> None:
    limiter, clock = limiter_of(9)
    assert limiter.evict_one() is None
    come(limiter, 2)
    assert limiter.evict_one() == pytest.approx(GRACE)
    assert len(limiter) == 2
    clock.now += GRACE
    assert limiter.evict_one() == 0
    assert len(limiter) == 1
    limiter.finish()
    assert [line.endswith(" (max_pending=9): 192.0.2.1, one of 2") for line in logged(caplog)] == [True]


def test_full_limiter_has_a_delay(limiter_of: LimiterOf) -> None:
    limiter, clock = limiter_of(2)
    clients = come(limiter, 2 * BURST)
    assert (limiter.room, limiter.delay()) == (0, pytest.approx(GRACE))
    clock.now += GRACE
    assert limiter.delay() == 0
    enter(limiter)
    assert gone(clients) == [1] + [0] * (2 * BURST - 1)


def test_progress_and_removal(limiter_of: LimiterOf) -> None:
    limiter, clock = limiter_of(1)
    client, other = Client(), Client()
    key = enter(limiter, client)
    clock.now += IDLE_TIME
    limiter.progress(key)
    enter(limiter, other)
    assert (client.gone, other.gone) == (0, 0)
    limiter.leave(key)
    limiter.leave(key)
    limiter.progress(key)
    assert len(limiter) == 1


def test_handshake_that_is_passed_on(limiter_of: LimiterOf) -> None:
    limiter, clock = limiter_of(9)
    first, second, late = Client(), Client(), Client()
    key = enter(limiter, first)
    limiter.replace(key, second.drop)
    clock.now += GRACE
    assert limiter.evict_one() == 0
    assert (first.gone, second.gone) == (0, 1)
    limiter.replace(key, late.drop)
    limiter.close_all()
    assert (late.gone, len(limiter)) == (0, 0)


def test_closing_spares_refused_clients(limiter_of: LimiterOf, caplog: pytest.LogCaptureFixture) -> None:
    """They have their answer, and little time to read it."""
    limiter, _ = limiter_of(9)
    waiting, refused = Client(), Client()
    with socket.socket() as sock:
        limiter.enter(PEER, sock, waiting.drop)
        limiter.enter(PEER, None, refused.drop)
        limiter.close_all()
    assert (waiting.gone, refused.gone, len(limiter)) == (1, 0, 1)
    limiter.finish()
    assert logged(caplog) == ["closed a client that had not sent its request when the server closed: 192.0.2.1"]


def test_all_evicted_clients_are_closed_although_one_fails(limiter_of: LimiterOf) -> None:
    """A signal handler may raise anywhere."""
    limiter, clock = limiter_of(1)

    def drop() -> None:
        raise KeyboardInterrupt

    limiter.enter(PEER, None, drop)
    clients = come(limiter, 3)
    clock.now += IDLE_TIME
    with pytest.raises(KeyboardInterrupt):
        limiter.trim()
    assert gone(clients) == [1, 1, 0]


@pytest.mark.parametrize(("address", "host"), [(("2001:db8::1", 1, 0, 0), "2001:db8::1"), (b"\0x", "a Unix socket")])
def test_log_names_the_client(limiter_of: LimiterOf, caplog: pytest.LogCaptureFixture, address: Any, host: str) -> None:
    limiter, clock = limiter_of(7)
    for _ in range(3):
        limiter.enter(address, None, Client().drop)
    enter(limiter)
    clock.now += GRACE
    limiter.evict_one()
    limiter.finish()
    assert [line.partition(" (")[2] for line in logged(caplog)] == [f"max_pending=7): {host}, one of 3"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("192.0.2.1", 1), ("192.0.2.1", 9), True),
        (("192.0.2.1", 1), ("192.0.2.2", 1), False),
        (("2001:db8::1", 1, 0, 0), ("2001:db8::ffff:1:2:3", 2, 0, 0), True),
        (("2001:db8::1", 1, 0, 0), ("2001:db8:0:1::1", 1, 0, 0), False),
        (("::ffff:192.0.2.1", 1, 0, 0), ("192.0.2.1", 1), True),
        (("::ffff:192.0.2.1", 1, 0, 0), ("::ffff:192.0.2.2", 1, 0, 0), False),
        (("fe80::1%eth0", 1, 0, 2), ("fe80::2%eth0", 1, 0, 2), True),
        (("no:address", 1), ("no:address", 2), True),
        (("no:address", 1), ("other", 1), False),
        ((3, 1), (3, 2), True),
        ("", b"\0abstract", True),
        ("", None, True),
        ("", ("192.0.2.1", 1), False),
    ],
)
def test_origins(one: Any, other: Any, same: bool) -> None:
    assert (origin_of(one) == origin_of(other)) is same


@pytest.mark.parametrize("hosts", [1, 250, 100_000])
def test_flood_costs_the_same_for_each(hosts: int) -> None:
    """The stored state does not grow."""
    limiter, loop = loop_limiter(64)
    honest = Client()
    limiter.enter(("198.51.100.1", 1), None, honest.drop)

    def run(count: int) -> float:
        start = time.process_time()
        for number in range(count):
            loop.now += 0.002
            limiter.progress(limiter.enter((f"10.0.{number % hosts // 250}.{number % 250}", 1), None, Client().drop))
        return time.process_time() - start

    run(4000)
    assert honest.gone == (hosts >= 1000)
    few, many = run(2000), run(20_000)
    assert many < 40 * few, (few, many)
    assert len(limiter) == len(limiter._clients) <= 64 * BURST


def test_log_records_of_many_clients(limiter_of: LimiterOf, caplog: pytest.LogCaptureFixture) -> None:
    """Clients of one address count together, with any port."""
    limiter, _ = limiter_of(9)
    for number in range(3):
        limiter.throttled_log(("192.0.2.1", number), "kind", logging.WARNING, "line %d", number)
        limiter.count("other", logging.ERROR, "other %d", number)
    assert logged(caplog) == ["line 0"]
    limiter.finish()
    assert logged(caplog) == ["line 0", "line 2; 2 more like it", "other 2 (3 times)"]


@pytest.mark.parametrize("timeout", [0, 5, None], ids=["non-blocking", "timeout", "blocking"])
def test_client_with_unread_data_is_not_evicted(limiter_of: LimiterOf, timeout: float | None) -> None:
    """Its data is left to the code that serves it; its end is readable data too."""
    limiter, clock = limiter_of(9)
    client = Client()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(timeout)
        limiter.enter(PEER, ours, client.drop)
        theirs.send(b"x")
        clock.now += GRACE
        assert limiter.evict_one() == pytest.approx(GRACE)
        assert ours.recv(9) == b"x"
        theirs.close()
        clock.now += GRACE
        assert limiter.evict_one() == pytest.approx(GRACE)
        assert client.gone == 0


def test_client_without_unread_data_is_evicted(limiter_of: LimiterOf) -> None:
    limiter, clock = limiter_of(9)
    client = Client()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        limiter.enter(PEER, ours, client.drop)
        clock.now += GRACE
        assert limiter.evict_one() == 0
    assert client.gone == 1


def test_any_descriptor_is_checked_for_unread_data() -> None:
    """Descriptors above 1023, which select(2) does not support, occur in a flood."""
    if not raise_descriptors(1200):
        pytest.skip("the hard limit of descriptors is below 1,200")
    limiter, loop = loop_limiter(9)
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD, 1100)) as high:
        limiter.enter(PEER, high, Client().drop)
        theirs.send(b"x")
        loop.now += GRACE
        assert limiter.evict_one() == pytest.approx(GRACE)


def test_thread_wakes_when_its_client_is_evicted() -> None:
    """The thread keeps its socket and closes it, even if late."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert sync_accept.drop_thread(ours) == RELIEF
        assert (ours.recv(1), theirs.recv(1)) == (b"", b"")
        assert ours.fileno() >= 0
        ours.close()
        sync_accept.drop_thread(ours)


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
    limiter, _ = loop_limiter(1)
    calls: list[int] = []
    entries = [enter(limiter) for _ in range(BURST)]
    limiter.leave(entries[0])
    limiter.freed = lambda: calls.append(len(limiter))
    limiter.leave(entries[1])
    limiter.leave(None)
    assert calls == []
    last = [enter(limiter) for _ in range(2)]
    # It belongs to another object.
    limiter.leave(entries[0])
    assert calls == []
    limiter.leave(last[0])
    assert calls == [BURST - 1]


def test_loop_closes_surplus_clients() -> None:
    """Some immediately, and others a little later, until the allowed number is reached."""
    limiter, loop = loop_limiter(AT_ONCE)
    clients = come(limiter, AT_ONCE)
    assert loop.due() == []
    loop.advance(0.25)
    clients += come(limiter, AT_ONCE + 2)
    assert loop.due() == [pytest.approx(100 + IDLE_TIME)]
    loop.advance(IDLE_TIME - 0.25)
    assert sum(gone(clients)) == AT_ONCE
    # The next of them is not late yet.
    assert loop.due() == [pytest.approx(101 + 0.25), pytest.approx(102)]
    loop.advance(0.25)
    assert sum(gone(clients)) == AT_ONCE + 2
    assert len(limiter) == AT_ONCE
    assert loop.due() == [pytest.approx(102)]  # the log


def test_loop_pauses_between_evictions() -> None:
    """Between closing a hundred clients, the loop has time for other work."""
    limiter, loop = loop_limiter(8)
    clients = come(limiter, 8 + AT_ONCE + 10)
    loop.advance(IDLE_TIME)
    assert sum(gone(clients)) == AT_ONCE
    assert loop.due()[0] == pytest.approx(loop.now + INTERVAL)
    loop.advance(INTERVAL)
    assert sum(gone(clients)) == AT_ONCE + 10
    assert len(limiter) == 8


def test_loop_has_one_timer_for_the_next_deadline(caplog: pytest.LogCaptureFixture) -> None:
    """One timer, for the next deadline."""
    limiter, loop = loop_limiter(1)
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
    limiter, loop = loop_limiter(1)
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
    entry = enter(limiter)
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
        enter(limiter, client, evict=False)
    assert limiter.trim() == pytest.approx(IDLE_TIME - 0.25)
    clock.now += IDLE_TIME
    assert limiter.trim() == INTERVAL
    assert (sum(gone(clients)), sum(gone(others))) == (AT_ONCE, 0)
    assert limiter.trim() is None
    assert (sum(gone(others)), len(limiter)) == (2, AT_ONCE)


def test_slow_closing_thread(clock: Clock) -> None:
    limiter = clock.limiter(9)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        limiter.enter(PEER, ours, lambda: sync_accept.drop_thread(ours))
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
