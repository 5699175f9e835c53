"""Checks in the peers of the benchmarks: no lie of a server becomes a figure. Peers run as in the harness."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from harness.places import BENCH
from harness.scenario import PeerName
from models.content import ContentError, File, Sink

from support.children import Child
from support.samples import sample

pytest.importorskip("websockets")

LIAR = Path(__file__).resolve().parents[1] / "support" / "lying_server.py"

AWAIT = ("wirespeed:await@run", "websockets:await@asyncio")
CALLBACKS = ("wirespeed:callbacks@asyncio",)
BLOCKING = ("wirespeed-sync", "websockets-sync")
OURS = ("wirespeed:await@run", *CALLBACKS, "wirespeed-sync")
RAW = ("raw-python",)
# By style: its requirements.
CODECS = {"send-json": "msgspec", "json": "json", "orjson": "orjson", "send-msgpack": "msgspec", "msgpack": "msgpack"}
CODEC = tuple(f"codecs:{style}@run" for style, module in CODECS.items() if importlib.util.find_spec(module) is not None)

# Longer than any peer runs.
LIMIT_SECONDS = 40


@dataclass(frozen=True)
class Model:
    """The task of peers, and the server's path for it."""

    path: str
    size: int
    peers: tuple[str, ...]
    options: Mapping[str, object] = field(default_factory=dict)


# In messages of 64 bytes, the last one of 33.
FILE = {"bytes": 20_001}
WINDOW = {"window": 10}
TEXT = {"deflate": True, "content": "repetitive"}

MODELS = {
    "round-trip": Model("/", 256, AWAIT + CALLBACKS + BLOCKING + RAW),
    "one-way": Model("/stamp", 512, AWAIT + CALLBACKS + BLOCKING + RAW),
    # Callbacks compare views of messages of this size; blocking calls need room for the window between the two ends.
    "one-way-window": Model("/stamp", 5120, AWAIT + CALLBACKS + BLOCKING + RAW, WINDOW),
    "duplex": Model("/duplex?size=1024", 1024, AWAIT + BLOCKING),
    "transfer-in": Model("/file?size=64&bytes=20001", 64, AWAIT + BLOCKING, FILE),
    "transfer-out": Model("/hash", 64, AWAIT + CALLBACKS + BLOCKING, FILE),
    "send-each": Model("/sink", 64, AWAIT + CALLBACKS + BLOCKING + RAW),
    "tasks": Model("/sink", 64, AWAIT + CALLBACKS, {"connections": 5, "batch": 100}),
    "many": Model("/", 256, AWAIT + CALLBACKS, {"connections": 3}),
    "sleep": Model("/", 256, AWAIT + CALLBACKS + BLOCKING, {"connections": 3}),
    "compute": Model("/", 256, AWAIT + CALLBACKS + BLOCKING, {"connections": 3}),
    "serving-sleep": Model("/", 256, AWAIT + BLOCKING, {"connections": 3}),
    "serving-compute": Model("/", 256, AWAIT + BLOCKING, {"connections": 3}),
    "open": Model("/", 0, AWAIT + CALLBACKS + BLOCKING),
    "deflate-round-trip": Model("/", 256, AWAIT + BLOCKING, TEXT),
    "deflate-send": Model("/sink", 256, AWAIT + BLOCKING, TEXT),
    "codec-round-trip": Model("/", 0, CODEC, WINDOW),
    "codec-send": Model("/sink", 0, CODEC),
    "closed-recv": Model("/close?code=1000", 0, AWAIT + BLOCKING),
    "closed-send": Model("/close?code=1000", 0, AWAIT + BLOCKING),
}


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    """The ports of a running lying server, by their names."""
    if importlib.util.find_spec("wirespeed") is None:
        pytest.skip("wirespeed is not installed")
    with Child([sys.executable, str(LIAR)]) as child:
        yield json.loads(child.read_until("listening "))


@dataclass(frozen=True)
class Lie:
    """A lie that is requested in the query, or made on a port of its own, and the required complaint of peers: a
    pattern.

    Without `peers` it applies to all peers of the model.
    """

    query: str
    complaint: str
    port: str = "ws"
    peers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return re.sub(r"^lie=", "", self.query) or self.port


def run(name: str, model: str, url: str, options: Mapping[str, object]) -> dict[str, Any]:
    """Runs one peer and returns its output, and the exit status."""
    peer = PeerName.of(name)
    arguments = {"style": peer.style, "loop": peer.loop, "url": url, "workload": model, **options}
    command = [sys.executable, str(BENCH / "peers" / peer.folder / "peer.py")]
    for option, value in arguments.items():
        if value is not None:
            command += [f"--{option}", *([] if value is True else [str(value)])]
    environment = os.environ | {"PYTHONPATH": str(BENCH)}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"none": f"nothing in {LIMIT_SECONDS} s"}
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"none": done.stdout + done.stderr}
    return answer | {"status": done.returncode}


def run_all(
    ports: dict[str, int], asked: Iterable[tuple[str, Lie]], **options: object
) -> list[tuple[str, Lie, str, dict[str, Any]]]:
    """Runs every peer of the models at once; returns model, lie, peer and its answer."""
    cases = [(model, lie, peer) for model, lie in asked for peer in lie.peers or MODELS[model].peers]

    def answer_of(case: tuple[str, Lie, str]) -> dict[str, Any]:
        return _run_case(ports, *case, options)

    with ThreadPoolExecutor(len(cases)) as threads:
        answers = threads.map(answer_of, cases)
        return [(*case, answer) for case, answer in zip(cases, answers, strict=True)]


def _run_case(ports: dict[str, int], name: str, lie: Lie, peer: str, options: Mapping[str, object]) -> dict[str, Any]:
    model = MODELS[name]
    query = f"{'&' if '?' in model.path else '?'}{lie.query}" if lie.query else ""
    url = f"ws://127.0.0.1:{ports[lie.port]}{model.path}{query}"
    return run(peer, name, url, {"size": model.size, "seconds": 0.05, "warmup": 0.01, **model.options, **options})


def assert_noticed(ports: dict[str, int], asked: Iterable[tuple[str, Lie]], **options: object) -> None:
    """Checks that every peer ends with status 1 and the complaint."""
    answers = run_all(ports, asked, **options)
    unnoticed = [
        (model, str(lie), peer, answer)
        for model, lie, peer, answer in answers
        if answer.get("status") != 1 or not re.search(lie.complaint, answer.get("failed", ""))
    ]
    assert not unnoticed, "\n".join(map(str, unnoticed))


def test_server_that_stays_alive_is_detected(ports: dict[str, int]) -> None:
    # All at once: they only wait for seconds.
    silence = r"ContentError: nothing told within 5 s that the server has closed$"
    asked = []
    for call in ("recv", "send"):
        asked.append((f"closed-{call}", Lie("lie=stay", silence)))
        asked.append((f"closed-{call}", Lie("lie=talk", silence)))
    assert_noticed(ports, asked)


HONEST = Lie("", "")
TIMED = {"round-trip", "one-way", "one-way-window", "open"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    rotation = metafunc.config.getoption("--rotation")
    if metafunc.function is test_honest_server_is_measured:
        metafunc.parametrize("model", sample(MODELS, 9, rotation))
    if metafunc.function is test_lie_is_detected:
        # At least one of each kind: change, lose, repeat, ...
        some = sample(lies(), 60, rotation, kind=lambda case: case.values[1].query.partition("&")[0])
        metafunc.parametrize(("model", "lie"), some)


def test_honest_server_is_measured(ports: dict[str, int], model: str) -> None:
    answers = run_all(ports, [(model, HONEST)])
    assert answers
    for *_, peer, answer in answers:
        assert answer.get("checked") is True, (peer, answer)
        assert answer["status"] == 0
        assert answer["count"] > 0
        assert not model.endswith("sleep") or {"late_p50", "late_p99", "late_max", "kept"} <= answer.keys()
        assert not model.endswith("compute") or {"share", "kept"} <= answer.keys()
        assert model not in TIMED or {"mean", "p50", "p90", "p99", "max"} <= answer.keys()


REPLY = r"ContentError: a reply differs from the message that was sent$"
DOCUMENT = r"ContentError: a reply differs from the document that was sent$"
ECHO = r"ContentError: the echo of a (message|document) that was sent differs from it$"
NOT_BINARY = "what arrived is no binary message"
STAMPED = "ContentError: the reply to message {} of /stamp is another, or has other content$"
OTHER_LENGTH = f"{STAMPED.format(2)}|ContentError: {NOT_BINARY}"
UNSTAMPED = f"ContentError: (the reply to message 2 of /stamp is no stamped message|{NOT_BINARY})"
CLOCK = "ContentError: the server's stamps do not lie between sending and receiving: it has another clock$"
STREAM = r"ContentError: message \d+ of the stream (carries number \d+, or has other content|is x+)$"
SINK = r"ContentError: /sink received .*, sent was "
FILES = r"ContentError: a file of .* went over, the server says "
DEFLATE = r"ContentError: the server did not agree to permessage-deflate$"

# A raw socket waits for a number of bytes: without more messages, it waits until the harness ends it.
LIBRARIES = AWAIT + CALLBACKS + BLOCKING


def second(complaint: str, *names: str, which: str = "at=2", peers: tuple[str, ...] = ()) -> list[Lie]:
    """Returns lies about the second message with one complaint."""
    return [Lie(f"lie={name}&{which}", complaint, peers=peers) for name in names]


# About the messages that /sink has received, and about the echo before.
COUNTS = [*second(SINK, "lose", "repeat", "short"), Lie("lie=count", SINK), Lie("", ECHO, "echo")]
STAMPS = [
    *second(STAMPED.format(2), "change"),
    *second(STAMPED.format(3), "repeat"),
    *second(UNSTAMPED, "text"),
    *second(CLOCK, "behind", "ahead"),
]


LIES = {
    "round-trip": [*second(REPLY, "change", "repeat", "text"), *second(REPLY, "short", peers=LIBRARIES)],
    "one-way": [*STAMPS, *second(STAMPED.format(2), "short", peers=LIBRARIES)],
    "one-way-window": [*STAMPS, *second(STAMPED.format(2), "lose", "reorder"), *second(OTHER_LENGTH, "short")],
    # The number of messages is always checked, and a message now and then: an error in a single one may pass.
    "duplex": [
        *second(STREAM, "lose", "repeat"),
        *second(STREAM, "change", "reorder", "short", "text", which="since=2"),
        Lie("lie=count", SINK),
    ],
    "transfer-in": [
        *second(FILES, "change", "reorder"),
        Lie("lie=lose&at=2", "ContentError: in place of a message of the file came {"),
        Lie("lie=repeat&at=2", "ContentError: 20032 bytes came in the messages of a file of 20001$"),
        Lie("lie=short&at=2", "ContentError: 20000 bytes came in the messages of a file of 20001$"),
        Lie("lie=text&at=2", "ContentError: in place of a message of the file came x+$"),
        Lie("lie=count", FILES),
        Lie("lie=digest", FILES),
    ],
    "transfer-out": [
        *second(FILES, "change", "lose", "reorder", "repeat", "short"),
        Lie("lie=count", FILES),
        Lie("lie=digest", FILES),
    ],
    "send-each": COUNTS,
    "tasks": COUNTS,
    "many": second(REPLY, "change", "repeat", "short", "text", which="at=0"),
    "sleep": second(REPLY, "change", "repeat", "short", "text", which="at=0"),
    "compute": second(REPLY, "change"),
    "open": second(ECHO, "change", "short", "text", which="since=0"),
    "deflate-round-trip": [Lie("", DEFLATE, "plain"), *second(REPLY, "change", "repeat", "short", "binary")],
    "deflate-send": [Lie("", DEFLATE, "plain"), *COUNTS],
    "codec-round-trip": second(DOCUMENT, "change", "lose", "reorder", "repeat"),
    "codec-send": COUNTS,
}


def lies() -> list[Any]:
    """Returns each lie about each model.

    The checking loops are equal around every library: for the other one, the first lie of a model suffices to show that
    its received messages are checked.
    """
    cases = []
    for model, some in LIES.items():
        for number, lie in enumerate(some):
            peers = lie.peers or MODELS[model].peers
            ours = tuple(peer for peer in peers if not peer.startswith("websockets"))
            cases.append(pytest.param(model, replace(lie, peers=ours if number else peers), id=f"{model}: {lie}"))
    return cases


def test_lie_is_detected(ports: dict[str, int], model: str, lie: Lie) -> None:
    assert_noticed(ports, [(model, lie)])


def test_lie_in_timed_round_trips_is_detected(ports: dict[str, int]) -> None:
    # They are timed after the window of the rate, in which no clock is read, and for half as long: 0.41 s to 0.61 s.
    assert_noticed(ports, [("round-trip", Lie("lie=change&after=0.45", REPLY, peers=OURS + RAW))], seconds=0.4)


@pytest.mark.parametrize(
    ("messages", "size", "right"),
    [(1, 640, True), (10, 640, True), (0, 640, False), (11, 640, False), (5, 639, False), ("1", 640, False)],
)
def test_merged_messages_are_detected(messages: object, size: int, right: bool) -> None:
    sink, file = Sink(64, merges=True), File(64, 640, merges=True)
    sink.sent = 10
    told = {"messages": messages, "bytes": size}
    with contextlib.nullcontext() if right else pytest.raises(ContentError, match="/sink received"):
        sink.check(json.dumps(told))
    with contextlib.nullcontext() if right else pytest.raises(ContentError, match="went over"):
        file.check(json.dumps({**told, "sha256": "abc"}), "abc")
