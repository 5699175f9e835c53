"""Reconnecting after errors: which are transient, and the delays."""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
from collections.abc import Iterable

import pytest

from support.asyncio_tools import Run
from support.checks import no_leaks, within
from support.connecting import ONE_PORT, Connect, echo
from support.reconnecting import at_once, echo_close, in_turn, refuse
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import IS_WIRESPEED, exceptions

SETTINGS = ONE_PORT


# Policy


def process(exc: Exception) -> Exception | None:
    if IS_WIRESPEED:
        from wirespeed.asyncio import process_exception
    else:
        from websockets.asyncio.client import process_exception
    return process_exception(exc)


def invalid_status(status: int) -> Exception:
    if IS_WIRESPEED:
        from wirespeed import Headers, Response

        return exceptions.InvalidStatus(Response(status, "No", Headers(), b""))
    from websockets.datastructures import Headers
    from websockets.http11 import Response

    return exceptions.InvalidStatus(Response(status, "No", Headers(), b""))


def lost() -> Exception:
    exc: Exception = exceptions.InvalidMessage("did not receive a valid HTTP response")
    exc.__cause__ = EOFError("stream ended")
    return exc


@pytest.mark.parametrize(
    "exc",
    [
        OSError(),
        ConnectionRefusedError(),
        TimeoutError(),
        asyncio.TimeoutError(),
        ssl.SSLError(),
        lost(),
        *map(invalid_status, [500, 502, 503, 504, *([429] if IS_WIRESPEED else [])]),
    ],
    ids=repr,
)
def test_transient(exc: Exception) -> None:
    assert process(exc) is None


@pytest.mark.parametrize(
    "exc",
    [
        ValueError(),
        EOFError(),
        exceptions.InvalidMessage("unsupported"),
        exceptions.SecurityError("more than 10 redirects"),
        exceptions.ProxyError("no"),
        exceptions.InvalidURI("ws", "no"),
        *map(invalid_status, [200, 400, 401, 403, 404, 501, 505]),
        *([ssl.SSLCertVerificationError(1, "certificate verify failed")] if IS_WIRESPEED else []),
    ],
    ids=repr,
)
def test_fatal(exc: Exception) -> None:
    assert process(exc) is exc


@pytest.mark.wirespeed_only("it lies elsewhere")
def test_backoff() -> None:
    from wirespeed.asyncio._reconnect import backoff

    series = [list(itertools.islice(backoff(), 12)) for _ in range(50)]
    limits = [5.0, *(min(90.0, 3.1 * 1.618**number) for number in range(11))]
    for limit, column in zip(limits, zip(*series, strict=True), strict=True):
        assert len(set(column)) == 50
        assert max(column) <= limit * 1.0001
        # All values differ.
        assert max(column) - min(column) > limit / 10
    for delays in series:
        assert delays[1:9] == sorted(delays[1:9])
        assert all(90 / 1.619 <= delay <= 90 for delay in delays[-3:])
    low, high = [0, 0.5, 1, 2, 2], [0, 1, 2, 4, 4]
    for _ in range(50):
        found = list(itertools.islice(backoff(0, 1, 4, 2), 5))
        assert all(least <= delay <= most for least, delay, most in zip(low, found, high, strict=True))


# Errors of connecting


def test_retries_until_it_succeeds(scripted: Scripted, run: Run, connect: Connect) -> None:
    def lose(wire: Wire) -> None:
        wire.read_request()
        wire.reset()

    server = scripted(in_turn(refuse, lambda wire: wire.read_request(), refuse, lose, echo_close))

    async def main() -> None:
        async for ws in connect(server.uri, reconnect_delays=at_once):
            assert await ws.recv() == "hello"
            await ws.close()
            break

    with no_leaks():
        run(main)
    server.join()
    assert len(server.results) == 5


def test_delays_are_used_in_their_order(
    scripted: Scripted, run: Run, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    server = scripted(in_turn(refuse, refuse, refuse, echo_close))
    calls = []

    def delays() -> Iterable[float]:
        calls.append("delays")
        yield from (0.1, 0.2, 0.3)

    async def main() -> None:
        async for ws in connect(server.uri, reconnect_delays=delays):
            await ws.close()
            break

    caplog.set_level(logging.INFO)
    with within(5, at_least=0.6):
        run(main)
    assert calls == ["delays"]
    to = f" to {server.uri}" if IS_WIRESPEED else ""
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        f"connect{to} failed; reconnecting in {delay:.1f} seconds: {prefix}InvalidStatus: server rejected WebSocket "
        "connection: HTTP 503"
        for delay in (0.1, 0.2, 0.3)
        for prefix in [exceptions.__name__ + "."]
    ]
    assert {record.levelname for record in caplog.records} == {"INFO"}


@pytest.mark.no_leaks
async def test_fatal_error_is_raised(scripted: Scripted, connect: Connect) -> None:
    server = scripted(in_turn(refuse, lambda wire: refuse(wire, 401)))
    iterator = aiter(connect(server.uri, reconnect_delays=at_once))
    with pytest.raises(exceptions.InvalidStatus) as raised:
        await anext(iterator)
    assert raised.value.response.status_code == 401
    with pytest.raises(StopAsyncIteration):
        await anext(iterator)


@pytest.mark.parametrize("how", ["return", "raise"])
async def test_process_exception(scripted: Scripted, connect: Connect, how: str) -> None:
    server = scripted(in_turn(lambda wire: refuse(wire, 401), lambda wire: refuse(wire, 403)))
    seen = []

    def process_exception(exc: Exception) -> Exception | None:
        assert isinstance(exc, exceptions.InvalidStatus)
        seen.append(exc.response.status_code)
        if exc.response.status_code == 401:
            return None
        if how == "raise":
            raise PermissionError("no")
        return PermissionError("no")

    with pytest.raises(PermissionError) as raised:
        async for _ in connect(server.uri, reconnect_delays=at_once, process_exception=process_exception):
            pytest.fail("it connected")
    assert isinstance(raised.value.__cause__, exceptions.InvalidStatus)
    assert seen == [401, 403]


@pytest.mark.wirespeed_only("ours")
def test_gives_up_when_the_delays_end(scripted: Scripted, run: Run, connect: Connect) -> None:
    server = scripted(refuse)

    async def main() -> None:
        with pytest.raises(exceptions.InvalidStatus):
            async for _ in connect(server.uri, reconnect_delays=lambda: [0, 0]):
                pytest.fail("it connected")

    with no_leaks():
        run(main)
    server.join()
    assert len(server.results) == 3


@pytest.mark.within(5)
async def test_no_delay_before_the_first_try(server: WebSocketsServer, connect: Connect) -> None:
    async for ws in connect(server.uri, reconnect_delays=lambda: itertools.repeat(60.0)):
        await echo(ws)
        await ws.close()
        break
