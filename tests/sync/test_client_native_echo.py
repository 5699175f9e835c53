"""Tests against the project's own echo server, the peer of the demo and of the benchmarks."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from support.checks import as_close, within
from support.frames import Close
from support.native import NativeEcho
from support.subject import IS_WIRESPEED, connect, exceptions


@pytest.fixture(params=["ws", "wss"])
def target(request: pytest.FixtureRequest, native_echo: NativeEcho) -> tuple[str, dict[str, Any]]:
    """The address, without a path, and the options to connect with."""
    if request.param == "ws":
        return native_echo.uri, {}
    if IS_WIRESPEED:
        import wirespeed

        return native_echo.secure_uri, {"ssl": wirespeed.TLS(ca=native_echo.ca_file)}
    return native_echo.secure_uri, {"ssl": ssl.create_default_context(cafile=native_echo.ca_file)}


@pytest.mark.parametrize("compression", ["deflate", None])
def test_echo(target: tuple[str, dict[str, Any]], compression: str | None) -> None:
    uri, options = target
    with connect(uri + "/", compression=compression, max_size=None, **options) as ws:
        for size in (0, 1, 125, 126, 65_535, 65_536, 1 << 20, 5 << 20):
            message = (bytes(range(256)) * (size // 256 + 1))[:size]
            ws.send(message)
            assert ws.recv(timeout=10) == message
        ws.send("é€😀")
        assert ws.recv(timeout=5) == "é€😀"
        ws.send(["frag", "ments"])
        assert ws.recv(timeout=5) == "fragments"
    assert ws.close_code == 1000


@pytest.mark.wirespeed_only("websockets stops reading when its queue is full, so close waits for its timeout")
@pytest.mark.parametrize("size", [64, 100_000])
def test_blast(target: tuple[str, dict[str, Any]], size: int) -> None:
    uri, options = target
    with connect(f"{uri}/blast?size={size}", compression=None, close_timeout=2, **options) as ws:
        for number in range(200):
            message = ws.recv(timeout=5)
            assert isinstance(message, bytes)
            assert len(message) == size
            assert int.from_bytes(message[:8], "little") == number
        with within(1.5):
            ws.close()
    assert ws.close_code == 1000


def test_sink(target: tuple[str, dict[str, Any]]) -> None:
    uri, options = target
    with connect(f"{uri}/sink", compression=None, **options) as ws:
        for _ in range(1000):
            ws.send(bytes(1000))
        with within(5):
            ws.close()
    assert ws.close_code == 1000


@pytest.mark.parametrize("code", [1000, 1001, 1011, 4000])
def test_close(target: tuple[str, dict[str, Any]], code: int) -> None:
    uri, options = target
    ws = connect(f"{uri}/close?code={code}", **options)
    with pytest.raises(exceptions.ConnectionClosed) as raised:
        ws.recv(timeout=5)
    assert raised.value.rcvd is not None
    assert as_close(raised.value.rcvd) == Close(code, raised.value.rcvd.reason)
    assert raised.value.rcvd_then_sent is True
    ws.close()


def test_ping(target: tuple[str, dict[str, Any]]) -> None:
    uri, options = target
    with connect(uri + "/", **options) as ws:
        assert ws.ping().wait(5)
        assert ws.latency > 0
