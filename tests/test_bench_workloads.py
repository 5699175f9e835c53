"""The workloads of the benchmarks, so that they cannot rot: each for a moment, by real peers. No rate is looked at."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from interop.native import find_binary

if sys.hexversion < 0x030B0000:  # not by version_info: type checkers, which go by 3.10, are to read on
    pytest.skip("the harness of the benchmarks needs Python 3.11", allow_module_level=True)

BENCH = Path(__file__).resolve().parents[1] / "bench"
sys.path.insert(0, str(BENCH))

from harness import scenario as scenarios  # noqa: E402
from harness.figures import KINDS  # noqa: E402
from harness.scenario import Cell, PeerName, Scenario, Workload  # noqa: E402


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / "run.py"), "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


def run_workload(folder: Path, scenario: str, workload: str, peers: list[str], *arguments: str) -> list[dict[str, Any]]:
    """Runs one workload for a moment and returns the samples."""
    binary = find_binary()
    if binary is None:
        pytest.skip("wirespeed-bench is not built: run cargo build -p wirespeed-bench, or set WIRESPEED_BENCH")
    if importlib.util.find_spec("wirespeed") is None:
        pytest.skip("wirespeed is not installed")
    load = f"{shlex.quote(str(binary))} echo --port 0 --tls-port 0"
    chosen = [argument for peer in peers for argument in ("--peer", peer)]
    # A machine that does other work may do nothing of ours for so short a time.
    for seconds in ("0.03", "1"):
        result = bench(
            *(scenario, "--workload", workload, "--seconds", seconds, "--warmup", "0.01", "--no-record", *arguments),
            *(*chosen, "--server", load, "--json", str(folder / "run.json")),
        )
        if "its window is empty" not in result.stdout:
            break
    assert result.returncode == 0, result.stdout + result.stderr
    samples: list[dict[str, Any]] = json.loads((folder / "run.json").read_text())["samples"]
    return samples


@pytest.mark.parametrize("workload", [workload.name for workload in scenarios.load("sync").workloads])
def test_workload_runs(workload: str, tmp_path: Path) -> None:
    peers = ["wirespeed-sync", "raw-python", *(["raw-c"] if shutil.which("cc") else [])]
    samples = run_workload(tmp_path, "sync", workload, peers, "--rounds", "1")
    measured = [Cell(**sample["cell"]) for sample in samples if sample["peer"] == "wirespeed-sync"]
    assert measured == scenarios.load("sync").workload(workload).cells()


@pytest.mark.parametrize("workload", [workload.name for workload in scenarios.load("asyncio").workloads])
def test_asyncio_workload_runs(workload: str, tmp_path: Path) -> None:
    # Every way of receiving, and a loop that is not the standard library's; a rival where the tests have one.
    peers = ["wirespeed@asyncio", "wirespeed:await@run", "wirespeed:callbacks@run"]
    if importlib.util.find_spec("websockets") is not None:
        peers.append("websockets@asyncio")
    few = ["--set", "connections=10"] if workload == "idle" else []
    samples = run_workload(tmp_path, "asyncio", workload, peers, "--quick", *few)
    cells = scenarios.load("asyncio").shortened().workload(workload).cells()
    for peer in ("wirespeed:await@asyncio", "wirespeed:await@run"):
        assert [Cell(**sample["cell"]) for sample in samples if sample["peer"] == peer] == cells
    expected = {"await", "iterate", "many", "callbacks"} if workload == "stream-in" else {"await", "callbacks"}
    measured = {PeerName.of(sample["peer"]).style for sample in samples if sample["peer"].startswith("wirespeed:")}
    assert measured == (expected - {"callbacks"} if workload == "idle" else expected)
    assert all((sample["memory"] is not None) == (workload == "idle") for sample in samples)


# What the tests can run: ours, other people's that the tests are made with, and sockets.
HERE = {"wirespeed", "wirespeed-sync", "wirespeed-server", "wirespeed-engine", "codecs", "raw-python"}
if importlib.util.find_spec("websockets") is not None:
    HERE |= {"websockets", "websockets-sync", "websockets-server"}
if shutil.which("cc"):
    HERE |= {"raw-c"}
LOOPS = {None, "asyncio", "run"} | ({"uvloop"} if importlib.util.find_spec("uvloop") is not None else set())
# Libraries of styles of `codecs` that are not installed for the tests.
MISSING = {style for style in ("orjson", "msgpack") if importlib.util.find_spec(style) is None}


def here(scenario: Scenario, workload: Workload) -> list[str]:
    """Returns the peers of a workload that the tests can run."""
    if workload.runs == "echo-picows" and importlib.util.find_spec("picows") is None:
        return []  # it is the load
    names = {peer: PeerName.of(peer) for peer in scenario.peers if workload.admits(peer)}
    return [
        peer for peer, name in names.items() if name.folder in HERE and name.loop in LOOPS and name.style not in MISSING
    ]


def cases() -> list[Any]:
    """Returns each workload of each scenario that has no test of its own above."""
    names = [name for name in scenarios.names() if name not in ("sync", "asyncio")]
    return [
        pytest.param(name, workload.name, id=f"{name}: {workload.name}")
        for name in names
        for workload in scenarios.load(name).shortened().workloads
    ]


@pytest.mark.parametrize(("name", "workload"), cases())
def test_every_workload_runs(name: str, workload: str, tmp_path: Path) -> None:
    scenario = scenarios.load(name).shortened()
    peers = here(scenario, scenario.workload(workload))
    if not peers:
        pytest.skip("none of the peers of this workload is installed for the tests")
    samples = run_workload(tmp_path, name, workload, peers, "--quick")
    assert samples
    assert {sample["peer"] for sample in samples} <= set(peers)
    cells = {Cell(**sample["cell"]) for sample in samples}
    assert cells == set(scenario.workload(workload).cells())
    ours = {sample["peer"] for sample in samples if sample["peer"].startswith(("wirespeed", "codecs"))}
    assert ours or not any(peer.startswith(("wirespeed", "codecs")) for peer in peers)
    kind = KINDS[scenario.workload(workload).measures]
    assert all(kind.figure is None or kind.figure in sample["figures"] for sample in samples)


LIAR = """
import asyncio, json, sys
from websockets.asyncio.server import serve

async def handler(ws):
    path, count = ws.request.path, 0
    if path.startswith("/blast"):
        size = int(path.partition("=")[2])
        while True:
            count += count == 50
            await ws.send(count.to_bytes(8, "little") + (bytes(range(256)) * (size // 256 + 1))[8:size])
            count += 1
    async for message in ws:
        count += 1
        if path == "/":
            await ws.send(message[:-1] + bytes([message[-1] ^ (count == 50)]))
        elif isinstance(message, str):
            await ws.send(json.dumps({"messages": count - 2, "bytes": 0}))

async def main():
    async with serve(handler, "127.0.0.1", 0, compression=None) as server:
        print("listening ws://127.0.0.1:%d" % server.sockets[0].getsockname()[1], flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("workload", "size", "complaint"),
    [
        ("round-trip", 256, "a reply differs from the message that was sent"),
        ("round-trip", 8192, "a reply differs from the message that was sent"),
        ("stream-in", 64, "of the stream carries number"),
        ("stream-in", 65536, "of the stream carries number"),
        ("send", 64, "/sink received"),
        ("pipelined", 512, "a reply differs from the message that was sent"),
    ],
)
def test_asyncio_peers_notice_a_lie(workload: str, size: int, complaint: str, tmp_path: Path) -> None:
    pytest.importorskip("websockets")
    (tmp_path / "liar.py").write_text(LIAR)
    arguments = ["--quick", "--plain", "--workload", workload, "--size", str(size), "--loop", "asyncio"]
    server = shlex.join([sys.executable, str(tmp_path / "liar.py")])
    result = bench("asyncio", *arguments, "--peer", "wirespeed", "--peer", "websockets", "--server", server)
    assert result.returncode == 1
    failures = [line for line in result.stdout.splitlines() if "FAILED" in line]
    assert len(failures) >= 3
    assert all("ContentError" in line and complaint in line for line in failures), result.stdout
    assert "messages/s" not in result.stdout


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("workload", "size", "complaint"),
    [
        ("round-trip", 256, "a reply differs from the message that was sent"),
        ("stream-in", 64, "of the stream carries number"),
        ("send", 64, "/sink received"),
        ("pipelined", 512, "a reply differs from the message that was sent"),
    ],
)
def test_peers_in_c_notice_a_lie(workload: str, size: int, complaint: str, tmp_path: Path) -> None:
    pytest.importorskip("websockets")
    (tmp_path / "liar.py").write_text(LIAR)
    server = shlex.join([sys.executable, str(tmp_path / "liar.py")])
    arguments = ["--quick", "--plain", "--workload", workload, "--size", str(size), "--peer", "raw-c"]
    result = bench("field", *arguments, "--server", server)
    failures = {line.split(":", 1)[0].strip() for line in result.stdout.splitlines() if "FAILED" in line}
    assert result.stdout.count(complaint) == (1 if workload == "pipelined" else 2), result.stdout
    assert failures == {"raw-c"}
