"""The command line on a terminal: the prompt, the output above it, the keys that end it."""

from __future__ import annotations

import importlib.util
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.frames import TEXT, Close, Frame, binary, close, text
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.terminal import CTRL_C, CTRL_D, ENTER, UP, Terminal

pytestmark = [
    pytest.mark.wirespeed_only("the command line is ours"),
    pytest.mark.skipif(importlib.util.find_spec("prompt_toolkit") is None, reason="prompt_toolkit is not installed"),
]

Start = Callable[..., Terminal]

# The blank after it is a movement of the cursor.
PROMPT = "\n>"

COMMAND = [sys.executable, "-W", "default", "-m", "wirespeed", "connect"]

# As if the extra was not installed.
BARE = "import sys; sys.modules['prompt_toolkit'] = None; from wirespeed.cli import main; sys.exit(main())"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the command on a terminal of its own, with a history of its own."""
    terminals = []

    def run(*arguments: str, bare: bool = False, **variables: str | None) -> Terminal:
        command = [sys.executable, "-c", BARE, "connect"] if bare else COMMAND
        variables = {"WIRESPEED_HISTORY": str(tmp_path / "history"), **variables}
        terminals.append(Terminal([*command, *arguments], **variables))
        return terminals[-1]

    yield run
    for terminal in terminals:
        terminal.__exit__()


def collect(wire: Wire) -> tuple[list[Frame], Close | None]:
    wire.accept()
    frames, received = wire.read_until_close()
    if received is not None:
        wire.send(close(received.code))
    return frames, received


both = pytest.mark.parametrize("bare", [False, True], ids=["prompt", "bare"])


@both
def test_conversation(server: WebSocketsServer, start: Start, bare: bool) -> None:
    terminal = start(server.uri, bare=bare)
    terminal.expect(f"connected to {server.uri}, Ctrl-D closes")
    for word in ("hello", "späm", "{not json"):
        terminal.type(word + ENTER)
        terminal.expect(f"< {word}\r\n")
    terminal.type(CTRL_D)
    assert terminal.wait() == 0
    assert "closed" not in terminal.shown.replace("Ctrl-D closes", "")


def test_hint_without_prompt_toolkit(server: WebSocketsServer, start: Start) -> None:
    terminal = start(server.uri, bare=True)
    terminal.expect('pip install "wirespeed[cli]"')
    terminal.type(CTRL_D)
    assert terminal.wait() == 0


@both
def test_dumb_terminal(server: WebSocketsServer, start: Start, bare: bool) -> None:
    terminal = start(server.uri, bare=bare, TERM="dumb")
    terminal.expect("connected")
    terminal.type("hello" + ENTER)
    terminal.expect("< hello")
    terminal.type(CTRL_D)
    assert terminal.wait() == 0
    assert "\x1b" not in terminal.output


def test_prompt_survives_messages(scripted: Scripted, start: Start) -> None:
    """The edited line stays, and is sent whole, though messages appear above it."""

    def script(wire: Wire) -> Any:
        wire.accept()
        server.pause()
        for number in range(20):
            wire.send(text(f"message {number}"))
        return wire.read_frame()

    server = scripted(script)
    terminal = start(server.uri)
    terminal.expect("connected")
    terminal.expect(PROMPT)
    terminal.type("half a li")
    terminal.expect("half a li")
    server.release.set()
    for number in range(20):
        terminal.expect(f"< message {number}\r\n")
    terminal.expect("> half a li")
    terminal.type("ne" + ENTER)
    terminal.expect("closed by the server: no close frame received")
    assert terminal.wait() == 3
    assert server.result == Frame(TEXT, b"half a line")


def test_history(server: WebSocketsServer, start: Start, tmp_path: Path) -> None:
    """Arrow up returns earlier lines, also those of earlier runs; only the user can read the file."""
    terminal = start(server.uri)
    terminal.expect("connected")
    for word in ("first", "second"):
        terminal.type(word + ENTER)
        terminal.expect(f"< {word}")
    terminal.type(UP + UP + ENTER)
    terminal.expect("< first")
    terminal.type(CTRL_D)
    assert terminal.wait() == 0
    assert stat.S_IMODE((tmp_path / "history").stat().st_mode) == 0o600

    terminal = start(server.uri)
    terminal.expect(PROMPT)
    terminal.type(UP + UP + ENTER)
    terminal.expect("< second")
    terminal.type(CTRL_D)
    assert terminal.wait() == 0


@pytest.mark.parametrize(
    ("variables", "file"),
    [
        ({"WIRESPEED_HISTORY": ""}, None),
        ({"WIRESPEED_HISTORY": None}, "state/wirespeed/history"),
        ({"WIRESPEED_HISTORY": "/proc/none/history"}, None),
    ],
    ids=["none", "default", "impossible"],
)
def test_path_of_the_history(
    server: WebSocketsServer, start: Start, tmp_path: Path, variables: dict[str, str | None], file: str | None
) -> None:
    terminal = start(server.uri, XDG_STATE_HOME=str(tmp_path / "state"), HOME=str(tmp_path / "home"), **variables)
    terminal.expect(PROMPT)
    terminal.type("hello" + ENTER)
    terminal.expect("< hello")
    terminal.type(CTRL_D)
    assert terminal.wait() == 0
    found = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert found == ([] if file is None else [file])


# The end


def test_ctrl_c_discards_the_line_then_closes(scripted: Scripted, start: Start) -> None:
    server = scripted(collect)
    terminal = start(server.uri)
    terminal.expect(PROMPT)
    terminal.type("mistake")
    terminal.expect("mistake")
    terminal.type(CTRL_C)
    terminal.type("right" + ENTER)
    terminal.expect("right")
    terminal.type(CTRL_C)
    assert terminal.wait() == 130
    assert server.result == ([Frame(TEXT, b"right")], Close(1000))
    assert "Traceback" not in terminal.shown


def test_ctrl_c_without_prompt(scripted: Scripted, start: Start) -> None:
    server = scripted(collect)
    terminal = start(server.uri, bare=True)
    terminal.expect("connected")
    terminal.type(CTRL_C)
    assert terminal.wait() == 130
    assert server.result == ([], Close(1000))
    assert "Traceback" not in terminal.shown


@both
def test_closed_by_the_server(scripted: Scripted, start: Start, bare: bool) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_frame()
        wire.send(text("last") + close(1001, "going home"))
        wire.read_until_close()

    terminal = start(scripted(script).uri, bare=bare)
    terminal.expect("connected")
    terminal.type("x" + ENTER)
    terminal.expect("< last")
    terminal.expect("closed by the server: 1001 (going away) going home")
    assert terminal.wait() == 0


def test_closed_with_an_error(server: WebSocketsServer, start: Start) -> None:
    terminal = start(f"{server.uri}/close?code=1011&reason=broken")
    terminal.expect("closed by the server: 1011 (internal error) broken")
    terminal.expect("wirespeed: connection closed: received 1011 (internal error) broken")
    assert terminal.wait() == 3


def test_terminal_is_restored(server: WebSocketsServer, start: Start) -> None:
    """Also when the server closes while a line is edited: the terminal echoes, and turns Ctrl-C into a signal."""
    import subprocess

    program = f"{sys.executable} -m wirespeed connect '{server.uri}/close?code=1000'; stty -a"
    with Terminal(["/bin/sh", "-c", program]) as terminal:
        terminal.wait()
        flags = terminal.shown[terminal.shown.index("speed ") :].split()
        assert {"icanon", "echo", "isig"} <= set(flags), subprocess.list2cmdline(flags)


# Output


def test_empty_lines_are_not_sent(scripted: Scripted, start: Start) -> None:
    server = scripted(collect)
    terminal = start(server.uri)
    terminal.expect(PROMPT)
    terminal.type(ENTER + ENTER + "word" + ENTER)
    terminal.expect("word")
    terminal.type(CTRL_D)
    assert terminal.wait() == 0
    assert server.result == ([Frame(TEXT, b"word")], Close(1000))


def test_pasted_lines_are_one_message(scripted: Scripted, start: Start) -> None:
    server = scripted(collect)
    terminal = start("--json", server.uri)
    terminal.expect(PROMPT)
    terminal.type("\x1b[200~[1,\n2]\x1b[201~" + ENTER)
    terminal.expect("2]")
    terminal.type(CTRL_D)
    assert terminal.wait() == 0
    assert server.result == ([Frame(TEXT, b"[1,\n2]")], Close(1000))


@both
def test_server_cannot_control_the_terminal(scripted: Scripted, start: Start, bare: bool) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("a\x1b]0;title\x07\x1b[2J\x9b5n\r\u202eb\tc\nd") + close(1000, "\x1b[2Jx\u202e"))
        wire.read_until_close()

    terminal = start(scripted(script).uri, bare=bare)
    terminal.expect(r"< a\x1b]0;title\x07\x1b[2J\x9b5n\r\u202eb" + "\tc\r\nd")
    terminal.expect(r"closed by the server: 1000 (OK) \x1b[2Jx\u202e")
    assert terminal.wait() == 0


def test_binary_messages(scripted: Scripted, start: Start) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=binary(b"\x00\x01\xff") + binary(bytes(1000)))
        return wire.read_frame()

    server = scripted(script)
    terminal = start("--binary", server.uri)
    terminal.expect("< [3 bytes] 00 01 ff\r\n")
    terminal.expect("< [1000 bytes] 00 00")
    terminal.expect("...\r\n")
    terminal.type("typed" + ENTER)
    assert terminal.wait() == 3
    assert server.result.payload == b"typed"
    assert server.result.opcode == 2


def test_json(server: WebSocketsServer, start: Start) -> None:
    """Invalid input is reported, and can be corrected."""
    terminal = start("--json", "--no-color", server.uri)
    terminal.expect(PROMPT)
    terminal.type('{"a": }' + ENTER)
    terminal.expect("not sent, because it is not JSON: Expecting value: line 1 column 7")
    terminal.type('{"a": 1}' + ENTER)
    terminal.expect('< {\r\n  "a": 1\r\n}')
    terminal.type(CTRL_D)
    assert terminal.wait() == 0


def test_verbose(scripted: Scripted, start: Start) -> None:
    server = scripted(collect)
    terminal = start("-v", server.uri)
    terminal.expect("< HTTP/1.1 101 Switching Protocols")
    terminal.expect(PROMPT)
    terminal.type("hello" + ENTER)
    terminal.expect("* sent text message, 5 bytes")
    terminal.type(CTRL_D)
    terminal.expect("* sent close frame 1000 (OK)")
    terminal.expect("* received close frame 1000 (OK)")
    assert terminal.wait() == 0


GREEN, CYAN = "\x1b[32m", "\x1b[36m"


@both
def test_colors(server: WebSocketsServer, start: Start, bare: bool) -> None:
    terminal = start("--json", server.uri, bare=bare)
    terminal.expect("connected")
    terminal.type('["x", 1.50]' + ENTER)
    terminal.expect("1.50\r\n")
    terminal.expect("]")
    terminal.type(CTRL_D)
    assert terminal.wait() == 0
    assert f'{GREEN}"x"\x1b[0m' in terminal.output
    assert f"{CYAN}1.50\x1b[0m" in terminal.output


@pytest.mark.parametrize(
    ("arguments", "variables"), [(["--no-color"], {}), ([], {"NO_COLOR": "1"})], ids=["option", "environment"]
)
@both
def test_no_colors(
    server: WebSocketsServer, start: Start, bare: bool, arguments: list[str], variables: dict[str, str]
) -> None:
    terminal = start("--json", *arguments, server.uri, bare=bare, **variables)
    terminal.expect("connected")
    terminal.type('["x", 1.50]' + ENTER)
    terminal.expect("  1.50\r\n")
    terminal.type(CTRL_D)
    assert terminal.wait() == 0
    assert "\x1b[3" not in terminal.output
    assert "\x1b[2m" not in terminal.output


def test_output_of_a_pipe_on_a_terminal(server: WebSocketsServer) -> None:
    """``echo hello | wirespeed connect URI``: no mark, no prompt, and no control sequences of the server."""
    program = f"printf 'hel\\033[2Jlo\\n' | {sys.executable} -m wirespeed connect --count 1 {server.uri}"
    with Terminal(["/bin/sh", "-c", program]) as terminal:
        assert terminal.wait() == 0
        assert terminal.output == "hel\\x1b[2Jlo\r\n"
