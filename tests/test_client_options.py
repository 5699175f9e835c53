"""Cached checks of options: the cached parts, and those made for each connection."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any

import pytest

from wirespeed import Listener
from wirespeed._native import ClientOpening, ClientPlan
from wirespeed._net.uri import parse_uri
from wirespeed._options.client import (
    ClientOptions,
    Network,
    checked_async_options,
    checked_network,
    checked_options,
)
from wirespeed.datastructures import Headers

KINDS = [checked_options, checked_async_options]


@pytest.mark.parametrize("make", KINDS)
def test_the_same_arguments(make: Any) -> None:
    options = make(compression=None, ping_interval=5, user_agent_header="x")
    assert make(compression=None, ping_interval=5, user_agent_header="x") is options
    assert isinstance(options, ClientOptions)
    assert (options.compression, options.ping_interval, options.user_agent_header) == (None, 5, "x")
    other = make(compression=None, ping_interval=6, user_agent_header="x")
    assert other.ping_interval == 6


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("value", [True, "5", -1, float("nan"), [5]])
def test_equal_values_of_other_types(make: Any, value: Any) -> None:
    """``True == 1``, but it is not a number of seconds; and a wrong value is refused each time."""
    make(open_timeout=1)
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match="open_timeout"):
            make(open_timeout=value)


def test_pairs_are_checked_each_time() -> None:
    """``(1.0, None) == (1, None)``."""
    checked_options(max_size=(1, None))
    with pytest.raises(TypeError, match="max_size"):
        checked_options(max_size=(1.0, None))  # type: ignore[arg-type]


class Kept(Listener):
    """A listener of an application."""


class Log(logging.LoggerAdapter):  # type: ignore[type-arg]
    """A logger for one connection."""


@pytest.mark.parametrize("argument", ["listener", "logger"])
def test_nothing_is_kept_alive(argument: str) -> None:
    value: Any = Kept() if argument == "listener" else Log(logging.getLogger("x"), {})
    reference = weakref.ref(value)
    options: Any = checked_async_options(**{argument: value})
    assert getattr(options, argument) is value
    del options, value
    gc.collect()
    assert reference() is None


def test_lists_may_change() -> None:
    subprotocols = ["a"]
    options = checked_options(subprotocols=subprotocols)
    subprotocols.append("b c")
    assert checked_options(subprotocols=["a"]) is not options
    with pytest.raises(ValueError, match="subprotocols"):
        checked_options(subprotocols=subprotocols)


def test_network() -> None:
    network = checked_network(proxy=None, port=8765)
    assert checked_network(proxy=None, port=8765) is network
    assert isinstance(network, Network)
    with pytest.raises(TypeError, match="port"):
        checked_network(proxy=None, port=8765.0)  # type: ignore[arg-type]
    # Its password is not needed once the connection is open.
    secret = "http://user:secret@proxy:8080"
    assert checked_network(proxy=secret) is not checked_network(proxy=secret)


def test_request() -> None:
    options = ClientOptions(user_agent_header="x")
    here, there = parse_uri("ws://localhost/feed"), parse_uri("ws://localhost/other")
    first = options.request(here, None)
    assert options.request(here, None) is first
    assert _head(first).startswith(b"GET /feed HTTP/1.1\r\nHost: localhost\r\n")
    assert _head(options.request(there, None)).startswith(b"GET /other HTTP/1.1\r\n")
    assert b"\r\nX-Api-Key: 1\r\n" in _head(options.request(here, Headers({"X-Api-Key": "1"})))
    assert b"X-Api-Key" not in _head(options.request(here, None))


def test_each_opening_has_its_own_key() -> None:
    plan = ClientOptions().request(parse_uri("ws://localhost/feed"), None)
    lines = [line for _ in range(99) for line in _head(plan).split(b"\r\n")]
    assert len({line for line in lines if line.startswith(b"Sec-WebSocket-Key: ")}) == 99


def _head(plan: ClientPlan) -> bytes:
    return ClientOpening(plan).take_output()


@pytest.mark.parametrize("uri", ["ws://user:secret@localhost/", "ws://localhost/?token=secret"])
def test_secrets_are_not_kept(uri: str) -> None:
    options = ClientOptions()
    parsed = parse_uri(uri)
    assert b"Host: localhost" in _head(options.request(parsed, None))
    assert options._last is None
    assert parse_uri(uri) is not parsed
    options.request(parse_uri("ws://localhost/"), Headers({"Authorization": "secret"}))
    assert options._last is None


def test_headers_that_cannot_be_sent_are_found_each_time() -> None:
    options = ClientOptions()
    uri = parse_uri("ws://localhost/")
    options.request(uri, None)
    for _ in range(2):
        with pytest.raises(ValueError, match="Upgrade"):
            options.request(uri, Headers({"Upgrade": "h2c"}))
