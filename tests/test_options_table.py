"""The table of options: what is generated from it is up to date, and each function checks its options as it says."""

from __future__ import annotations

import inspect
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import wirespeed
from wirespeed import sync
from wirespeed._options.client import AsyncClientOptions, ClientOptions
from wirespeed._options.server import AsyncServerOptions, ServerOptions
from wirespeed._options.table import OPTIONS, Check, Count, Flag, Function, Option, Pair, Seconds, Text, Tokens

pytestmark = pytest.mark.wirespeed_only("the options are ours")

ROOT = Path(__file__).parents[1]

FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "connect": (wirespeed.connect, wirespeed.unix_connect, AsyncClientOptions),
    "sync.connect": (sync.connect, sync.unix_connect, ClientOptions),
    "serve": (wirespeed.serve, wirespeed.unix_serve, AsyncServerOptions),
    "sync.serve": (sync.serve, sync.unix_serve, ServerOptions),
}


def handler(ws: Any) -> None: ...


async def async_handler(ws: Any) -> None: ...


def call(function: str, options: dict[str, Any]) -> Any:
    """Calls a function whose arguments are wrong, so that it neither connects nor listens."""
    if function.endswith("connect"):
        return FUNCTIONS[function][0]("ws://127.0.0.1:1/", **options)
    return FUNCTIONS[function][0](async_handler if function == "serve" else handler, "127.0.0.1", 0, **options)


def wrong_values(option: Option, check: Check, function: str) -> Iterator[tuple[Any, type[Exception], str]]:
    """Values that a check refuses, with the error and a part of its text."""
    value: Any
    if isinstance(check, Seconds):
        for value in ("1", True, [1], ...):
            yield value, TypeError, "must be a number of seconds or None, not " + type(value).__name__
        for number in (-1, -0.5, math.nan, -math.inf, -(10**400)):
            yield number, ValueError, "must not be negative; use None to switch it off"
        if not check.zero:
            yield 0, ValueError, "must not be 0; use None to switch it off"
    elif isinstance(check, Count):
        for value in ("1", 1.0, True, [1]):
            yield value, TypeError, "must be an int or None, not " + type(value).__name__
        for number in (check.least - 1, -1, 2**check.bits, 10**30):
            yield number, ValueError, f"must be at least {check.least} and less than 2**{check.bits}"
        if check.required:
            yield None, TypeError, "must be an int, not None"
    elif isinstance(check, Pair):
        for value in ("1", 1.5, True, [1, 2], (1, 2, 3), (1.0, None), (1, "2")):
            yield value, TypeError, "must be an int or None, not "
        for value in (-1, 2**62, (-1, None), (1, -1)):
            yield value, ValueError, "must be at least 0 and less than 2**62; None is no limit"
        if check.marks and not function.startswith("sync"):
            yield (1, 2), ValueError, "must be a pair of high and low marks; 2 is above 1"
        if check.required:
            for value in (None, (None, 1)):
                yield value, TypeError, "must be an int, not None"
    elif isinstance(check, Text):
        for value in (1, b"x", ["x"], True):
            yield value, TypeError, "must be a str or None, not " + type(value).__name__
    elif isinstance(check, Flag):
        for value in (1, 0, None, "yes"):
            yield value, TypeError, "must be a bool, not " + type(value).__name__
    elif isinstance(check, Tokens):
        for value in ("chat", b"chat", 1, {"chat"}):
            yield value, TypeError, "must be a list of str, not " + type(value).__name__
        yield ["a", 1], TypeError, "must be a list of str, it contains a int"
        for token in ("two words", "", "a,b", "\xe9", "\ud800"):
            yield ["a", token], ValueError, "must be tokens, without spaces or commas"
    elif isinstance(check, Function):
        for value in (1, "f", [1, 2], *([None] if check.required else [])):
            yield value, TypeError, "must be "


WRONG = [
    pytest.param(function, option.name, *case, id=f"{function}-{option.name}-{ascii(case[0])[:20]}")
    for option in OPTIONS
    if option.check is not None
    for function in option.functions
    for case in wrong_values(option, option.check, function)
]


@pytest.mark.parametrize(("function", "name", "value", "error", "text"), WRONG)
def test_wrong_values(function: str, name: str, value: Any, error: type[Exception], text: str) -> None:
    """The call raises an error that names the option, without a loop and before anything is opened."""
    for _ in range(2):
        with pytest.raises(error, match=rf"\b{name} {re.escape(text)}"):
            call(function, {name: value})


def right_values(check: Check | None) -> list[Any]:
    if isinstance(check, Seconds):
        return [None, 1, 0.25, 1e19, math.inf, 10**400, *([0] if check.zero else [])]
    if isinstance(check, Count):
        return [check.least, 2**check.bits - 1, *([] if check.required else [None])]
    if isinstance(check, Pair):
        return [0, 2**62 - 1, (1, None), (8, 2), *([] if check.required else [None, (None, None), (None, 5)])]
    if isinstance(check, Text):
        return [None, "x"]
    if isinstance(check, Tokens):
        return [None, [], ("a", "b.c"), ["a"]]
    return []


RIGHT = [
    pytest.param(function, option.name, value, id=f"{function}-{option.name}-{ascii(value)[:20]}")
    for option in OPTIONS
    for function in option.functions
    for value in right_values(option.check)
]


@pytest.mark.parametrize(("function", "name", "value"), RIGHT)
def test_right_values(function: str, name: str, value: Any) -> None:
    options = FUNCTIONS[function][2]({name: value})
    kept = getattr(options, name)
    # Very long timeouts are none.
    assert kept == value or (kept is None and value > 1e9)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_signatures_and_docstrings(function: str) -> None:
    tcp, unix, options = FUNCTIONS[function]
    here = [option for option in OPTIONS if function in option.functions]
    parameters = inspect.signature(tcp).parameters
    assert {option.name for option in here} <= parameters.keys()
    for option in here:
        assert f"\n    {option.name}: " in inspect.getdoc(tcp)  # type: ignore[operator]
        if option.name in vars(ClientOptions) | vars(ServerOptions):
            assert getattr(options, option.name) == parameters[option.name].default
    without_tcp = {option.name for option in here if option.unix}
    assert inspect.signature(unix).parameters.keys() >= without_tcp
    assert not inspect.signature(unix).parameters.keys() & {option.name for option in here if not option.unix}


def test_generated_code_is_up_to_date() -> None:
    command = [sys.executable, "scripts/generate_options.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
