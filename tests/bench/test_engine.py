"""The benchmarks of the engine: the parts of their peers that no other scenario has."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import resource
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.peers import PeerFile
from harness.places import BENCH
from harness.process import environment
from serving import nodes
from serving.load import GENERATOR, Load, require_descriptors
from serving.process import ChildError, certificate

from support.brokers import find

pytestmark = pytest.mark.skipif(
    not GENERATOR.exists() or importlib.util.find_spec("wirespeed") is None,
    reason="needs cargo build --release -p wirespeed-bench, and wirespeed installed",
)


def peer(folder: str, *arguments: str) -> dict[str, Any]:
    """Runs a peer and returns its answer."""
    file = msgspec.toml.decode((BENCH / "peers" / folder / "peer.toml").read_text(), type=PeerFile)
    command = [part.format(python=sys.executable, peer=BENCH / "peers" / folder) for part in file.command]
    command += arguments
    done = subprocess.run(command, env=environment(BENCH), capture_output=True, text=True, timeout=60, check=False)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def test_styles_declare_their_abilities() -> None:
    native = peer("wirespeed-engine", "--style", "native", "--probe")["workloads"]
    assert {"echo", "open", "pings", "idle"} <= set(native)
    assert not {"sink", "fan-out", "publish"} & set(native)
    assert peer("wirespeed-engine", "--style", "decode", "--probe")["workloads"] == ["sink"]
    everything = peer("wirespeed-engine", "--style", "batches", "--probe")["workloads"]
    assert {"sink", "fan-out", "publish", *native} <= set(everything)


def window(style: str, workload: str, *arguments: str) -> dict[str, Any]:
    few = ["--connections", "5", "--seconds", "0.05", "--warmup", "0.02"]
    return peer("wirespeed-engine", "--style", style, "--workload", workload, *few, *arguments)


@pytest.mark.parametrize("form", ["json-bytes", "msgpack"])
def test_decoded_messages_are_counted(form: str) -> None:
    answer = window("decode", "sink", "--size", "175", "--format", form)
    assert answer.get("checked") is True, answer
    assert answer["count"] > 0


def test_invalid_decoded_message_is_detected() -> None:
    # Numbered bytes are not a document.
    assert "failed" in window("decode", "sink", "--size", "175", "--format", "binary")


def test_tokens_are_verified() -> None:
    answer = window("jwt", "open")
    assert answer.get("checked") is True, answer
    assert answer["count"] > 0


def test_tls_is_served_with_a_certificate_of_its_own(tmp_path: Path) -> None:
    # From the harness's authority the peer learns only that there is TLS.
    answer = window("batches", "idle", "--ca", str(tmp_path / "nobody.pem"), "--settle", "0.1")
    assert answer.get("checked") is True, answer
    assert answer["count"] == 5


def test_several_threads_put_load_on_several_workers() -> None:
    for workload in ("echo", "fan-out"):
        answer = window("batches", workload, "--workers", "2", "--threads", "2", "--size", "128")
        assert answer.get("checked") is True, answer
        assert answer["count"] > 0


def test_lock_waits_are_reported() -> None:
    answer = window("batches", "echo", "--size", "128")
    assert answer["contended"] >= 0, answer


@pytest.mark.parametrize("style", ["nats", "redis", "apart"])
@pytest.mark.parametrize("workload", ["fan-out", "publish"])
def test_two_engines(style: str, workload: str) -> None:
    if style != "apart":
        find(f"{style}-server")
    answer = window(style, workload, "--size", "128", "--window", "4")
    assert answer.get("checked") is True, answer
    assert 0 < answer["lesser"] == min(answer["a_rate"], answer["b_rate"])
    assert answer["a_rate"] + answer["b_rate"] == pytest.approx(answer["count"] / answer["seconds"])
    assert answer["a_p99"] > 0 < answer["b_p99"]
    assert ("broker_busy" in answer) == (style != "apart")
    assert style == "apart" or f" with {style}-server " in answer["version"]


def test_two_engines_only_publish() -> None:
    assert peer("wirespeed-engine", "--style", "apart", "--probe")["workloads"] == ["fan-out", "publish"]


def test_a_broker_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(nodes.PROGRAMS, "nats", ("no-such-server", []))
    with pytest.raises(ChildError, match="no-such-server is not installed: apt-get install no-such-server"):
        nodes.broker_version("nats")


def test_a_broker_that_does_not_listen_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(nodes.PROGRAMS, "nats", ("false", []))
    with pytest.raises(ChildError, match="the broker ended with status 1"), nodes.broker("nats", None):
        pass


@pytest.mark.parametrize(
    ("servers", "expected", "shared"),
    [
        ({0}, nodes.Cores(7, (0, 0), 0), 2.0),
        ({1, 0}, nodes.Cores(7, (0, 1), 0), 4 / 3),
        ({0, 1, 2, 3}, nodes.Cores(7, (0, 1), 2), 1.0),
        ({7}, nodes.Cores(7, (7, 7), 7), 4.0),
    ],
)
def test_cores_are_spread(servers: set[int], expected: nodes.Cores, shared: float) -> None:
    found = nodes.Cores.spread(7, servers)
    assert found == expected
    assert found.shared(broker=True) == shared


def test_certificate() -> None:
    with certificate() as (server, authority):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server)
        assert ssl.create_default_context(cafile=authority).cert_store_stats()["x509_ca"] == 1
    assert not os.path.exists(server)


def test_sums_are_safe_json_integers() -> None:
    report_sum = importlib.import_module("serving.server").report_sum
    assert json.loads(report_sum(3, (1 << 40) + 5)) == {"messages": 3, "sum": 5}


def test_load_has_the_token_and_the_authority() -> None:
    names = ["connections", "size", "seconds", "warmup", "window", "rate", "share", "messages", "format"]
    options = argparse.Namespace(
        **dict.fromkeys(names), deflate=False, ca="authority.pem", threads=3, busy=True, greets=False
    )
    command = " ".join(Load(options, ["wss://x/"], "a.b.c").command("echo"))
    assert "--busy --token a.b.c --ca authority.pem --threads 3 wss://x/" in command
    options.greets = True
    greeted = " ".join(Load(options, ["wss://x/"], "a.b.c").command("storm"))
    assert "--wse-token a.b.c" in greeted
    assert "--threads" not in greeted


def test_too_few_descriptors_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))
    monkeypatch.setattr(resource, "setrlimit", lambda *limits: refused() if limits[1] != (100, 100) else None)
    require_descriptors(10, 2)
    with pytest.raises(ChildError, match="the system allows 100"):
        require_descriptors(100, 2)
