"""The hook that changes the arguments of the next attempt."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from support.asyncio_tools import Run
from support.checks import no_leaks, within
from support.connecting import ONE_PORT, Connect, echo
from support.frames import close
from support.reconnecting import at_once
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import exceptions

pytestmark = pytest.mark.wirespeed_only("websockets has no such hook")

SETTINGS = ONE_PORT


def want_token(token: str) -> Callable[[Wire], str | None]:
    """A server that accepts one token only, and then loses the connection."""

    def script(wire: Wire) -> str | None:
        wire.read_request()
        if wire.header("Authorization") == token:
            wire.send(wire.accept_bytes() + close(1011))
            wire.read_until_close()
        else:
            wire.send(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n")
        return wire.header("Authorization")

    return script


@pytest.mark.parametrize("kind", ["function", "coroutine function"])
def test_token(scripted: Scripted, run: Run, connect: Connect, kind: str) -> None:
    """Each attempt has a new token."""
    server = scripted(want_token("3"))
    seen: list[tuple[int, str | None]] = []
    tokens = itertools.count(1)

    def refresh(attempt: Any) -> None:
        error = attempt.error
        seen.append((attempt.number, None if error is None else str(error.response.status_code)))
        attempt.additional_headers["Authorization"] = str(next(tokens))

    async def refresh_later(attempt: Any) -> None:
        await asyncio.sleep(0.01)
        refresh(attempt)

    async def main() -> None:
        opened: list[Any] = []
        async for ws in connect(
            server.uri,
            refresh=refresh if kind == "function" else refresh_later,
            process_exception=lambda exc: exc if opened else None,
            reconnect_delays=at_once,
        ):
            opened.append(ws)
            with pytest.raises(exceptions.ConnectionClosedError):
                await ws.recv()

    with no_leaks(), pytest.raises(exceptions.InvalidStatus):
        run(main)
    server.join()
    # A header that is set again replaces the one before.
    assert server.results == ["1", "2", "3", "4"]
    assert seen == [(1, None), (2, "401"), (3, "401"), (1, None)]


@pytest.mark.no_leaks
async def test_uri(server: WebSocketsServer, connect: Connect, closed_port: int) -> None:
    def refresh(attempt: Any) -> None:
        attempt.uri = server.uri + f"/try{attempt.number}" if attempt.number > 1 else f"ws://127.0.0.1:{closed_port}/"

    async for ws in connect("ws://host.invalid/", refresh=refresh, reconnect_delays=at_once):
        assert ws.request.path == "/try2"
        await ws.close()


@pytest.mark.parametrize("how", ["await", "async with"])
@pytest.mark.no_leaks
async def test_outside_of_a_loop(server: WebSocketsServer, connect: Connect, how: str) -> None:
    """Each iteration begins with the arguments of the call."""
    headers = {"X-Spam": "eggs"}
    seen = []

    def refresh(attempt: Any) -> None:
        seen.append((attempt.uri, attempt.additional_headers.get("X-Ham"), attempt.number))
        attempt.uri += "headers"
        attempt.additional_headers["X-Ham"] = "bacon"

    connecting = connect(server.uri + "/", additional_headers=headers, refresh=refresh)
    for _ in range(2):
        if how == "await":
            ws = await connecting
            lines = [line async for line in ws]
            await ws.close()
        else:
            async with connecting as ws:
                lines = [line async for line in ws]
        assert {"X-Spam: eggs", "X-Ham: bacon"} <= set(lines)
    assert seen == [(server.uri + "/", None, 1)] * 2
    assert headers == {"X-Spam": "eggs"}


async def test_headers_may_be_replaced(server: WebSocketsServer, connect: Connect) -> None:
    def refresh(attempt: Any) -> None:
        attempt.additional_headers = {"X-Ham": "bacon"}

    async with connect(server.uri + "/headers", additional_headers={"X-Spam": "eggs"}, refresh=refresh) as ws:
        lines = [line async for line in ws]
    assert "X-Ham: bacon" in lines
    assert "X-Spam: eggs" not in lines


def test_exception_of_the_hook_is_a_connect_error(server: WebSocketsServer, run: Run, connect: Connect) -> None:
    errors = iter([ConnectionRefusedError("token server"), TimeoutError("token server"), None, ValueError("no token")])

    def refresh(attempt: Any) -> None:
        if error := next(errors):
            raise error

    async def main() -> None:
        async for ws in connect(server.uri, refresh=refresh, reconnect_delays=at_once):
            await echo(ws)

    with no_leaks(), pytest.raises(ValueError, match="no token"):
        run(main)


@pytest.mark.parametrize(
    ("change", "expected", "match"),
    [
        ({"uri": "http://localhost/"}, exceptions.InvalidURI, "http"),
        ({"uri": 1}, TypeError, "uri"),
        ({"additional_headers": {"X": "a\r\nb: c"}}, ValueError, "additional_headers"),
        ({"additional_headers": {"Upgrade": "a"}}, ValueError, "(?i)upgrade"),
        ({"additional_headers": 1}, TypeError, "additional_headers"),
    ],
    ids=str,
)
@pytest.mark.no_leaks
async def test_wrong_changes(connect: Connect, change: dict[str, Any], expected: Any, match: str) -> None:
    def refresh(attempt: Any) -> None:
        for name, value in change.items():
            setattr(attempt, name, value)

    with pytest.raises(expected, match=match):
        await connect("ws://127.0.0.1:1/", refresh=refresh)


async def test_change_that_does_not_fit_other_arguments(connect: Connect, certificates: Any) -> None:
    def refresh(attempt: Any) -> None:
        attempt.uri = "ws://127.0.0.1:1/"

    with pytest.raises(ValueError, match="ssl argument is incompatible"):
        await connect("wss://127.0.0.1:1/", ssl=certificates.client_context(), refresh=refresh)


@pytest.mark.parametrize("result", [{"X": "y"}, "ws://localhost/"], ids=repr)
async def test_result(connect: Connect, result: Any) -> None:
    """A common mistake: the hook returns a value."""
    with pytest.raises(TypeError, match="refresh must change its argument"):
        await connect("ws://127.0.0.1:1/", refresh=lambda attempt: result)


async def test_deadline(connect: Connect) -> None:
    async def refresh(attempt: Any) -> None:
        await asyncio.sleep(60)

    with within(3, at_least=0.1), pytest.raises(TimeoutError, match="refresh"):
        await connect("ws://127.0.0.1:1/", refresh=refresh, open_timeout=0.1)


async def test_cancelled(connect: Connect) -> None:
    async def refresh(attempt: Any) -> None:
        await asyncio.sleep(60)

    task = asyncio.ensure_future(connect("ws://127.0.0.1:1/", refresh=refresh))
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
