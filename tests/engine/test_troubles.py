"""Reports of problems to an operator: dead consumers, wrong tokens, refused pages, failing log handlers."""

from __future__ import annotations

import http.client
import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import wirespeed
from engine.callers import dial, next_session, status, wait_for
from wirespeed.engine import Engine

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")

PAGE = "the-token-of-the-page"
METRICS = "of-the-metrics"


def get(engine: Engine, path: str, token: str | None = None) -> tuple[int, str, str | None]:
    """Returns status, body and ``Retry-After`` of an answer."""
    host, port = engine.addresses[0]
    connection = http.client.HTTPConnection(host, port, timeout=20)
    try:
        connection.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, response.read().decode(), response.getheader("Retry-After")
    finally:
        connection.close()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG, "wirespeed.engine"):
        yield caplog


# ---- consumers ----


def test_unconsumed_events_are_reported(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the consuming thread has died."""
    monkeypatch.setattr("wirespeed.engine._lifecycle.STUCK_AFTER", 0.3)
    with Engine("127.0.0.1") as engine, dial(engine, "/") as ws:
        next_session(engine)
        assert get(engine, "/ready")[0] == 200
        ws.send("nobody takes this")
        wait_for(lambda: engine.stats()["oldest_event"] > 0.3, "it waits")
        assert get(engine, "/ready")[:2] == (503, "events are not taken\n")
        wait_for(lambda: any("the oldest has waited for" in text for text in caplog.messages), f"{caplog.messages}")
        line = next(line for line in engine.metrics().splitlines() if line.startswith("wirespeed_oldest_event_seconds"))
        assert float(line.split()[1]) > 0.3
        assert engine._take(10, 20)
        assert engine.stats()["oldest_event"] == 0
        assert get(engine, "/ready")[0] == 200


def test_sending_only_program_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """It only sends."""
    monkeypatch.setattr("wirespeed.engine._lifecycle.STUCK_AFTER", 0.3)
    with Engine("127.0.0.1") as engine, dial(engine, "/"):
        wait_for(lambda: engine.stats()["oldest_event"] > 0.3, "it waits")
        assert get(engine, "/ready")[0] == 200


def test_unconsumed_events_are_logged_without_a_probe(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wirespeed.engine._lifecycle.STUCK_AFTER", 0.3)
    with Engine("127.0.0.1") as engine, dial(engine, "/") as ws:
        next_session(engine)
        ws.send("first")
        wait_for(lambda: engine.stats()["oldest_event"] > 0.3, "it waits")
        assert not caplog.messages
        ws.send("second")
        wait_for(lambda: any("the oldest has waited for" in text for text in caplog.messages), f"{caplog.messages}")


# ---- refusals ----


def test_refused_origins_have_their_own_reason(log: pytest.LogCaptureFixture) -> None:
    with Engine("127.0.0.1", origins=["https://good.example"]) as engine:
        assert status(engine, "/", origin="https://evil.example") == 403
        wait_for(lambda: any("https://evil.example" in text for text in log.messages), "it is logged")
        failed = engine.stats()["handshakes_failed_by_reason"]
        assert (failed["origin"], failed["forbidden"]) == (1, 0)


def test_refusing_relay_gives_a_reason(log: pytest.LogCaptureFixture) -> None:
    engine = Engine("127.0.0.1", topics_by_default="none")
    engine.relay("/feed/{topic}")
    with engine:
        assert status(engine, "/feed/prices") == 403
        wait_for(lambda: any("may not subscribe to the topic" in text for text in log.messages), "it is logged")


def test_an_origin_that_is_logged_is_short(log: pytest.LogCaptureFixture) -> None:
    with Engine("127.0.0.1") as engine:
        assert status(engine, "/", origin="https://" + "x" * 5000) == 403
        wait_for(lambda: log.messages, "it is logged")
        assert len(log.messages[0]) < 300


@pytest.mark.parametrize(
    ("path", "at", "token"), [("/metrics", "metrics", METRICS), ("/_wirespeed/figures", "page", PAGE)]
)
def test_wrong_tokens_are_counted_logged_and_limited(
    path: str, at: str, token: str, log: pytest.LogCaptureFixture
) -> None:
    with Engine("127.0.0.1", metrics_path="/metrics", metrics_token=METRICS, page=PAGE) as engine:
        # Without a token nothing is guessed.
        assert {get(engine, path)[0] for _ in range(20)} == {401}
        assert get(engine, path, token)[0] == 200
        assert [get(engine, path, f"{token}{guess}")[0] for guess in range(10)] == [401] * 10
        assert get(engine, path, "guess")[0] == 429
        # Otherwise a correct guess would be visible.
        answer = get(engine, path, token)
        assert (answer[0], answer[2]) == (429, "60")
        assert engine.stats()["operator_tokens_refused"][at] == 32
        assert f'wirespeed_operator_tokens_refused_total{{at="{at}"}} 32' in engine.metrics()
        for what in ("has no token", "has a wrong token"):
            wait_for(lambda what=what: any(what in text for text in log.messages), what)  # type: ignore[misc]
        assert not any(token in text for text in log.messages)
        assert get(engine, "/health")[0] == 200


def test_public_metrics_warn(log: pytest.LogCaptureFixture) -> None:
    harmless: list[dict[str, Any]] = [
        {"metrics": ("127.0.0.1", 0)},
        {"metrics": ("0.0.0.0", 0), "metrics_token": METRICS},
    ]
    for options in harmless:
        with Engine("127.0.0.1", **options):
            pass
    assert not any("set metrics_token" in text for text in log.messages)
    with Engine("127.0.0.1", metrics=("0.0.0.0", 0)) as engine:
        assert engine.metrics_address is not None
        port = engine.metrics_address[1]
        assert any(f"0.0.0.0 port {port}" in text and "set metrics_token" in text for text in log.messages)
    with Engine("0.0.0.0", metrics_path="/metrics") as engine:
        port = engine.addresses[0][1]
        assert any(f"0.0.0.0 port {port}" in text for text in log.messages)


# ---- a log that fails ----


class Failing(logging.Handler):
    """Raises at first, as on a full disk."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if self.times:
            self.times -= 1
            raise OSError("the disk is full")
        self.messages.append(record.getMessage())


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Failing]:
    logger, handler = logging.getLogger("wirespeed.engine"), Failing(1)
    monkeypatch.setattr(logger, "propagate", False)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_log_continues_after_a_handler_raised(failing: Failing, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine("127.0.0.1", origins=["https://good.example"])
    engine.route("/only")
    with engine:
        assert status(engine, "/nothing") == 404
        wait_for(lambda: not failing.times, "it has raised")
        assert status(engine, "/only", origin="https://evil.example") == 403
        wait_for(lambda: any("https://evil.example" in text for text in failing.messages), "it goes on")
    assert "the disk is full" in capsys.readouterr().err


@pytest.mark.parametrize("threads", [0, 2])
def test_run_continues_when_logging_fails(threads: int, failing: Failing) -> None:
    engine = Engine("127.0.0.1")

    @engine.on_message
    def echo(session, message):  # type: ignore[no-untyped-def]
        if message == "raise":
            raise ValueError("a mistake of the application")
        session.send(message)

    engine.start()
    running = threading.Thread(target=engine.run, kwargs={"threads": threads}, daemon=True)
    running.start()
    try:
        with dial(engine, "/") as ws:
            ws.send("raise")
            wait_for(lambda: not failing.times, "it has raised")
            with pytest.raises(wirespeed.ConnectionClosed):
                ws.recv(20)
            assert ws.close_code == 1011
        with dial(engine, "/") as ws:
            ws.send("hello")
            assert ws.recv(20) == "hello"
    finally:
        engine.stop()
        running.join(20)
    assert not running.is_alive()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no disk that is always full")
def test_full_disk_of_the_log_ends_nothing() -> None:
    program = textwrap.dedent("""
        import logging, threading
        from wirespeed.engine import Engine
        from wirespeed.sync import connect

        logging.getLogger("wirespeed.engine").addHandler(logging.FileHandler("/dev/full"))
        engine = Engine("127.0.0.1")

        @engine.on_message
        def echo(session, message):
            if message == "raise":
                raise ValueError("a mistake of the application")
            session.send(message)

        engine.start()
        running = threading.Thread(target=engine.run)
        running.start()
        uri = "ws://%s:%d/" % engine.addresses[0]
        with connect(uri, proxy=None) as ws:
            ws.send("raise")
        with connect(uri, proxy=None) as ws:
            ws.send("hello")
            print(ws.recv(20), running.is_alive())
        engine.stop()
        running.join()
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "hello True\n"), done.stderr
