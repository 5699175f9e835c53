"""The smallest schedules of errors that random ones have found, on every loop: regression tests."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from campaigns.liveness.campaign import execute
from campaigns.liveness.plan import Plan
from campaigns.liveness.settings import SETTINGS, Setting
from support.samples import sample

pytestmark = pytest.mark.wirespeed_only("the schedules use calls that only our connections have")

_OPTIONS = {
    "actors": 5, "links": 1, "send_buffer": 16384, "receive_buffer": 8192, "max_queue": 1, "ping_interval": None,
    "threaded": False, "end": "close", "write_limit": 2000, "max_queue_bytes": 1000, "yield_after": 1024,
}  # fmt: skip

# Options that differ, and the steps, as ``Plan.dump`` writes them.
FOUND: dict[str, tuple[dict[str, Any], str]] = {
    # A call that wrote the queue before the loop had reported room woke no sender.
    "a sender is not woken by a ping": (
        {"write_limit": (2000, 2000)},
        """
        ["send", 2, 0, {"size": 100001, "text": true, "turns": 1}]
        ["ping_sent", 0, 0, {"before": "drain", "turns": 0}]
        """,
    ),
    # A task that waits for a message, behind one that receives in fragments, got the rest of its message.
    "recv waits behind recv_streaming": (
        {},
        """
        ["stream", 1, 0, {"leave": 0, "turns": 0}]
        ["recv", 2, 0, {"turns": 0}]
        ["message", -1, 0, {"sizes": [703, 9000], "text": true}]
        """,
    ),
    # Answers to data that was read before a pause, and parsed at its end, were queued, and the queue was not written.
    "a close frame lies behind a full queue": (
        {
            "send_buffer": 8192,
            "receive_buffer": 2304,
            "max_queue": 2,
            "max_queue_bytes": None,
            "write_limit": (2000, 0),
        },
        """
        ["iterate", 4, 0, {"count": 2, "turns": 0}]
        ["message", -1, 0, {"sizes": [9005], "text": false}]
        ["message", -1, 0, {"sizes": [706], "text": false}]
        ["message", -1, 0, {"sizes": [705, 3006, 9001, 102], "text": true}]
        ["close", -1, 0, {"code": 1001}]
        """,
    ),
    "a ping lies behind a full queue": (
        {},
        """
        ["message", -1, 0, {"sizes": [50003], "text": true, "ping": true}]
        ["send", 1, 0, {"size": 300005, "text": true, "turns": 0}]
        """,
    ),
    # Data in a transport was dropped at the end of the closing handshake, with the close frame.
    "the peer closes while much is on its way": (
        {"send_buffer": 8192, "receive_buffer": 16384, "max_queue": 16, "write_limit": 5000, "max_queue_bytes": 10000},
        """
        ["send", 1, 0, {"size": 50003, "text": false, "turns": 0}]
        ["close", -1, 0, {"code": 1000}]
        """,
    ),
    # The end of the peer's direction came before our answer to its close frame, which waited for the message.
    "the peer closes and ends its direction while much is on its way": (
        {"actors": 2, "max_queue": 4, "write_limit": 20000, "max_queue_bytes": None},
        """
        ["send", 1, 0, {"size": 300001, "text": true, "turns": 0}]
        ["close", -1, 0, {"code": 4000}]
        ["finish", -1, 0, {}]
        """,
    ),
    # Reading continued for a non-waiting receive, but data behind a full queue was not parsed.
    "recv_nowait asks for a message that the queue has no room for": (
        {"actors": 3, "send_buffer": 16384, "receive_buffer": 16384, "max_queue": 2, "max_queue_bytes": 10000},
        """
        ["ping", 2, 0, {"turns": 0}]
        ["message", -1, 0, {"sizes": [700, 3000, 9002, 9001], "text": true, "ping": true}]
        ["recv_nowait", 1, 0, {"turns": 0}]
        """,
    ),
    # A lost transport reports the loss in the next iteration, and warns of data written until then.
    "fragments follow a reset": (
        {"send_buffer": 4096, "receive_buffer": 16384, "max_queue": 16, "write_limit": (1, 1), "max_queue_bytes": None},
        """
        ["reset", -1, 0, {}]
        ["fragments", 0, 0, {"sizes": [50002, 100004, 105, 50005, 9006, 701], "text": true, "lazy": false, "turns": 0}]
        """,
    ),
    # With reading paused, the end of the stream was not found before the closing had timed out.
    # The state was OPEN, and calls raised that the connection is closed.
    "a close waits for the rest of a large message": (
        {
            "send_buffer": 2304,
            "receive_buffer": 2304,
            "max_queue": 2,
            "write_limit": (500, 0),
            "max_queue_bytes": 10000,
            "yield_after": 1,
        },
        """
        ["send", 2, 0, {"size": 132002, "text": true, "timeout": 0, "turns": 0}]
        ["pong", 1, 0, {"turns": 2}]
        ["close", 2, 0, {"code": 1001, "turns": 1}]
        ["send_nowait", 3, 0, {"size": 100004, "text": false, "turns": 0}]
        """,
    ),
    "a reset while both directions are full": (
        {"send_buffer": 4096, "receive_buffer": 4096, "max_queue": 1, "max_queue_bytes": None},
        """
        ["pause", -1, 0, {}]
        ["flood", -1, 0, {"sizes": [500], "count": 200}]
        ["turn", -1, 0, {"count": 8}]
        ["send", 1, 0, {"size": 300001, "text": true, "turns": 1}]
        ["send", 2, 0, {"size": 300001, "text": true, "turns": 1}]
        ["turn", -1, 0, {"count": 8}]
        ["reset", -1, 0, {}]
        """,
    ),
}
WHERE = [setting for setting in SETTINGS if not (setting.blocking or setting.dropin or setting.deflate)]
WHERE = [setting for setting in WHERE if setting.tls != "context"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    cases = list(itertools.product(FOUND, WHERE))
    # A share that does not divide the number of settings, so that each setting is covered.
    metafunc.parametrize(("name", "setting"), sample(cases, 5, metafunc.config.getoption("--rotation")), ids=str)


def test_found_schedule_passes(name: str, setting: Setting) -> None:
    options, steps = FOUND[name]
    head = {"setting": setting.name, "seed": 0, "options": {**_OPTIONS, **options}}
    assert execute(Plan.load(json.dumps(head) + steps), 3.0) == []
