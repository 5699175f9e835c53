"""Engines on several machines, over each kind of broker: the same tests, with real servers."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.brokers import Memory, Nats, Redis, broker, wait_for
from interop.nodes import Node, receive, silent
from interop.patience import patience
from wirespeed.engine import Publisher

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")

Broker = Nats | Redis | Memory
Server = Nats | Redis


@pytest.fixture(params=["memory", "nats", "redis"])
def any_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    with broker(request.param, tmp_path) as running:
        yield running


@pytest.fixture(params=["nats", "redis"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with broker(request.param, tmp_path) as running:
        assert not isinstance(running, Memory)
        yield running


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# What gets where


def test_exact_counts_in_order(any_broker: Broker) -> None:
    with Node(any_broker.url) as one, Node(any_broker.url) as two:
        mine, theirs, others = one.client("prices.a"), two.client("prices.a"), two.client("prices.b")
        one.has(1)
        two.has(2)
        for number in range(2000):
            published = one.engine.publish("prices.a", f"{number}")
            assert published == 1
            assert published.forwarded
        expected = [str(number) for number in range(2000)]
        assert receive(mine, 2000) == expected
        assert receive(theirs, 2000) == expected
        assert two.engine.publish("prices.b", b"\xff\x00", key="b").forwarded
        assert others.recv(20) == b"\xff\x00"
        for ws in (mine, theirs, others):
            silent(ws, 0.1)
        assert (two.status.received, two.status.lost, one.status.received) == (2000, 0, 0)
        wait_for(lambda: one.status.published == 2000)


def test_each_publisher_in_order_across_topics(any_broker: Broker) -> None:
    with Node(any_broker.url) as one, Node(any_broker.url) as two, Node(any_broker.url) as three:
        ws = three.client("a.*", "a.x", "b", ">", "c.>")
        three.has(5)
        topics = ["a.x", "b", "a.y", "c.d.e"]

        def publish(node: Node, name: str) -> None:
            for number in range(1000):
                while not node.engine.publish(topics[number % 4], f"{name} {number}").forwarded:
                    time.sleep(0.001)

        threads = [threading.Thread(target=publish, args=pair) for pair in ((one, "one"), (two, "two"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        got: dict[str, list[int]] = {"one": [], "two": []}
        for message in receive(ws, 2000):
            name, number = message.split()
            got[name].append(int(number))
        assert got == {"one": list(range(1000)), "two": list(range(1000))}
        silent(ws)
        assert three.status.lost == 0


def test_wildcards_once(any_broker: Broker) -> None:
    with Node(any_broker.url) as one, Node(any_broker.url) as two:
        ws = two.client("a.*", "a.>", "a.b", "*.b")
        deep = two.client("*.*.c")
        two.has(5)
        for topic in ("a.b", "a.b.c", "b.b", "a", "x.y", "b.b.b.b"):
            one.engine.publish(topic, topic)
        assert receive(ws, 3) == ["a.b", "a.b.c", "b.b"]
        assert receive(deep, 1) == ["a.b.c"]
        silent(ws)
        silent(deep, 0)


def test_broadcast(any_broker: Broker) -> None:
    with Node(any_broker.url) as one, Node(any_broker.url) as two:
        clients = [one.client(), two.client(), two.client(">")]
        two.has(1)
        assert one.engine.broadcast("to all")
        assert one.engine.publish("_wirespeed.broadcast", "not so").forwarded is False
        for ws in clients:
            assert ws.recv(20) == "to all"
            silent(ws, 0.1)


def test_only_what_is_wanted_is_subscribed_to(server: Server) -> None:
    with Node(server.url) as one, Node(server.url) as two:
        first, second = one.client("a.b", "c"), one.client("a.b")
        one.has(2)
        assert server.subscriptions() == ["a.b", "c"]
        first.send("- a.b")
        first.send("- c")
        assert receive(first, 2) == ["ready", "ready"]
        one.has(1)
        assert server.subscriptions() == ["a.b"]
        second.close()
        one.has(0)
        assert server.subscriptions() == []
        third = one.client("a.>", "a.*")
        one.has(2)
        # For Redis both are one pattern.
        assert server.subscriptions() == (["*"] if isinstance(server, Redis) else ["a.*", "a.>"])
        two.engine.publish("a.b", "still")
        assert third.recv(20) == "still"
        third.send("- a.>")
        assert third.recv(20) == "ready"
        one.has(1)
        two.engine.publish("a.b.c", "no")
        two.engine.publish("a.b", "yes")
        assert third.recv(20) == "yes"
        # What was published while nobody subscribed is not missing.
        two.engine.publish("c", "nobody")
        two.engine.publish("a.b", "behind it")
        assert third.recv(20) == "behind it"  # so the server has had the other
        first.send("+ c")
        assert first.recv(20) == "ready"
        one.has(2)
        two.engine.publish("c", "somebody")
        assert first.recv(20) == "somebody"
        assert one.status.lost == 0


def test_a_prefix_keeps_applications_apart(any_broker: Broker) -> None:
    with (
        Node(any_broker.url, broker_prefix="app.one") as one,
        Node(any_broker.url, broker_prefix="app.one") as same,
        Node(any_broker.url, broker_prefix="app") as other,
        Node(any_broker.url) as plain,
    ):
        ours, theirs, everything = same.client("t", ">"), other.client("t", "one.t"), plain.client("app.one.>")
        same.has(2)
        other.has(2)
        plain.has(1)
        one.engine.publish("t", "x")
        one.engine.broadcast("y")
        assert receive(ours, 2) == ["x", "y"]
        # Whose prefix is shorter sees longer topics, as do all who know nothing of prefixes.
        assert theirs.recv(20) == "x"
        assert everything.recv(20) == "x"
        silent(theirs)
        silent(ours, 0.1)
        # What nodes tell each other, behind the prefix of theirs, is for no application.
        silent(everything, 0.1)
        if isinstance(any_broker, Nats | Redis):
            any_broker.publish("app.one.t", b"foreign")
            assert ours.recv(20) == "foreign"


def test_foreign_publishers(server: Server) -> None:
    with Node(server.url) as node:
        ws = node.client("a.b", "a.*", ">")
        node.has(3)
        server.publish("a.b", "grüße".encode())
        server.publish("a.b", b"\xff\xfe")
        assert receive(ws, 2) == ["grüße", b"\xff\xfe"]
        server.publish("a.c", b"")
        assert ws.recv(20) == ""
        server.publish("a.b", b"\xffWS\x01 cut off")
        wait_for(lambda: node.status.invalid == 1)
        silent(ws)


def test_larger_than_the_broker_takes(tmp_path: Path) -> None:
    with broker("nats", tmp_path) as server, Node(server.url) as one, Node(server.url) as two:
        mine, theirs = one.client("t"), two.client("t")
        one.has(1)
        two.has(1)
        large = b"x" * (2 << 20)
        one.engine.publish("t", large)
        one.engine.publish("t", "next")
        assert receive(mine, 2) == [large, "next"]
        assert theirs.recv(20) == "next"
        wait_for(lambda: "refused" in one.kinds())
        assert (one.status.refused, two.status.lost, one.status.reconnects) == (1, 0, 0)


def test_odd_names(any_broker: Broker) -> None:
    names = ["a[b].c?", "ünï.çödé", "back\\slash", "$x.{y}", "^", "x" * 255, "a:b,c"]
    with Node(any_broker.url) as one, Node(any_broker.url) as two:
        ws = two.client("a[b].*", "*.çödé", "back\\slash", "$x.*", "^")
        two.has(5)
        long = two.client()
        for name in (names[5], "a:b,c"):
            long.send(f"+ {name}")
            assert long.recv(20) == "ready"
        two.has(7)
        for name in names:
            one.engine.publish(name, name)
        one.engine.publish("ab.c", "as a set of characters it would match")
        assert receive(ws, 5) == names[:5]
        assert receive(long, 2) == names[5:]
        silent(ws)


# When the broker goes away


def test_killed_and_started_again(server: Server) -> None:
    with Node(server.url) as one, Node(server.url) as two:
        mine, theirs = one.client("t"), two.client("t", "u.*")
        one.has(1)
        two.has(2)
        one.engine.publish("t", "before")
        assert (mine.recv(20), theirs.recv(20)) == ("before", "before")
        server.kill()
        wait_for(lambda: not (one.status.is_connected or two.status.is_connected))
        assert one.status.state == "disconnected"
        assert one.status.reason
        # Local traffic goes on, and what is published waits.
        for number in range(100):
            assert one.engine.publish("t", f"meanwhile {number}").forwarded
        assert receive(mine, 100) == [f"meanwhile {number}" for number in range(100)]
        assert one.status.queued == 100
        started = time.monotonic()
        server.start()
        wait_for(lambda: one.status.is_connected and two.status.is_connected)
        assert time.monotonic() - started < 10
        two.has(2)
        one.has(1)
        one.engine.publish("t", "after")
        got = [theirs.recv(20)]
        while got[-1] != "after":
            got.append(theirs.recv(20))
        # Both come back when they do: what the one sent before the other was there is lost, and known to be.
        assert got[:-1] == [f"meanwhile {number}" for number in range(100 - len(got) + 1, 100)]
        # Counted once it has been delivered.
        wait_for(lambda: two.status.lost == 100 - (len(got) - 1))
        assert two.status.reconnects == 1
        wait_for(lambda: two.kinds()[:3] == ["connected", "disconnected", "connected"])
        wait_for(lambda: sum(event.count for event in two.told if event.kind == "lost") == two.status.lost)
        one.engine.publish("u.v", "all subscriptions are back")
        assert theirs.recv(20) == "all subscriptions are back"


def test_restarted_while_much_is_published(server: Server) -> None:
    with Node(server.url) as one, Node(server.url) as two:
        ws = two.client("t")
        two.has(1)
        stop = threading.Event()
        taken = Counter[bool]()

        def publish() -> None:
            number = 0
            while not stop.is_set():
                published = one.engine.publish("t", f"{number}")
                taken[published.forwarded] += 1
                number += 1
                time.sleep(0.0002)

        thread = threading.Thread(target=publish)
        thread.start()
        for _ in range(2):
            time.sleep(0.3)
            server.kill()
            time.sleep(0.3)
            server.start()
            wait_for(lambda: one.status.is_connected and two.status.is_connected)
            two.has(1)
        time.sleep(0.3)
        stop.set()
        thread.join()
        wait_for(lambda: one.status.queued == 0)
        one.engine.publish("t", "last")
        numbers = []
        while (message := ws.recv(20)) != "last":
            numbers.append(int(message))
        assert numbers == sorted(set(numbers)), "in order, and once"
        assert taken[False] == 0
        # Every one came, or is known not to have come.
        assert len(numbers) + two.status.lost == taken[True] - numbers[0]
        assert len(numbers) > 100


def test_paused_while_local_traffic_goes_on(server: Server) -> None:
    limit = 1 << 20
    with Node(server.url, broker_limit=limit) as one, Node(server.url) as two:
        mine, theirs = one.client("t"), two.client("t")
        one.has(1)
        two.has(1)
        payload = b"x" * 10_000
        before = resident()
        server.pause()
        try:
            slowest, taken = 0.0, 0
            for _ in range(4000):
                started = time.perf_counter()
                taken += one.engine.publish("t", payload).forwarded
                assert mine.recv(20) == payload
                slowest = max(slowest, time.perf_counter() - started)
            assert slowest < patience(1), "local traffic does not wait for the broker"
            status = one.status
            assert status.queued_bytes <= limit
            assert status.refused == 4000 - taken > 0
            # 40 MB were published; what the system's own buffers hold is not ours.
            assert resident() - before < 25 << 20
        finally:
            server.resume()
        wait_for(lambda: one.status.is_connected and two.status.is_connected)
        two.has(1)
        wait_for(lambda: one.status.queued == 0)
        last = b"last" * 10
        assert one.engine.publish("t", last).forwarded
        while theirs.recv(20) != last:
            pass
        assert any(event.kind == "refused" for event in one.told)


def test_down_from_the_start(server: Server) -> None:
    server.kill()
    with Node(server.url, connected=False) as one, Node(server.url, connected=False) as two:
        mine, theirs = one.client("t"), two.client("t")
        assert one.engine.publish("t", "local").forwarded
        assert mine.recv(20) == "local"
        assert one.status.state == "connecting"
        wait_for(lambda: bool(one.status.reason))
        server.start()
        wait_for(lambda: one.status.is_connected and two.status.is_connected)
        two.has(1)
        one.engine.publish("t", "remote")
        while theirs.recv(20) != "remote":
            pass
        assert one.status.reason is None


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest", "raise"])
def test_policies(server: Server, policy: str) -> None:
    with Node(server.url, broker_limit=20_000, broker_policy=policy) as one, Node(server.url) as two:
        mine, theirs = one.client("t"), two.client("t")
        two.has(1)
        server.kill()
        wait_for(lambda: not one.status.is_connected)
        results: list[bool | None] = []
        refusals: set[str] = set()
        for number in range(100):
            try:
                results.append(one.engine.publish("t", f"{number}".ljust(1000)).forwarded)
            except BlockingIOError as exc:
                refusals.add(str(exc))
                results.append(None)
        assert one.status.queued_bytes <= 20_000
        kept = one.status.queued
        assert 10 < kept < 20
        expected = {
            "drop_newest": [True] * kept + [False] * (100 - kept),
            "drop_oldest": [True] * 100,
            "raise": [True] * kept + [None] * (100 - kept),
        }
        assert results == expected[policy]
        assert all("broker_limit" in refusal for refusal in refusals)
        # With "raise" nobody gets what was refused; else all do here.
        here = kept if policy == "raise" else 100
        assert [int(message) for message in receive(mine, here)] == list(range(here))
        silent(mine, 0.1)
        status = one.status
        gone = 100 - kept
        assert (status.refused, status.dropped) == ((0, gone) if policy == "drop_oldest" else (gone, 0))
        server.start()
        wait_for(lambda: one.status.is_connected and two.status.is_connected)
        two.has(1)
        wait_for(lambda: one.status.queued == 0)
        one.engine.publish("t", "last")
        got = [theirs.recv(20)]
        while got[-1] != "last":
            got.append(theirs.recv(20))
        sent = range(gone, 100) if policy == "drop_oldest" else range(kept)
        assert [int(message) for message in got[:-1]] == list(sent)[len(sent) - len(got) + 1 :]
        kind = "dropped" if policy == "drop_oldest" else "refused"
        wait_for(lambda: sum(event.count for event in one.told if event.kind == kind) == gone)


# Who publishes without an engine


def test_publisher(any_broker: Broker) -> None:
    with Node(any_broker.url, broker_prefix="app") as node, Publisher(any_broker.url, prefix="app") as publisher:
        ws = node.client("t", "u.>")
        node.has(2)
        for number in range(1000):
            publisher.publish("t", f"{number}")
        publisher.publish("u.v", b"\x00", key="k")
        publisher.publish("t", b"as text", text=True)
        publisher.publish(None, "to all")
        publisher.flush(20)
        assert receive(ws, 1003) == [*map(str, range(1000)), b"\x00", "as text", "to all"]
        status = publisher.status
        assert (status.published, status.queued, status.state) == (1003, 0, "connected")
        with pytest.raises(ValueError, match="wildcard"):
            publisher.publish("t.*", "")
        with pytest.raises(ValueError, match="_wirespeed"):
            publisher.publish("_wirespeed.broadcast", "")
        with pytest.raises(UnicodeError):
            publisher.publish("t", b"\xff", text=True)
        with pytest.raises(TypeError):
            publisher.publish("t", 1)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="closed"):
        publisher.publish("t", "late")
    publisher.close()


def test_publisher_on_an_event_loop(any_broker: Broker) -> None:
    async def publish() -> None:
        async with Publisher(any_broker.url, limit=10_000) as publisher:
            for number in range(500):
                await publisher.apublish("t", f"{number}".ljust(100))
            await publisher.aflush(20)

    with Node(any_broker.url) as node:
        ws = node.client("t")
        node.has(1)
        asyncio.run(publish())
        assert [int(message) for message in receive(ws, 500)] == list(range(500))


def test_publisher_whose_broker_is_down(server: Server) -> None:
    with Publisher(server.url, limit=10_000) as publisher:
        publisher.publish("t", "x")
        publisher.flush(20)
        server.kill()
        wait_for(lambda: not publisher.status.is_connected)
        with pytest.raises(TimeoutError, match="no room"):
            for _ in range(100):
                publisher.publish("t", "x" * 1000, timeout=0.1)
        with pytest.raises(TimeoutError, match="not got everything"):
            publisher.flush(0.1)

        async def wait() -> None:
            with pytest.raises(TimeoutError):
                await publisher.aflush(0.1)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(publisher.apublish("t", "x" * 1000), 0.1)

        asyncio.run(wait())
        server.start()
        publisher.flush(20)
        assert publisher.status.queued == 0


def break_with_something_under_way(server: Server, publisher: Publisher, published: int) -> None:
    """Kill the broker behind one message or several that have left and are not known to have come."""
    wait_for(lambda: publisher.status.queued < published)
    # What a client library has taken, and not written yet, it sends to the next connection.
    time.sleep(0.3)
    server.kill()
    wait_for(lambda: not publisher.status.is_connected, "nobody has noticed")
    server.start()
    wait_for(lambda: publisher.status.is_connected, "not connected again")


def test_each_who_flushes_is_told_of_what_is_lost(server: Server) -> None:
    """Of several threads and tasks, whether they wait at once or one after the other."""
    barrier, told = threading.Barrier(4), list[str]()

    def publish(publisher: Publisher) -> None:
        publisher.publish("t", "x")
        barrier.wait(20)
        barrier.wait(20)
        with pytest.raises(ConnectionError, match="may not have got"):
            publisher.flush(20)
        publisher.flush(20)
        told.append("thread")

    async def tasks(publisher: Publisher) -> None:
        published, broken = asyncio.Event(), asyncio.Event()

        async def one() -> None:
            await publisher.apublish("t", "x")
            published.set()
            await broken.wait()
            with pytest.raises(ConnectionError, match="may not have got"):
                await publisher.aflush(20)
            await publisher.aflush(20)

        async def none() -> None:
            # It has published nothing, and another one is told of what was lost before.
            await publisher.aflush(20)

        publishing = asyncio.ensure_future(one())
        await published.wait()
        flushing = [asyncio.ensure_future(publisher.aflush(20)) for _ in range(3)]
        await asyncio.sleep(0.05)  # they wait
        flushing[0].cancel()
        await asyncio.to_thread(break_with_something_under_way, server, publisher, 1)
        for waiting in flushing[1:]:
            with pytest.raises(ConnectionError, match="may not have got"):
                await waiting
        broken.set()
        await publishing
        await none()

    with Publisher(server.url) as publisher:
        publisher.publish("t", "before")
        publisher.flush(20)
        server.pause()
        threads = [threading.Thread(target=publish, args=(publisher,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        publisher.publish("t", "x")
        barrier.wait(20)
        break_with_something_under_way(server, publisher, 4)
        with pytest.raises(ConnectionError, match="may not have got"):
            publisher.flush(20)
        barrier.wait(20)
        for thread in threads:
            thread.join(20)
        assert told == ["thread"] * 3
        for _ in range(5):
            server.pause()
            before = publisher.status.doubtful
            try:
                asyncio.run(tasks(publisher))
                break
            except pytest.fail.Exception:
                # What a client library had not written yet has gone to the next connection: nothing was lost.
                if publisher.status.doubtful > before:
                    raise
        else:
            raise AssertionError("no message was ever lost")
        publisher.flush(20)


def test_closing_sends_what_was_published(any_broker: Broker) -> None:
    with Node(any_broker.url) as node:
        ws = node.client("t")
        node.has(1)
        with Publisher(any_broker.url) as publisher:
            wait_for(lambda: publisher.status.is_connected)
            for number in range(500):
                publisher.publish("t", f"{number}")
        assert receive(ws, 500) == [str(number) for number in range(500)]


# Many


def test_two_nodes_with_a_hundred_subscribers_each(any_broker: Broker) -> None:
    count = 1000
    with Node(any_broker.url) as one, Node(any_broker.url) as two:
        clients = [node.client("t", "t.*" if number % 2 else ">") for node in (one, two) for number in range(100)]
        one.has(3)
        two.has(3)

        def publish() -> None:
            for number in range(count):
                while not one.engine.publish("t", f"{number}".ljust(128)).forwarded:
                    time.sleep(0.001)
                if number % 100 == 99:
                    one.engine.wait_for_room("t", 20)

        thread = threading.Thread(target=publish)
        thread.start()
        for ws in clients:
            assert [int(message) for message in receive(ws, count)] == list(range(count))
        thread.join()
        assert (two.status.lost, two.status.received) == (0, count)


def test_subscribing_and_unsubscribing_in_storms(any_broker: Broker) -> None:
    with Node(any_broker.url) as one, Node(any_broker.url) as two:
        ws = two.client("always")
        for round_ in range(20):
            for number in range(50):
                ws.send(f"+ storm.{number}")
            for number in range(50):
                if round_ < 19 or number % 2:
                    ws.send(f"- storm.{number}")
        # More than there were before at any time: then the broker has heard of all of it.
        for number in range(100):
            ws.send(f"+ end.{number}")
        receive(ws, 20 * 50 + 19 * 50 + 25 + 100)
        two.has(126)
        for number in range(50):
            one.engine.publish(f"storm.{number}", f"{number}")
        one.engine.publish("always", "last")
        got = [ws.recv(20) for _ in range(26)]
        assert sorted(map(int, got[:-1])) == list(range(0, 50, 2))
        assert got[-1] == "last"
