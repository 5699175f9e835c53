"""Log records about clients that do not get a connection: once for each cause, and then as a number."""

from __future__ import annotations

import logging
import os
import re
import socket
from pathlib import Path

import pytest

from support.serving import LOGGER, logged, request
from support.subject import IS_WIRESPEED
from support.threads import Raw, serving, wait_until

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    from wirespeed._server import log as log_throttle


def test_cause_is_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number is logged in time, although no client connects any more."""
    monkeypatch.setattr(log_throttle, "_INTERVAL", 2.0)
    caplog.set_level(logging.INFO, LOGGER)

    def refusals() -> list[str]:
        return [text for text in logged(caplog, logging.INFO) if "refused" in text]

    with serving(process_request=lambda ws, _: ws.respond(401, "who are you\n")) as server:
        for _ in range(5):
            with Raw(server) as raw:
                raw.send(request("/chat?token=secret"))
                assert raw.reply().status == 401
        # All five, as records or in numbers, before the server closes.
        wait_until(lambda: told(refusals()) == 5)
    assert told(refusals()) == 5
    assert refusals()[0].endswith(" to /chat?*** refused: HTTP 401: who are you")
    assert refusals()[-1].endswith(" more like it")


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets")
@pytest.mark.parametrize(
    "is_abstract", [False, pytest.param(True, marks=pytest.mark.skipif("sys.platform != 'linux'"))]
)
def test_unix_client_path_cannot_forge_log_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_abstract: bool
) -> None:
    """A client may bind its socket to any path: the path stays on one log line."""
    caplog.set_level(logging.DEBUG, LOGGER)
    name = f"{'' if is_abstract else tmp_path}/x\nERROR forged"

    def fails(ws: object) -> None:
        raise ValueError("of the handler")

    with serving(fails, tmp_path / "socket", unix=True):
        for sent in (request(), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"?\r\n\r\n"):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(10)
                sock.bind(b"\0" + name.encode() if is_abstract else name)
                sock.connect(str(tmp_path / "socket"))
                sock.sendall(sent)
                assert sock.recv(1000)
            if not is_abstract:
                os.unlink(name)
    lines = logged(caplog, logging.DEBUG)
    assert not [line for line in lines if "\n" in line]
    assert len([line for line in lines if r"x\nERROR forged" in line]) >= 3


def test_hook_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    """Any client can trigger the hook often: a traceback for each would flood the log."""
    caplog.set_level(logging.ERROR, LOGGER)

    def fail(*_: object) -> None:
        raise KeyError("oops")

    with serving(process_request=fail) as server:
        for _ in range(5):
            with Raw(server) as raw:
                raw.send(request())
                assert raw.reply().status == 500
        assert len(logged(caplog, logging.ERROR)) == 1
    first, last = (record for record in caplog.records if record.name == LOGGER)
    assert first.exc_info is not None
    assert first.getMessage().startswith("process_request failed (")
    assert last.getMessage().endswith("; 4 more like it")
    assert not last.exc_info


def told(lines: list[str]) -> int:
    found = [re.search(r"; (\d+) more like it$", line) for line in lines]
    return sum(int(match[1]) if match else 1 for match in found)
