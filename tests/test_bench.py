"""The harness of the benchmarks: everything that can go wrong around a workload.

Peers and servers that misbehave are small scripts that keep the contract of ``bench/METHODOLOGY.md`` as far as the test
wants. The workloads themselves are in ``test_bench_workloads.py``.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if sys.hexversion < 0x030B0000:  # not by version_info: type checkers, which go by 3.10, are to read on
    pytest.skip("the harness of the benchmarks needs Python 3.11", allow_module_level=True)

BENCH = Path(__file__).resolve().parents[1] / "bench"
sys.path.insert(0, str(BENCH))

from harness import command, running  # noqa: E402
from harness import scenario as scenarios  # noqa: E402
from harness.errors import BenchError, UsageError  # noqa: E402
from harness.journal import Journal, Journals  # noqa: E402
from harness.peers import Peers, Sample  # noqa: E402
from harness.process import environment  # noqa: E402
from harness.record import as_json, read_csv  # noqa: E402
from harness.results import judge, ratio, summarize  # noqa: E402
from harness.runner import Runner  # noqa: E402
from harness.scenario import Bar, Cell, Measure, PeerName, Scenario, Workload  # noqa: E402
from harness.screen import Screen  # noqa: E402
from harness.server import Server  # noqa: E402
from harness.tables import bars_table, cell_table, text_of  # noqa: E402


def cell_text(*arguments: Any) -> str:
    return text_of(cell_table(*arguments))


def bars_text(*arguments: Any) -> str:
    return text_of(bars_table(*arguments))


CELL = Cell("round-trip", 256, tls=False)
MOMENT = Measure(rounds=2, seconds=0.01, warmup=0.01, batch=8)
LISTENS = "print('listening ws://127.0.0.1:9', flush=True)"


def bench(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / "run.py"), "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, **options)


# --- the command line ---


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nope"], "unknown scenario nope: choose from"),
        (["sync", "--peer", "nope"], "unknown peer nope: choose from"),
        (["sync", "--workload", "nope"], "unknown workload nope: choose from"),
        (["sync", "--size", "7"], "unknown size 7: choose from"),
        (["sync", "--loop", "uvloop"], "unknown loop uvloop: there is none"),
        (["asyncio", "--loop", "nope"], "unknown loop nope: choose from asyncio, rloop, run, uvloop"),
        (["asyncio", "--peer", "picows:await"], "unknown peer picows:await: choose from"),
        (["asyncio", "--peer", "picows", "--loop", "rloop"], "has none of these peers on that loop"),
        (["sync", "--workload", "send", "--tls"], "has nothing of that workload, size and transport"),
        (["sync", "--python", "/nonexistent/python"], "--python /nonexistent/python does not run"),
        (["sync", "--rounds", "0"], "0 is not positive"),
    ],
)
def test_unknown_things_are_usage_errors(arguments: list[str], complaint: str) -> None:
    result = bench(*arguments)
    assert result.returncode == 2
    assert complaint in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("server", "complaint"),
    [
        ("/nonexistent/server", "cannot start /nonexistent/server: No such file"),
        (f"{sys.executable} -c 1/0", "ended with status 1 (ZeroDivisionError: division by zero) before it listened"),
    ],
)
def test_server_that_does_not_start(server: str, complaint: str) -> None:
    result = bench("sync", "--quick", "--peer", "raw-python", "--workload", "send", "--server", server)
    assert result.returncode == 1
    assert complaint in result.stderr.splitlines()[-1]


def test_peer_that_cannot_connect_is_shown_as_failed() -> None:
    server = f'{sys.executable} -c "import time; {LISTENS}; time.sleep(40)"'
    result = bench("sync", "--quick", "--peer", "raw-python", "--workload", "send", "--server", server)
    assert result.returncode == 1
    assert "raw-python: FAILED: ConnectionRefusedError" in result.stdout


@pytest.mark.skipif(os.name != "posix", reason="sends signals to processes")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_stops_the_children(number: signal.Signals, status: int, tmp_path: Path) -> None:
    # Accepts and never answers, so that the peer waits in its handshake.
    script = tmp_path / "server.py"
    script.write_text(
        "import os, socket\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "print('listening ws://127.0.0.1:%d' % listener.getsockname()[1], flush=True)\n"
        "accepted = listener.accept()[0]\n"
        f"open({str(tmp_path / 'new')!r}, 'w').write(str(os.getpid()))\n"
        f"os.rename({str(tmp_path / 'new')!r}, {str(tmp_path / 'pid')!r})\n"
        "while True: listener.accept()\n"
    )
    arguments = ["sync", "--quick", "--peer", "raw-python", "--workload", "round-trip", "--plain"]
    command = [sys.executable, str(BENCH / "run.py"), "run", *arguments, "--server", f"{sys.executable} {script}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as harness:
        try:
            wait_for((tmp_path / "pid").exists)
            harness.send_signal(number)
            assert harness.wait(20) == status
        finally:
            harness.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- runs with scripted peers ---

GOOD = '{"count": 100, "seconds": 0.5, "user": 0.1, "system": 0.2, "server": 0.3, "checked": true}'


@dataclasses.dataclass
class Stage:
    """Peers made of a few lines of Python each, and a server that does nothing."""

    folder: Path

    def add(self, name: str, body: str, *, probe: str | None = None) -> None:
        """Adds a peer that answers --probe, and else runs `body`."""
        peer = self.folder / "peers" / name
        peer.mkdir(parents=True)
        (peer / "peer.toml").write_text('summary = "scripted"\ncommand = ["{python}", "{peer}/peer.py"]\n')
        answer = probe or '{"version": "1", "workloads": ["round-trip"], "tls": false}'
        (peer / "peer.py").write_text(
            f"import os, sys\nif '--probe' in sys.argv: sys.exit(print({answer!r}))\n{body}\n"
        )

    def peers(self, names: list[str]) -> Peers:
        """Returns the prepared peers."""
        peers = Peers(self.folder / "peers", self.folder, self.folder, environment(BENCH), sys.executable)
        peers.prepare(names)
        return peers.only(names)

    def server(self, body: str = "import time; time.sleep(40)") -> Server:
        """Returns a server that is not started."""
        (self.folder / "server.py").write_text(f"{LISTENS}\n{body}\n")
        command = shlex.join([sys.executable, str(self.folder / "server.py")])
        return Server(command, tls=False, cores=None, cwd=self.folder, env=dict(os.environ))

    def run(
        self,
        names: list[str],
        server: Server | None = None,
        scenario: Scenario | None = None,
        measure: Measure = MOMENT,
    ) -> list[Sample]:
        """Returns what MOMENT yields in one cell."""
        server = server or self.server()
        server.start()
        try:
            runner = Runner(scenario or small(), measure, self.peers(names), server, None)
            samples = next(samples for _, samples in runner.run())
        finally:
            server.stop()
        # One that fails is not tried again.
        assert len(samples) == runner.windows() or any(sample.failure for sample in samples)
        return samples


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def small() -> Scenario:
    whole = scenarios.load("sync")
    return whole.narrowed(workloads=["round-trip"], sizes=[256], tls=False)


def test_peers_take_turns(stage: Stage) -> None:
    for name in "abc":
        stage.add(name, f"print('{GOOD}')")
    samples = stage.run(["a", "b", "c"])
    assert [(sample.round, sample.peer) for sample in samples] == [(n, peer) for n in (1, 2) for peer in "abc"]
    assert samples[0].rate == 200


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ("sys.exit('no luck')", "ended with status 1: no luck"),
        ("os.abort()", "ended with status -6"),
        ("pass", "printed no result"),
        ('print(\'{"failed": "lost a message"}\'); sys.exit(1)', "lost a message"),
        (f"print('{GOOD}'.replace('true', 'false'))", "its messages were not checked"),
        (f"print('{GOOD}'.replace('count', 'number'))", "its result is not of the contract: KeyError 'count'"),
        (f"print('{GOOD}'.replace('100', '0'))", "its window is empty"),
    ],
)
def test_failing_peer_is_never_fast(stage: Stage, body: str, failure: str) -> None:
    stage.add("bad", body)
    stage.add("good", f"print('{GOOD}')")
    samples = stage.run(["bad", "good"])
    # It is not tried again; the others go on.
    assert [(sample.round, sample.peer) for sample in samples] == [(1, "bad"), (1, "good"), (2, "good")]
    assert samples[0].failure == failure
    bad, good = summarize(samples)
    assert (bad.rate, good.failure) == (None, None)
    assert f"bad: FAILED: {failure}" in cell_text(small(), CELL, samples)


def test_peer_that_hangs_is_stopped(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.peers.GRACE_SECONDS", 1.0)
    stage.add("hanging", "import time; time.sleep(40)")
    assert [sample.failure for sample in stage.run(["hanging"])] == ["no result within 1 s"]


def test_peer_that_is_missing_or_broken(stage: Stage) -> None:
    stage.add("absent", "", probe='{"skipped": "x is not installed"}')
    stage.add("broken", "", probe='{"failed": "ImportError: bad build"}')
    stage.add("good", f"print('{GOOD}')")
    peers = stage.peers(["absent", "broken", "good"])
    assert (peers.skipped, peers.failed, list(peers.ready)) == (
        {"absent": "x is not installed"},
        {"broken": "ImportError: bad build"},
        ["good"],
    )
    with pytest.raises(UsageError, match="peer nowhere has no"):
        stage.peers(["nowhere"])


BUILD = """
import sys
from pathlib import Path

open(Path(__file__).parents[2] / "builds", "a").write("x")
(Path(sys.argv[1]) / "peer.py").write_text(Path(__file__).with_name("peer.py").read_text())
"""


def test_peer_is_built_once_for_each_state_of_its_sources(stage: Stage) -> None:
    stage.add("one", f"print('{GOOD}')")
    folder = stage.folder / "peers" / "one"
    (folder / "build.py").write_text(BUILD)
    (folder / "peer.toml").write_text(
        'summary = "built"\nbuild = ["{python}", "{peer}/build.py", "{build}"]\n'
        'command = ["{python}", "{build}/peer.py"]\n'
    )
    builds = stage.folder / "builds"
    assert len(stage.peers(["one:a", "one:b"]).ready) == 2
    assert stage.run(["one"])[0].failure is None
    assert builds.read_text() == "x"
    (folder / "peer.py").write_text((folder / "peer.py").read_text() + "\n# changed\n")
    assert list(stage.peers(["one"]).ready) == ["one"]
    assert builds.read_text() == "xx"
    (folder / "build.py").write_text("import sys\nsys.exit('no luck')\n")
    assert stage.peers(["one"]).failed == {"one": f"{sys.executable} ended with status 1: no luck"}


def test_peer_that_cannot_be_built_says_what_to_install(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    (stage.folder / "peers" / "one").mkdir(parents=True)
    text = (
        'summary = ""\ncommand = []\nserver = ["{build}/x"]\nbuild = ["{cxx}"]\nneeds = { "no/such.h" = "libnone" }\n'
    )
    (stage.folder / "peers" / "one" / "peer.toml").write_text(text)
    if shutil.which("c++"):
        assert stage.peers(["one"]).skipped == {"one": "the header no/such.h is not there: apt-get install libnone"}
    monkeypatch.setenv("PATH", str(stage.folder))
    reason = "no C++ compiler (c++, g++, clang++) found: apt-get install g++"
    peers = stage.peers(["one"])
    assert peers.skipped == {"one": reason}
    with pytest.raises(BenchError, match="the server one cannot run: no C"):
        peers.server("one")


def test_server_of_a_peer(stage: Stage) -> None:
    stage.add("none", "")
    stage.add("one", "")
    toml = stage.folder / "peers" / "one" / "peer.toml"
    toml.write_text(toml.read_text() + 'server = ["{python}", "{peer}/server.py"]\n')
    peers = stage.peers([])
    assert peers.server("one") == [sys.executable, str(toml.with_name("server.py"))]
    assert peers.server("python server.py") is None
    with pytest.raises(UsageError, match="peer none is no server"):
        peers.server("none")


def with_workload(**changes: Any) -> Scenario:
    """Returns `small()` with a workload that differs."""
    scenario = small()
    return dataclasses.replace(scenario, workloads=(dataclasses.replace(scenario.workloads[0], **changes),))


def test_parts_of_a_name_reach_the_peer(stage: Stage) -> None:
    # It answers only if it is asked in the same way for its workloads and for a figure.
    wanted = ["--style", "await", "--loop", "uvloop"]
    body = f"print('{GOOD}' if sys.argv[1:5] == {wanted} else '{{}}')"
    stage.add("one", body)
    assert [sample.failure for sample in stage.run(["one:await@uvloop"])] == [None, None]
    assert "its result is not of the contract" not in str(stage.run(["one@uvloop"]))
    assert stage.run(["one@uvloop"])[0].failure == "its messages were not checked"


def test_what_a_workload_needs_reaches_the_peer(stage: Stage) -> None:
    probe = '{"version": "1", "workloads": ["other"], "tls": false}'
    stage.add("one", "print('{\"failed\": \"%s\"}' % ' '.join(sys.argv[1:]))", probe=probe)
    options = {"window": 100, "connections": 7, "deflate": True, "loud": False}
    workload = with_workload(model="other", options=options, path="/x?n={connections}&s={size}", stretch=2.5, rounds=1)
    (sample,) = stage.run(["one"], scenario=workload)
    assert "--workload other" in str(sample.failure)
    assert "/x?n=7&s=256 " in str(sample.failure)
    assert "--seconds 0.025" in str(sample.failure)
    assert "--window 100 --connections 7 --deflate" in str(sample.failure)
    assert "loud" not in str(sample.failure)
    (sample,) = stage.run(["one"], scenario=with_workload(model="other", seconds=0.5, stretch=2.0, rounds=1))
    assert "--seconds 1.0" in str(sample.failure)


def test_workload_with_fewer_rounds_and_peers(stage: Stage) -> None:
    for name in ("a", "b"):
        stage.add(name, f"print('{GOOD}')")
    samples = stage.run(["a@x", "a@y", "b@x"], scenario=with_workload(rounds=1, peers=("a", "b@y")))
    assert [(sample.round, sample.peer) for sample in samples] == [(1, "a@x"), (1, "a@y")]


def test_memory_instead_of_a_rate(stage: Stage) -> None:
    scenario = with_workload(measures="memory", sizes=(0,), rounds=1)
    for name, kibibytes in (("big", 20), ("little", 4)):
        stage.add(name, f"print('{GOOD}'.replace('100', '100, \"memory\": {kibibytes * 1024 * 100}'))")
    stage.add("silent", f"print('{GOOD}')")
    samples = stage.run(["big", "silent", "little"], scenario=scenario)
    assert [sample.failure for sample in samples] == [None, "its result has no memory", None]
    lines = cell_text(scenario, samples[0].cell, samples).splitlines()
    assert lines[0].endswith("wait for the echo, plain")
    assert [line.split()[:3] for line in lines[2:4]] == [["little", "4.0", "KiB"], ["big", "20.0", "KiB"]]
    figure = ratio(samples, "little", "big", "silent")
    assert figure is not None
    assert figure.median == 0.2
    bar = Bar("little", "round-trip", "little", at_most=4096)
    (result,) = judge(dataclasses.replace(scenario, bars=(bar,)), samples)
    assert result.verdict == "PASS"
    assert "4.0 KiB" in bars_text([result])


def test_server_that_dies_is_started_again(stage: Stage) -> None:
    # Its first life ends when the first peer runs.
    trigger, died = stage.folder / "trigger", stage.folder / "died"
    server = stage.server(
        "import os, sys, time\n"
        f"while os.path.exists({str(died)!r}) or not os.path.exists({str(trigger)!r}): time.sleep(0.01)\n"
        f"open({str(died)!r}, 'w').close(); sys.exit('out of luck')"
    )
    stage.add("first", f"import time; open({str(trigger)!r}, 'w').close(); time.sleep(1); print('{GOOD}')")
    stage.add("second", f"print('{GOOD}')")
    samples = stage.run(["first", "second"], server)
    assert samples[0].failure == "the server ended with status 1 (out of luck)"
    assert [sample.failure for sample in samples[1:]] == [None, None]


def test_server_that_says_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.server.START_SECONDS", 0.5)
    command = f'{sys.executable} -c "import time; time.sleep(40)"'
    server = Server(command, tls=True, cores=None, cwd=stage.folder, env=dict(os.environ))
    with pytest.raises(BenchError, match="did not say within"):
        server.start()


# --- scenarios, figures, records ---


def samples_of(rates: dict[str, list[float]], failure: str | None = None) -> list[Sample]:
    return [
        Sample(peer, CELL, number, count=int(rate), seconds=1.0, user=0.1, system=0.1, server=0.1, failure=failure)
        for peer, own in rates.items()
        for number, rate in enumerate(own, 1)
    ]


def test_the_lesser_of_two_servers_is_compared_and_shared_cores_are_told() -> None:
    scenario = scenarios.load("engine-brokers")
    cell = Cell("flood-100", 128, tls=False)
    figures = {"wirespeed-engine:apart": (1000.0, 1.5), "wirespeed-engine:nats": (800.0, 2.0)}
    samples = [
        Sample(peer, cell, 1, count=5000, seconds=1.0, figures={"lesser": rate, "shared": shared}, measures="lesser")
        for peer, (rate, shared) in figures.items()
    ]
    found = ratio(samples, "wirespeed-engine:nats", "wirespeed-engine:apart")
    assert found is not None
    assert found.median == 0.8
    text = text_of(cell_table(scenario, cell, samples))
    assert "1,000 - 1,000" in text
    assert "up to 2 processes shared a core" in text
    verdicts = {bar.bar.peer: bar.verdict for bar in judge(scenario, samples) if bar.cell == cell}
    assert verdicts == {"wirespeed-engine:nats": "MISS", "wirespeed-engine:redis": "NOT MEASURED"}


def test_a_core_each_as_far_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "allowed_cores", lambda: [0, 1, 2, 3])
    assert running._cores("two", None, Screen()) == (3, frozenset([2]))
    client, servers = running._cores("each", None, Screen())
    assert (client, servers) == (3, frozenset([0, 1, 2]))
    text = running._pinning("each", client, servers)
    assert text == "load on core 3, engines on 0, 1, broker on 2: 4 cores for 4 processes"
    monkeypatch.setattr(running, "allowed_cores", lambda: [0])
    with pytest.raises(UsageError, match="needs two cores"):
        running._cores("each", None, Screen())


def test_ratios_are_taken_within_rounds() -> None:
    samples = samples_of({"a": [100, 220, 90], "b": [100, 200, 100]})
    figure = ratio(samples, "a", "b")
    assert figure is not None
    assert (figure.median, figure.low, figure.high) == (1.0, 0.9, 1.1)
    assert ratio(samples, "a", "c") is None


def test_ratio_with_the_best_of_several() -> None:
    samples = samples_of({"a": [100, 200, 300], "b": [50, 400, 100], "c": [100, 100, 200]})
    figure = ratio(samples, "a", "b", "c")
    assert figure is not None
    assert (figure.median, figure.low, figure.high) == (1.0, 0.5, 1.5)
    # One that failed has no figure; one that did not run might have been the best.
    lost = samples_of({"d": [900]}, failure="lost a message")
    assert ratio([*samples, *lost], "a", "b", "c", "d") == figure
    assert ratio(samples, "a", "b", "c", "d") is None
    assert ratio(lost, "d", "d") is None


@pytest.mark.parametrize(
    ("bar", "verdict"),
    [
        (Bar("", "round-trip", "a", at_least=100), "PASS"),
        (Bar("", "round-trip", "a", above=100), "MISS"),
        (Bar("", "round-trip", "a", versus="b", at_least=0.5), "PASS"),
        (Bar("", "round-trip", "a", versus="b", at_least=0.6), "MISS"),
        (Bar("", "round-trip", "a", versus="c", at_least=0.6), "NOT MEASURED"),
        (Bar("", "round-trip", "b", versus=("a", "b"), at_least=1), "PASS"),
        (Bar("", "round-trip", "a", versus=("a", "b"), above=0.5), "MISS"),
        (Bar("", "round-trip", "a", at_most=100), "PASS"),
        (Bar("", "round-trip", "b", at_most=100), "MISS"),
        (Bar("", "round-trip", "a", figure="kept", at_least=0.5), "NOT MEASURED"),
        (Bar("", "round-trip", "c", at_least=1), "NOT MEASURED"),
    ],
)
def test_bars(bar: Bar, verdict: str) -> None:
    scenario = dataclasses.replace(small(), bars=(bar,))
    results = judge(scenario, samples_of({"a": [100], "b": [200]}))
    assert [result.verdict for result in results] == [verdict]
    assert verdict in bars_text(results)


def test_bar_of_another_figure() -> None:
    bars = (Bar("most", "round-trip", "a", figure="kept", at_least=0.97), Bar("soon", "round-trip", "a", at_most=2000))
    workload = dataclasses.replace(small().workloads[0], measures="lateness")
    scenario = dataclasses.replace(small(), workloads=(workload,), bars=bars)
    samples = [
        dataclasses.replace(sample, measures="lateness", figures={"late_p50": 1500.0, "kept": 0.9612})
        for sample in samples_of({"a": [100]})
    ]
    results = judge(scenario, samples)
    assert [result.verdict for result in results] == ["MISS", "PASS"]
    text = bars_text(results)
    assert "96.1%" in text
    assert "1,500" in text
    assert {"late p50 us", "rate kept"} <= set(re.split(r"\s{2,}", cell_text(scenario, CELL, samples).splitlines()[1]))


@pytest.mark.parametrize(
    ("figure", "complaint"),
    [({"figure": "nothing"}, "unknown figure nothing"), ({"figure": "kept", "versus": "b"}, "names a figure")],
)
def test_bar_of_a_figure_that_cannot_be(figure: dict[str, str], complaint: str) -> None:
    bar = {"text": "", "workload": "round-trip", "peer": "a", "at_least": 1, **figure}
    data = {
        "title": "",
        "peers": ["a", "b"],
        "subject": "a",
        "limits": [],
        "measure": {"rounds": 1, "seconds": 1, "warmup": 1},
        "quick": {},
        "workload": [{"name": "round-trip", "title": "", "unit": "round trip"}],
        "bar": [bar],
    }
    with pytest.raises((ValueError, BenchError), match=complaint):
        scenarios.parse("some", data)


def test_bars_of_peers_left_out_go() -> None:
    versus = {bar.versus for bar in scenarios.load("sync").narrowed(peers=["wirespeed-sync", "raw-c"]).bars}
    assert versus == {"raw-c", None}


def test_names_of_peers() -> None:
    assert dataclasses.astuple(PeerName.of("a.b:await@uvloop")) == ("a.b", "await", "uvloop")
    assert dataclasses.astuple(PeerName.of("a@uvloop")) == ("a", None, "uvloop")
    assert dataclasses.astuple(PeerName.of("a-sync")) == ("a-sync", None, None)
    peer = PeerName.of("a:await@uvloop")
    assert all(peer.is_asked_for(asked) for asked in ("a", "a:await", "a@uvloop", "a:await@uvloop"))
    assert not any(peer.is_asked_for(asked) for asked in ("b", "a:many", "a@asyncio", "a:await@asyncio", ""))


def test_scenario_narrowed_to_a_loop() -> None:
    whole = scenarios.load("asyncio")
    narrowed = whole.narrowed(peers=["wirespeed:await", "picows"], workloads=["round-trip"], loops=["uvloop"])
    assert narrowed.peers == ("wirespeed:await@uvloop", "picows:callbacks@uvloop")
    assert {(bar.peer, bar.versus) for bar in narrowed.bars if bar.versus is not None} == {
        ("wirespeed:await@uvloop", "picows:callbacks@uvloop")
    }
    # A bar with a rival that is left out goes.
    assert {rival for bar in whole.narrowed(loops=["asyncio"]).bars for rival in bar.rivals} <= {
        peer for peer in whole.peers if peer.endswith("@asyncio")
    }


def test_bar_on_each_loop() -> None:
    data: dict[str, Any] = {
        "title": "", "peers": ["a@x", "a@y", "b@x", "b@y"], "subject": "a@{loop}", "limits": [],
        "measure": {"rounds": 1, "seconds": 1.0, "warmup": 1.0, "batch": 1}, "quick": {},
        "workload": [{"name": "w", "title": "", "unit": "", "path": "/", "sizes": [1], "tls": [False]}],
        "bar": [
            {"text": "", "workload": "w", "loops": ["x", "y"], "peer": "a@{loop}", "versus": "b@{loop}", "above": 1},
            {"text": "", "workload": "w", "loops": ["y"], "peer": "a@y", "versus": ["b@x", "b@{loop}"], "above": 1},
        ],
    }  # fmt: skip
    scenario = scenarios.parse("s", data)
    assert [(bar.peer, bar.rivals) for bar in scenario.bars] == [
        ("a@x", ("b@x",)),
        ("a@y", ("b@y",)),
        ("a@y", ("b@x", "b@y")),
    ]
    assert scenario.subject_for("b@x") == "a@x"
    assert scenario.comparison == "a is"
    kinds = scenarios.parse("s", data | {"counterparts": {"a@y": ["b@x"]}})
    assert [kinds.subject_for(peer) for peer in ("a@y", "b@x", "b@y")] == ["a@y", "a@y", "a@y"]
    assert [kinds.subject_for("a@x"), kinds.comparison] == ["a@x", "wirespeed is"]
    with pytest.raises(UsageError, match="unknown peer c: choose from"):
        scenarios.parse("s", data | {"counterparts": {"a@y": ["c"]}})
    with pytest.raises(ValueError, match="needs one of at_least, at_most and above"):
        scenarios.parse("s", data | {"bar": [{"text": "", "workload": "w", "peer": "a@x", "above": 1, "at_most": 1}]})
    with pytest.raises(UsageError, match="unknown peer c: choose from"):
        scenarios.parse("s", data | {"workload": [{**data["workload"][0], "peers": ["c"]}]})


def test_tables_compare_on_the_same_loop() -> None:
    scenario = dataclasses.replace(small(), subject="a@{loop}")
    samples = samples_of({"a@x": [100], "b@x": [50], "a@y": [400], "b@y": [100], "b@z": [100]})
    lines = {line.split()[0]: line.split() for line in cell_text(scenario, CELL, samples).splitlines()[2:]}
    assert lines["b@x"][-2:] == ["2.000", "x"]
    assert lines["b@y"][-2:] == ["4.000", "x"]
    assert lines["a@x"][-1] != "x"
    assert lines["b@z"][-1] != "x"


def test_scenario_files_are_sound() -> None:
    for name in scenarios.names():
        scenario = scenarios.load(name)
        # One that has no loop is compared with none where subjects differ by loop.
        subjects = {subject for peer in scenario.peers if (subject := scenario.subject_for(peer)) is not None}
        assert set(scenario.peers) >= {*subjects, *scenario.limits}
        assert all((BENCH / "peers" / PeerName.of(peer).folder / "peer.toml").exists() for peer in scenario.peers)
        assert all(any(bar.selects(cell) for cell in scenario.cells()) for bar in scenario.bars)
        assert all(
            scenario.workload(bar.workload).admits(peer) for bar in scenario.bars for peer in (bar.peer, *bar.rivals)
        )
        for workload in scenario.shortened().workloads:
            assert set(workload.sizes) <= set(scenario.workload(workload.name).sizes)


@pytest.mark.parametrize(("unit", "units"), [("delivery", "deliveries"), ("echo", "echoes"), ("message", "messages")])
def test_plural(unit: str, units: str) -> None:
    assert Workload("", "", unit).units == units


def test_workload_for_each_value_of_an_option() -> None:
    data = {
        "title": "", "peers": ["a"], "subject": "a", "limits": [],
        "measure": {"rounds": 1, "seconds": 1.0, "warmup": 1.0, "batch": 1}, "quick": {},
        "workload": [
            {"name": "w", "title": "{n} of them", "unit": "", "each": {"n": [10, 2000]}, "options": {"m": 1},
             "quick_options": {"m": 2}, "seconds": 5.0},
            {"name": "long", "title": "", "unit": "", "quick": False},
        ],
    }  # fmt: skip
    data["workload"][0] |= {"quick_values": [2000], "peers": ["all"]}  # type: ignore[index]
    data["sets"] = {"all": ["a"]}
    scenario = scenarios.parse("s", data)
    assert [(one.name, one.runs, one.title, one.options) for one in scenario.workloads] == [
        ("w-10", "w", "10 of them", {"m": 1, "n": 10}),
        ("w-2000", "w", "2,000 of them", {"m": 1, "n": 2000}),
        ("long", "long", "", {}),
    ]
    assert [one.name for one in scenario.narrowed(workloads=["w"]).workloads] == ["w-10", "w-2000"]
    assert [one.name for one in scenario.narrowed(workloads=["w-10", "long"]).workloads] == ["w-10", "long"]
    quick = scenario.shortened()
    assert [(one.name, one.options["m"], one.seconds) for one in quick.workloads] == [("w-2000", 2, None)]
    assert scenario.workloads[0].peers == ("a",)
    changed = scenario.with_options({"m": 7})
    assert [one.options for one in changed.workloads] == [{"m": 7, "n": 10}, {"m": 7, "n": 2000}, {}]
    with pytest.raises(UsageError, match="unknown option x: choose from m, n"):
        scenario.with_options({"x": 1})


LATENCY = '{"count": 100, "seconds": 0.5, "user": 0.1, "system": 0.2, "server": 0.3, "checked": true, "p50": %s}'


def test_latency_instead_of_a_rate(stage: Stage) -> None:
    scenario = with_workload(measures="latency", rounds=1)
    stage.add("slow", f"print('{LATENCY % 20}')")
    stage.add("silent", f"print('{GOOD}')")
    stage.add("fast", f"print('{LATENCY % 5}'.replace('}}', ', \"p99\": 70, \"limited\": 0.95}}'))")
    samples = stage.run(["slow", "silent", "fast"], scenario=scenario)
    assert [sample.failure for sample in samples] == [None, "its result has no p50", None]
    assert samples[2].figures == {"p50": 5.0, "p99": 70.0, "limited": 0.95}
    text = cell_text(dataclasses.replace(scenario, subject="fast"), CELL, samples)
    lines = text.splitlines()
    assert lines[1].split()[:4] == ["p50", "us", "min", "-"]
    assert [line.split()[:2] for line in lines[2:4]] == [["fast", "5.00"], ["slow", "20.0"]]
    assert "95.0%" in lines[2]
    assert lines[3].split()[-2:] == ["0.250", "x"]
    assert "the load generator was the limit of fast: the server could do more" in text
    figure = ratio(samples, "slow", "fast", "silent")
    assert figure is not None
    assert figure.median == 4.0
    (result,) = judge(dataclasses.replace(scenario, bars=(Bar("", "round-trip", "fast", at_most=6.0),)), samples)
    assert (result.verdict, result.measures) == ("PASS", "latency")


def test_journal_keeps_cells_and_goes_on(stage: Stage) -> None:
    stage.add("a", "")
    stage.add("absent", "", probe='{"skipped": "not installed"}')
    peers = stage.peers(["a", "absent"])
    path, facts = stage.folder / "unfinished" / "sync.csv", {"cpu": "x", "time": "now"}
    journal = Journal(path, facts, peers)
    assert journal.samples == {}
    samples = [
        *samples_of({"a": [100, 200]}),
        *samples_of({"a": [0]}, failure="lost, twice"),
        dataclasses.replace(samples_of({"a": [7]})[0], figures={"p50": 1.25}, measures="latency"),
    ]
    samples = [dataclasses.replace(sample, version="1") for sample in samples]
    journal.add(samples)
    lines = path.read_text().splitlines()
    assert lines[:3] == ["# cpu: x", "# time: now", "# without absent: not installed"]
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert [row["rate"] for row in rows] == ["100.0", "200.0", "", "7.0"]
    assert [row["p50"] for row in rows] == ["", "", "", "1.25"]
    assert rows[2]["failure"] == "lost, twice"
    # Another time is no other circumstance; another processor is.
    again = Journal(path, facts | {"time": "later"}, peers)
    assert again.samples[CELL][:2] == samples[:2]
    assert again.samples[CELL][3].value == 1.25
    assert again.samples[CELL][2].failure == "lost, twice"
    # Two records of one day have different names.
    first = again.finish(stage.folder / "records", "sync")
    Journal(path, facts, peers).add(samples)
    other = Journal(path, facts | {"cpu": "y"}, peers)
    assert (other.discarded, other.samples) == ("cpu", {})
    other.add(samples)
    second = other.finish(stage.folder / "records", "sync")
    assert first != second
    assert not path.exists()
    assert read_csv(first).samples == read_csv(second).samples
    assert read_csv(first).without == {"absent": "not installed"}
    content = json.loads(as_json("sync", {}, peers, samples[:2], judge(small(), samples[:2])))
    assert len(content["samples"]) == 2


def test_journals_of_other_scenarios_stay(tmp_path: Path) -> None:
    journals = Journals(tmp_path / "unfinished")
    for name in ("sync", "field"):
        journals.finished(name)
        journals.path(name).write_text("")
    journals.forget(["sync", "asyncio"])
    assert not journals.is_over("sync")
    assert not journals.path("sync").exists()
    assert journals.is_over("field")
    assert journals.path("field").exists()


def test_run_goes_on_where_it_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario that is over is not measured again, the one that was under way only from its last whole cell on."""
    monkeypatch.setattr("harness.running.UNFINISHED", tmp_path / "unfinished")
    asked: list[tuple[str, list[Cell]]] = []

    def measure(one: Any, runner: Any, server: object, journal: Journal) -> list[Sample]:
        asked.append((one.name, list(journal.samples)))
        samples = [dataclasses.replace(samples_of({"raw-python": [100]})[0], version=sys.version.split()[0])]
        journal.add(samples)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return samples

    monkeypatch.setattr("harness.running._Run._measure_cells", measure)
    monkeypatch.setattr("harness.running._Run._server", lambda *arguments: None)
    arguments = ["run", "sync", "field", "--peer", "raw-python", "--records", str(tmp_path / "records")]
    assert command.main(arguments, "bench") == 130
    assert command.main([*arguments, "--resume"], "bench") == 0
    assert asked == [("sync", []), ("field", []), ("field", [CELL])]
    assert len(list((tmp_path / "records").rglob("*.csv"))) == 2
    assert list((tmp_path / "unfinished").iterdir()) == []
    assert command.main(arguments, "bench") == 0
    assert asked[3:] == [("sync", []), ("field", [])]


def test_journal_of_another_version_is_not_continued(stage: Stage) -> None:
    stage.add("a", "")
    peers = stage.peers(["a"])
    Journal(stage.folder / "j.csv", {}, peers).add([dataclasses.replace(samples_of({"a": [1]})[0], version="0.9")])
    journal = Journal(stage.folder / "j.csv", {}, peers)
    assert (journal.discarded, journal.samples) == ("version of a", {})


def test_runner_leaves_out_what_was_measured(stage: Stage) -> None:
    stage.add("a", f"print('{GOOD}')")
    scenario = scenarios.load("sync").narrowed(workloads=["round-trip"], sizes=[256, 8192], tls=False)
    server = stage.server()
    server.start()
    try:
        runner = Runner(scenario, MOMENT, stage.peers(["a"]), server, None)
        assert runner.windows(without=[CELL]) == 2
        assert [cell.size for cell, _ in runner.run(without=[CELL])] == [8192]
    finally:
        server.stop()
