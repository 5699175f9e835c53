"""Renewed certificates of a Redis cluster: the client library keeps those of its first connection.

When a node is lost, or refuses them, all nodes are reconnected with the current files.
"""

from __future__ import annotations

import contextlib
import functools
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from support.brokers import Redis, free_port, wait_for
from support.nodes import Node

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")


def is_whole(one: Redis) -> bool:
    info = one.say("CLUSTER", "INFO")
    return b"cluster_state:ok" in info and b"cluster_known_nodes:3" in info


class SecureCluster:
    """Three nodes with certificates of one authority; one of another authority follows.

    The nodes trust both authorities, and clients the ones in the file ``ca``.
    """

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.old, self.new = trustme.CA(), trustme.CA()
        self.both = self.old.cert_pem.bytes() + self.new.cert_pem.bytes()
        (folder / "both").write_bytes(self.both)
        (folder / "ca").write_bytes(self.old.cert_pem.bytes())
        self.servers = [self.node(number, self.old) for number in range(3)]
        for number, one in enumerate(self.servers):
            one.say("CLUSTER", "ADDSLOTSRANGE", str(number * 5462), str(min((number + 1) * 5462, 16384) - 1))
            self.meet(one)
        for one in self.servers:
            wait_for(functools.partial(is_whole, one), "the cluster is not one")
        places = ",".join(f"127.0.0.1:{one.options[1]}" for one in self.servers)
        self.url = f"rediss+cluster://{places}?tls_ca={urllib.parse.quote(str(folder / 'ca'))}"

    def certify(self, directory: Path, ca: trustme.CA) -> None:
        leaf = ca.issue_cert("localhost", "127.0.0.1")
        (directory / "cert").write_bytes(leaf.cert_chain_pems[0].bytes())
        (directory / "key").write_bytes(leaf.private_key_pem.bytes())

    def node(self, number: int, ca: trustme.CA) -> Redis:
        directory = self.folder / str(number)
        directory.mkdir()
        self.certify(directory, ca)
        options = {
            "tls-port": free_port(),
            "cluster-port": free_port(),
            "tls-ca-cert-file": self.folder / "both",
            "tls-cert-file": directory / "cert",
            "tls-key-file": directory / "key",
            "cluster-enabled": "yes",
            "tls-cluster": "yes",
            "tls-auth-clients": "no",
            "cluster-node-timeout": 2000,
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return self.stack.enter_context(contextlib.closing(Redis(directory, options=words)))

    def meet(self, one: Redis) -> None:
        for other in self.servers:
            assert one.say("CLUSTER", "MEET", "127.0.0.1", other.options[1], other.options[3]) == [b"+OK"]

    def renew(self) -> None:
        (self.folder / "ca.new").write_bytes(self.both)
        (self.folder / "ca.new").replace(self.folder / "ca")


def comes_at_last(publish: Callable[[str], object], ws: Any, text: str) -> None:
    """Publishes until a message arrives: messages of an outage are lost."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        publish(text)
        with contextlib.suppress(TimeoutError):
            if ws.recv(1) == text:
                return
    pytest.fail(f"{text} does not come")


def test_a_cluster_node_that_restarts_is_trusted_by_the_renewed_file(tmp_path: Path) -> None:
    topics = [f"topic.{number}" for number in range(30)]
    with contextlib.ExitStack() as stack:
        cluster = SecureCluster(tmp_path, stack)
        restarted = cluster.servers[0]
        with Node(cluster.url) as node, Node(cluster.url) as other:
            ws = node.client(*topics)
            node.wait_for_patterns(30)
            restarted.kill()
            cluster.certify(restarted.directory, cluster.new)
            cluster.renew()
            restarted.start()
            wait_for(lambda: is_whole(restarted), "the cluster is not one", 60)
            wait_for(lambda: node.status.is_connected and node.status.subscriptions == 30, "not connected again", 60)
            wait_for(lambda: other.status.is_connected, "not connected again", 60)
            for topic in topics:
                comes_at_last(functools.partial(other.engine.publish, topic), ws, f"after {topic}")


def test_a_cluster_node_that_joins_is_trusted_by_the_renewed_file(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        cluster = SecureCluster(tmp_path, stack)
        with Node(cluster.url) as node, Node(cluster.url) as other:
            ws = node.client("t")
            node.wait_for_patterns(1)
            comes_at_last(lambda text: other.engine.publish("t", text), ws, "before")
            cluster.renew()
            joining = cluster.node(3, cluster.new)
            cluster.meet(joining)
            slot = joining.say("CLUSTER", "KEYSLOT", "wirespeed.t")[0][1:]
            wait_for(lambda: b"cluster_state:ok" in joining.say("CLUSTER", "INFO"), "it has not joined")
            identity = joining.say("CLUSTER", "MYID")[1]
            for one in (joining, *cluster.servers):
                assert one.say("CLUSTER", "SETSLOT", slot, "NODE", identity) == [b"+OK"]
            comes_at_last(lambda text: other.engine.publish("t", text), ws, "after")
            assert joining.say("PUBSUB", "SHARDCHANNELS")[1:] == [b"$11", b"wirespeed.t"]
