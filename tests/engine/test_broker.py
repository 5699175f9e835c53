"""Engines on several machines, over each kind of broker: tests with real servers."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from support import broker_fixtures
from support.broker_fixtures import Broker, Server
from support.brokers import Nats, Redis, broker, wait_for
from support.load_scaling import load_scaled
from support.nodes import Node, receive, silent

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")

any_broker, server = broker_fixtures.any_broker, broker_fixtures.server


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# Delivery of messages


def test_exact_counts_in_order(any_broker: Broker) -> None:
    with Node(any_broker.url) as one, Node(any_broker.url) as two:
        mine, theirs, others = one.client("prices.a"), two.client("prices.a"), two.client("prices.b")
        one.wait_for_patterns(1)
        two.wait_for_patterns(2)
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
        three.wait_for_patterns(5)
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
        two.wait_for_patterns(5)
        for topic in ("a.b", "a.b.c", "b.b", "a", "x.y", "b.b.b.b"):
            one.engine.publish(topic, topic)
        assert receive(ws, 3) == ["a.b", "a.b.c", "b.b"]
        assert receive(deep, 1) == ["a.b.c"]
        silent(ws)
        silent(deep, 0)


def test_broadcast(any_broker: Broker) -> None:
    with Node(any_broker.url) as one, Node(any_broker.url) as two:
        clients = [one.client(), two.client(), two.client(">")]
        two.wait_for_patterns(1)
        assert one.engine.broadcast("to all")
        assert one.engine.publish("_wirespeed.broadcast", "not so").forwarded is False
        for ws in clients:
            assert ws.recv(20) == "to all"
            silent(ws, 0.1)


def test_only_needed_topics_are_subscribed(server: Server) -> None:
    with Node(server.url) as one, Node(server.url) as two:
        first, second = one.client("a.b", "c"), one.client("a.b")
        one.wait_for_patterns(2)
        assert server.subscriptions() == ["a.b", "c"]
        first.send("- a.b")
        first.send("- c")
        assert receive(first, 2) == ["ready", "ready"]
        one.wait_for_patterns(1)
        assert server.subscriptions() == ["a.b"]
        second.close()
        one.wait_for_patterns(0)
        assert server.subscriptions() == []
        third = one.client("a.>", "a.*")
        one.wait_for_patterns(2)
        # For Redis both are one pattern.
        assert server.subscriptions() == (["*"] if isinstance(server, Redis) else ["a.*", "a.>"])
        two.engine.publish("a.b", "still")
        assert third.recv(20) == "still"
        third.send("- a.>")
        assert third.recv(20) == "ready"
        one.wait_for_patterns(1)
        two.engine.publish("a.b.c", "no")
        two.engine.publish("a.b", "yes")
        assert third.recv(20) == "yes"
        # Messages published without subscribers are not reported as lost.
        two.engine.publish("c", "nobody")
        two.engine.publish("a.b", "behind it")
        assert third.recv(20) == "behind it"  # so the server has received the other
        first.send("+ c")
        assert first.recv(20) == "ready"
        one.wait_for_patterns(2)
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
        ours, theirs, everything = same.client("t", ">"), other.client("t", "one.t"), plain.client(">")
        same.wait_for_patterns(2)
        other.wait_for_patterns(2)
        plain.wait_for_patterns(1)
        one.engine.publish("t", "x")
        one.engine.broadcast("y")
        assert receive(ours, 2) == ["x", "y"]
        # An application whose prefix is shorter sees longer topics.
        assert theirs.recv(20) == "x"
        silent(theirs)
        silent(ours, 0.1)
        # One without a prefix has "wirespeed", and is no exception.
        silent(everything, 0.1)
        if isinstance(any_broker, Nats | Redis):
            any_broker.publish("app.one.t", b"foreign")
            assert ours.recv(20) == "foreign"


def test_topics_of_other_programs_are_inaccessible(server: Server) -> None:
    """Clients cannot subscribe to keys of Redis or inboxes of NATS: these names have no prefix of an application."""
    if isinstance(server, Redis):
        server.say("CONFIG", "SET", "notify-keyspace-events", "KEA")
    with Node(server.url) as node:
        ws = node.client(">", "*", "$KV.>", "_INBOX.>", "__keyspace@0__:secret")
        node.wait_for_patterns(5)
        if isinstance(server, Redis):
            server.say("SET", "secret", "x")
        for name in ("$KV.bucket.key", "_INBOX.abc", "__keyspace@0__:secret", "elsewhere"):
            server.publish(name, b"secret")
        server.publish("wirespeed.end", b"end")
        assert receive(ws, 1) == ["end"]
        silent(ws, 0.1)


def test_third_party_publishers(server: Server) -> None:
    with Node(server.url) as node:
        ws = node.client("a.b", "a.*", ">")
        node.wait_for_patterns(3)
        server.publish("wirespeed.a.b", "grüße".encode())
        server.publish("wirespeed.a.b", b"\xff\xfe")
        assert receive(ws, 2) == ["grüße", b"\xff\xfe"]
        server.publish("wirespeed.a.c", b"")
        assert ws.recv(20) == ""
        server.publish("wirespeed.a.b", b"\xffWS\x01 cut off")
        wait_for(lambda: node.status.invalid == 1)
        silent(ws)


def envelope(node: bytes, overall: int, on_topic: int, payload: bytes) -> bytes:
    """Returns a message in the format of engines, as text."""
    return b"\xffWS\x01\0" + node + struct.pack("!QIQ", overall, 1, on_topic) + payload


def test_forged_messages_neither_end_sessions_nor_silence_engines(server: Server) -> None:
    with Node(server.url) as node, Node(server.url) as other:
        ws = node.client("t")
        node.wait_for_patterns(1)
        server.publish("wirespeed.t", envelope(b"x" * 16, 1, 1, b"\xff\xfe is no text"))
        server.publish("wirespeed._wirespeed.broadcast", envelope(b"x" * 16, 2, 1, b"\xff"))
        wait_for(lambda: node.status.invalid == 2)
        # A number of a far later message, of an existing publisher.
        with contextlib.closing(server.listen("wirespeed.t")) as listener:
            other.engine.publish("t", "before")
            heard = b""
            while b"before" not in heard:
                heard += listener.recv(4096)
        assert ws.recv(20) == "before"
        identity = heard[heard.index(b"\xffWS\x01") + 5 :][:16]
        server.publish("wirespeed.t", envelope(identity, 2**64 - 1, 2**64 - 1, b"forged"))
        assert ws.recv(20) == "forged"
        for number in range(5):
            other.engine.publish("t", f"{number}")
        assert receive(ws, 5) == [f"{number}" for number in range(5)]
        assert node.status.lost == 0


def test_message_larger_than_the_broker_limit(tmp_path: Path) -> None:
    with broker("nats", tmp_path) as server, Node(server.url) as one, Node(server.url) as two:
        mine, theirs = one.client("t"), two.client("t")
        one.wait_for_patterns(1)
        two.wait_for_patterns(1)
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
        two.wait_for_patterns(5)
        long = two.client()
        for name in (names[5], "a:b,c"):
            long.send(f"+ {name}")
            assert long.recv(20) == "ready"
        two.wait_for_patterns(7)
        for name in names:
            one.engine.publish(name, name)
        one.engine.publish("ab.c", "as a set of characters it would match")
        assert receive(ws, 5) == names[:5]
        assert receive(long, 2) == names[5:]
        silent(ws)


# A lost broker


def test_killed_and_started_again(server: Server) -> None:
    with Node(server.url) as one, Node(server.url) as two:
        mine, theirs = one.client("t"), two.client("t", "u.*")
        one.wait_for_patterns(1)
        two.wait_for_patterns(2)
        one.engine.publish("t", "before")
        assert (mine.recv(20), theirs.recv(20)) == ("before", "before")
        server.kill()
        wait_for(lambda: not (one.status.is_connected or two.status.is_connected))
        assert one.status.state == "disconnected"
        assert one.status.reason
        # Local traffic continues, and published messages wait.
        for number in range(100):
            assert one.engine.publish("t", f"meanwhile {number}").forwarded
        assert receive(mine, 100) == [f"meanwhile {number}" for number in range(100)]
        assert one.status.queued == 100
        started = time.monotonic()
        server.start()
        wait_for(lambda: one.status.is_connected and two.status.is_connected)
        assert time.monotonic() - started < 10
        two.wait_for_patterns(2)
        one.wait_for_patterns(1)
        one.engine.publish("t", "after")
        got = [theirs.recv(20)]
        while got[-1] != "after":
            got.append(theirs.recv(20))
        # Both reconnect: messages that one sent before the other was connected are lost, and counted.
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
        two.wait_for_patterns(1)
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
            two.wait_for_patterns(1)
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
        # Every message arrived, or is counted as lost.
        assert len(numbers) + two.status.lost == taken[True] - numbers[0]
        assert len(numbers) > 100


def test_paused_while_local_traffic_goes_on(server: Server) -> None:
    limit = 1 << 20
    with Node(server.url, broker_limit=limit) as one, Node(server.url) as two:
        mine, theirs = one.client("t"), two.client("t")
        one.wait_for_patterns(1)
        two.wait_for_patterns(1)
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
            assert slowest < load_scaled(1), "local traffic does not wait for the broker"
            status = one.status
            assert status.queued_bytes <= limit
            assert status.refused == 4000 - taken > 0
            # 40 MB were published; the capacity of the system's buffers is not counted.
            assert resident() - before < 25 << 20
        finally:
            server.resume()
        wait_for(lambda: one.status.is_connected and two.status.is_connected)
        two.wait_for_patterns(1)
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
        two.wait_for_patterns(1)
        one.engine.publish("t", "remote")
        while theirs.recv(20) != "remote":
            pass
        assert one.status.reason is None


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest", "raise"])
def test_policies(server: Server, policy: str) -> None:
    with Node(server.url, broker_limit=20_000, broker_policy=policy) as one, Node(server.url) as two:
        mine, theirs = one.client("t"), two.client("t")
        two.wait_for_patterns(1)
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
        # With "raise" no client gets refused messages; otherwise all local clients do.
        here = kept if policy == "raise" else 100
        assert [int(message) for message in receive(mine, here)] == list(range(here))
        silent(mine, 0.1)
        status = one.status
        gone = 100 - kept
        assert (status.refused, status.dropped) == ((0, gone) if policy == "drop_oldest" else (gone, 0))
        server.start()
        wait_for(lambda: one.status.is_connected and two.status.is_connected)
        two.wait_for_patterns(1)
        wait_for(lambda: one.status.queued == 0)
        one.engine.publish("t", "last")
        got = [theirs.recv(20)]
        while got[-1] != "last":
            got.append(theirs.recv(20))
        sent = range(gone, 100) if policy == "drop_oldest" else range(kept)
        assert [int(message) for message in got[:-1]] == list(sent)[len(sent) - len(got) + 1 :]
        kind = "dropped" if policy == "drop_oldest" else "refused"
        wait_for(lambda: sum(event.count for event in one.told if event.kind == kind) == gone)


# Many engines and topics


def test_two_nodes_with_a_hundred_subscribers_each(any_broker: Broker) -> None:
    count = 1000
    with Node(any_broker.url) as one, Node(any_broker.url) as two:
        clients = [node.client("t", "t.*" if number % 2 else ">") for node in (one, two) for number in range(100)]
        one.wait_for_patterns(3)
        two.wait_for_patterns(3)

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
        # More than there were before at any time: then the broker has received all subscriptions.
        for number in range(100):
            ws.send(f"+ end.{number}")
        receive(ws, 20 * 50 + 19 * 50 + 25 + 100)
        two.wait_for_patterns(126)
        for number in range(50):
            one.engine.publish(f"storm.{number}", f"{number}")
        one.engine.publish("always", "last")
        got = [ws.recv(20) for _ in range(26)]
        assert sorted(map(int, got[:-1])) == list(range(0, 50, 2))
        assert got[-1] == "last"
