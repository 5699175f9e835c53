"""Unusual values made from numbers. They may call back into the API, so each belongs to one run."""

from __future__ import annotations

import array
import contextlib
import ctypes
import math
import mmap
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from .oracle import Mine

# The name of a kind, and a number that selects one of its values.
Choice = tuple[str, int]

TEXTS = [
    "",
    "a",
    "\0",
    "é\U0001f600",
    "\ud800",
    "a\udfffb",
    "x" * 200,
    "y" * 70_000,
    "text",
    "0",
    "nan",
    "localhost",
    "a\r\nb",
    "*",
    ">",
    "a.b",
]
BYTES = [b"", b"a", b"\0", b"\xff\xfe", "é".encode(), b"x" * 200, b"z" * 70_000, bytes(300_000), b"a\r\nb"]
NUMBERS: list[Any] = [
    *(0, 1, -1, 2, 125, 126, 1000, 1005, 1006, 3000, 4999, 5000, 65_535, 65_536, 2**31, 2**32, 2**63 - 1, 2**63, 2**64),
    *(-(2**63) - 1, 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1e-9, 1e9, 1e300, -1.5, math.nan, math.inf, -math.inf, True, False, 1j),
]

# Special methods that an API might call on an object.
HOOKS = [
    *("__str__", "__repr__", "__format__", "__len__", "__length_hint__", "__bool__", "__eq__", "__lt__", "__hash__"),
    *("__iter__", "__iter__", "__next__", "__aiter__", "__anext__", "__getitem__", "__contains__", "__getattr__"),
    *("__bytes__", "__buffer__", "__release_buffer__", "__index__", "__int__", "__float__", "__fspath__"),
    *("__await__", "__call__", "__enter__", "keys", "items", "encode", "decode", "get", "fileno", "send"),
]

BASES: list[type] = [object, str, bytes, bytearray, int, float, list, dict, tuple, array.array]


class Maker:
    """Makes values. Their callbacks call ``reenter``.

    Args:
        reenter: Called with a number that selects the action.
    """

    def __init__(self, reenter: Callable[[int], object]) -> None:
        self.reenter = reenter
        self.made: list[weakref.ref[Any]] = []
        self.after: list[Callable[[], object]] = []

    def make(self, choice: Choice) -> Any:
        """Returns the value of a choice, and records that it has to be freed in the end."""
        kind, number = choice
        value = KINDS[kind](self, number)
        if type(value).__module__ == __name__:
            with contextlib.suppress(TypeError):  # a tuple, an int
                self.made.append(weakref.ref(value))
        return value

    def finish(self) -> None:
        """Undoes modifications of values that last only for one run."""
        while self.after:
            self.after.pop()()


def _none(_: Maker, _number: int) -> Any:
    return None


def _number(_: Maker, number: int) -> Any:
    return NUMBERS[number % len(NUMBERS)]


def _text(_: Maker, number: int) -> Any:
    return TEXTS[number % len(TEXTS)]


def _bytes(_: Maker, number: int) -> Any:
    return BYTES[number % len(BYTES)]


def _mutable(_: Maker, number: int) -> Any:
    return bytearray(BYTES[number % len(BYTES)])


def _view(maker: Maker, number: int) -> Any:
    base = bytearray(b"0123456789abcdef" * (1 + number % 3))
    view = memoryview(base)
    match number % 9:
        case 0:
            return view
        case 1:
            return view.toreadonly()
        case 2:
            return view[::2]
        case 3:
            return view[::-1]
        case 4:
            return view.cast("I")
        case 5:
            return view.cast("B", (4, len(base) // 4))
        case 6:
            view.release()
            return view
        case 7:
            return view[3:3]
        case _:
            # Values that may disappear while they are used.
            maker.after.append(view.release)
            return view[1:]


def _buffer(maker: Maker, number: int) -> Any:
    match number % 6:
        case 0:
            return array.array("d", [1.5] * (number % 40))
        case 1:
            return (ctypes.c_ubyte * 10)(*b"0123456789")
        case 2:
            return (ctypes.c_int * 3 * 2)()
        case 3:
            mapped = mmap.mmap(-1, 64)
            maker.after.append(mapped.close)
            return mapped
        case 4:
            mapped = mmap.mmap(-1, 64)
            mapped.close()
            return mapped
        case _:
            return array.array("u", "é") if sys.version_info < (3, 13) else array.array("w", "é")


def _subclass(_: Maker, number: int) -> Any:
    base, value = [
        (str, "é"),
        (bytes, b"sub"),
        (bytearray, b"sub"),
        (int, 7),
        (float, 0.5),
        (list, ["a", b"b"]),
        (dict, {"a": "b"}),
    ][number % 7]
    return type("Plain", (base,), {"__module__": __name__})(value)


def _collection(maker: Maker, number: int) -> Any:
    lists: list[list[Any]] = [
        ["a", "b"],
        [b"a", b"b"],
        ["a", b"b"],
        [],
        [None],
        [1, "a"],
        ["\ud800"],
        [bytearray(b"x"), b"y"],
        [["a"]],
    ]
    items = lists[number % len(lists)]
    match number // 9 % 9:
        case 0:
            return items
        case 1:
            return tuple(items)
        case 2:
            return iter(items)
        case 3:
            return (item for item in items)
        case 4:
            return {str(at): item for at, item in enumerate(items)}
        case 5:
            return {item for item in items if not isinstance(item, (bytearray, list))}
        case 6:
            return _asynchronous(items)
        case 7:
            return _changing(maker, items)
        case _:
            return Given(maker, items, number)


async def _asynchronous(items: list[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


class Given:
    """An iterator that calls back, and may raise at its end."""

    def __init__(self, maker: Maker, items: list[Any], number: int) -> None:
        self.maker, self.items, self.number = maker, list(items), number

    def __iter__(self) -> Given:
        return self

    def __next__(self) -> Any:
        self.maker.reenter(self.number)
        if self.items:
            return self.items.pop(0)
        if self.number & 1:
            raise Mine("at the end")
        raise StopIteration


class Changing(list[Any]):
    """A list that grows and shrinks while it is iterated."""


def _changing(maker: Maker, items: list[Any]) -> Any:
    changing = Changing(items)

    def one() -> Iterator[Any]:
        for at, item in enumerate(changing):
            if at == 1:
                changing.clear()
            elif at == 0:
                changing.append("more")
            maker.reenter(at)
            yield item

    return one()


def _resized(maker: Maker, number: int) -> Any:
    """A bytearray that is extended or emptied at the first callback: BufferError while it is exported."""
    target = bytearray(b"abc" * (1 + number % 30_000))

    class Resizing:
        def __iter__(self) -> Iterator[Any]:
            yield target
            target.extend(b"more")
            maker.reenter(number)
            target.clear()
            yield b"end"

    Resizing.__module__ = __name__
    return Resizing()


def _evil(maker: Maker, number: int) -> Any:
    """An object with one or two methods that call back, and then return a valid value or nonsense, or raise."""
    base = BASES[number % len(BASES)]
    number //= len(BASES)
    names: dict[str, Any] = {"__module__": __name__}
    for _ in range(1 + number % 2):
        hook = HOOKS[number // 2 % len(HOOKS)]
        number //= 2 * len(HOOKS)
        if hook in ("__index__", "__fspath__") and base is not object:
            continue  # Python's open() takes it for a descriptor and closes that
        names[hook] = _hook(maker, hook, number)
    made: Any = type("Evil", (base,), names)
    if base is array.array:
        return made("B", b"evil")
    return (
        made()
        if base in (object, int, float, list, dict, tuple)
        else made(b"evil" if base in (bytes, bytearray) else "evil")
    )


ANSWERS: list[Callable[[Any], Any]] = [
    lambda _: None,
    lambda _: "evil",
    lambda _: b"evil",
    lambda _: 3,
    lambda _: -1,
    lambda _: 2**70,
    lambda self: self,
    lambda _: iter(["a", b"b"]),
    lambda _: memoryview(b"evil"),
    lambda _: memoryview(bytearray(b"evil"))[::2],
    lambda _: True,
    lambda _: 0.25,
    lambda _: [].append,
]


def _hook(maker: Maker, name: str, number: int) -> Any:
    def hook(self: Any, *_arguments: Any, **_named: Any) -> Any:
        maker.reenter(number)
        if number % 5 == 0 and name != "__release_buffer__":  # where no exception can propagate
            raise Mine(name)
        if name == "__hash__":
            return 5
        if name == "__getattr__" and number % 3:
            raise AttributeError(name)
        return ANSWERS[number // 5 % len(ANSWERS)](self)

    return hook


class Dying:
    """Calls back when it is freed."""

    def __init__(self, maker: Maker, number: int) -> None:
        self.maker, self.number = maker, number

    def __del__(self) -> None:
        self.maker.reenter(self.number)


def _dying(maker: Maker, number: int) -> Any:
    dying = Dying(maker, number)
    return [dying, (item for item in [b"x", dying]), iter(["a", dying]), {"a": dying}][number % 4]


class Equal(str):
    """A text that calls back when it is compared or hashed."""

    maker: Maker

    def __eq__(self, other: object) -> bool:
        self.maker.reenter(len(self))
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        self.maker.reenter(len(self) + 1)
        return str.__hash__(self)


def _equal(maker: Maker, number: int) -> Any:
    equal = Equal(TEXTS[number % len(TEXTS)])
    equal.maker = maker
    return equal


def _thing(_: Maker, number: int) -> Any:
    things: list[Any] = [
        object(),
        int,
        len,
        lambda: 1,
        ...,
        NotImplemented,
        Exception("x"),
        sys,
        range(3),
        slice(1),
        {1: 2},
        print,
        frozenset(),
        type,
    ]
    return things[number % len(things)]


KINDS: dict[str, Callable[[Maker, int], Any]] = {
    "none": _none,
    "number": _number,
    "text": _text,
    "bytes": _bytes,
    "mutable": _mutable,
    "view": _view,
    "buffer": _buffer,
    "subclass": _subclass,
    "collection": _collection,
    "resized": _resized,
    "evil": _evil,
    "dying": _dying,
    "equal": _equal,
    "thing": _thing,
}


def value_of(*kinds: str) -> st.SearchStrategy[Choice]:
    """Choices among values of these kinds; among all kinds, if none are named."""
    return st.tuples(st.sampled_from(kinds or tuple(KINDS)), st.integers(0, 2**40))


# Any value, more often one that can be sent.
VALUES = st.one_of(value_of(), value_of("text", "bytes", "mutable", "view", "buffer", "subclass"), value_of("evil"))
