"""Hints for arguments that have another name in other libraries."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from support.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("ours")

if IS_WIRESPEED:
    import wirespeed
    from wirespeed import sync
    from wirespeed._options.hints import unexpected_argument


def handler(ws: Any) -> None: ...


async def async_handler(ws: Any) -> None: ...


CALLS: dict[str, Callable[..., Any]] = {
    "connect": lambda **options: wirespeed.connect("ws://localhost", **options),
    "unix_connect": lambda **options: wirespeed.unix_connect("/nowhere", **options),
    "sync.connect": lambda **options: sync.connect("ws://127.0.0.1:1", **options),
    "sync.unix_connect": lambda **options: sync.unix_connect("/nowhere", **options),
    "serve": lambda **options: wirespeed.serve(async_handler, "127.0.0.1", 0, **options),
    "unix_serve": lambda **options: wirespeed.unix_serve(async_handler, "/nowhere", **options),
    "sync.serve": lambda **options: sync.serve(handler, "127.0.0.1", 0, **options),
    "sync.unix_serve": lambda **options: sync.unix_serve(handler, "/nowhere/x", **options),
}


@pytest.mark.parametrize("name", CALLS)
def test_timeout(name: str) -> None:
    called = name.partition(".")[2] or name
    with pytest.raises(TypeError, match=rf"^{called}\(\) got .*'timeout'; did you mean open_timeout\?"):
        CALLS[name](timeout=5)


@pytest.mark.parametrize("wrong", ["headers", "extra_headers"])
@pytest.mark.parametrize("name", [name for name in CALLS if "connect" in name])
def test_headers(name: str, wrong: str) -> None:
    with pytest.raises(TypeError, match=rf"'{wrong}'; did you mean additional_headers\?"):
        CALLS[name](**{wrong: {}})


@pytest.mark.parametrize("name", CALLS)
def test_unknown_arguments(name: str) -> None:
    called = name.partition(".")[2] or name
    with pytest.raises(TypeError, match=rf"^{called}\(\) got an unexpected keyword argument 'nonsense'$"):
        CALLS[name](nonsense=1)


@pytest.mark.parametrize("name", CALLS)
def test_misspelled_arguments(name: str) -> None:
    with pytest.raises(TypeError, match=r"'ping_intervall'; did you mean ping_interval\?$"):
        CALLS[name](ping_intervall=1)


def test_signatures() -> None:
    """They are those of the functions, for help() and editors."""
    for function in (wirespeed.connect, wirespeed.serve, sync.connect, sync.serve):
        assert "open_timeout" in inspect.signature(function).parameters


def test_hint_needs_the_argument() -> None:
    """A function without the suggested argument gives no hint."""
    assert "did you mean" not in str(unexpected_argument("one", {"headers": []}, ["open_timeout"]))
    assert str(unexpected_argument("one", {"timeout": 1}, ["open_timeout"])).endswith("did you mean open_timeout?")
