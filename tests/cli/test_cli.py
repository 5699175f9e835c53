"""The command line in pipes and scripts, as a process of its own.

Its ends are in test_ending.py, its behaviour on a terminal in test_terminal.py.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wirespeed
from support.certificates import Certificates
from support.command import call, result
from support.frames import BINARY, TEXT, Close, Frame, binary, close, frame, ping, text
from support.proxies import Proxy
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.terminal import environment
from wirespeed.cli import main

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found]  # comes with pytest

pytestmark = pytest.mark.wirespeed_only("the command line is ours")


def collect(wire: Wire) -> tuple[list[Frame], Close | None]:
    """Accepts, reads until the close frame, answers it."""
    wire.accept()
    frames, received = wire.read_until_close()
    if received is not None:
        wire.send(close(received.code))
    return frames, received


# The program


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"wirespeed {wirespeed.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["connect", "--help"], ["serve", "--help"]], ids=" ".join)
def test_help(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("usage: wirespeed ")
    assert max(map(len, shown.out.splitlines())) <= 80
    assert shown.err == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "required: COMMAND"),
        (["dial"], "invalid choice"),
        # The benchmarks are `python -m bench` in the repository: the installed command does not run code from the
        # current folder.
        (["bench", "list"], "invalid choice: 'bench'"),
        (["connect"], "required: URI"),
        (["connect", "--header", "none", "ws://x"], "'none' is not of the form NAME:VALUE"),
        (["connect", "--max-size", "big", "ws://x"], "'big' is not a number of bytes"),
        (["connect", "--timeout", "-1", "ws://x"], "'-1' is not a number of seconds"),
        (["connect", "--wait", "nan", "ws://x"], "'nan' is not a number of seconds"),
        (["connect", "--count", "0", "ws://x"], "'0' is not a positive number"),
        (["connect", "--verb", "ws://x"], "unrecognized arguments: --verb"),
    ],
)
def test_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str) -> None:
    assert main(arguments) == 2
    assert expected in capsys.readouterr().err


def test_script_is_declared() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"wirespeed": "wirespeed.cli:main"}
    assert [name for name in project["optional-dependencies"]["cli"] if name.startswith("prompt_toolkit")]


# Lines


@pytest.mark.parametrize(
    ("stdin", "stdout"),
    [
        (b"hello\n", b"hello\n"),
        (b"one\ntwo", b"one\ntwo\n"),
        (b"one\r\n\ntwo\n", b"one\n\ntwo\n"),
        ("späm\u2028\U0001f600\n".encode(), "späm\u2028\U0001f600\n".encode()),
        (b"", b""),
    ],
    ids=["one", "two", "empty", "unicode", "none"],
)
def test_each_line_is_a_message(server: WebSocketsServer, stdin: bytes, stdout: bytes) -> None:
    assert result("--wait", "0.3", server.uri, stdin=stdin) == (0, stdout, "")


def test_many_lines(server: WebSocketsServer) -> None:
    stdin = b"".join(b"%d %s\n" % (number, b"x" * (number % 300)) for number in range(20_000))
    assert result("--count", "20000", server.uri, stdin=stdin) == (0, stdin, "")


def test_messages_on_the_wire(scripted: Scripted) -> None:
    server = scripted(collect)
    assert result("--wait", "0", server.uri, stdin=b"a\nb\n") == (0, b"", "")
    assert server.result == ([Frame(TEXT, b"a"), Frame(TEXT, b"b")], Close(1000))


def test_binary_messages_among_lines(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("a") + binary(b"\x00\xff") + text("b") + close(1000))
        wire.read_until_close()

    assert result(scripted(script).uri) == (0, b"a\n\x00\xff\nb\n", "")


def test_line_that_is_not_text(server: WebSocketsServer) -> None:
    status, stdout, stderr = result("--wait", "0.5", server.uri, stdin=b"good\n\xff\nlater\n")
    assert (status, stderr) == (4, "wirespeed: line 2 of the standard input is not UTF-8: --binary sends any bytes\n")
    assert b"later" not in stdout


# Options


def test_headers(server: WebSocketsServer) -> None:
    arguments = ["--header", "X-One:1", "--header", "x-two:  2 : 2 ", "--header", "User-Agent: me/1"]
    status, stdout, stderr = result(*arguments, "--origin", "https://example.com", f"{server.uri}/headers")
    assert (status, stderr) == (0, "")
    lines = stdout.decode().splitlines()
    assert {"X-One: 1", "x-two: 2 : 2", "User-Agent: me/1", "Origin: https://example.com"} <= set(lines)
    assert len([line for line in lines if line.lower().startswith("user-agent")]) == 1


def test_origin_as_header(server: WebSocketsServer) -> None:
    _, stdout, _ = result("--header", "Origin: https://example.com", f"{server.uri}/headers")
    assert stdout.decode().count("rigin: https://example.com") == 1


def test_subprotocols(serving: Callable[..., WebSocketsServer]) -> None:
    server = serving(subprotocols=["chat"])
    _, stdout, _ = result("--subprotocol", "superchat", "--subprotocol", "chat", f"{server.uri}/headers")
    assert b"Sec-WebSocket-Protocol: superchat, chat" in stdout


def test_authentication(server: WebSocketsServer) -> None:
    uri = server.uri.replace("ws://", "ws://hello:iloveyou%3A%29@")
    assert result("--count", "1", f"{uri}/auth", stdin=b"in\n") == (0, b"in\n", "")


def test_certificates(secure_server: WebSocketsServer, certificates: Certificates) -> None:
    status, _, stderr = result(secure_server.uri)
    assert status == 1
    assert "--insecure" in stderr
    assert stderr.count("\n") == 1
    for arguments in (["--insecure"], ["--ca", certificates.ca_file]):
        assert result(*arguments, "--count", "1", secure_server.uri, stdin=b"hi\n") == (0, b"hi\n", "")
    status, _, stderr = result("--ca", "/nowhere.pem", secure_server.uri)
    assert (status, stderr) == (2, "wirespeed: ca: No such file or directory: /nowhere.pem\n")


def test_client_certificate(client_certificate_server: WebSocketsServer, certificates: Certificates) -> None:
    arguments = ["--ca", certificates.ca_file, "--cert", certificates.client_cert, "--key", certificates.client_key]
    uri = client_certificate_server.uri
    assert result(*arguments, "--count", "1", uri, stdin=b"hi\n") == (0, b"hi\n", "")


def test_proxy(server: WebSocketsServer, proxy: Callable[..., Proxy]) -> None:
    running = proxy("http")
    assert result("--proxy", running.url(), "--count", "1", server.uri, stdin=b"hi\n") == (0, b"hi\n", "")
    assert running.read_connection(server.port) == ("127.0.0.1", server.port)


def test_proxy_of_the_environment(server: WebSocketsServer) -> None:
    broken = {"ws_proxy": "http://127.0.0.1:1", "no_proxy": None}
    assert result("--count", "1", server.uri, stdin=b"hi\n", **broken)[0] == 1
    arguments = ["--proxy", "none", "--count", "1", server.uri]
    assert result(*arguments, stdin=b"hi\n", **broken) == (0, b"hi\n", "")


def test_binary(server: WebSocketsServer) -> None:
    data = random.Random(1).randbytes(1_000_000)
    status, stdout, stderr = result("--binary", "--wait", "0.5", server.uri, stdin=data)
    assert (status, stderr) == (0, "")
    assert stdout == data


def test_binary_messages_on_the_wire(scripted: Scripted) -> None:
    server = scripted(collect)
    assert result("--binary", "--wait", "0", server.uri, stdin=b"a\nb\xff") == (0, b"", "")
    assert server.result == ([Frame(BINARY, b"a\nb\xff")], Close(1000))


# JSON


def test_json(scripted: Scripted) -> None:
    """Numbers and strings stay as they were written; other text stays unchanged."""

    def script(wire: Wire) -> Any:
        wire.accept()
        received = wire.read_frame()
        wire.send(text('{"price":1.10,"big":12345678901234567890, "s":"a,[b]: \\"{","s":[ ],"n":[null,{"t":true}]}'))
        wire.send(text("not {json") + binary(b"[1]") + binary(b"\xff") + close(1000))
        wire.read_until_close()
        return received

    server = scripted(script)
    status, stdout, stderr = result("--json", "--wait", "inf", server.uri, stdin=b' { "as": "typed"}\n')
    assert (status, stderr) == (0, "")
    assert (
        stdout
        == rb"""{
  "price": 1.10,
  "big": 12345678901234567890,
  "s": "a,[b]: \"{",
  "s": [],
  "n": [
    null,
    {
      "t": true
    }
  ]
}
not {json
[
  1
]
"""
        + b"\xff\n"
    )
    assert server.result == Frame(TEXT, b' { "as": "typed"}')


@pytest.mark.parametrize("bad", ["{", "nope", "", "NaN", "[1,]", "[" * 100_000])
def test_invalid_json_is_not_sent(scripted: Scripted, bad: str) -> None:
    server = scripted(collect)
    status, stdout, stderr = result("--json", server.uri, stdin=b"[1]\n" + bad.encode() + b"\n[2]\n")
    assert (status, stdout) == (4, b"")
    assert re.fullmatch(r"wirespeed: not sent, because it is not JSON: .+\n", stderr)
    assert server.result == ([Frame(TEXT, b"[1]")], Close(1000))


# Output of --verbose


def test_verbose(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept("X-Trace: shown", "X-Token: secret")
        wire.read_frame()
        wire.send(ping(b"are you there") + frame(TEXT, b"hel", fin=False) + frame(0, b"lo"))
        wire.read_frame()
        wire.send(binary(b"\x01") + close(1000, "bye"))
        wire.read_until_close()

    arguments = ["-v", "--wait", "inf", "--header", "Authorization: secret"]
    status, stdout, stderr = result(*arguments, scripted(script).uri, stdin=b"hi\n")
    assert (status, stdout) == (0, b"hello\n\x01\n")
    shown = stderr.splitlines()
    assert "> GET / HTTP/1.1" in shown
    assert "> Authorization: ***" in shown
    assert "< HTTP/1.1 101 Switching Protocols" in shown
    assert "< X-Trace: shown" in shown
    assert "< X-Token: ***" in shown
    assert shown[shown.index("* sent text message, 2 bytes") + 1 :] == [
        "* received ping 'are you there', answered with a pong",
        "* received text frame, 3 bytes",
        "* received continuation frame, 2 bytes",
        "* received binary frame, 1 byte",
        "* received close frame 1000 (OK) bye",
        "* sent close frame 1000 (OK) bye",
    ]


def test_verbose_rejection(server: WebSocketsServer) -> None:
    status, _, stderr = result("-v", f"{server.uri}/status/429?retry=7")
    assert status == 1
    assert "< HTTP/1.1 429 Too Many Requests\n" in stderr
    assert "< Retry-After: 7\n" in stderr


def test_keepalive(server: WebSocketsServer) -> None:
    _, _, stderr = result("-v", "--ping", "0.1", "--wait", "0.5", server.uri, stdin=b"x\n")
    assert len(re.findall(r"^\* received pong .*, latency \d+\.\d{3} ms$", stderr, re.MULTILINE)) >= 2
    assert stderr.endswith("* sent close frame 1000 (OK)\n* received close frame 1000 (OK)\n")


# Colors


@pytest.mark.parametrize("arguments", [[], ["--json"], ["-v"]], ids=["plain", "json", "verbose"])
def test_no_colors_in_pipes(server: WebSocketsServer, arguments: list[str]) -> None:
    done = call(*arguments, "--count", "1", server.uri, stdin=b"[1]\n")
    assert b"\x1b" not in done.stdout + done.stderr


def test_escape_sequences_pass_through_pipes(server: WebSocketsServer) -> None:
    """A reader of a pipe gets the sent bytes."""
    assert result("--count", "1", server.uri, stdin=b"\x1b[31mred\n")[1] == b"\x1b[31mred\n"


def test_without_prompt_toolkit(server: WebSocketsServer) -> None:
    """A pipe does not need it, and does not even import it."""
    code = "import sys; sys.modules['prompt_toolkit'] = None; from wirespeed.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "connect", "--count", "1", server.uri],
        input=b"hi\n",
        capture_output=True,
        timeout=20,
        env=environment(),
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"hi\n", b"")


def test_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "wirespeed", "--version"], capture_output=True, check=True)
    assert done.stdout.decode() == f"wirespeed {wirespeed.__version__}{os.linesep}"
