"""The harness of the benchmarks: handling of failures around a workload.

Misbehaving peers and servers are small scripts that keep the contract of ``bench/METHODOLOGY.md`` as far as the test
wants. The workloads themselves are in ``test_workloads.py``.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import command, cores
from harness import scenario as scenarios
from harness.errors import BenchError, UsageError
from harness.peers import Peers, Sample
from harness.places import BENCH, ROOT
from harness.process import environment
from harness.record import Journal, read
from harness.results import judge, ratio, spread, summarize, unrest
from harness.scenario import Bar, Cell, Choice, Job, PeerName, Scenario, Workload
from harness.screen import Clock
from harness.server import Server
from harness.tables import apart_text, bars_table, cell_table, text_of
from msgspec.structs import replace

CELL = Cell("round-trip", 256, tls=False)
LISTENS = "print('listening ws://127.0.0.1:9', flush=True)"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, cwd=ROOT)


# --- the command line ---


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nope"], "unknown scenario nope: choose from"),
        (["clients", "--peer", "nope"], "unknown peer nope: choose from"),
        (["clients", "--workload", "nope"], "unknown workload nope: choose from"),
        (["clients", "--size", "7"], "unknown size 7: choose from"),
        (["brokers", "--loop", "uvloop"], "unknown loop uvloop: there is none"),
        (["clients", "--loop", "nope"], "unknown loop nope: choose from asyncio, polling, rloop, run, uvloop"),
        (["clients", "--peer", "picows:await"], "unknown peer picows:await: choose from"),
        (["clients", "--peer", "picows", "--loop", "rloop"], "has nothing of that workload, size, transport, peer"),
        (["clients", "--workload", "many", "--tls"], "has nothing of that workload, size, transport"),
        (["clients", "--python", "/nonexistent/python"], "--python /nonexistent/python does not run"),
        (["clients", "--rounds", "0"], "0 is not positive"),
        (["clients", "--core", "999"], "core 999 is not available"),
    ],
)
def test_unknown_things_are_usage_errors(arguments: list[str], complaint: str) -> None:
    result = bench(*arguments, "--no-record")
    assert result.returncode == 2
    assert complaint in result.stderr.splitlines()[-1]


NETWORK = """
import socket
from harness.network import CONTROL, enter
before, entered = CONTROL.read_text().strip(), enter()
server = socket.create_server(("127.0.0.1", 0))
with socket.create_connection(server.getsockname()) as client:
    used = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(bytes(1)).decode()
print(before, entered, used)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
def test_run_uses_the_declared_congestion_control() -> None:
    """Where the setting had to be changed for the run, the system's setting is restored."""
    runs = [subprocess.check_output([sys.executable, "-c", NETWORK], cwd=BENCH, text=True).split() for _ in range(2)]
    before, entered, used = runs[0]
    assert used == entered
    assert entered in ("cubic", before)
    assert runs[1] == runs[0]


QUICK = ["clients", "--quick", "--peer", "raw-python", "--plain", "--workload"]


@pytest.mark.parametrize(
    ("server", "complaint"),
    [
        ("/nonexistent/server", "cannot start /nonexistent/server: No such file"),
        (f"{sys.executable} -c 1/0", "ended with status 1 (ZeroDivisionError: division by zero) before it listened"),
    ],
)
def test_server_that_does_not_start(server: str, complaint: str) -> None:
    result = bench(*QUICK, "send", "--server", server)
    assert result.returncode == 1
    assert complaint in result.stderr.splitlines()[-1]


def test_peer_that_cannot_connect_is_shown_as_failed() -> None:
    server = f'{sys.executable} -c "import time; {LISTENS}; time.sleep(40)"'
    result = bench(*QUICK, "send", "--server", server)
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
    server = f"{sys.executable} {script}"
    command = [sys.executable, "-m", "bench", "run", *QUICK, "round-trip", "--server", server]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT) as harness:
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


class Stage:
    """Peers made of a few lines of Python each, a server that does nothing, a scenario of one workload."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys
        self.server = ""
        monkeypatch.setattr("harness.running.BENCH", folder)
        monkeypatch.setattr("harness.scenario.SCENARIOS", folder / "scenarios")
        monkeypatch.setattr("harness.running.environment", lambda bench: environment(BENCH))
        # A run is a process of its own, which may move to another network; here it is that of all the tests.
        monkeypatch.setattr("harness.network.enter", lambda: "cubic")
        (folder / "scenarios").mkdir()
        self.serve("import time; time.sleep(40)")

    def serve(self, body: str) -> None:
        """Sets the code of the server once it listens."""
        (self.folder / "server.py").write_text(f"{LISTENS}\n{body}\n")
        self.server = shlex.join([sys.executable, str(self.folder / "server.py")])

    def add(self, name: str, body: str, *, probe: str | None = None) -> None:
        """Adds a peer that answers --probe, and otherwise runs `body`."""
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

    def write(self, names: list[str], scenario: str = "s", workload: str = "") -> None:
        """Writes a scenario with a changed workload."""
        fields = {"name": '"round-trip"', "title": '"Round trips"', "sizes": "[256]"}
        for line in filter(None, workload.splitlines()):
            key, _, value = line.partition(" = ")
            fields[key] = value
        lines = [f"title = 'S'\npeers = {json.dumps(names)}\nsubject = {json.dumps(names[0])}\n[[workload]]"]
        lines += [f"{key} = {value}" for key, value in fields.items()]
        (self.folder / "scenarios" / f"{scenario}.toml").write_text("\n".join(lines) + "\n")

    def bench(self, *arguments: str) -> tuple[int, str]:
        """Runs a command line on it with short time limits, and returns status and output."""
        short = ["--seconds", "0.01", "--warmup", "0.01", "--pin", "any", "--records", str(self.folder / "records")]
        status = command.main(["run", *short, "--server", self.server, *arguments])
        captured = self.capsys.readouterr()
        return status, captured.out + captured.err

    def run(self, names: list[str], *arguments: str, workload: str = "") -> list[Sample]:
        """Returns the samples of two rounds of a scenario with these peers."""
        self.write(names, workload=workload)
        rounds = [] if "rounds" in workload else ["--rounds", "2"]
        self.bench("s", *rounds, *arguments)
        (record,) = (self.folder / "records").rglob("*.csv")
        samples = read(record).samples
        record.unlink()
        return samples


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Stage:
    return Stage(tmp_path, monkeypatch, capsys)


def test_peers_take_turns_in_any_order(stage: Stage) -> None:
    for name in "abcd":
        stage.add(name, f"print('{GOOD}')")
    orders = []
    for seed in ("1", "1", "2"):
        samples = stage.run(list("abcd"), "--seed", seed, "--rounds", "5")
        assert [sample.round for sample in samples] == [number for number in range(1, 6) for _ in "abcd"]
        rounds = ["".join(sample.peer for sample in samples[start : start + 4]) for start in range(0, 20, 4)]
        assert all(sorted(order) == list("abcd") for order in rounds)
        orders.append(rounds)
    assert samples[0].rate == 200
    assert orders[0] == orders[1] != orders[2]
    assert len(set(orders[0])) > 1


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
    # It is not retried; the other peers continue.
    assert sorted((sample.round, sample.peer) for sample in samples) == [(1, "bad"), (1, "good"), (2, "good")]
    bad, good = summarize(samples)
    assert (bad.rate, bad.failure, good.failure) == (None, failure, None)
    status, text = stage.bench("s", "--no-record")
    assert status == 1
    assert f"bad: FAILED: {failure}" in text


def test_peer_that_hangs_is_stopped(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.peers.GRACE_SECONDS", 1.0)
    stage.add("hanging", "import time; time.sleep(40)")
    assert [sample.failure for sample in stage.run(["hanging"])] == ["no result within 1 s"]


FORKS = """
import json, os, sys
sys.path.insert(0, {bench!r})
from models import program
{first}
def run(argv):
    if "--probe" in argv:
        program.end({{"version": "1", "workloads": ["round-trip"], "tls": False, "forks": program.can_fork()}})
    {body}
def load(argv):
    global loaded
    loaded = os.getpid()
    {load}
program.once_or_forking(run, load)
"""


def runs(pid: int) -> bool:
    """Returns whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def add_forking(stage: Stage, name: str, body: str, load: str = "pass", first: str = "") -> None:
    stage.add(name, "")
    text = FORKS.format(bench=str(BENCH), body=body, load=load, first=first)
    (stage.folder / "peers" / name / "peer.py").write_text(text)


@pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")
def test_peer_that_forks(stage: Stage) -> None:
    # The count shows which process has loaded; the forked process is another one.
    lines = "print('noise'); sys.stderr.write('noise'); "
    add_forking(
        stage, "forking", lines + f"program.end(json.loads({GOOD!r}) | {{'count': loaded, 'user': os.getpid()}})"
    )
    samples = stage.run(["forking"], "--rounds", "9")
    assert [sample.failure for sample in samples] == [None] * 9
    assert [number for _, number in sorted(Counter(sample.count for sample in samples).items())] == [4, 4, 1]
    assert len({sample.user for sample in samples} | {float(sample.count) for sample in samples}) == 9 + 3
    assert not any(runs(sample.count) for sample in samples)
    # A forked process would not have the thread.
    threads = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    add_forking(
        stage, "threads", f"program.end(json.loads({GOOD!r}) | {{'count': 1 + ('loaded' in globals())}})", first=threads
    )
    assert [(one.count, one.failure) for one in stage.run(["threads"])] == [(1, None)] * 2
    # A forked process shares memory: a separate process is measured, which has loaded nothing before.
    (sample,) = stage.run(["forking"], workload="measures = 'memory'\nrounds = 1")
    assert "loaded" in str(sample.failure)


@pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")
@pytest.mark.parametrize(
    ("body", "load", "failure"),
    [
        ("sys.exit('no luck')", "pass", "ended with status 1: no luck"),
        ("os.abort()", "pass", "ended with status -6"),
        ("os.kill(os.getppid(), 9); import time; time.sleep(40)", "pass", "no result within 1 s"),
        ("program.fail(ValueError('lost'))", "pass", "ValueError: lost"),
        ("import time; time.sleep(40)", "pass", "no result within 1 s"),
        ("pass", "raise ValueError('x')", "ended with status 1: ValueError: x"),
        ("pass", "pass", "printed no result"),
    ],
)
def test_forking_peer_that_fails(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, body: str, load: str, failure: str
) -> None:
    monkeypatch.setattr("harness.peers.GRACE_SECONDS", 1.0)
    add_forking(stage, "bad", f"open({str(stage.folder / 'pid')!r}, 'w').write(str(os.getpid())); {body}", load)
    (sample,) = stage.run(["bad"])
    assert str(sample.failure).startswith(failure)
    pid = stage.folder / "pid"
    assert pid.exists() == (load == "pass")
    end = time.monotonic() + 5
    while pid.exists() and runs(int(pid.read_text())):
        assert time.monotonic() < end, "what was forked still runs"
        time.sleep(0.01)


def test_peer_that_is_missing_or_broken(stage: Stage) -> None:
    stage.add("absent", "", probe='{"skipped": "x is not installed"}')
    stage.add("broken", "", probe='{"failed": "ImportError: bad build"}')
    stage.add("good", f"print('{GOOD}')")
    peers = stage.peers(["absent", "broken", "good"])
    assert list(peers.ready) == ["good"]
    assert (peers.skipped, peers.failed) == ({"absent": "x is not installed"}, {"broken": "ImportError: bad build"})
    with pytest.raises(UsageError, match="peer nowhere has no"):
        stage.peers(["nowhere"])
    (stage.folder / "peers" / "good" / "peer.toml").write_text('summary = ""\ncommand = []\nbuilt = []\n')
    with pytest.raises(UsageError, match="unknown field `built`"):
        stage.peers(["good"])


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
    assert list(stage.peers(["one"]).ready) == ["one"]
    assert builds.read_text() == "x"
    (folder / "peer.py").write_text((folder / "peer.py").read_text() + "\n# changed\n")
    assert list(stage.peers(["one"]).ready) == ["one"]
    assert builds.read_text() == "xx"
    (folder / "build.py").write_text("import sys\nsys.exit('no luck')\n")
    assert stage.peers(["one"]).failed == {"one": f"{sys.executable} ended with status 1: no luck"}


def test_peer_that_cannot_be_built_says_what_to_install(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    (stage.folder / "peers" / "one").mkdir(parents=True)
    text = 'summary = ""\ncommand = []\nserver = ["{build}/x"]\nbuild = ["{cxx}"]\n'
    text += 'needs = { "no/such.h" = "apt-get install libnone" }\n'
    (stage.folder / "peers" / "one" / "peer.toml").write_text(text)
    if shutil.which("c++"):
        assert stage.peers(["one"]).skipped == {"one": "the header no/such.h is not there: apt-get install libnone"}
    monkeypatch.setenv("PATH", str(stage.folder))
    peers = stage.peers(["one"])
    assert peers.skipped == {"one": "no C++ compiler (c++, g++, clang++) found: apt-get install g++"}
    with pytest.raises(BenchError, match="the server one cannot run: no C"):
        peers.server("one", "", "")


def test_server_of_a_peer(stage: Stage) -> None:
    stage.add("none", "")
    stage.add("one", "")
    toml = stage.folder / "peers" / "one" / "peer.toml"
    toml.write_text(toml.read_text() + 'server = ["{python}", "{peer}/server.py", "{certificate}", "{authority}"]\n')
    peers = stage.peers([])
    assert peers.server("one", "c.pem", "a.pem") == [sys.executable, str(toml.with_name("server.py")), "c.pem", "a.pem"]
    assert (peers.has_folder("one"), peers.has_folder("python server.py")) == (True, False)
    with pytest.raises(UsageError, match="peer none is no server"):
        peers.server("none", "", "")


def test_parts_of_a_name_reach_the_peer(stage: Stage) -> None:
    # It answers only if its workloads and a figure are requested in this way.
    wanted = ["--style", "await", "--loop", "uvloop"]
    stage.add("one", f"print('{GOOD}' if sys.argv[1:5] == {wanted} else '{{}}')")
    assert [sample.failure for sample in stage.run(["one:await@uvloop"])] == [None, None]
    assert stage.run(["one@uvloop"])[0].failure == "its messages were not checked"


def test_requirements_of_a_workload_reach_the_peer(stage: Stage) -> None:
    probe = '{"version": "1", "workloads": ["transfer-in"], "tls": false}'
    stage.add("one", "print('{\"failed\": \"%s\"}' % ' '.join(sys.argv[1:]))", probe=probe)
    options = "{ window = 100, bytes = 7, deflate = true, loud = false }"
    text = f'model = "transfer-in"\noptions = {options}\nstretch = 2.5\nrounds = 1'
    (sample,) = stage.run(["one"], workload=text)
    failure = str(sample.failure)
    assert "--workload transfer-in" in failure
    assert "/file?size=256&bytes=7 " in failure
    assert "--seconds 0.025" in failure
    assert "--window 100 --bytes 7 --deflate" in failure
    assert "loud" not in failure
    (sample,) = stage.run(["one"], "--set", "window=3", "--set", "loud=true", workload=text)
    assert "--window 3 --bytes 7 --deflate --loud" in str(sample.failure)


def test_workload_with_fewer_rounds_and_peers(stage: Stage) -> None:
    for name in ("a", "b"):
        stage.add(name, f"print('{GOOD}')")
    stage.write(["a@x", "a@y", "b@x", "b@y"], workload='rounds = 1\npeers = ["a", "b@y"]')
    status, _ = stage.bench("s")
    (record,) = (stage.folder / "records").rglob("*.csv")
    assert status == 0
    assert sorted(one.peer for one in read(record).samples) == ["a@x", "a@y", "b@y"]


def test_server_that_dies_is_started_again(stage: Stage) -> None:
    # Its first life ends when the first peer runs.
    trigger, died = stage.folder / "trigger", stage.folder / "died"
    stage.serve(
        "import os, sys, time\n"
        f"while os.path.exists({str(died)!r}) or not os.path.exists({str(trigger)!r}): time.sleep(0.01)\n"
        f"open({str(died)!r}, 'w').close(); sys.exit('out of luck')"
    )
    stage.add("one", f"import time; open({str(trigger)!r}, 'w').close(); time.sleep(1); print('{GOOD}')")
    stage.add("two", f"import time; open({str(trigger)!r}, 'w').close(); time.sleep(1); print('{GOOD}')")
    samples = stage.run(["one", "two"])
    assert samples[0].failure == "the server ended with status 1 (out of luck)"
    assert [sample.failure for sample in samples[1:]] == [None, None]


def test_silent_server(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.server.START_SECONDS", 0.5)
    command = f'{sys.executable} -c "import time; time.sleep(40)"'
    server = Server(command, tls=True, cores=None, cwd=stage.folder, env=dict(os.environ))
    with pytest.raises(BenchError, match="did not say within"):
        server.start()


RESTLESS = """
from pathlib import Path
count = len(list(Path(__file__).parent.glob("turn*")))
(Path(__file__).parent / f"turn{count}").touch()
print('%s'.replace("100", str(100 + (count %% 4 < 2) * (count < 4) * 100)))
"""


def test_disturbed_cell_is_repeated(stage: Stage) -> None:
    stage.add("a", RESTLESS % GOOD)
    samples = stage.run(["a"], "--rounds", "4")
    assert [sample.count for sample in samples] == [100] * 4
    assert spread(samples_of({"a": [200, 200, 100, 100]})) == pytest.approx(2 / 3)
    assert len(list((stage.folder / "peers" / "a").glob("turn*"))) == 8


def test_a_run_without_failures_is_better_than_a_quiet_one() -> None:
    noisy = samples_of({"a": [200, 200, 100, 100]})
    assert unrest(noisy) < unrest([*samples_of({"a": [100] * 4}), *samples_of({"b": [0]}, failure="lost")])
    # A cell with unstable own values, but stable rates.
    tails = [replace(one, measures="tail", figures={"p99": 1.0 * 9**one.round}) for one in samples_of({"a": [100] * 4})]
    assert (unrest(tails), apart_text(tails)[:8], apart_text(tails)[-3:]) == ((0, 0.0), "4 rounds", "(!)")


def test_records_belong_to_a_commit(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = stage.folder / "clone"
    git = ["git", "-c", "user.name=x", "-c", "user.email=x", "-C", str(clone)]
    monkeypatch.setattr("harness.running.GIT", git)
    monkeypatch.setattr("harness.running.RECORDS", stage.folder / "records")
    monkeypatch.setattr("harness.running.UNFINISHED", stage.folder / "unfinished")

    def commit(path: str) -> None:
        (clone / path).parent.mkdir(parents=True, exist_ok=True)
        (clone / path).write_text(path)
        for words in ("add .", "commit -qm x", f"tag v-{path.replace('/', '-')}"):
            subprocess.run([*git, *words.split()], check=True)

    subprocess.run(["git", "init", "-q", clone], check=True)
    commit("python/code.py")
    stage.add("a", f"print('{GOOD}')")
    stage.write(["a"], workload="rounds = 1")
    assert stage.bench("s")[0] == 0
    # No figure depends on these, so the cell is not repeated.
    for path in ("bench/records/machine/one.csv", "bench/METHODOLOGY.md", "docs/page.md", "tests/test.py"):
        commit(path)
    (clone / "bench" / "records" / "two.csv").touch()
    assert "s: measured before" in stage.bench("s", "--resume")[1]
    (clone / "crates").mkdir()
    (clone / "crates" / "new.rs").touch()
    assert "commit, or --no-record" in stage.bench("s")[1]
    assert stage.bench("s", "--no-record")[0] == 0
    commit("crates/new.rs")
    assert "measured before" not in stage.bench("s", "--resume")[1]
    first, second = (read(path).facts for path in sorted((stage.folder / "records").rglob("*.csv")))
    assert len({first["tree"], second["tree"], first["revision"], second["revision"]}) == 4
    assert len(first["revision"]) == 12
    # The working tree changes while it is measured.
    stage.add("b", f"open({str(clone / 'python' / 'code.py')!r}, 'a').write('more'); print('{GOOD}')")
    stage.write(["b"])
    stage.write(["a"], "t")
    status, text = stage.bench("s", "t")
    assert (status, "round-trip, 256 B, plain is not kept" in text, "Record" in text) == (1, True, False)


def test_missing_peers_prevent_a_run(stage: Stage) -> None:
    stage.add("broken", "", probe='{"failed": "bad build"}')
    stage.add("slow", f"print('{GOOD}')")
    script = stage.folder / "peers" / "slow" / "peer.py"
    once = f"import pathlib, sys\nonce = pathlib.Path({str(stage.folder / 'once')!r})\n"
    script.write_text(f"{once}if not once.exists(): sys.exit(once.touch())\n{script.read_text()}")
    stage.write(["broken", "slow"], workload="rounds = 1")
    status, text = stage.bench("s")
    assert (status, "--allow-missing:\n  broken: bad build" in text, "slow" in text) == (1, True, False)
    assert stage.bench("s", "--allow-missing")[0] == 1
    assert "measured before" in stage.bench("s", "--allow-missing", "--resume")[1]
    (record,) = (stage.folder / "records").rglob("*.csv")
    assert (read(record).without, len(read(record).samples)) == ({"broken": "bad build"}, 1)
    assert read(record).facts["measure"] == "1 rounds of 0.01 s: round-trip; each after 0.01 s"
    # Such a record is not of the whole scenario.
    assert read(record).facts["choice"].startswith("--seconds 0.01 --warmup 0.01 --pin any --server")
    # Repaired, and of another version: it is missing in the record, which is therefore outdated.
    repaired = stage.folder / "peers" / "broken" / "peer.py"
    repaired.write_text(script.read_text())
    assert "measured before" not in stage.bench("s", "--resume")[1]
    assert "measured before" in stage.bench("s", "--resume")[1]
    repaired.write_text(script.read_text().replace('"version": "1"', '"version": "2"'))
    assert "measured before" not in stage.bench("s", "--resume")[1]


def test_remaining_time() -> None:
    clock = Clock(7200)
    assert str(clock) == "about 2 h 0 min"
    clock.skip(3600)
    clock.over(600, 1200)
    assert str(clock) == "about 1 h 40 min"
    assert clock.has_time_for(3600)


def test_cells_are_repeated_only_within_the_limit() -> None:
    clock = Clock(100, 120)
    assert clock.has_time_for(15)
    assert not clock.has_time_for(25)
    # A cell that took twice as long as expected leaves no time.
    clock.over(10, 20)
    assert not clock.has_time_for(1)


PLAN = """
repeats = []
row = []
picture = []
seed = []

[[question]]
title = "How fast?"
text = "Round trips per second."
scenario = "one"
workloads = ["round-trip"]
sizes = [1]
peers = ["a", "b"]
"""


def test_headline_run_measures_what_is_shown(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.plan.BENCH", stage.folder)
    plan = stage.folder / "report.toml"
    plan.write_text(PLAN)
    for name in "abc":
        stage.add(name, f"print('{GOOD}')")
    for scenario in ("one", "two"):
        stage.write(list("abc"), scenario, "sizes = [1, 2]")

    def run() -> str:
        status, text = stage.bench("--headline", "--resume")
        assert status == 0, text
        return text

    assert "one: measured before" not in run()
    (path,) = (stage.folder / "records").rglob("*.csv")
    kept = read(path)
    assert kept.facts["set"].startswith("headline ")
    assert Counter((one.cell.size, one.peer) for one in kept.samples) == {(1, "a"): 5, (1, "b"): 5}
    assert "one: measured before" in run()
    # The record does not have the cells and peers that are shown now.
    plan.write_text(PLAN.replace('"b"', '"c"'))
    assert "one: measured before" not in run()
    # A run of all cells does not reuse a record of the headline set.
    assert "measured before" not in stage.bench("--resume")[1]


# --- scenarios, figures, records ---


def samples_of(rates: dict[str, list[float]], **changes: Any) -> list[Sample]:
    cell: dict[str, Any] = {**CELL._asdict(), "seconds": 1.0, "user": 0.1, "system": 0.1, "server": 0.1, **changes}
    return [
        Sample(peer=peer, round=number, count=int(rate), **cell)
        for peer, own in rates.items()
        for number, rate in enumerate(own, 1)
    ]


def small(**changes: Any) -> tuple[Scenario, Job]:
    workload = Workload(name="round-trip", title="Round trips", sizes=(256,), **{"measures": "rate", **changes})
    scenario = Scenario(title="S", peers=("a", "b"), subject="a", workload=(workload,), limits=())
    return scenario, Job(CELL, workload, ("a", "b"))


def cell_text(samples: list[Sample], subject: str = "a", **changes: Any) -> str:
    scenario, job = small(**changes)
    return text_of(cell_table(replace(scenario, subject=subject), job, samples))


def test_memory_instead_of_a_rate() -> None:
    samples = samples_of({"big": [100], "little": [100]}, measures="memory")
    samples = [replace(one, memory={"big": 20, "little": 4}[one.peer] * 1024 * 100) for one in samples]
    lines = cell_text(samples, measures="memory").splitlines()
    assert [line.split()[:3] for line in lines[2:4]] == [["little", "4.0", "KiB"], ["big", "20.0", "KiB"]]
    assert ratio(samples, "little", "big") == (0.2, 0.2, 0.2)
    (result,) = judge(small(measures="memory", bars=(Bar(peer="little", at_most=4096),))[1].workload, CELL, samples)
    assert result.verdict == "PASS"
    assert "little: at most 4.0 KiB" in text_of(bars_table([result]))


def test_latency_instead_of_a_rate(stage: Stage) -> None:
    latency = GOOD.replace("}", ', "p50": %s}')
    stage.add("slow", f"print('{latency % 20}')")
    stage.add("silent", f"print('{GOOD}')")
    stage.add("fast", f"print('{latency % 5}'.replace('}}', ', \"p99\": 70, \"limited\": 0.95}}'))")
    samples = stage.run(["fast", "silent", "slow"], workload='measures = "latency"\nrounds = 1')
    samples.sort(key=lambda one: one.peer)
    assert [sample.failure for sample in samples] == [None, "its result has no p50", None]
    assert samples[0].figures == {"p50": 5.0, "p99": 70.0, "limited": 0.95}
    text = cell_text(samples, "fast", measures="latency")
    lines = text.splitlines()
    assert lines[1].split()[:4] == ["p50", "us", "min", "-"]
    assert [line.split()[:2] for line in lines[2:4]] == [["fast", "5.00"], ["slow", "20.0"]]
    assert "95.0%" in lines[2]
    assert lines[3].split()[-2:] == ["0.250", "x"]
    assert "the load generator was the limit of fast: the server could do more" in text
    # A failed one has no figure to be compared with.
    assert ratio(samples, "slow", "fast", "silent") == (4.0, 4.0, 4.0)


def test_slower_server_is_compared_and_shared_cores_are_reported() -> None:
    scenario = scenarios.load("brokers")
    job = next(job for job in scenario.jobs() if job.cell == ("flood-100", 128, False))
    figures = {"wirespeed-engine:apart": (1000.0, 1.5), "wirespeed-engine:nats": (800.0, 2.0)}
    samples = [
        replace(one, figures=dict(zip(("lesser", "shared"), figures[one.peer], strict=True)))
        for one in samples_of({peer: [5000] for peer in figures}, measures="lesser")
    ]
    text = text_of(cell_table(scenario, job, samples))
    assert "1,000 - 1,000" in text
    assert "up to 2 processes shared a core" in text
    assert ratio(samples, "wirespeed-engine:nats", "wirespeed-engine:apart") == (0.8, 0.8, 0.8)


def test_one_core_each_if_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "allowed_cores", lambda: [0, 1, 2, 3])
    assert str(cores.cores_of("two")) == "client on core 3, server on core 2"
    assert str(cores.cores_of("one", 1)) == "client on core 1, server on core 1"
    assert str(cores.cores_of("each")) == "client on core 3, server on core 0, 1, 2"
    monkeypatch.setattr(cores, "allowed_cores", lambda: [0])
    with pytest.raises(UsageError, match="needs two cores"):
        cores.cores_of("each")


def test_ratios_are_taken_within_rounds() -> None:
    samples = samples_of({"a": [100, 220, 90], "b": [100, 200, 100]})
    assert ratio(samples, "a", "b") == (1.0, 0.9, 1.1)
    assert ratio(samples, "a", "c") is None


def test_ratio_with_the_best_of_several() -> None:
    samples = samples_of({"a": [100, 200, 300], "b": [50, 400, 100], "c": [100, 100, 200]})
    assert ratio(samples, "a", "b", "c") == (1.0, 0.5, 1.5)
    # A failed one has no figure; one that did not run might have been the best.
    failed = samples_of({"c": [0]}, failure="lost")
    assert ratio([*samples[:6], *failed], "a", "b", "c") == (2.0, 0.5, 3.0)
    assert ratio(samples, "a", "b", "d") is None


@pytest.mark.parametrize(
    ("bar", "verdict"),
    [
        (Bar(peer="a", at_least=100), "PASS"),
        (Bar(peer="a", at_least=101), "MISS"),
        (Bar(peer="a", versus=("b",), at_least=0.5), "PASS"),
        (Bar(peer="a", versus=("b",), at_least=0.6), "MISS"),
        (Bar(peer="a", versus=("c",), at_least=0.6), "NOT MEASURED"),
        (Bar(peer="b", versus=("a", "b"), at_least=1), "PASS"),
        (Bar(peer="a", at_most=100), "PASS"),
        (Bar(peer="b", at_most=100), "MISS"),
        (Bar(peer="a", figure="kept", at_least=0.97), "MISS"),
        (Bar(peer="b", figure="kept", at_least=0.5), "NOT MEASURED"),
        (Bar(peer="c", at_least=1), "NOT MEASURED"),
    ],
)
def test_bars(bar: Bar, verdict: str) -> None:
    one, other = samples_of({"a": [100], "b": [200]})
    samples = [replace(one, figures={"kept": 0.9612}), other]
    results = judge(small(bars=(bar,))[1].workload, CELL, samples)
    assert [result.verdict for result in results] == [verdict]
    text = text_of(bars_table(results))
    assert verdict in text
    assert bar.figure is None or verdict == "NOT MEASURED" or "rate kept at least 97.0%" in text
    assert not judge(small(bars=(replace(bar, sizes=(1,)),))[1].workload, CELL, samples)


@pytest.mark.parametrize(
    ("bar", "complaint"),
    [
        ('figure = "nothing", at_least = 1', "unknown figure nothing"),
        ('figure = "kept", versus = ["b"], at_least = 1', "has a figure"),
        ("at_least = 1, at_most = 1", "needs one of at_least and at_most"),
        ('versus = ["c"], at_least = 1', "unknown peer c: choose from a, b"),
        ("at_lest = 1", "unknown field `at_lest`"),
    ],
)
def test_invalid_bars(stage: Stage, bar: str, complaint: str) -> None:
    stage.write(["a", "b"], workload=f'bars = [{{ peer = "a", {bar} }}]')
    with pytest.raises(UsageError, match=complaint):
        scenarios.load("s")


def test_names_of_peers() -> None:
    assert PeerName.of("a.b:await@uvloop") == ("a.b", "await", "uvloop")
    assert PeerName.of("a@uvloop") == ("a", None, "uvloop")
    assert PeerName.of("a-sync") == ("a-sync", None, None)
    peer = PeerName.of("a:await@uvloop")
    assert all(peer.is_asked_for(asked) for asked in ("a", "a:await", "a@uvloop", "a:await@uvloop"))
    assert not any(peer.is_asked_for(asked) for asked in ("b", "a:many", "a@asyncio", "a:await@asyncio", ""))


SCENARIO = """
title = "S"
peers = ["@all", "c"]
subject = "a:x@{loop}"

[sets]
some = ["a:{x,y}@{l,m}"]
all = ["@some", "b@l", "a:x@l"]

[counterparts]
"a:y@m" = ["c"]

[[workload]]
name = "w"
title = "{n} of them"
model = "fan-out"
sizes = [1, 2]
each = { n = [10, 2000] }
options = { m = 1 }
quick = { m = 2 }
peers = ["a:x"]
more = [{ sizes = [2, 3], tls = [true, false], peers = ["b", "c"] }]
bars = [{ peer = "a:{x,y}@{loop}", loops = ["l", "m"], versus = ["a:y@{loop}"], at_least = 1, sizes = [1] }]

[[workload]]
name = "long"
title = ""
model = "burst"
"""


def test_scenario_with_everything() -> None:
    scenario = scenarios.parse("s", SCENARIO)
    assert scenario.peers == ("a:x@l", "a:x@m", "a:y@l", "a:y@m", "b@l", "c")
    assert [(one.name, one.runs, one.title, one.options, one.units, one.measures) for one in scenario.workload] == [
        ("w-10", "fan-out", "10 of them", {"m": 1, "n": 10}, "deliveries", "rate"),
        ("w-2000", "fan-out", "2,000 of them", {"m": 1, "n": 2000}, "deliveries", "rate"),
        ("long", "burst", "", {}, "echoes", "tail"),
    ]
    assert {(cell.size, cell.tls): peers for cell, peers in scenario.workload[0].cells().items()} == {
        (1, False): ("a:x",),
        (2, False): ("a:x", "b", "c"),
        (2, True): ("b", "c"),
        (3, True): ("b", "c"),
        (3, False): ("b", "c"),
    }
    assert [(bar.peer, bar.versus) for bar in scenario.workload[0].bars] == [
        (f"a:{style}@{loop}", (f"a:y@{loop}",)) for style in "xy" for loop in "lm"
    ]
    subjects = {peer: scenario.subject_for(peer, scenario.workload[0]) for peer in ("a:x@l", "b@l", "a:y@m", "c")}
    assert subjects == {"a:x@l": "a:x@l", "b@l": "a:x@l", "a:y@m": "a:y@m", "c": "a:y@m"}


def test_selected_parts_of_a_scenario() -> None:
    scenario = scenarios.parse("s", SCENARIO)

    def jobs(*choice: Any, quick: bool = False) -> list[tuple[str, int, tuple[str, ...]]]:
        return [(job.workload.name, job.cell.size, job.peers) for job in scenario.jobs(Choice(*choice), quick=quick)]

    assert jobs((), ("w-10",), (2,), (), False) == [("w-10", 2, ("a:x@l", "a:x@m", "b@l", "c"))]
    assert jobs(("c",), ("w",), (3,), (), True) == [("w-10", 3, ("c",)), ("w-2000", 3, ("c",))]
    assert jobs((), (), (), ("m",)) == [
        *((name, size, ("a:x@m",)) for name in ("w-10", "w-2000") for size in (1, 2)),
        ("long", 0, ("a:x@m", "a:y@m")),
    ]
    # Each peer once for each of its actions, the first of several values.
    everybody = scenario.peers
    assert jobs(quick=True) == [
        ("w-10", 1, ("a:x@l", "a:x@m")),
        ("w-10", 2, ("b@l", "c")),
        ("w-10", 2, ("b@l", "c")),
        ("long", 0, everybody),
    ]
    (job, *_) = scenario.jobs(quick=True)
    assert job.workload.options == {"m": 2, "n": 10}
    (job, *_) = scenario.jobs(Choice(options=(("m", 7),)), quick=True)
    assert job.workload.options == {"m": 7, "n": 10}
    with pytest.raises(UsageError, match="unknown option x: choose from m, n"):
        scenario.jobs(Choice(options=(("x", 1),)))
    with pytest.raises(UsageError, match="unknown set of peers nobody: choose from some, all"):
        scenarios.parse("s", SCENARIO.replace('"@all"', '"@nobody"'))


def test_tables_compare_on_the_same_loop() -> None:
    samples = samples_of({"a@x": [100], "b@x": [50], "a@y": [400], "b@y": [100], "b@z": [100]})
    lines = {line.split()[0]: line.split() for line in cell_text(samples, "a@{loop}").splitlines()[2:]}
    assert lines["b@x"][-2:] == ["2.000", "x"]
    assert lines["b@y"][-2:] == ["4.000", "x"]
    assert lines["a@x"][-1] != "x"
    assert lines["b@z"][-1] != "x"


def test_scenario_files_are_sound() -> None:
    for name in scenarios.names():
        scenario = scenarios.load(name)
        # One without a loop is compared with none where subjects differ by loop.
        subjects = {scenario.subject_for(peer, one) for peer in scenario.peers for one in scenario.workload}
        assert set(scenario.peers) >= {*(subjects - {None}), *scenario.limits}, name
        assert all((BENCH / "peers" / PeerName.of(peer).folder / "peer.toml").exists() for peer in scenario.peers)
        jobs = scenario.jobs()
        assert {peer for job in jobs for peer in job.peers} == set(scenario.peers), name
        cells = Counter(job.cell for job in jobs)
        assert set(cells.values()) == {1}, [cell for cell, count in cells.items() if count > 1]
        assert scenario.rounds >= 7
        for workload in scenario.workload:
            for bar in workload.bars:
                where = [job for job in jobs if job.workload.name == workload.name and bar.selects(job.cell)]
                assert where, (name, workload.name, bar)
                assert all({bar.peer, *bar.versus} <= set(job.peers) for job in where), (name, workload.name, bar)
        quick = [(peer, job.workload.runs, job.cell.tls) for job in scenario.jobs(quick=True) for peer in job.peers]
        assert {(peer, job.workload.runs, job.cell.tls) for job in jobs for peer in job.peers} == set(quick), name


def test_measurements_are_unique() -> None:
    """Each combination of peer and action is in one cell only: wins and losses are not counted twice."""
    seen: dict[tuple[object, ...], str] = {}
    for name in scenarios.names():
        scenario = scenarios.load(name)
        for job in scenario.jobs():
            one = job.workload
            where_to, options = one.cores or scenario.cores, str(sorted(one.options.items()))
            how = (scenario.server, one.runs, one.measures, where_to, job.cell[1:], one.seconds, options)
            for peer in job.peers:
                where = f"{name}/{job.cell}"
                assert seen.setdefault((peer, *how), where) == where


def test_journal_keeps_cells_and_continues(stage: Stage) -> None:
    stage.add("a", "")
    stage.add("absent", "", probe='{"skipped": "not installed"}')
    peers, facts = stage.peers(["a", "absent"]), {"cpu": "x", "time": "now"}

    def journal(**changes: str) -> Journal:
        return Journal(stage.folder / "unfinished" / "s.csv", {**facts, **changes}, peers, resume=True)

    assert journal().samples == {}
    samples = [
        *samples_of({"a": [100, 200]}, version="1"),
        *samples_of({"a": [0]}, failure="lost, twice", version="1"),
        replace(samples_of({"a": [7]}, measures="latency", version="1")[0], figures={"p50": 1.25, "p99": 1 / 3}),
    ]
    journal().add(samples)
    lines = (stage.folder / "unfinished" / "s.csv").read_text().splitlines()
    assert lines[:3] == ["# cpu: x", "# time: now", "# without absent: not installed"]
    assert lines[4] == "round-trip,256,0,1,a,1,rate,100,1.000000,0.100000,0.100000,0.100000,,,"
    # Another time is no other environment; another processor is.
    again = journal(time="later").samples[CELL]
    assert again[:3] == samples[:3]
    assert (again[3].value, again[3].figures["p99"]) == (1.25, 0.333333)
    # Two records of one day have different names.
    first = journal().finish(stage.folder / "records")
    journal().add(samples)
    other = journal(cpu="y")
    assert (other.discarded, other.samples) == ("cpu", {})
    other.add(samples)
    second = other.finish(stage.folder / "records")
    assert first != second
    assert read(first).samples == read(second).samples
    assert read(first).without == {"absent": "not installed"}
    journal().add([replace(samples[0], version="0.9")])
    assert journal().discarded == "version of a"


def test_run_continues_after_an_interruption(stage: Stage) -> None:
    """A finished scenario is not measured again, an interrupted one only after its last whole cell."""
    log = stage.folder / "log"
    stop = f"import signal, time; open({str(log)!r}, 'a').write(sys.argv[sys.argv.index('--size') + 1] + ' ')"
    interrupt = f"if open({str(log)!r}).read() == '1 2 1 2 ': os.kill(os.getppid(), signal.SIGINT); time.sleep(20)"
    stage.add("a", f"{stop}\n{interrupt}\nprint('{GOOD}')")
    for scenario in ("one", "two"):
        stage.write(["a"], scenario, "sizes = [1, 2]\nrounds = 1")
    assert stage.bench()[0] == 130
    assert stage.bench("--resume")[0] == 0
    assert log.read_text() == "1 2 1 2 2 "
    assert len(list((stage.folder / "records").rglob("*.csv"))) == 2
    # Measurements of this commit under equal conditions are not repeated.
    assert stage.bench("--resume")[0] == 0
    assert log.read_text() == "1 2 1 2 2 "
    assert stage.bench("one")[0] == 0
    assert log.read_text() == "1 2 1 2 2 1 2 "
