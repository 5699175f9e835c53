"""Listening addresses: one engine for each, unless several share it; and nothing remains of an ended one."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.callers import next_session
from support.brokers import Redis
from wirespeed.engine import Engine
from wirespeed.sync import connect, unix_connect

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")

PATIENCE = 20.0

FORKED = """
import json, os, signal, socket, sys
from wirespeed.engine import Engine

path, drains = sys.argv[1:]
engine = Engine("127.0.0.1", workers=2, path=path)
engine.start()
children = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        signal.pause()
    children.append(pid)
address = engine.addresses[0]
os.link(path, path + ".kept")  # the file itself is removed in the end
engine.drain(5) if drains == "drain" else engine.stop()
results = []
for family, place in (socket.AF_INET, address), (socket.AF_UNIX, path + ".kept"):
    with socket.socket(family) as client:
        client.settimeout(5)
        results.append(client.connect_ex(place))
results.append(os.path.exists(path))
# The port is free for the next one, though the children live.
with Engine("127.0.0.1", address[1]) as other:
    results.append(other.addresses[0][1] == address[1])
for pid in children:
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
print(json.dumps(results))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no fork, or none that is safe")
@pytest.mark.parametrize("how", ["stop", "drain"])
def test_child_processes_inherit_no_port(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(tmp_path / "socket"), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [errno.ECONNREFUSED, errno.ECONNREFUSED, False, True]


def test_address_belongs_to_one_engine() -> None:
    with Engine("127.0.0.1", workers=2) as first:
        host, port = first.addresses[0]
        with pytest.raises(OSError) as info:
            Engine(host, port).start()
        assert info.value.errno == errno.EADDRINUSE
        with pytest.raises(OSError) as info:
            Engine("127.0.0.1", metrics=(host, port)).start()
        assert info.value.errno == errno.EADDRINUSE
    with Engine(host, port):
        pass


def test_several_engines_share_an_address_on_request() -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(Engine("127.0.0.1", workers=1, reuse_port=True))
        host, port = first.addresses[0]
        second = stack.enter_context(Engine(host, port, workers=1, reuse_port=True))
        for _ in range(64):
            stack.enter_context(connect(f"ws://{host}:{port}/", proxy=None))
        counts = [engine.stats()["sessions_opened"] for engine in (first, second)]
        assert sum(counts) == 64
        assert all(counts)


# ---- readiness ----


def ready(engine: Engine) -> tuple[int, bytes]:
    host, port = engine.addresses[0]
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)
    try:
        connection.request("GET", "/ready")
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def eventually(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_ready_with_a_broker_of_this_process() -> None:
    with Engine("127.0.0.1", broker="memory://ready") as engine:
        eventually(lambda: ready(engine) == (200, b"ready\n"))


def test_ready_without_a_broker() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{nobody.getsockname()[1]}"
        with Engine("127.0.0.1", broker=url) as engine:
            assert ready(engine) == (503, b"the broker is not connected\n")
        with Engine("127.0.0.1", broker=url, ready_without_broker=True) as engine:
            assert ready(engine) == (200, b"ready\n")


def test_ready_follows_the_broker(tmp_path: Path) -> None:
    server = Redis(tmp_path)
    try:
        with Engine("127.0.0.1", broker=server.url) as engine:
            eventually(lambda: ready(engine)[0] == 200)
            server.kill()
            eventually(lambda: ready(engine) == (503, b"the broker is not connected\n"))
            server.start()
            eventually(lambda: ready(engine)[0] == 200)
    finally:
        server.close()


def test_the_file_of_a_unix_socket_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "app.sock"
    for _ in range(2):
        with Engine(path=path) as engine, unix_connect(str(path)):
            next_session(engine)
        assert not path.exists()


def test_foreign_socket_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "app.sock"
    with Engine(path=path):
        path.unlink()
        path.write_text("of another")
    assert path.read_text() == "of another"


def test_a_start_that_fails_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "app.sock"
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        Engine(path=path, metrics=taken.getsockname()).start()
    assert not path.exists()


def test_the_file_of_a_unix_socket_outlives_a_handoff(tmp_path: Path) -> None:
    path, handoff = tmp_path / "app.sock", tmp_path / "next"
    old = Engine(path=path, handoff=handoff)
    old.start()
    with Engine(path=path, handoff=handoff) as new:
        for _ in old.batches():
            pass
        old.stop()
        assert stat.S_ISSOCK(path.stat().st_mode)
        with unix_connect(str(path)):
            next_session(new)
    assert not path.exists()
    assert not handoff.exists()
