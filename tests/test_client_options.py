"""The options of clients, and the requests made from them."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any, TypedDict

import pytest

from wirespeed import Listener
from wirespeed._native import ClientOpening, ClientPlan
from wirespeed._net.uri import parse_uri
from wirespeed._options.client import AsyncClientOptions, ClientOptions
from wirespeed.datastructures import Headers

KINDS = [ClientOptions, AsyncClientOptions]


@pytest.mark.parametrize("make", KINDS)
def test_attributes(make: Any) -> None:
    options = make({"compression": None, "ping_interval": 5, "user_agent_header": "x"})
    assert (options.compression, options.ping_interval, options.user_agent_header) == (None, 5, "x")
    assert options.ping_timeout == 20


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("value", [True, "5", -1, float("nan"), [5]])
def test_equal_values_of_other_types(make: Any, value: Any) -> None:
    """``True == 1``, but it is not a number of seconds; and a wrong value is refused each time."""
    make({"open_timeout": 1})
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match="open_timeout"):
            make({"open_timeout": value})


def test_pairs_are_checked_each_time() -> None:
    """``(1.0, None) == (1, None)``."""
    ClientOptions({"max_size": (1, None)})
    with pytest.raises(TypeError, match="max_size"):
        ClientOptions({"max_size": (1.0, None)})


class Kept(Listener):
    """A listener of an application."""


class Log(logging.LoggerAdapter):  # type: ignore[type-arg]
    """A logger for one connection."""


@pytest.mark.parametrize("argument", ["listener", "logger"])
def test_nothing_is_kept_alive(argument: str) -> None:
    value: Any = Kept() if argument == "listener" else Log(logging.getLogger("x"), {})
    reference = weakref.ref(value)
    options: Any = AsyncClientOptions({argument: value})
    assert getattr(options, argument) is value
    del options, value
    gc.collect()
    assert reference() is None


def test_lists_may_change() -> None:
    subprotocols = ["a"]
    options = ClientOptions({"subprotocols": subprotocols})
    subprotocols.append("b c")
    assert b"Sec-WebSocket-Protocol: a\r\n" in _head(options.request(parse_uri("ws://localhost/"), None))
    with pytest.raises(ValueError, match="subprotocols"):
        ClientOptions({"subprotocols": subprotocols})


def test_request() -> None:
    options = ClientOptions({"user_agent_header": "x"})
    here, there = parse_uri("ws://localhost/feed"), parse_uri("ws://localhost/other")
    assert _head(options.request(here, None)).startswith(b"GET /feed HTTP/1.1\r\nHost: localhost\r\n")
    assert _head(options.request(there, None)).startswith(b"GET /other HTTP/1.1\r\n")
    assert b"\r\nX-Api-Key: 1\r\n" in _head(options.request(here, Headers({"X-Api-Key": "1"})))
    assert b"X-Api-Key" not in _head(options.request(here, None))


def test_each_opening_has_its_own_key() -> None:
    plan = ClientOptions({}).request(parse_uri("ws://localhost/feed"), None)
    lines = [line for _ in range(99) for line in _head(plan).split(b"\r\n")]
    assert len({line for line in lines if line.startswith(b"Sec-WebSocket-Key: ")}) == 99


def _head(plan: ClientPlan) -> bytes:
    return ClientOpening(plan).take_output()


def test_headers_that_cannot_be_sent_are_found_each_time() -> None:
    options = ClientOptions({})
    uri = parse_uri("ws://localhost/")
    options.request(uri, None)
    for _ in range(2):
        with pytest.raises(ValueError, match="Upgrade"):
            options.request(uri, Headers({"Upgrade": "h2c"}))


class Known(TypedDict, total=False):
    """The names that the tests below use."""

    ping_interval: Any
    open_timeout: Any
    compression: Any
    subprotocols: Any
    proxy: Any
    listener: Any


def cached(kind: Any, **options: Any) -> Any:
    return kind.cached("connect", options, Known)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_options(kind: Any) -> None:
    options = cached(kind, compression=None, ping_interval=5)
    assert cached(kind, compression=None, ping_interval=5) is options
    assert type(options) is kind
    assert (options.compression, options.ping_interval) == (None, 5)
    assert cached(kind, compression=None, ping_interval=6).ping_interval == 6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [True, "5", -1, float("nan"), [5]])
def test_equal_cached_values_of_other_types(kind: Any, value: Any) -> None:
    cached(kind, open_timeout=1)
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match="open_timeout"):
            cached(kind, open_timeout=value)


@pytest.mark.parametrize(
    "options",
    [{"subprotocols": ["a"]}, {"proxy": "http://user:secret@proxy:8080"}, {"listener": Kept()}],
    ids=["mutable", "secret", "object"],
)
def test_options_that_are_not_cached(options: dict[str, Any]) -> None:
    assert cached(AsyncClientOptions, **options) is not cached(AsyncClientOptions, **options)


def test_number_of_cached_options() -> None:
    first = cached(ClientOptions, open_timeout=1)
    for number in range(2, 200):
        cached(ClientOptions, open_timeout=number)
    assert cached(ClientOptions, open_timeout=1) is not first


def test_unknown_options_are_not_cached() -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match=r"connect\(\) got .* 'max_size'"):
            cached(ClientOptions, max_size=None)
