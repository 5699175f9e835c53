"""Scenarios: what is measured, as data. Reads `bench/scenarios/*.toml`, complains about what it cannot mean.

A file has defaults (peers, cores, rounds, lengths), sets of peers, and workloads; each field is documented below. In
names of peers `{a,b}` stands for each of them, and `@NAME` in lists for a set of the file.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from harness.errors import UsageError
from harness.figures import FIGURES, KINDS
from harness.places import BENCH, SCENARIOS

__all__ = [
    *("Bar", "Cell", "Choice", "Job", "Option", "PeerName", "Scenario", "Workload"),
    *("known", "load", "names", "size_text"),
]

Option = bool | int | float | str

# Our own name, and the style of a peer that runs on us.
LIBRARY = "wirespeed"


class PeerName(NamedTuple):
    """The parts of a peer's name, FOLDER[:STYLE][@LOOP]: one program, one way to use a library, one event loop."""

    folder: str
    style: str | None
    loop: str | None

    @classmethod
    def of(cls, name: str) -> PeerName:
        """Takes a name apart."""
        rest, _, loop = name.partition("@")
        folder, _, style = rest.partition(":")
        return cls(folder, style or None, loop or None)

    def is_asked_for(self, asked: str) -> bool:
        """Returns whether the given name selects this peer: omitted parts mean all."""
        folder, style, loop = self.of(asked)
        return self.folder == folder and style in (None, self.style) and loop in (None, self.loop)


def is_one_of(peer: str, asked: Iterable[str]) -> bool:
    """Tells whether a peer is asked for by one of these names."""
    return any(PeerName.of(peer).is_asked_for(name) for name in asked)


class Cell(NamedTuple):
    """What the peers are compared in: one workload, one size (0: there are no messages), plain or TLS."""

    workload: str
    size: int
    tls: bool

    def __str__(self) -> str:
        size = f"{size_text(self.size)}, " if self.size else ""
        return f"{self.workload}, {size}{'TLS' if self.tls else 'plain'}"


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Bar(_Strict, frozen=True):
    """What a peer must reach in the cells of its workload: a figure, or its multiple of a rival's.

    Attributes:
        peer: the peers that must; {a,b} stands for each of them, {loop} for each of `loops`.
        versus: the rivals, of whom the best one counts in each round.
        figure: which figure, a name of `figures.FIGURES`; None: what the workload compares. Not with `versus`.
        at_least, at_most: the threshold, which counts as reached.
        sizes, tls: the cells; None: all.
    """

    peer: str
    versus: tuple[str, ...] = ()
    figure: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    sizes: tuple[int, ...] | None = None
    tls: bool | None = None
    loops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"the bar of {self.peer} needs one of at_least and at_most")
        if self.figure is not None and self.versus:
            raise ValueError(f"the bar of {self.peer} has a figure, but rivals: those are compared by another one")
        known("figure", [self.figure or "p50"], FIGURES)

    def selects(self, cell: Cell) -> bool:
        """Tells whether the bar stands in this cell of its workload."""
        return (self.sizes is None or cell.size in self.sizes) and self.tls in (None, cell.tls)

    def passes(self, figure: float) -> bool:
        """Tells whether a measured figure reaches the bar."""
        return figure <= self.at_most if self.at_most is not None else figure >= (self.at_least or 0.0)

    def for_each(self) -> list[Bar]:
        """Returns the bar once for each of its peers and loops."""
        found = []
        for peer, loop in itertools.product(_braces(self.peer), self.loops or ("",)):
            versus = tuple(rival.format(loop=loop) for rival in self.versus)
            found.append(replace(self, peer=peer.format(loop=loop), versus=versus, loops=()))
        return found


class Model(_Strict, frozen=True):
    """What peers can do.

    Attributes:
        units: what is counted, in the plural.
        path: the path at the server.
        measures: what is compared, one of `figures.KINDS`.
        windows: how many times the length of its window a peer runs, for estimates.
    """

    units: str
    path: str = "/"
    measures: str = "rate"
    windows: float = 1.0


MODELS = msgspec.toml.decode((BENCH / "models.toml").read_text(), type=dict[str, Model])


class Part(_Strict, frozen=True):
    """Further cells of a workload, with peers of their own; what is left out is the workload's."""

    sizes: tuple[int, ...] | None = None
    tls: tuple[bool, ...] | None = None
    peers: tuple[str, ...] | None = None


class Workload(_Strict, frozen=True):
    """One workload of a scenario.

    Attributes:
        name: its name.
        title: what a person reads above its tables.
        sizes: bytes of a message; 0 if it has none.
        tls: without TLS, with, or both.
        peers: those that take part, parts of their names left out meaning all; empty: all of the scenario that can.
        more: further cells.
        model: what the peers do, one of `MODELS`; None: that of the same name.
        measures: what is compared, one of `figures.KINDS`; None: as the model says.
        subject: with which the others are compared here, where the scenario's takes no part; None: the scenario's.
        options: further arguments of the peers, as options of their command line; true: a flag.
        each: name and values of an option; the workload stands once for each of them, named `NAME-VALUE`.
        quick: what is different of the options in a quick run; None: it is not part of one.
        cores, rounds, seconds: as the scenario's, where they are not.
        stretch: how many times longer its windows are, where messages come in bursts.
        bars: what must be reached.
        group: the name of the workload that it is one of by `each`, or by what the file says; None: it stands alone.
    """

    name: str
    title: str
    sizes: tuple[int, ...] = (0,)
    tls: tuple[bool, ...] = (False,)
    peers: tuple[str, ...] = ()
    more: tuple[Part, ...] = ()
    model: str | None = None
    measures: str = ""
    subject: str | None = None
    options: dict[str, Option] = {}
    each: dict[str, tuple[Option, ...]] = {}
    quick: dict[str, Option] | None = {}
    cores: str | None = None
    rounds: int | None = None
    seconds: float | None = None
    stretch: float = 1.0
    bars: tuple[Bar, ...] = ()
    group: str | None = None

    @property
    def runs(self) -> str:
        """What the peers call what they do."""
        return self.model or self.group or self.name

    @property
    def units(self) -> str:
        """What is counted, in the plural."""
        return MODELS[self.runs].units

    def cells(self) -> dict[Cell, tuple[str, ...]]:
        """Returns the cells, and the peers that take part in each; empty: all."""
        cells: dict[Cell, tuple[str, ...]] = {}
        for part in (Part(), *self.more):
            for tls, size in itertools.product(part.tls or self.tls, part.sizes or self.sizes):
                cell = Cell(self.name, size, tls)
                cells[cell] = (*cells.get(cell, ()), *(part.peers or self.peers))
        return cells

    def is_called(self, name: str) -> bool:
        """Returns whether this name selects this workload."""
        return name in (self.name, self.group)

    @property
    def windows(self) -> float:
        """How many times the length of its window a peer runs."""
        return MODELS[self.runs].windows

    def target(self, size: int) -> str:
        """Returns the path at the server."""
        return MODELS[self.runs].path.format(size=size, **self.options)

    def for_each(self) -> list[Workload]:
        """Returns the workload once for each value of its `each`, {NAME} replaced in its title."""
        return [
            replace(
                self,
                name=f"{self.name}-{value}",
                group=self.name,
                title=self.title.format(**{option: f"{value:,}" if isinstance(value, int) else value}),
                options=self.options | {option: value},
                # One of them shows that all can run.
                quick=self.quick if value == values[0] else None,
                each={},
            )
            for option, values in self.each.items()
            for value in values
        ] or [self]


class Choice(NamedTuple):
    """What a command line asks for; empty or None means all."""

    peers: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    loops: tuple[str, ...] = ()
    tls: bool | None = None
    options: tuple[tuple[str, Option], ...] = ()


EVERYTHING = Choice()


class Job(NamedTuple):
    """A cell that is to be measured, and those who take part."""

    cell: Cell
    workload: Workload
    peers: tuple[str, ...]


class Scenario(_Strict, frozen=True):
    """One file of `bench/scenarios`.

    Attributes:
        title: what a person reads above it.
        peers: all that take part, in the order in which they are shown.
        subject: with which the others are compared; with {loop}, with that on their own loop.
        counterparts: of a peer of ours, the rivals that are compared with it and not with the subject.
        limits: those that are no rivals, but what a system allows.
        server: whom clients are measured with: a peer that has a server; None: ours.
        cores: the cores of client and server: "one" for both, "two", "each" of several servers one, "any".
        rounds, seconds, warmup, batch: windows per peer and cell, their length, the time before, messages per call
            where a call takes many.
        sets: names for lists of peers.
        workload: the workloads.
        name: that of its file.
    """

    title: str
    peers: tuple[str, ...]
    subject: str
    workload: tuple[Workload, ...]
    counterparts: dict[str, tuple[str, ...]] = {}
    limits: tuple[str, ...] = ()
    server: str | None = None
    cores: str = "one"
    rounds: int = 7
    seconds: float = 0.3
    warmup: float = 0.1
    batch: int = 1024
    sets: dict[str, tuple[str, ...]] = {}
    name: str = ""

    def called(self, name: str) -> Workload:
        """Returns a workload by name."""
        return next(workload for workload in self.workload if workload.name == name)

    def subject_for(self, peer: str, workload: Workload) -> str | None:
        """Returns the peer under test that another is compared with in a workload.

        That is itself on wirespeed, if it can run there; a counterpart of its own kind, where the scenario names one,
        as a blocking client for blocking clients; else the subject, on the same loop, if `subject` has a {loop}.
        """
        hosted = PeerName.of(peer)._replace(style=LIBRARY)
        for one in self.peers:
            if PeerName.of(one) == hosted:
                return one
        for counterpart, rivals in self.counterparts.items():
            if peer == counterpart or peer in rivals:
                return counterpart
        subject = workload.subject or self.subject
        if "{loop}" not in subject:
            return subject
        return None if hosted.loop is None else subject.format(loop=hosted.loop)

    def jobs(self, choice: Choice = EVERYTHING, *, quick: bool = False) -> list[Job]:
        """Returns what there is to measure of what was chosen.

        A quick run has one size of each workload, and each peer once for each thing that it does: it shows that all can
        run.

        Raises:
            UsageError: a name is unknown, or nothing is left.
        """
        self._check(choice)
        done: set[tuple[str, str, bool, str]] = set()
        jobs = []
        for workload in self.workload:
            if (quick and workload.quick is None) or not _is_called(workload, choice.workloads):
                continue
            more = {name: value for name, value in choice.options if name in workload.options}
            options = workload.options | ((workload.quick or {}) if quick else {}) | more
            for cell, asked in workload.cells().items():
                peers = [one for one in self.peers if (not asked or is_one_of(one, asked)) and _is_chosen(one, choice)]
                if (choice.sizes and cell.size not in choice.sizes) or choice.tls not in (None, cell.tls):
                    continue
                if quick:
                    form = str(options.get("format"))
                    peers = [one for one in peers if (one, workload.runs, cell.tls, form) not in done]
                    done.update((one, workload.runs, cell.tls, form) for one in peers)
                if peers:
                    jobs.append(Job(cell, replace(workload, options=options), tuple(peers)))
        if not jobs:
            raise UsageError(f"{self.name} has nothing of that workload, size, transport, peer and loop together")
        return jobs

    def _check(self, choice: Choice) -> None:
        _some_known(choice.peers, self.peers)
        known("loop", choice.loops, sorted({loop for peer in self.peers if (loop := PeerName.of(peer).loop)}))
        workloads = dict.fromkeys(name for one in self.workload for name in (one.group, one.name) if name)
        known("workload", choice.workloads, workloads)
        known("size", choice.sizes, sorted({cell.size for workload in self.workload for cell in workload.cells()}))
        known("option", [n for n, _ in choice.options], sorted({name for w in self.workload for name in w.options}))


def _is_called(workload: Workload, names: Sequence[str]) -> bool:
    return not names or any(workload.is_called(name) for name in names)


def _is_chosen(peer: str, choice: Choice) -> bool:
    of_loop = not choice.loops or PeerName.of(peer).loop in choice.loops
    return of_loop and (not choice.peers or is_one_of(peer, choice.peers))


def names() -> list[str]:
    """Returns the names of the scenarios."""
    return sorted(path.stem for path in SCENARIOS.glob("*.toml"))


def load(name: str) -> Scenario:
    """Reads a scenario.

    Raises:
        UsageError: there is none of that name, or the file does not say what a scenario must.
    """
    known("scenario", [name], names())
    path = SCENARIOS / f"{name}.toml"
    try:
        return parse(name, path.read_text())
    except (msgspec.MsgspecError, ValueError, UsageError) as error:
        raise UsageError(f"{path}: {error}") from error


def parse(name: str, text: str) -> Scenario:
    """Makes a scenario of the content of its file."""
    raw = _with_all_peers(msgspec.toml.decode(text))
    one = msgspec.convert(raw, Scenario)
    known("model", [workload.model or workload.name for workload in one.workload], MODELS)
    workloads = tuple(
        replace(
            each,
            measures=each.measures or MODELS[each.runs].measures,
            bars=tuple(bar for whole in each.bars for bar in whole.for_each()),
        )
        for workload in one.workload
        for each in workload.for_each()
    )
    for workload in workloads:
        known("measure", [workload.measures], KINDS)
        known("peer", [workload.subject or one.peers[0]], one.peers)
        for asked in workload.cells().values():
            _some_known(asked, one.peers)
        for bar in workload.bars:
            known("peer", [bar.peer, *bar.versus], one.peers)
    known("peer", [peer for ours, rivals in one.counterparts.items() for peer in (ours, *rivals)], one.peers)
    return replace(one, name=name, workload=workloads)


def _with_all_peers(raw: dict[str, Any]) -> dict[str, Any]:
    """Returns what a file says, with every list of peers written out."""
    sets: dict[str, list[str]] = {}

    def all_of(peers: Iterable[str]) -> list[str]:
        found = []
        for peer in peers:
            if peer.startswith("@"):
                known("set of peers", [peer[1:]], sets)
                found += sets[peer[1:]]
            else:
                found += _braces(peer)
        return list(dict.fromkeys(found))

    for name, peers in raw.get("sets", {}).items():
        sets[name] = all_of(peers)
    for table in (raw, *(part for one in raw["workload"] for part in (one, *one.get("more", [])))):
        if "peers" in table:
            table["peers"] = all_of(table["peers"])
    for key in raw.get("counterparts", {}):
        raw["counterparts"][key] = all_of(raw["counterparts"][key])
    return raw


def _braces(text: str) -> list[str]:
    """Returns a name once for each of what is in its braces: `a{b,c}`."""
    found = re.search(r"\{([^{}]*,[^{}]*)\}", text)
    if found is None:
        return [text]
    return [one for part in found[1].split(",") for one in _braces(text.replace(found[0], part, 1))]


def size_text(size: int) -> str:
    """Returns a size as people write it."""
    for factor, unit in ((1 << 20, "MiB"), (1 << 10, "KiB"), (1000, "kB")):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def _some_known(asked: Iterable[str], peers: Sequence[str]) -> None:
    """Complains about names, whole or in part, that mean none of the known peers."""
    for one in asked:
        if not any(PeerName.of(peer).is_asked_for(one) for peer in peers):
            known("peer", [one], peers)


def known(kind: str, asked: Iterable[object], choices: Iterable[object]) -> None:
    """Complains about what is not one of the choices.

    Raises:
        UsageError: it is not.
    """
    choices = list(choices)
    for one in asked:
        if one not in choices:
            there = f"choose from {', '.join(map(str, choices))}" if choices else "there is none"
            raise UsageError(f"unknown {kind} {one}: {there}")
