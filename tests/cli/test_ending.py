"""Ends of the command line: by the server, by signals, by its pipes, and before it is connected."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import Any

import pytest

from support.checks import within
from support.command import COMMAND, call, redirected, result, running
from support.frames import PONG, Close, Frame, close, ping, text
from support.scripted import Scripted, ScriptedServer, Wire
from support.servers import WebSocketsServer
from support.terminal import environment

pytestmark = pytest.mark.wirespeed_only("the command line is ours")


# The end


def test_late_replies_are_received(scripted: Scripted) -> None:
    """After the end of the input it waits for answers, and longer after each of them."""

    def script(wire: Wire) -> Any:
        wire.accept()
        wire.read_frame()
        for word in ("one", "two", "three"):
            time.sleep(0.3)
            wire.send(text(word))
        received = wire.read_until_close()
        wire.send(close(1000))
        return received

    server = scripted(script)
    assert result("--wait", "0.6", server.uri, stdin=b"?\n") == (0, b"one\ntwo\nthree\n", "")
    assert server.result == ([], Close(1000))


def test_wait_for_the_server(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        time.sleep(1.3)
        wire.send(text("late") + close(1001))
        wire.read_until_close()

    with within(10, at_least=1.3):
        assert result("--wait", "inf", scripted(script).uri) == (0, b"late\n", "")


def test_count(scripted: Scripted) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=text("1") + text("2") + text("3"))
        received = wire.read_until_close()
        wire.send(close(1000))
        return received[1]

    server = scripted(script)
    assert result("--count", "2", "--wait", "inf", server.uri) == (0, b"1\n2\n", "")
    assert server.result == Close(1000)


@pytest.mark.parametrize("code", [1000, 1001])
def test_closed_by_the_server(server: WebSocketsServer, code: int) -> None:
    """Also while the input goes on."""
    with running(f"{server.uri}/close?code={code}") as process:
        assert process.wait(10) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_closed_with_an_error(server: WebSocketsServer) -> None:
    status, stdout, stderr = result(f"{server.uri}/close?code=4001&reason=go%1b[2Jaway")
    assert (status, stdout) == (3, b"")
    assert stderr.startswith("wirespeed: connection closed: received 4001 (private use) go\\x1b[2Jaway")
    assert stderr.count("\n") == 1


def test_connection_lost(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("last"))

    status, stdout, stderr = result(scripted(script).uri)
    assert (status, stdout) == (3, b"last\n")
    assert stderr == "wirespeed: connection closed: no close frame received or sent\n"


def test_message_that_is_too_big(server: WebSocketsServer) -> None:
    status, _, stderr = result("--max-size", "1k", f"{server.uri}/binary?size=1025")
    assert status == 3
    assert "max_size" in stderr
    assert stderr.count("\n") == 1
    done = call("--max-size", "none", "--binary", "--count", "1", f"{server.uri}/binary?size=2000000")
    assert (done.returncode, len(done.stdout)) == (0, 2_000_000)


def test_server_that_does_not_answer_our_close_frame(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_until_close()
        wire.read_to_end()

    with within(10, at_least=0.3):
        assert result("--wait", "0", "--timeout", "0.3", scripted(script).uri) == (0, b"", "")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals(scripted: Scripted, number: int, status: int) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=text("ready"))
        received = wire.read_until_close()
        wire.send(close(1000))
        return received[1]

    server = scripted(script)
    with running(server.uri) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(10) == status
        assert process.stderr.read() == b""
    assert server.result == Close(1000)


def test_second_signal_does_not_wait(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("ready"))
        wire.read_until_close()
        server.reached.set()
        wire.read_to_end()

    server = scripted(script)
    with running(server.uri) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        server.wait_reached()
        with within(3):
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 130


def test_signal_while_connecting(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.read_request()
        server.reached.set()
        wire.read_to_end()

    server = scripted(script)
    with running(server.uri) as process:
        server.wait_reached()
        with within(3):
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_closed_output_pipe(scripted: Scripted) -> None:
    """As in ``wirespeed connect URI | head -1``."""

    def script(wire: Wire) -> Any:
        wire.accept(then=text("first"))
        server.pause()
        for _ in range(3):
            wire.send(text("more"))
            time.sleep(0.1)
        return wire.read_until_close()[1]

    server = scripted(script)
    with running(server.uri) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"first\n"
        process.stdout.close()
        server.release.set()
        assert process.wait(10) == 141
        assert process.stderr.read() == b""


def test_pings_are_answered_while_output_is_blocked(scripted: Scripted) -> None:
    """A full pipe, as of a pager, stops receiving but keeps the connection alive."""

    def script(wire: Wire) -> Any:
        # More than a pipe holds, and no more than is received ahead.
        wire.accept(then=text("x" * 1000) * 80)
        pongs = []
        for number in range(5):
            wire.send(ping(b"%d" % number))
            pongs.append(wire.read_frame())
        server.pause()
        wire.send(close(1000))
        wire.read_until_close()
        return pongs

    server = scripted(script)
    with running(server.uri) as process:
        assert process.stdout is not None
        server.wait_reached()
        server.release.set()
        assert process.stdout.read() == (b"x" * 1000 + b"\n") * 80
        assert process.wait(10) == 0
    assert server.result == [Frame(PONG, b"%d" % number) for number in range(5)]


@pytest.mark.parametrize("redirection", ["", "2>&1"], ids=["apart", "together"])
def test_ctrl_c_while_output_is_blocked(scripted: Scripted, redirection: str) -> None:
    """As in a pager: the process does not wait for the pipe."""

    def script(wire: Wire) -> Any:
        wire.accept(then=text("x" * 1000) * 200)
        server.pause()
        received = wire.read_until_close()[1]
        wire.send(close(1000))
        return received

    server = scripted(script)
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *COMMAND, "-v", server.uri]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment()) as process:
        server.wait_reached()
        time.sleep(0.5)
        with within(5):
            process.send_signal(signal.SIGINT)
            server.release.set()
            assert process.wait(10) == 130
    assert server.result == Close(1000)


def test_closed_standard_input(server: WebSocketsServer) -> None:
    assert redirected("<&-", f"{server.uri}/count?n=3") == (0, b"0\n1\n2\n", "")


def test_output_that_cannot_be_written(server: WebSocketsServer) -> None:
    expected = "wirespeed: cannot write to the standard output: No space left on device\n"
    assert redirected("</dev/null >/dev/full", f"{server.uri}/count?n=3") == (1, b"", expected)


def test_closed_standard_streams(server: WebSocketsServer) -> None:
    """A socket that gets their number must be neither read nor written as such."""
    assert redirected(">&-", "--wait", "0.2", f"{server.uri}/count?n=3") == (0, b"", "")
    assert redirected("<&- >&- 2>&-", "--wait", "0.2", f"{server.uri}/count?n=3") == (0, b"", "")


# Failures of connecting


def test_refused() -> None:
    with ScriptedServer(lambda wire: None) as stopped:
        uri = stopped.uri
    status, stdout, stderr = result(uri)
    assert (status, stdout) == (1, b"")
    assert stderr.startswith(f"wirespeed: cannot connect to {uri}: ")
    assert "refused" in stderr.lower()
    assert stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("http://127.0.0.1/", "scheme isn't ws or wss"),
        ("ws://user:secret@127.0.0.1:99999/", "isn't a valid URI"),
        ("nonsense", "isn't a valid URI"),
    ],
)
def test_invalid_uri(uri: str, expected: str) -> None:
    status, _, stderr = result(uri)
    assert status == 2
    assert expected in stderr
    assert "secret" not in stderr
    assert stderr.count("\n") == 1


def test_incompatible_options(server: WebSocketsServer) -> None:
    for arguments, expected in [
        (["--subprotocol", "two words"], "subprotocols must be tokens"),
        (["--header", "a b:c"], "additional_headers"),
        (["--proxy", "gopher://x"], "gopher"),
    ]:
        status, _, stderr = result(*arguments, server.uri)
        assert (status, stderr.count("\n")) == (2, 1)
        assert stderr.startswith("wirespeed: ")
        assert expected in stderr


def test_rejected(server: WebSocketsServer) -> None:
    status, _, stderr = result(f"{server.uri}/status/503")
    assert status == 1
    assert "HTTP 503: Service Unavailable: ask again" in stderr
    assert stderr.count("\n") == 1
    status, _, stderr = result(f"{server.uri}/auth")
    assert status == 1
    assert "wss://user:password@host/" in stderr


def test_timeout(server: WebSocketsServer) -> None:
    with within(8):
        status, _, stderr = result("--timeout", "0.3", f"{server.uri}/slow?seconds=10")
    assert status == 1
    assert "(--timeout sets the limit)" in stderr
    assert stderr.count("\n") == 1


def test_password_is_not_shown(server: WebSocketsServer) -> None:
    uri = server.uri.replace("ws://", "ws://me:secret@")
    status, _, stderr = result(f"{uri}/auth")
    assert status == 1
    assert "secret" not in stderr
