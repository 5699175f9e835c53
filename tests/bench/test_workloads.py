"""The workloads of the benchmarks: each runs for a moment with real peers, so that it stays usable. No rate
is checked.
"""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from harness.figures import KINDS
from harness.peers import Sample
from harness.places import ROOT
from harness.record import read
from harness.scenario import Job, PeerName, load, names

from support.native import find_binary
from support.samples import sample


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, cwd=ROOT)


def run_workload(folder: Path, scenario: str, workload: str, peers: Iterable[str], *arguments: str) -> list[Sample]:
    """Runs one workload for a moment and returns the samples."""
    binary = find_binary()
    if binary is None:
        pytest.skip("wirespeed-bench is not built: run cargo build -p wirespeed-bench, or set WIRESPEED_BENCH")
    if importlib.util.find_spec("wirespeed") is None:
        pytest.skip("wirespeed is not installed")
    server = ["--server", f"{shlex.quote(str(binary))} echo --port 0 --tls-port 0"]
    chosen = [argument for peer in peers for argument in ("--peer", peer)]
    # A busy machine may give our processes no time in so short a run.
    for seconds in ("0.03", "1"):
        short = [*f"--rounds 1 --seconds {seconds} --warmup 0.01 --pin any --record --records".split(), str(folder)]
        result = bench(scenario, "--workload", workload, *short, *arguments, *chosen, *server)
        if "its window is empty" not in result.stdout:
            break
    assert result.returncode == 0, result.stdout + result.stderr
    return read(max(folder.glob("*/*.csv"), key=lambda path: path.stat().st_mtime)).samples


# Peers that the tests can run: ours, third-party ones that the tests use anyway, and sockets.
HERE = {"wirespeed", "wirespeed-sync", "wirespeed-server", "wirespeed-engine", "codecs", "raw-python"}
if importlib.util.find_spec("websockets") is not None:
    HERE |= {"websockets", "websockets-sync", "websockets-server"}
if shutil.which("cc"):
    HERE |= {"raw-c"}
LOOPS = {None, "asyncio", "run", "polling"} | ({"uvloop"} if importlib.util.find_spec("uvloop") is not None else set())
# Libraries of styles of `codecs` that are not installed for the tests.
MISSING = {style for style in ("orjson", "msgpack") if importlib.util.find_spec(style) is None}


def here(job: Job) -> list[str]:
    """Returns the peers of a cell that the tests can run."""
    if job.workload.runs == "echo-picows" and importlib.util.find_spec("picows") is None:
        return []  # it is the load
    parts = {peer: PeerName.of(peer) for peer in job.peers}
    return [
        peer for peer, name in parts.items() if name.folder in HERE and name.loop in LOOPS and name.style not in MISSING
    ]


def cases() -> list[Any]:
    """Returns each workload of each scenario, with the available peers of a quick run."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for name in names():
        for job in load(name).jobs(quick=True):
            found.setdefault((name, job.workload.name), {}).update(dict.fromkeys(here(job)))
    return [pytest.param(*key, list(peers), id=": ".join(key)) for key, peers in found.items() if peers]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    rotation = metafunc.config.getoption("--rotation")
    if metafunc.function is test_every_workload_runs:
        # At least one workload of each scenario; `make bench-quick` runs all.
        some = sample(cases(), 12, rotation, kind=lambda case: case.values[0])
        metafunc.parametrize(("name", "workload", "peers"), some)
    if metafunc.function is test_peers_detect_a_lie:
        # One of the library and one of C, by turns.
        table = [(peers, *lie) for lie in PEER_LIES for peers in ("wirespeed websockets", "raw-c")]
        metafunc.parametrize(("peers", "workload", "size", "complaint"), sample(table, 5, rotation))


def test_every_workload_runs(name: str, workload: str, peers: list[str], tmp_path: Path) -> None:
    samples = run_workload(tmp_path, name, workload, peers, "--quick")
    assert samples
    assert {sample.peer for sample in samples} <= set(peers)
    ours = {sample.peer for sample in samples if sample.peer.startswith(("wirespeed", "codecs"))}
    assert ours or not any(peer.startswith(("wirespeed", "codecs")) for peer in peers)
    kind = KINDS[load(name).called(workload).measures]
    assert all(kind.figure is None or kind.figure in sample.figures for sample in samples)
    assert all((sample.memory is not None) == (sample.measures == "memory") for sample in samples)


def test_every_way_of_receiving_runs() -> None:
    styles = {PeerName.of(peer).style for case in cases() for peer in case.values[2] if peer.startswith("wirespeed:")}
    assert styles == {"await", "iterate", "many", "callbacks"}


def test_every_size_runs(tmp_path: Path) -> None:
    samples = run_workload(tmp_path, "clients", "round-trip", ["wirespeed-sync", "wirespeed:await@run"])
    for peer in ("wirespeed-sync", "wirespeed:await@run"):
        wanted = [job.cell for job in load("clients").jobs() if job.workload.name == "round-trip" and peer in job.peers]
        assert sorted(sample.cell for sample in samples if sample.peer == peer) == sorted(wanted)


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


REPLY = "a reply differs from the message that was sent"


PEER_LIES = [
    ("round-trip", 256, REPLY),
    ("round-trip", 8192, REPLY),
    ("stream-in", 64, "of the stream carries number"),
    ("stream-in", 65536, "of the stream carries number"),
    ("send", 64, "/sink received"),
    ("pipelined", 512, REPLY),
]


def test_peers_detect_a_lie(peers: str, workload: str, size: int, complaint: str, tmp_path: Path) -> None:
    pytest.importorskip("websockets")
    if not HERE.issuperset(peers.split()):
        pytest.skip("needs a C compiler")
    (tmp_path / "liar.py").write_text(LIAR)
    server = shlex.join([sys.executable, str(tmp_path / "liar.py")])
    arguments = ["--quick", "--plain", "--workload", workload, "--size", str(size), "--server", server]
    arguments += [] if peers == "raw-c" else ["--loop", "asyncio"]
    result = bench("clients", *arguments, *(f"--peer={peer}" for peer in peers.split()))
    assert result.returncode == 1
    failures = [line for line in result.stdout.splitlines() if "FAILED" in line]
    assert len(failures) >= (1 if (peers, workload) == ("raw-c", "pipelined") else 2), result.stdout
    assert all("ContentError" in line or peers == "raw-c" for line in failures)
    assert all(complaint in line for line in failures), result.stdout
    assert "messages/s" not in result.stdout
