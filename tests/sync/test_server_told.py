"""What the log says of clients that do not get a connection: once for each cause, and then as a number."""

from __future__ import annotations

import logging
import re

import pytest

from interop.serving import LOGGER, logged, request
from interop.subject import IS_WIRESPEED
from interop.threads import Raw, serving, wait_until

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    from wirespeed._serving import tally


def test_once_for_a_cause(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number is told in time, although nobody connects any more."""
    monkeypatch.setattr(tally, "_INTERVAL", 2.0)
    caplog.set_level(logging.INFO, LOGGER)

    def refusals() -> list[str]:
        return [text for text in logged(caplog, logging.INFO) if "refused" in text]

    with serving(process_request=lambda ws, _: ws.respond(401, "who are you\n")) as server:
        for _ in range(5):
            with Raw(server) as raw:
                raw.send(request("/chat?token=secret"))
                assert raw.reply().status == 401
        # All five, as lines or in numbers, before the server closes.
        wait_until(lambda: told(refusals()) == 5)
    assert told(refusals()) == 5
    assert refusals()[0].endswith(" to /chat?*** refused: HTTP 401: who are you")
    assert refusals()[-1].endswith(" more like it")


def test_hook_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    """Any client can have it called as often as it likes: a traceback for each would be a flood."""
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
