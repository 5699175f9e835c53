"""The selector against the standard library's: random operations have equal results on both."""

from __future__ import annotations

import contextlib
import gc
import random
import selectors
import socket
from typing import Any

import pytest

from support.selector_oracle import OracleSelector
from wirespeed.asyncio.loop import Selector

pytestmark = [
    pytest.mark.wirespeed_only("the selector is ours"),
    pytest.mark.skipif(not hasattr(selectors, "EpollSelector"), reason="this system has no epoll"),
]

READ = selectors.EVENT_READ

OURS = [OracleSelector, *([Selector] if Selector.native_class is not None else [])]


def _random_step(chance: random.Random, made: Any, places: list[tuple[socket.socket, socket.socket]]) -> Any:
    """Performs a random action and returns the result. Descriptors are reused, while registered and not."""
    index, end, data = chance.randrange(len(places)), chance.randrange(2), chance.randrange(3)
    events, kind = chance.randrange(4), chance.randrange(26)
    ours = places[index][0]
    if kind < 5:
        return made.register(ours, events, data)
    if kind < 7:
        return made.unregister(ours)
    if kind < 11:
        return made.modify(ours, events or READ, data)
    if kind < 13:
        return made.get_key(ours)
    if kind < 18:
        return sorted(made.select(0), key=lambda item: item[0].fd)
    if kind < 21:
        return places[index][end].send(b"x" * 50_000)
    if kind < 24:
        return len(places[index][end].recv(100_000))
    if kind == 24:
        return places[index][end].close()
    for sock in places[index]:
        sock.close()
    places[index] = socket.socketpair()
    for sock in places[index]:
        sock.setblocking(False)
    return None


def _comparable(value: Any) -> Any:
    if isinstance(value, selectors.SelectorKey):
        return (value.fd, value.events, value.data)
    if isinstance(value, list):
        return [(_comparable(key), events) for key, events in value]
    return value


def _random_life(kind: Any, seed: int) -> list[Any]:
    chance = random.Random(seed)
    trace: list[Any] = []
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(kind())
        places = [socket.socketpair() for _ in range(6)]

        def close_all() -> None:
            for place in places:
                for sock in place:
                    sock.close()

        stack.callback(close_all)
        for sock in (sock for place in places for sock in place):
            sock.setblocking(False)
        for _ in range(400):
            try:
                outcome = _random_step(chance, made, places)
            except (OSError, KeyError, ValueError) as exc:
                outcome = type(exc)
            trace.append((_comparable(outcome), sorted(map(_comparable, made.get_map().values()))))
    return trace


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("seed", range(30))
def test_random_operations(kind: Any, seed: int) -> None:
    """The selectors run one after the other, so that the system gives both the same descriptors."""
    # A socket that earlier tests left in a cycle would give its descriptor to one of them.
    gc.collect()
    assert _random_life(kind, seed) == _random_life(selectors.EpollSelector, seed)
