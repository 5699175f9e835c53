"""Features of single kinds of brokers, and reports about brokers: Sentinels, clusters, TLS, passwords, events."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

import wirespeed
from support.brokers import Nats, Redis, broker, find, free_port, wait_for
from support.nodes import Node, receive, silent
from wirespeed.engine import BrokerEvent, Engine, Published, Publisher

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")

# Waiting messages are sent in batches


def pass_on_after_a_pause(server: Nats | Redis, one: Node, two: Node, count: int) -> None:
    """One engine publishes, 50 in a row on each of two topics, while the broker is paused; the other gets all, in
    order.
    """
    ws = two.client("t", "u.*")
    two.wait_for_patterns(2)
    server.pause()
    try:
        for number in range(count):
            one.engine.publish("t" if number // 50 % 2 else "u.v", str(number))
    finally:
        server.resume()
    assert receive(ws, count) == [str(number) for number in range(count)]
    assert (one.status.refused, two.status.lost, two.status.invalid, two.status.received) == (0, 0, 0, count)


def test_queued_messages_for_redis_use_few_commands(tmp_path: Path) -> None:
    with broker("redis", tmp_path) as server, Node(server.url) as one, Node(server.url) as two:
        assert isinstance(server, Redis)
        pass_on_after_a_pause(server, one, two, 1000)
        said = b"".join(server.say("INFO", "commandstats")).partition(b"cmdstat_publish:calls=")[2]
        # One for each of 20 runs, and some for messages that left before the broker was paused.
        assert int(said.partition(b",")[0]) < 100


def test_batches_respect_the_nats_limit(tmp_path: Path) -> None:
    (tmp_path / "nats.conf").write_text("max_payload: 512\n")
    server = Nats(tmp_path, options=["-c", str(tmp_path / "nats.conf")])
    with contextlib.closing(server), Node(server.url) as one, Node(server.url) as two:
        pass_on_after_a_pause(server, one, two, 2000)


# Features of Redis


def test_redis_is_connected_when_both_connections_are(tmp_path: Path) -> None:
    """Messages published as soon as it is reported as connected are not unconfirmed: they use a new connection."""
    with broker("redis", tmp_path) as server, Node(server.url) as one:
        assert isinstance(server, Redis)

        def has_settled(count: int) -> bool:
            return one.status.published + one.status.unconfirmed == count

        for number in range(5):
            server.kill()
            wait_for(lambda: not one.status.is_connected, "nobody has noticed")
            server.start()
            wait_for(lambda: one.status.is_connected, "not connected again")
            one.engine.publish("t", str(number))
            wait_for(functools.partial(has_settled, number + 1))
        assert one.status.unconfirmed == 0


def test_messages_without_subscribers_are_not_lost(tmp_path: Path) -> None:
    """A topic that was unsubscribed while Redis was away, and is subscribed to again later."""
    with broker("redis", tmp_path) as server, Node(server.url) as one, Node(server.url) as two:
        assert isinstance(server, Redis)
        ws = two.client("t", "u")
        two.wait_for_patterns(2)
        one.engine.publish("t", "before")
        assert ws.recv(20) == "before"
        server.kill()
        wait_for(lambda: not one.status.is_connected and not two.status.is_connected, "nobody has noticed")
        ws.send("- t")
        assert ws.recv(20) == "ready"
        server.start()
        wait_for(lambda: one.status.is_connected and two.status.is_connected, "not connected again")
        two.wait_for_patterns(1)
        for number in range(5):
            one.engine.publish("t", f"{number}, for nobody")
        one.engine.publish("u", "behind them")
        assert ws.recv(20) == "behind them"
        ws.send("+ t")
        assert ws.recv(20) == "ready"
        two.wait_for_patterns(2)
        for text in ("after", "the last"):
            one.engine.publish("t", text)
            assert ws.recv(20) == text
        assert two.status.lost == 0


class Sentinel(Redis):
    """``redis-sentinel``, which watches one server and its replica."""

    def __init__(self, directory: Path, master: Redis) -> None:
        self.config = directory / "sentinel.conf"
        self.config.write_text(
            f"sentinel monitor mymaster 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 2000\n"
        )
        super().__init__(directory)

    def command(self) -> list[str]:
        return [find("redis-server"), str(self.config), "--sentinel", "--bind", "127.0.0.1", "--port", str(self.port)]


def test_sentinel_fails_over(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:

        def run(server: Redis) -> Redis:
            stack.callback(server.close)
            return server

        master = run(Redis(tmp_path))
        replica = run(Redis(tmp_path, options=["--replicaof", "127.0.0.1", str(master.port)]))
        sentinel = run(Sentinel(tmp_path, master))
        wait_for(lambda: b"slaves=1" in b"".join(sentinel.say("INFO", "sentinel")), "the sentinel knows no replica")
        wait_for(lambda: b"master_link_status:up" in b"".join(replica.say("INFO", "replication")).replace(b" ", b""))
        url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/mymaster"
        one, two = (stack.enter_context(Node(url)) for _ in range(2))
        mine, theirs = one.client("t"), two.client("t", "u.*")
        two.wait_for_patterns(2)
        assert master.subscriptions() == ["*", "t"]
        one.engine.publish("t", "before")
        assert (mine.recv(20), theirs.recv(20)) == ("before", "before")
        master.kill()
        wait_for(lambda: not (one.status.is_connected or two.status.is_connected))
        one.engine.publish("t", "meanwhile")
        assert mine.recv(20) == "meanwhile"
        wait_for(lambda: one.status.is_connected and two.status.is_connected, "nobody took over", 60)
        two.wait_for_patterns(2)
        assert replica.subscriptions() == ["*", "t"]
        one.engine.publish("u.v", "after")
        while theirs.recv(20) != "after":
            pass


def is_whole(one: Redis) -> bool:
    info = one.say("CLUSTER", "INFO")
    return b"cluster_state:ok" in info and b"cluster_known_nodes:3" in info


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[Redis]]:
    servers: list[Redis] = []
    try:
        for number in range(3):
            directory = tmp_path / str(number)
            directory.mkdir()
            options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"]
            servers.append(Redis(directory, options=[*options, "--cluster-port", str(free_port())]))
        for number, one in enumerate(servers):
            one.say("CLUSTER", "ADDSLOTSRANGE", str(number * 5462), str(min((number + 1) * 5462, 16384) - 1))
            for other in servers:
                bus = other.options[-1]
                assert one.say("CLUSTER", "MEET", "127.0.0.1", str(other.port), bus) == [b"+OK"]
        for one in servers:
            wait_for(functools.partial(is_whole, one), "the cluster is not one")
        yield servers
    finally:
        for one in servers:
            one.close()


def test_cluster_of_sharded_channels(cluster: list[Redis]) -> None:
    url = "redis+cluster://" + ",".join(f"127.0.0.1:{one.port}" for one in cluster)
    topics = [f"topic.{number}" for number in range(30)]
    with Node(url) as one, Node(url) as two, Publisher(url) as publisher:
        mine, theirs, wild = one.client(*topics), two.client(*topics), two.client("other.>")
        one.wait_for_patterns(30)
        two.wait_for_patterns(30)
        wait_for(lambda: "unsupported" in two.kinds())
        assert [event.reason for event in two.told if event.kind == "unsupported"] == ["other.>"]
        # Messages arrive at the node of their slot.
        shards = [one.say("PUBSUB", "SHARDCHANNELS", "wirespeed.topic.*") for one in cluster]
        assert all(len(lines) > 1 for lines in shards)
        for number in range(3000):
            while not one.engine.publish(topics[number % 30], f"{number}").forwarded:
                time.sleep(0.001)
        publisher.publish("topic.0", "of the publisher")
        publisher.publish("other.x", "elsewhere")
        publisher.publish(None, "to all")
        publisher.flush(20)
        for ws, least in ((mine, 3002), (theirs, 3002)):
            got = receive(ws, least)
            assert Counter(got) == Counter([*map(str, range(3000)), "of the publisher", "to all"])
            for topic in range(30):
                numbers = [int(message) for message in got if message.isdigit() and int(message) % 30 == topic]
                assert numbers == sorted(numbers)
            silent(ws, 0.1)
        assert wild.recv(20) == "to all"
        assert two.engine.publish("other.x", "here").forwarded
        assert wild.recv(20) == "here"
        assert (one.status.lost, two.status.lost) == (0, 0)
        theirs.send("- topic.0")
        assert theirs.recv(20) == "ready"
        two.wait_for_patterns(29)
        one.engine.publish("topic.0", "no")
        one.engine.publish("topic.1", "yes")
        assert theirs.recv(20) == "yes"


def test_cluster_whose_nodes_restart(cluster: list[Redis]) -> None:
    url = f"redis+cluster://127.0.0.1:{cluster[0].port},127.0.0.1:{cluster[1].port}"
    topics = [f"topic.{number}" for number in range(30)]
    with Node(url) as one, Node(url) as two:
        ws = two.client(*topics)
        two.wait_for_patterns(30)
        one.engine.publish("topic.0", "before")
        assert ws.recv(20) == "before"
        cluster[1].kill()
        wait_for(lambda: not two.status.is_connected, "nobody has noticed")
        cluster[1].start()
        wait_for(lambda: is_whole(cluster[1]), "the cluster is not one", 60)
        wait_for(lambda: one.status.is_connected and two.status.is_connected, "not connected again", 60)
        two.wait_for_patterns(30)
        for topic in topics:
            one.engine.publish(topic, f"after {topic}")
        got: list[Any] = []
        while len(got) < 30:
            got.append(ws.recv(20))
        assert sorted(got) == sorted(f"after {topic}" for topic in topics)


def test_cluster_breaks_with_messages_in_flight(cluster: list[Redis]) -> None:
    """Waiting calls are notified of unconfirmed messages: one node is silent, and the end of another is noticed."""
    url = "redis+cluster://" + ",".join(f"127.0.0.1:{one.port}" for one in cluster)
    topics = (f"topic.{number}" for number in range(1000))
    topic = next(
        topic for topic in topics if int(cluster[0].say("CLUSTER", "KEYSLOT", f"wirespeed.{topic}")[0][1:]) < 5462
    )
    with Publisher(url) as publisher:
        publisher.publish(topic, "before")
        publisher.flush(20)
        cluster[0].pause()
        publisher.publish(topic, "under way")
        wait_for(lambda: publisher.status.queued == 0)
        cluster[1].kill()
        with pytest.raises(ConnectionError, match="1 of the messages"):
            publisher.flush(10)
        assert publisher.status.unconfirmed == 1


# With TLS


@pytest.mark.parametrize("kind", ["nats", "redis"])
def test_tls(kind: str, tmp_path: Path) -> None:
    ca = trustme.CA()
    leaf = ca.issue_cert("localhost")
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    leaf.private_key_pem.write_to_path(tmp_path / "key.pem")
    for index, part in enumerate(leaf.cert_chain_pems):
        part.write_to_path(tmp_path / "chain.pem", append=index > 0)
    chain, key = str(tmp_path / "chain.pem"), str(tmp_path / "key.pem")
    server: Nats | Redis
    if kind == "nats":
        server, scheme = Nats(tmp_path, options=["--tls", "--tlscert", chain, "--tlskey", key]), "tls"
        port = server.port
    else:
        port = free_port()
        files = ["--tls-cert-file", chain, "--tls-key-file", key, "--tls-auth-clients", "no"]
        server, scheme = Redis(tmp_path, options=["--tls-port", str(port), *files]), "rediss"
    try:
        url = f"{scheme}://localhost:{port}?tls_ca={urllib.parse.quote(str(tmp_path / 'ca.pem'))}"
        with Node(url) as one, Node(url) as two:
            ws = two.client("t", "u.*")
            two.wait_for_patterns(2)
            one.engine.publish("u.v", "x")
            assert ws.recv(20) == "x"
        with Node(f"{scheme}://localhost:{port}", connected=False) as node:
            wait_for(lambda: bool(node.status.reason))
            time.sleep(0.2)
            assert not node.status.is_connected
    finally:
        server.close()


class Files:
    """Certificates of a server and a client by one authority after another, and the client's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.query = "&".join(f"tls_{name}={urllib.parse.quote(str(folder / name))}" for name in ("ca", "cert", "key"))

    def replace(self) -> None:
        """Switches to another authority: each file is replaced."""
        ca = trustme.CA()
        for name, leaf in (("server", ca.issue_cert("localhost")), ("", ca.issue_cert("client@example.com"))):
            for suffix, pem in (("cert", leaf.cert_chain_pems[0]), ("key", leaf.private_key_pem), ("ca", ca.cert_pem)):
                self.put(f"{name}{suffix}", pem.bytes())

    def put(self, name: str, pem: bytes) -> None:
        (self.folder / f"{name}.new").write_bytes(pem)
        (self.folder / f"{name}.new").replace(self.folder / name)

    def server(self, kind: str) -> Nats | Redis:
        cert, key, ca = (str(self.folder / f"server{name}") for name in ("cert", "key", "ca"))
        if kind == "nats":
            return Nats(self.folder, options=["--tlsverify", "--tlscert", cert, "--tlskey", key, "--tlscacert", ca])
        port = str(free_port())
        return Redis(
            self.folder,
            options=["--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca],
        )


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(tmp_path)
    made.replace()
    return made


def secure_url(server: Nats | Redis, files: Files) -> str:
    if isinstance(server, Nats):
        return f"tls://localhost:{server.port}?{files.query}"
    return f"rediss://localhost:{server.options[1]}?{files.query}"


@pytest.mark.parametrize("kind", ["nats", "redis"])
def test_certificates_that_were_renewed_are_used_for_the_next_connection(kind: str, files: Files) -> None:
    server = files.server(kind)
    with contextlib.closing(server), Node(secure_url(server, files)) as node:
        ws = node.client("t")
        node.wait_for_patterns(1)
        server.kill()
        files.replace()
        server.start()
        with Node(secure_url(server, files)) as other:
            wait_for(lambda: node.status.is_connected and node.status.reconnects == 1, node.status.reason or "")
            node.wait_for_patterns(1)
            other.engine.publish("t", "after")
            assert ws.recv(20) == "after"


def is_said(node: Node, text: str) -> bool:
    return text in (node.status.reason or "")


@pytest.mark.parametrize("kind", ["nats", "redis"])
def test_a_file_that_cannot_be_used_is_named_until_it_can(kind: str, files: Files) -> None:
    server = files.server(kind)
    with contextlib.closing(server):
        for name, bad in (("ca", None), ("cert", b"no certificate"), ("key", trustme.CA().private_key_pem.bytes())):
            path = files.folder / name
            good = path.read_bytes()
            path.unlink() if bad is None else files.put(name, bad)
            # The key is that of another certificate: either file may be the wrong one.
            named = f"tls_{'cert' if name == 'key' else name}={files.folder}/"
            with Node(secure_url(server, files), connected=False) as node:
                wait_for(functools.partial(is_said, node, named), f"{named} is not named")
                files.put(name, good)
                wait_for(lambda: node.status.is_connected, "not connected with the right file")


# Reports


def test_invalid_brokers() -> None:
    for url, part in [
        ("localhost:4222", "is a URL"),
        ("http://secret@localhost", "must be one of"),
        ("nats://user:secret@localhost:port", "port"),
        ("redis+sentinel://secret@localhost", "name of the master"),
    ]:
        with pytest.raises(ValueError, match=part) as info:
            Engine("127.0.0.1", broker=url)
        assert "secret" not in str(info.value)
        with pytest.raises(ValueError, match=part):
            Publisher(url)
    with pytest.raises(ValueError, match="broker_prefix"):
        Engine("127.0.0.1", broker="memory://x", broker_prefix="a b")
    for prefix in ("", "$KV", "_INBOX", "_wirespeed", "app._wirespeed", "__keyspace@0__:x"):
        with pytest.raises(ValueError, match="broker_prefix"):
            Engine("127.0.0.1", broker="memory://x", broker_prefix=prefix)
        with pytest.raises(ValueError, match="prefix"):
            Publisher("memory://x", prefix=prefix)
    with pytest.raises(ValueError, match="broker_policy"):
        Engine("127.0.0.1", broker="memory://x", broker_policy="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["nats", "redis"])
def test_passwords(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    caplog.set_level(logging.DEBUG)
    server = (Nats if kind == "nats" else Redis)(tmp_path, password="s3cr3t-p4ss")
    try:
        with Node(server.url) as one, Node(server.url) as two:
            ws = two.client("t")
            two.wait_for_patterns(1)
            one.engine.publish("t", "x")
            assert ws.recv(20) == "x"
            shown = f"{one.status} {one.told} {one.engine!r}"
        wrong = server.url.replace("s3cr3t-p4ss", "wr0ng-p4ss")
        with Node(wrong, connected=False) as node:
            wait_for(lambda: bool(node.status.reason))
            time.sleep(0.3)
            assert not node.status.is_connected
            shown += f"{node.status} {node.told}"
    finally:
        server.close()
    shown += caplog.text + "".join(capfd.readouterr())
    assert "p4ss" not in shown


def test_failures_are_in_the_log_metrics_and_page(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server = Redis(tmp_path, password="right")
    wrong = server.url.replace("right", "wr0ng")

    def logged(*words: str) -> list[logging.LogRecord]:
        records = [record for record in caplog.records if record.name == "wirespeed.engine"]
        return [record for record in records if all(word in record.getMessage() for word in words)]

    try:
        token = "t" * 20
        with Node(wrong, connected=False, page=token) as node:
            wait_for(lambda: len(logged("no connection", "authentication failed")) == 1)
            assert "wirespeed_broker_connected 0" in node.engine.metrics()
            host, port = node.engine.addresses[0]
            asked = urllib.request.Request(
                f"http://{host}:{port}/_wirespeed/figures", headers={"Authorization": f"Bearer {token}"}
            )
            with urllib.request.urlopen(asked, timeout=20) as answer:
                shown = json.load(answer)["broker"]
            assert (shown["state"], shown["published"]) == ("connecting", 0)
            assert "authentication failed" in shown["reason"]
            with contextlib.closing(Publisher(wrong, close_timeout=0)):
                wait_for(lambda: len(logged("no connection", "authentication failed")) == 2)
            time.sleep(0.5)  # it has tried again
            assert len(logged("no connection")) == 2
            server.say("CONFIG", "SET", "requirepass", "wr0ng")
            wait_for(lambda: len(logged("connected, after")) == 1)
            assert [record.levelname for record in logged("broker")] == ["WARNING", "WARNING", "INFO"]
            wait_for(lambda: "wirespeed_broker_connected 1" in node.engine.metrics())
        assert "wr0ng" not in caplog.text
    finally:
        server.close()


def test_status_and_counters() -> None:
    with Engine("127.0.0.1") as engine:
        assert engine.broker_status is None
        assert not any(name.startswith("broker") for name in engine.stats())
        published = engine.publish("t", "x")
        assert isinstance(published, Published)
        assert (published, published.forwarded, f"{published}") == (0, False, "0")
    with Node("memory://status") as node:
        assert node.status.server == "memory://status"
        stats = node.engine.stats()
        assert (stats["broker_connected"], stats["broker_lost"]) == (1, 0)
        assert "wirespeed_broker_connected 1" in node.engine.metrics()
        assert "wirespeed_broker_refused_total 0" in node.engine.metrics()
        wait_for(lambda: node.kinds() == ["connected"])


async def test_on_broker_on_an_event_loop() -> None:
    engine = Engine("127.0.0.1", broker="memory://loop")
    told: list[str] = []

    @engine.on_broker
    async def handle(event: BrokerEvent) -> None:
        await asyncio.sleep(0)
        told.append(event.kind)

    @engine.on_message
    async def echo(session: Any, message: Any) -> None:
        session.send(message)

    serving = asyncio.ensure_future(engine.serve())
    while not told:
        await asyncio.sleep(0.01)
    host, port = engine.addresses[0]
    async with wirespeed.connect(f"ws://{host}:{port}/", proxy=None) as ws:
        await ws.send("x")
        assert await ws.recv() == "x"
    with pytest.raises(RuntimeError, match="coroutine function"):
        next(engine.batches())
    serving.cancel()
    await asyncio.wait([serving])
    assert told == ["connected"]


def test_no_events_without_on_broker() -> None:
    with Engine("127.0.0.1", broker="memory://quiet") as engine:
        # The wait neither ends because of it, nor lasts forever.
        started, used = time.monotonic(), time.process_time()
        assert len(next(iter(engine.batches(timeout=0.5)))) == 0
        assert time.monotonic() - started >= 0.4
        assert time.process_time() - used < 0.4
