"""The matrix: every fault, at every stage, of every API. Each cell that is not run has its reason here."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import itertools
import zlib
from collections.abc import Iterable, Sequence

from support.asyncio_tools import SETTINGS, Setting

# A fault ends the connection, or only delays it.
HARMLESS = ("dribble", "stall", "full", "loss", "descriptors", "clock-back", "clock-on", "fork", "signal")
FATAL = (
    "reset",
    "half-close",
    "blackhole",
    "names",
    "interrupt",
    "loop-closed",
    "exit",
    "forgotten",
    "cycle",
    "memory",
)
FAULTS = FATAL + HARMLESS

STAGES = (
    "dialling",
    "tls-hello",
    "tls-answer",
    "tunnel",
    "request",
    "response",
    "idle",
    "header",
    "payload",
    "fragments",
    "sending",
    "closing",
    "closed",
)
OPENING = STAGES[:6]


@dataclasses.dataclass(frozen=True)
class Api:
    """One way to use the package.

    Args:
        name: Its name, without event loop and I/O backend.
        setting: The event loop and the I/O backend, if it has any.
        is_server: Whether it is the end that accepts.
    """

    name: str
    setting: Setting | None = None
    is_server: bool = False

    def __str__(self) -> str:
        return self.name if self.setting is None else f"{self.name}-{self.setting}"


def _apis() -> list[Api]:
    by_loop = list({setting.loop: setting for setting in reversed(SETTINGS)}.values())
    # The protocol class lives on transports; uvicorn has the choice of two loops.
    transports = [setting for setting in SETTINGS if setting.io_backend == "transport"]
    found = [Api("sync-client"), Api("drop-in-sync-client")]
    for name in ("asyncio-client", "listener-client", "stream"):
        found += [Api(name, setting) for setting in SETTINGS]
    found += [Api("drop-in-asyncio-client", setting) for setting in by_loop]
    found += [Api("sync-server", is_server=True), Api("drop-in-sync-server", is_server=True)]
    for name in ("asyncio-server", "listener-server"):
        found += [Api(name, setting, is_server=True) for setting in SETTINGS]
    found += [Api("drop-in-asyncio-server", setting, is_server=True) for setting in by_loop]
    found += [Api("asgi", setting, is_server=True) for setting in transports]
    found += [Api("engine-serve", setting, is_server=True) for setting in by_loop]
    found += [Api(name, is_server=True) for name in ("engine-batches", "engine-threads", "engine-echo")]
    return found


APIS = _apis()


@dataclasses.dataclass(frozen=True)
class Cell:
    """One entry of the matrix."""

    fault: str
    stage: str
    api: Api

    def __str__(self) -> str:
        return f"{self.fault}-{self.stage}-{self.api}"

    @property
    def is_harmless(self) -> bool:
        return self.fault in HARMLESS

    @property
    def is_secure(self) -> bool:
        """Whether there is TLS: in the stages about it, and in every other one by turns."""
        if self.stage in OPENING:
            return self.stage.startswith("tls")
        return zlib.crc32(str(self).encode()) % 2 == 0


def _any(names: Iterable[str]) -> str:
    return "|".join(names)


_NAMES = {api.name for api in APIS}
_SERVERS = _any(sorted({api.name for api in APIS if api.is_server}))

# Fault, stage, API: patterns; the first match is the reason why a cell is not run.
LEFT_OUT: list[tuple[str, str, str, str]] = [
    ("*", "tunnel", _SERVERS, "a server has no proxy between it and whoever dials it that it would know of"),
    ("*", "sending|closed", "engine-echo", "it has no application that sends or calls anything"),
    (
        "blackhole",
        _any(OPENING[:5]),
        "asgi",
        "the connection is uvicorn's until it has a request, and waits forever",
    ),
    ("loss", "tunnel", "*", "the answer of a proxy is a head like that of a server: see response"),
    (
        "interrupt",
        "*",
        _any({*_NAMES} - {"sync-client", "drop-in-sync-client"}),
        "a signal during serve_forever or batches: sync/test_server_shutdown.py, engine/test_batches.py; a loop "
        "is left where it is",
    ),
    ("descriptors", _any(OPENING[1:]), "*", "none is opened between the dialling and the end"),
    (
        "descriptors",
        "dialling",
        _SERVERS,
        "the client is in this process: test_server_flood.py, engine/test_admission.py",
    ),
    ("forgotten|cycle", "*", "listener-client", "a connection with a listener need not be held: it goes on"),
    (
        "loop-closed",
        "sending|closing",
        "stream",
        "known: what sends and closes for a stream is a task that the package holds",
    ),
    ("forgotten|cycle", _any(OPENING), "*", "there is no connection yet; what is dropped is a call: test_stepping.py"),
    (
        "forgotten|cycle",
        "sending|closing|closed",
        "*",
        "a call holds the connection, and a closed one holds nothing",
    ),
    ("forgotten|cycle", "*", _SERVERS, "a server holds its connections until they are over"),
    (
        "loop-closed",
        "*",
        _any(api.name for api in APIS if api.setting is None),
        "an API without an event loop has none to be closed",
    ),
    (
        "loop-closed",
        "*",
        _SERVERS,
        "tests/asyncio/test_server_abandoned.py; uvicorn and Engine.serve end with their loop themselves",
    ),
    (
        "loop-closed",
        _any(OPENING),
        "*",
        "what is dropped then is a task that connects: tests/asyncio/test_connect_cancel.py",
    ),
    ("loop-closed|exit", "closed", "*", "nothing is open any more"),
    ("exit", "closing", "engine-echo", "its closing handshake has no stage to stop at: the answer is in the same turn"),
    (
        "memory",
        "*",
        "*",
        "test_memory.py: each allocation of each call of the connections for threads and asyncio, of both ends, and "
        "messages that grow; of handlers and loops, whose own allocations fail as well, nothing is promised",
    ),
    ("names", _any(STAGES[1:]), "*", "names are looked up before anything else"),
    ("names", "dialling", _SERVERS, "a server looks up no name for a connection"),
]


def matching(name: str, patterns: str) -> bool:
    """Returns whether a name matches one of some patterns."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns.split("|"))


@functools.cache
def reason(fault: str, stage: str, api: str) -> str | None:
    """Returns why a cell is not run; ``None`` if it is."""
    for faults, stages, apis, why in LEFT_OUT:
        if all(map(matching, (fault, stage, api), (faults, stages, apis))):
            return why
    return None


@functools.cache
def all_cells() -> tuple[Cell, ...]:
    """Returns every cell that is run, in the order of the table."""
    return tuple(
        Cell(*names)
        for names in itertools.product(FAULTS, STAGES, APIS)
        if reason(names[0], names[1], names[2].name) is None
    )


# Each of these cells is a process of its own, which takes seconds to start: few are chosen.
DEAR = ("exit", "clock-back", "clock-on")

# Cells in which a defect was found: always chosen.
FOUND = (
    ("blackhole", "sending", "asyncio-client-asyncio-fd"),
    ("blackhole", "sending", "listener-client-wirespeed-fd"),
    ("blackhole", "sending", "asyncio-server-asyncio-fd"),
    ("exit", "sending", "asyncio-client-asyncio-fd"),
)


def pairs(cell: Cell) -> set[tuple[str, ...]]:
    """Returns the pairs that a cell covers."""
    if cell.fault in DEAR:
        stage = "opening" if cell.stage in OPENING else cell.stage
        return {(cell.fault, cell.api.name.split("-")[-1 if "engine" not in cell.api.name else 0]), (cell.fault, stage)}
    return {(cell.fault, cell.stage), (cell.fault, cell.api.name), (str(cell.api),)}


def chosen(cells: Sequence[Cell]) -> list[Cell]:
    """Returns a few cells that cover every pair of fault and stage, of fault and API, and every setting of each.

    They are the same in every run.
    """
    found = [cell for cell in cells if (cell.fault, cell.stage, str(cell.api)) in FOUND]
    met: set[tuple[str, ...]] = set()
    for cell in found:
        met |= pairs(cell)
    # The order decides which cell covers a pair: a pseudo-random order mixes them best.
    for least in (3, 2, 1):
        for cell in sorted(cells, key=lambda cell: zlib.crc32(str(cell).encode())):
            if len(new := pairs(cell) - met) >= least:
                met |= new
                found.append(cell)
    return found
