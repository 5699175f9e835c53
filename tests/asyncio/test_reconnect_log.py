"""Retry-After headers of servers, and log records of reconnecting."""

from __future__ import annotations

import asyncio
import datetime
import email.utils
import itertools
import logging
import re
import ssl
from collections.abc import Callable

import pytest

from support.asyncio_tools import Run, cancelled, soon
from support.certificates import Certificates
from support.connecting import ONE_PORT, Connect
from support.frames import close
from support.reconnecting import at_once, close_with, echo_close, in_turn, refuse
from support.scripted import Scripted, Wire
from support.subject import IS_WIRESPEED, exceptions
from support.tls_settings import Settings

pytestmark = pytest.mark.wirespeed_only("ours")

if IS_WIRESPEED:
    from wirespeed import ConnectAttempt

SETTINGS = ONE_PORT


def texts(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno >= level]


# Certificates


@pytest.mark.no_leaks
@pytest.mark.within(10)
async def test_certificate_that_does_not_verify(
    scripted: Scripted, connect: Connect, certificates: Certificates, tls: Settings
) -> None:
    """The first attempt raises the error."""
    server = scripted(lambda wire: None, ssl_context=certificates.unknown_authority_context())
    with pytest.raises(ssl.SSLCertVerificationError):
        async for _ in connect(server.secure_uri, ssl=tls.trusting(), reconnect_delays=at_once):
            pytest.fail("it connected")


# Retry-After


def later(value: str, status: int = 503) -> Callable[[Wire], None]:
    def script(wire: Wire) -> None:
        wire.read_request()
        wire.send(f"HTTP/1.1 {status} No\r\nRetry-After: {value}\r\nContent-Length: 0\r\n\r\n".encode())

    return script


def waits(caplog: pytest.LogCaptureFixture) -> list[float]:
    found = [re.search(r"reconnecting in ([0-9.]+) seconds", text) for text in texts(caplog)]
    return [float(match[1]) for match in found if match]


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.within(15, at_least=1)
async def test_retry_after(scripted: Scripted, connect: Connect, caplog: pytest.LogCaptureFixture, status: int) -> None:
    """The client waits for the given time, and a little longer."""
    caplog.set_level(logging.INFO)
    server = scripted(in_turn(later("1", status), later("0", status), echo_close))
    async for ws in connect(server.uri, reconnect_delays=at_once):
        await ws.close()
        break
    first, second = waits(caplog)
    assert 1 <= first <= 1.2
    assert second == 0


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        ("120", 120, 144),
        ("date", 110, 144),
        ("date of another zone", 110, 144),
        ("date without a zone", 110, 144),
        ("999999999999", 21600, 21600),
        ("past", 0, 0),
        ("-1", 0, 0),
        ("1.5", 0, 0),
        ("soon", 0, 0),
        ("Wed, 21 Oct 99999999999 07:28:00 GMT", 0, 0),
        ("Wed, 21 Oct 2026 07:28:00 +99999999999999999999", 0, 0),
        ("", 0, 0),
        ("\xb2", 0, 0),
        ("5\r\nRetry-After: 6", 0, 0),
    ],
)
async def test_values(
    scripted: Scripted, connect: Connect, caplog: pytest.LogCaptureFixture, value: str, least: float, most: float
) -> None:
    """Seconds and dates are accepted; invalid values are ignored, and long ones are capped at hours."""
    caplog.set_level(logging.INFO)
    what = value
    if what.startswith(("date", "past")):
        then = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=-2 if what == "past" else 2)
        if what == "date of another zone":
            then = then.astimezone(datetime.timezone(datetime.timedelta(hours=2)))
        value = email.utils.format_datetime(then, usegmt=not then.utcoffset())
        if what == "date without a zone":
            value = value.removesuffix(" GMT")
    server = scripted(in_turn(later(value), refuse))

    async def iterate() -> None:
        async for _ in connect(server.uri, reconnect_delays=at_once):
            pytest.fail("it connected")

    task = asyncio.ensure_future(iterate())
    await soon(lambda: waits(caplog))
    assert await cancelled(task)
    assert least <= waits(caplog)[0] <= most + 0.05


async def test_longer_delays_of_the_client_stay(
    scripted: Scripted, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = scripted(in_turn(later("0"), echo_close))
    async for ws in connect(server.uri, reconnect_delays=lambda: itertools.repeat(0.3)):
        await ws.close()
        break
    assert waits(caplog) == [0.3]


# The log


async def test_closed(scripted: Scripted, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    """The log record names the connection and the reason."""
    caplog.set_level(logging.INFO)

    def leave(wire: Wire) -> None:
        wire.accept(then=close(4000, "maintenance"))
        wire.read_until_close()

    server = scripted(in_turn(leave, close_with(1000)))
    ids = []
    async for ws in connect(server.uri + "feed?token=secret", reconnect_delays=at_once):
        ids.append(ws.id)
        await ws.wait_closed()
    [text] = [text for text in texts(caplog) if "closed" in text]
    assert text == (
        f"connection closed ({ids[0]} to {server.uri}feed?***); reconnecting in 0.0 seconds: "
        "received 4000 (private use) maintenance; then sent 4000 (private use) maintenance"
    )


async def test_failed(scripted: Scripted, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    """The log record names the destination, without secrets."""
    caplog.set_level(logging.INFO)
    server = scripted(in_turn(refuse, echo_close))
    uri = server.uri.replace("//", "//user:secret@") + "feed?token=secret"
    async for ws in connect(uri, reconnect_delays=at_once):
        await ws.close()
        break
    [text] = [text for text in texts(caplog) if "failed" in text]
    where = server.uri.replace("//", "//***@") + "feed?***"
    assert text.startswith(f"connect to {where} failed; reconnecting in 0.0 seconds: ")
    assert "secret" not in caplog.text


@pytest.mark.parametrize("how", ["refused", "closed"])
def test_exhausted_delays_are_logged_once(
    scripted: Scripted, run: Run, connect: Connect, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """The end of the delays is logged once, because the end of the iteration does not give a reason."""
    server = scripted(refuse if how == "refused" else close_with(4000))
    rounds = []

    async def main() -> None:
        async for ws in connect(server.uri, reconnect_delays=lambda: [0, 0] if how == "refused" else []):
            rounds.append(ws.id)
            await ws.wait_closed()

    if how == "refused":
        with pytest.raises(exceptions.InvalidStatus):
            run(main)
    else:
        run(main)
        assert len(rounds) == 1
    [text] = texts(caplog, logging.WARNING)
    assert text.startswith("not connecting again, as reconnect_delays has ended (")
    assert server.uri in text
    assert all(str(known) in text for known in rounds)
    assert ("HTTP 503" if how == "refused" else "4000") in text


def test_attempt_is_logged_without_secrets() -> None:
    attempt = ConnectAttempt.first("wss://user:secret@host/?token=secret", None)
    attempt.additional_headers["Authorization"] = "secret"
    assert repr(attempt) == (
        "ConnectAttempt(uri='wss://***@host/?***', "
        "additional_headers=_Replaceable([('Authorization', '***')]), number=1, error=None)"
    )
