"""Exceptions of both packages: ``except`` clauses that name either class catch exceptions of ours."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import wirespeed
import wirespeed.compat.websockets
import wirespeed.exceptions

exceptions = pytest.importorskip("websockets.exceptions")


@pytest.mark.parametrize("name", [name for name in wirespeed.exceptions.__all__ if name != "StreamClosedError"])
def test_websockets_exceptions_are_bases(name: str) -> None:
    ours, theirs = getattr(wirespeed.exceptions, name), getattr(exceptions, name)
    assert issubclass(ours, theirs)
    assert issubclass(ours, wirespeed.WebSocketException)
    assert ours.__module__ == "wirespeed.exceptions"
    assert not issubclass(theirs, ours)


def test_stream_error_is_a_websockets_exception() -> None:
    """websockets has no streams; the exception is linked with its base class."""
    assert not hasattr(exceptions, "StreamClosedError")
    assert issubclass(wirespeed.StreamClosedError, exceptions.ConnectionClosedError)


def test_linking_is_idempotent() -> None:
    from wirespeed.compat.websockets._installed import link_exceptions

    before = {name: getattr(wirespeed, name).__mro__ for name in wirespeed.exceptions.__all__}
    link_exceptions()
    assert {name: getattr(wirespeed, name).__mro__ for name in wirespeed.exceptions.__all__} == before


RESPONSE = wirespeed.Response(500, "Internal Server Error", wirespeed.Headers(), b"")

MADE = [
    wirespeed.ConnectionClosedOK(wirespeed.Close(1000, ""), wirespeed.Close(1000, ""), True),
    wirespeed.ConnectionClosedError(None, wirespeed.Close(1011, "why"), None),
    wirespeed.InvalidURI("ws:", "wrong"),
    wirespeed.InvalidStatus(RESPONSE),
    wirespeed.InvalidHeader("Name", "value"),
    wirespeed.InvalidHeaderFormat("Name", "error", "header", 3),
    wirespeed.InvalidOrigin("https://o"),
    wirespeed.InvalidParameterValue("name", None),
    wirespeed.PayloadTooBig(5, 4, 1),
    wirespeed.TooManyFragments(3),
    wirespeed.ConcurrencyError("text"),
    wirespeed.InvalidState("text"),
    wirespeed.ProtocolError("text"),
    wirespeed.SecurityError(),
]


@pytest.mark.parametrize("exc", MADE, ids=lambda exc: type(exc).__name__)
def test_ours_stay_what_they_are(exc: Any) -> None:
    assert "Exception" in type(exc).__mro__[-3].__name__ or str(exc) or not exc.args
    copied = pickle.loads(pickle.dumps(exc))
    assert (type(copied), str(copied), repr(copied), copied.__dict__) == (type(exc), str(exc), repr(exc), exc.__dict__)


async def test_exceptions_raised_by_native_code() -> None:
    async def handler(ws: Any) -> None:
        await ws.close(4000, "why")

    # No drop-in is used: the connection is of wirespeed.
    async with wirespeed.serve(handler, "127.0.0.1", 0) as server:
        address = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for kind in (exceptions.ConnectionClosedError, wirespeed.ConnectionClosedError):
            ws = await wirespeed.connect(address)
            with pytest.raises(kind) as caught:
                await ws.recv()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 4000
            assert caught.value.code == 4000  # no warning: it is a class of wirespeed
        assert isinstance(caught.value, exceptions.WebSocketException)
