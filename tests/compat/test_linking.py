"""Exceptions of both packages: ``except`` clauses that name either catch what ours raises."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

import wirespeed
import wirespeed.compat.websockets
import wirespeed.exceptions

exceptions = pytest.importorskip("websockets.exceptions")


@pytest.mark.parametrize("name", [name for name in wirespeed.exceptions.__all__ if name != "StreamClosedError"])
def test_theirs_are_bases_of_ours(name: str) -> None:
    ours, theirs = getattr(wirespeed.exceptions, name), getattr(exceptions, name)
    assert issubclass(ours, theirs)
    assert issubclass(ours, wirespeed.WebSocketException)
    assert ours.__module__ == "wirespeed.exceptions"
    assert not issubclass(theirs, ours)


def test_that_of_streams_is_one_of_theirs() -> None:
    """They have no streams, and what it derives from."""
    assert not hasattr(exceptions, "StreamClosedError")
    assert issubclass(wirespeed.StreamClosedError, exceptions.ConnectionClosedError)


def test_linking_again_changes_nothing() -> None:
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


def test_what_native_code_raises() -> None:
    async def handler(ws: Any) -> None:
        await ws.close(4000, "why")

    async def main() -> None:
        # No drop-in is used: the connection is ours.
        async with wirespeed.serve(handler, "127.0.0.1", 0) as server:
            address = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            for kind in (exceptions.ConnectionClosedError, wirespeed.ConnectionClosedError):
                ws = await wirespeed.connect(address)
                with pytest.raises(kind) as caught:
                    await ws.recv()
                assert caught.value.rcvd is not None
                assert caught.value.rcvd.code == 4000
                assert caught.value.code == 4000  # no warning: it is ours
            assert isinstance(caught.value, exceptions.WebSocketException)

    asyncio.run(main())
