"""``wirespeed engine`` as a process of its own, and its output."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import wirespeed
from support.certificates import Certificates
from support.children import Child
from support.serve_command import START
from wirespeed.cli import main
from wirespeed.sync import connect

pytestmark = pytest.mark.wirespeed_only("the command line is ours")

APP = """
from wirespeed.engine import Engine

def set_up(engine):
    engine.echo("/echo")
    @engine.on_message
    def shout(session, message):
        session.send(message.upper())

engine = Engine("127.0.0.1", drain_timeout=3)

@engine.on_message
async def answer(session, message):
    session.send(message[::-1])

number = 7
"""


class Serving:
    def __init__(self, *arguments: str, folder: Path) -> None:
        self.child = Child([sys.executable, "-W", "error", "-c", START, str(folder), "engine", *arguments])
        try:
            self.uri = self.child.read_until("listening on ")
        except BaseException:
            self.child.stop()
            raise

    def end(self, number: int = signal.SIGTERM) -> int:
        self.child.process.send_signal(number)
        return self.child.process.wait(20)


Serve = Callable[..., Serving]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    (tmp_path / "app.py").write_text(APP)
    started: list[Serving] = []

    def start(*arguments: str) -> Serving:
        started.append(Serving(*arguments, folder=tmp_path))
        return started[-1]

    yield start
    for one in started:
        one.child.stop()


def said(uri: str, message: str, **options: Any) -> str | bytes:
    with connect(uri, proxy=None, **options) as ws:
        ws.send(message)
        return ws.recv(20)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_echo(serve: Serve, number: int) -> None:
    served = serve("--port", "0", "--workers", "2", "--interval", "0.1")
    assert re.fullmatch(r"ws://127\.0\.0\.1:\d+", served.uri)
    for path in ("/", "/any/path"):
        assert said(served.uri + path, "hello") == "hello"
    with connect(served.uri, proxy=None) as ws:
        while not re.fullmatch(
            r"[\d:]{8}  sessions 1  in \d+/s .* B/s  out \d+/s .* B/s  dropped 0  refused 0  lag ([\d.]+ ms|-)",
            served.child.read_line(20),
        ):
            pass
        served.child.process.send_signal(number)
        with pytest.raises(wirespeed.ConnectionClosed) as info:
            ws.recv(20)
        assert info.value.rcvd == wirespeed.Close(1012, "service restart")
    assert served.child.process.wait(20) == 0


def test_a_function_that_sets_up(serve: Serve) -> None:
    served = serve("--app", "app:set_up", "--port", "0", "--subprotocol", "chat")
    assert said(f"{served.uri}/echo", "hello") == "hello"
    with connect(f"{served.uri}/room", proxy=None, subprotocols=[wirespeed.Subprotocol("chat")]) as ws:
        assert ws.subprotocol == "chat"
        ws.send("hello")
        assert ws.recv(20) == "HELLO"
    assert served.end() == 0


def test_an_engine(serve: Serve) -> None:
    served = serve("--app", "app:engine")
    assert said(served.uri, "hello") == "olleh"
    assert served.end(signal.SIGINT) == 0


def test_tls_and_metrics(serve: Serve, certificates: Certificates) -> None:
    cert, key = certificates.server_files()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = serve("--port", "0", "--cert", cert, "--key", key, "--metrics", f"127.0.0.1:{port}")
    assert served.uri.startswith("wss://127.0.0.1:")
    assert said(served.uri, "hello", ssl=certificates.client_context()) == "hello"
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert b"wirespeed_sessions_opened_total" in answer


def test_a_new_process_takes_over(serve: Serve, tmp_path: Path) -> None:
    path = str(tmp_path / "app.sock")
    old = serve("--port", "0", "--handoff", path, "--drain", "2")
    new = serve("--port", old.uri.rpartition(":")[2], "--handoff", path)
    assert old.child.process.wait(20) == 0
    assert said(new.uri, "hello") == "hello"
    assert new.end() == 0


def test_sigterm_as_soon_as_the_address_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    previous = signal.getsignal(signal.SIGTERM)
    told: list[bytes] = []

    def write(_number: int, text: bytes) -> None:
        told.append(text)
        # Without a handler, this would end the tests.
        assert signal.getsignal(signal.SIGTERM) != previous
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("wirespeed.cli._engine.write_all", write)
    assert main(["engine", "--port", "0", "--drain", "1"]) == 0
    assert told[0].startswith(b"listening on ws://")
    assert signal.getsignal(signal.SIGTERM) == previous


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--app", "nothing"], "not of the form module:handler"),
        (["--app", "app:nothing"], "there is no nothing in app"),
        (["--app", "app:number"], "neither an Engine nor a function"),
        (["--app", "app:engine", "--port", "1"], "--port: app:engine is an Engine with its own settings"),
        (["--app", "app:engine", "--echo"], "not allowed with argument"),
        (["--key", "server.key"], "--key needs --cert"),
        (["--cert", "missing.pem"], "missing.pem"),
        (["--metrics", "9100"], "not of the form address:port"),
        (["--host", "nowhere"], "no address"),
        (["--workers", "0"], "not a positive number"),
    ],
)
def test_a_wrong_command_line(
    arguments: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("app", None)
    assert main(["engine", *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert text in err


def test_a_port_that_is_taken(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["engine", "--port", str(taken.getsockname()[1])]) == 1
    assert "cannot listen" in capfd.readouterr().err


def test_status_screen() -> None:
    from rich.console import Console

    from wirespeed.cli._engine import Rates, draw
    from wirespeed.engine import Engine

    engine = Engine("127.0.0.1", workers=2)
    engine.echo("/echo")
    with engine:
        host, port = engine.addresses[0]
        rates = Rates(engine.stats(), 0)
        with connect(f"ws://{host}:{port}/echo", proxy=None) as ws:
            for _ in range(1000):
                ws.send("hello")
            for _ in range(1000):
                ws.recv(20)
            deadline = time.monotonic() + 20
            while engine.stats()["messages_sent"] < 1000:
                assert time.monotonic() < deadline
            rates.update(engine.stats(), 2)
            console = Console(file=io.StringIO(), width=110, height=20, record=True)
            console.print(draw(rates, ["a line of the log [bold]"], engine))
    text = console.export_text()
    assert re.search(r"all +1 +500 +2\.4 KiB +500 +2\.4 KiB +0 B +0 B", text), text
    assert "a line of the log [bold]" in text
    assert f"{host}:{port}" in text
    assert rates.line().startswith("sessions 1  in 500/s 2.4 KiB/s  out 500/s 2.4 KiB/s  dropped 0  refused 0  lag ")
