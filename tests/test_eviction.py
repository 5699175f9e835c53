"""The choice of the evicted client when more than ``max_pending`` are in the opening handshake."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from interop.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("the rules are ours")

if IS_WIRESPEED:
    from wirespeed._handshake.eviction import BURST, GRACE, PATIENCE, EvictionQueue, LingeringSocket, origin_of


class Client:
    def __init__(self, name: object = None) -> None:
        self.name = name
        self.unread = False
        self.asked = 0

    def has_unread(self) -> bool:
        self.asked += 1
        return self.unread

    def drop(self) -> None:
        raise AssertionError("that is up to who called")


def at(host: str) -> tuple[str, int]:
    return host, 1234


def names(admission: Any) -> list[object]:
    """Returns all clients in the order of eviction; none is left."""
    order = []
    while (entry := admission.first_victim()) is not None:
        order.append(admission.remove(entry).name)
    return order


def test_oldest_first() -> None:
    admission = EvictionQueue(9)
    for number in range(5):
        admission.add(Client(number), at("192.0.2.1"), number)
    assert names(admission) == [0, 1, 2, 3, 4]
    assert len(admission) == 0


def test_sending_client_is_evicted_last() -> None:
    admission = EvictionQueue(9)
    entries = [admission.add(Client(number), at("192.0.2.1"), number) for number in range(5)]
    admission.progress(entries[0], 6)
    admission.progress(entries[3], 7)
    admission.progress(entries[0], 8)
    assert names(admission) == [1, 2, 4, 3, 0]


def test_busiest_address_first() -> None:
    admission = EvictionQueue(9)
    for number, host in enumerate(["a", "b", "b", "c", "b", "c"]):
        admission.add(Client(f"{host}{number}"), at(host), number)
    # With equal numbers for each address, the client that was silent longest.
    assert names(admission) == ["b1", "b2", "c3", "a0", "b4", "c5"]


def test_many_addresses_oldest_first() -> None:
    admission = EvictionQueue(2000)
    entries = [admission.add(Client(number), at(f"192.0.2.{number}"), number) for number in range(1000)]
    for number in range(0, 1000, 2):
        admission.progress(entries[number], 1000 + number)
    assert names(admission) == [*range(1, 1000, 2), *range(0, 1000, 2)]


def test_returned_place() -> None:
    admission = EvictionQueue(1)
    assert not admission.is_over_limit
    entry = admission.add(Client(), at("192.0.2.1"), 0)
    assert admission.is_over_limit
    assert admission.remove(entry)
    assert not admission.remove(entry)
    admission.progress(entry, 1)
    assert (len(admission), admission.is_over_limit, admission.first_victim()) == (0, False, None)
    # Nor does it count for another client of the address.
    other = admission.add(Client(), at("192.0.2.1"), 2)
    admission.progress(entry, 3)
    assert not admission.remove(entry)
    assert admission.first_victim() is other
    assert admission.next_victim(2 + PATIENCE) is other


def test_no_eviction_before_the_grace_period() -> None:
    """No client is evicted before it had time to send, and progress restarts that time."""
    admission = EvictionQueue(1)
    entry = admission.add(Client("one"), at("192.0.2.1"), 10.0)
    assert admission.next_victim(10.0) is None
    assert admission.next_victim(10.0 + PATIENCE - 0.01) is None
    assert admission.next_victim(10.0 + PATIENCE) is entry
    admission.progress(entry, 11.0)
    assert admission.next_victim(11.0) is None
    # There are not too many.
    assert admission.next_victim_in(99.0) is None
    admission.add(Client("other"), at("192.0.2.1"), 11.5)
    assert admission.next_victim_in(11.5) == pytest.approx(PATIENCE - 0.5)
    assert admission.next_victim_in(99.0) == 0


def test_no_candidate() -> None:
    admission = EvictionQueue(1)
    assert (admission.next_victim(99.0), admission.next_victim_in(99.0)) == (None, None)
    assert admission.delay(99.0) == GRACE


def test_far_too_many() -> None:
    admission = EvictionQueue(2)
    for number in range(2 * BURST):
        assert not admission.is_full
        admission.add(Client(number), at("192.0.2.1"), 10.0)
    assert admission.is_full
    assert admission.delay(10.0) == pytest.approx(GRACE)
    assert admission.delay(10.0 + GRACE / 2) == pytest.approx(GRACE / 2)
    assert admission.delay(10.0 + GRACE + 1e-6) == 0


def test_unread_client_is_not_late() -> None:
    """Each client is polled once, and then has time again."""
    admission = EvictionQueue(1)
    clients = [Client(number) for number in range(3)]
    entries = []
    for number, client in enumerate(clients):
        client.unread = number != 1
        entries.append(admission.add(client, at("192.0.2.1"), number))
    assert admission.delay(10) == 0
    assert [client.asked for client in clients] == [1, 1, 0]
    assert admission.next_victim(10) is entries[1]
    clients[1].unread = True
    assert admission.next_victim(10) is None
    assert admission.delay(10) > 0
    assert [client.asked for client in clients] == [1, 3, 1]


def test_client_continues_with_its_place() -> None:
    admission = EvictionQueue(1)
    entry = admission.add(Client("first"), at("192.0.2.1"), 0)
    other = Client("other")
    admission.replace(entry, other)
    assert admission.remove(entry) is other
    admission.replace(entry, Client("late"))
    assert (admission.remove(entry), len(admission)) == (None, 0)


def test_refused_client() -> None:
    calls: list[str] = []
    candidate = LingeringSocket(lambda: calls.append("abort"))
    assert not candidate.has_unread()
    candidate.drop()
    assert calls == ["abort"]


@pytest.mark.parametrize(
    ("address", "name"),
    [(at("192.0.2.1"), "192.0.2.1"), (("2001:db8::1", 1, 0, 0), "2001:db8::1"), (b"\0abstract", "a Unix socket")],
)
def test_eviction_reason_names_address_and_count(address: Any, name: str) -> None:
    admission = EvictionQueue(7)
    entries = [admission.add(Client(), address, 0) for _ in range(3)]
    admission.add(Client(), at("198.51.100.1"), 0)
    text, *arguments = admission.eviction_log(entries[0])
    assert (text % tuple(arguments)).endswith(f" (max_pending=7): {name}, one of 3")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (at("192.0.2.1"), ("192.0.2.1", 9), True),
        (at("192.0.2.1"), at("192.0.2.2"), False),
        (("2001:db8::1", 1, 0, 0), ("2001:db8::ffff:1:2:3", 2, 0, 0), True),
        (("2001:db8::1", 1, 0, 0), ("2001:db8:0:1::1", 1, 0, 0), False),
        (("::ffff:192.0.2.1", 1, 0, 0), at("192.0.2.1"), True),
        (("::ffff:192.0.2.1", 1, 0, 0), ("::ffff:192.0.2.2", 1, 0, 0), False),
        (("fe80::1%eth0", 1, 0, 2), ("fe80::2%eth0", 1, 0, 2), True),
        (("no:address", 1), ("no:address", 2), True),
        ("", b"\0abstract", True),
        ("", None, True),
    ],
)
def test_origins(one: Any, other: Any, same: bool) -> None:
    assert (origin_of(one) == origin_of(other)) is same


class Oracle:
    """A simple implementation of the rules with a list."""

    def __init__(self) -> None:
        self.entries: list[list[Any]] = []
        self.order = 0

    def add(self, key: object, host: str) -> None:
        self.order += 1
        self.entries.append([key, host, self.order])

    def progress(self, key: object) -> None:
        for entry in self.entries:
            if entry[0] == key:
                self.order += 1
                entry[2] = self.order

    def remove(self, key: object) -> None:
        self.entries = [entry for entry in self.entries if entry[0] != key]

    def first_victim(self) -> object:
        hosts = [host for _, host, _ in self.entries]
        return min(self.entries, key=lambda entry: (-hosts.count(entry[1]), entry[2]), default=[None])[0]


@pytest.mark.parametrize("hosts", [1, 3, 40])
def test_random_operations_match_the_oracle(hosts: int) -> None:
    for seed in range(20):
        rng = random.Random(seed * 100 + hosts)
        admission, oracle = EvictionQueue(64), Oracle()
        entries: dict[int, Any] = {}
        for step in range(600):
            action = rng.random()
            if action < 0.45 or not entries:
                host = f"192.0.2.{int(hosts * rng.random() ** 2)}"
                entries[step] = admission.add(Client(step), at(host), step)
                oracle.add(step, host)
            elif action < 0.7:
                key = rng.choice(list(entries))
                admission.progress(entries[key], step)
                oracle.progress(key)
            elif action < 0.85:
                key = rng.choice(list(entries))
                assert admission.remove(entries.pop(key))
                oracle.remove(key)
            entry: Any = admission.first_victim()
            first: Any = oracle.first_victim()
            assert entry is entries.get(first)
            if entry is not None and len(admission) > 64:
                gone: Any = admission.remove(entry)
                assert gone.name == first
                oracle.remove(first)
                del entries[first]
            assert len(admission) == len(oracle.entries)


@pytest.mark.parametrize("hosts", [1, 250, 100_000])
def test_flood_costs_the_same_for_each(hosts: int) -> None:
    """The stored state does not grow."""
    admission = EvictionQueue(1024)
    admission.add(Client("honest"), at("198.51.100.1"), 0)

    def run(count: int) -> float:
        start = time.process_time()
        for number in range(count):
            if admission.is_over_limit:
                entry = admission.first_victim()
                assert entry is not None
                gone = admission.remove(entry)
                assert isinstance(gone, Client)
                assert hosts >= 1000 or gone.name != "honest"
            entry = admission.add(Client(number), at(f"10.{number % hosts}"), number)
            admission.progress(entry, number)
        return time.process_time() - start

    run(2000)
    few, many = run(2000), run(20_000)
    assert many < 40 * few, (few, many)
    assert len(admission) == len(admission._entries) == 1024
