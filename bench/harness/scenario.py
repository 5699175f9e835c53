"""Scenarios: what is measured, as data. Reads `bench/scenarios/*.toml`, complains about what it cannot mean."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.errors import UsageError
from harness.figures import FIGURES, KINDS
from harness.places import SCENARIOS

__all__ = ["Bar", "Cell", "Chart", "Measure", "Option", "Options", "PeerName", "Scenario", "Workload", "load", "names"]

Option = bool | int | float | str
Options = dict[str, Option]


@dataclass(frozen=True)
class PeerName:
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
        """Tells whether this is the peer, or one of the peers, that somebody asked for: parts left out mean all."""
        other = PeerName.of(asked)
        return (
            self.folder == other.folder
            and other.style in (None, self.style)
            and other.loop in (None, self.loop)
        )  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """What the peers are compared in: one workload, one size (0: there are no messages), plain or TLS."""

    workload: str
    size: int
    tls: bool

    def __str__(self) -> str:
        size = f"{size_text(self.size)}, " if self.size else ""
        return f"{self.workload}, {size}{'TLS' if self.tls else 'plain'}"


@dataclass(frozen=True)
class Workload:
    """One workload of a scenario.

    Attributes:
        name: its name.
        title: what a person reads above its tables.
        unit: what is counted, in the singular.
        sizes: bytes of a message; 0 if it has none.
        tls: without TLS, with, or both.
        expects: what must have happened for a window to count, in words.
        path: the path at the server, {size} and each of the options replaced.
        model: what the peers do, by the name that they know; None: that of the workload.
        measures: what is compared, one of `figures.KINDS`.
        throughput: whether bytes a second tell something.
        options: what else the peers are told, as options of their command line; true: a flag.
        quick_options: what is different of them in a quick run.
        each: name and values of an option; the workload stands once for each of them, named `name-VALUE`.
        quick_values: those of them that a quick run has; None: all.
        group: the name of the workload that it is one of so; None: it stands alone.
        peers: those that take part, parts of their names left out meaning all; None: all that can.
        rounds: the most rounds that it is worth.
        stretch: how many times longer its windows are, where messages come in bursts.
        seconds: the length of its windows, where that is part of what it is; not in a quick run.
        quick_sizes: the sizes of a quick run; None: all.
        quick_peers: those that take part in a quick run; None: those of `peers`.
        quick: whether it is part of a quick run.
    """

    name: str
    title: str
    unit: str
    sizes: tuple[int, ...] = (0,)
    tls: tuple[bool, ...] = (False,)
    expects: str = ""
    path: str = "/"
    model: str | None = None
    measures: str = "rate"
    throughput: bool = False
    options: Options = field(default_factory=dict)
    quick_options: Options = field(default_factory=dict)
    each: dict[str, tuple[Option, ...]] = field(default_factory=dict)
    quick_values: tuple[Option, ...] | None = None
    group: str | None = None
    peers: tuple[str, ...] | None = None
    rounds: int | None = None
    stretch: float = 1.0
    seconds: float | None = None
    quick_sizes: tuple[int, ...] | None = None
    quick_peers: tuple[str, ...] | None = None
    quick: bool = True

    @property
    def runs(self) -> str:
        """What the peers call what they do."""
        return self.model or self.group or self.name

    @property
    def units(self) -> str:
        """The plural of what is counted: echoes, deliveries, round trips."""
        if self.unit.endswith("y") and self.unit[-2:-1] not in "aeiou":
            return self.unit[:-1] + "ies"
        return self.unit + ("es" if self.unit.endswith(("o", "s", "x", "ch", "sh")) else "s")

    def admits(self, peer: str) -> bool:
        """Tells whether a peer may take part."""
        return self.peers is None or any(PeerName.of(peer).is_asked_for(asked) for asked in self.peers)

    def cells(self) -> list[Cell]:
        """Returns the cells, plain before TLS, sizes in the order of the scenario."""
        return [Cell(self.name, size, tls) for tls in self.tls for size in self.sizes]

    def is_called(self, name: str) -> bool:
        """Tells whether somebody who asks for this name means this workload."""
        return name in (self.name, self.group)

    def shortened(self) -> Workload:
        """Returns what is left of it in a quick run."""
        sizes = self.sizes if self.quick_sizes is None else self.quick_sizes
        peers = self.peers if self.quick_peers is None else self.quick_peers
        options = self.options | self.quick_options
        return dataclasses.replace(self, sizes=sizes, peers=peers, options=options, seconds=None)

    def target(self, size: int) -> str:
        """Returns the path at the server."""
        return self.path.format(size=size, **self.options)


@dataclass(frozen=True)
class Measure:
    """How long and how often: `rounds` windows of `seconds` each, after `warmup` seconds.

    Attributes:
        batch: messages per call where a call takes many.
    """

    rounds: int
    seconds: float
    warmup: float
    batch: int = 1024


@dataclass(frozen=True)
class Bar:
    """What a peer must reach: a figure, or with `versus` its multiple of a rival's, the best one's of several.

    `at_least` and `at_most` include the threshold, `above` does not.

    Attributes:
        figure: which figure, a name of `figures.FIGURES`; None: what the workload compares. Not with `versus`.
    """

    text: str
    workload: str
    peer: str
    versus: str | tuple[str, ...] | None = None
    sizes: tuple[int, ...] | None = None
    tls: tuple[bool, ...] | None = None
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    figure: str | None = None

    @property
    def rivals(self) -> tuple[str, ...]:
        """The peers of `versus`."""
        return (self.versus,) if isinstance(self.versus, str) else self.versus or ()

    def selects(self, cell: Cell) -> bool:
        """Tells whether the bar stands in this cell."""
        return (
            cell.workload == self.workload
            and (self.sizes is None or cell.size in self.sizes)
            and (self.tls is None or cell.tls in self.tls)
        )

    def passes(self, figure: float) -> bool:
        """Tells whether a measured figure reaches the bar."""
        if self.above is not None:
            return figure > self.above
        if self.at_most is not None:
            return figure <= self.at_most
        return self.at_least is not None and figure >= self.at_least


@dataclass(frozen=True)
class Chart:
    """A picture of the report.

    Attributes:
        name: its name, unique among all scenarios; that of its file.
        title: what stands above it.
        kind: "bars": peers side by side, in a group for each x; "lines": one for each peer, along x; "percentiles": how
            latencies are distributed, a line for each peer.
        workloads: what it shows, each a workload or a group.
        x: what varies: "size", "workload", "loop", or the name of an option.
        figure: what is drawn: "value", that which the workload compares; "throughput", bytes a second; or the name of
            one of `figures.FIGURES`.
        tls: plain, with TLS, or None for both, in two panels.
        sizes: the sizes that it shows; None: all.
        peers: those that it shows, in this order, parts of their names left out meaning all; None: all.
        limits: those of them that are drawn as limits and not as rivals.
        headline: whether it stands in the README.
    """

    name: str
    title: str
    kind: str
    workloads: tuple[str, ...]
    x: str = "size"
    figure: str = "value"
    tls: bool | None = None
    sizes: tuple[int, ...] | None = None
    peers: tuple[str, ...] | None = None
    limits: tuple[str, ...] = ()
    headline: bool = False


@dataclass(frozen=True)
class Scenario:
    """One file of `bench/scenarios`, or what the command line left of it."""

    name: str
    title: str
    peers: tuple[str, ...]
    subject: str
    limits: tuple[str, ...]
    measure: Measure
    quick: Measure
    workloads: tuple[Workload, ...]
    bars: tuple[Bar, ...]
    cores: str = "one"
    charts: tuple[Chart, ...] = ()
    counterparts: Mapping[str, Collection[str]] = field(default_factory=dict)

    def workload(self, name: str) -> Workload:
        """Returns a workload by name."""
        return next(workload for workload in self.workloads if workload.name == name)

    def subject_for(self, peer: str) -> str | None:
        """Returns the peer under test that another is compared with.

        That is a counterpart of its own kind, where the scenario names one, as a blocking client for blocking clients;
        else the subject, on the same loop, if `subject` has a {loop}.
        """
        for counterpart, rivals in self.counterparts.items():
            if peer == counterpart or peer in rivals:
                return counterpart
        loop = PeerName.of(peer).loop
        if "{loop}" not in self.subject:
            return self.subject
        return None if loop is None else self.subject.format(loop=loop)

    @property
    def comparison(self) -> str:
        """The heading of a column that says what the peer under test is beside each of the others."""
        return "wirespeed is" if self.counterparts else f"{self.subject.partition('@{loop}')[0]} is"

    def cells(self) -> list[Cell]:
        """Returns the cells of all workloads."""
        return [cell for workload in self.workloads for cell in workload.cells()]

    def narrowed(
        self,
        peers: Sequence[str] = (),
        workloads: Sequence[str] = (),
        sizes: Sequence[int] = (),
        tls: bool | None = None,
        loops: Sequence[str] = (),
    ) -> Scenario:
        """Returns the scenario with only these peers, workloads, sizes, transports and loops; empty or None means all.

        A peer is named in full, or without its style or its loop for all that differ in that. A bar stays if its peers
        do.

        Raises:
            UsageError: a name is unknown, or nothing is left.
        """
        _some_known(peers, self.peers)
        _known("loop", loops, sorted({loop for peer in self.peers if (loop := PeerName.of(peer).loop)}))
        known = [workload.name for workload in self.workloads]
        groups = [workload.group for workload in self.workloads if workload.group is not None]
        _known("workload", workloads, [*dict.fromkeys(groups), *known])
        _known("size", sizes, sorted({size for workload in self.workloads for size in workload.sizes}))
        left = [
            dataclasses.replace(
                workload,
                sizes=tuple(size for size in workload.sizes if not sizes or size in sizes),
                tls=tuple(value for value in workload.tls if tls is None or value == tls),
            )
            for workload in self.workloads
            if not workloads or any(workload.is_called(name) for name in workloads)
        ]
        left = [workload for workload in left if workload.cells()]
        if not left:
            raise UsageError(f"scenario {self.name} has nothing of that workload, size and transport together")
        chosen = tuple(
            peer
            for peer in self.peers
            if (not peers or any(PeerName.of(peer).is_asked_for(asked) for asked in peers))
            and (not loops or PeerName.of(peer).loop in loops)
        )
        if not chosen:
            raise UsageError(f"scenario {self.name} has none of these peers on that loop")
        bars = tuple(bar for bar in self.bars if {bar.peer, *bar.rivals} <= set(chosen))
        return dataclasses.replace(self, peers=chosen, workloads=tuple(left), bars=bars)

    def shortened(self) -> Scenario:
        """Returns the scenario with only the sizes and options of a quick run."""
        workloads = tuple(workload.shortened() for workload in self.workloads if workload.quick)
        bars = tuple(bar for bar in self.bars if any(bar.workload == workload.name for workload in workloads))
        return dataclasses.replace(self, workloads=workloads, bars=bars)

    def with_options(self, options: Options) -> Scenario:
        """Returns the scenario with other values of options, in each workload that has them.

        Raises:
            UsageError: no workload has an option of that name.
        """
        _known("option", options, sorted({name for workload in self.workloads for name in workload.options}))
        workloads = tuple(
            dataclasses.replace(
                workload,
                options=workload.options | {name: value for name, value in options.items() if name in workload.options},
            )
            for workload in self.workloads
        )
        return dataclasses.replace(self, workloads=workloads)


def names() -> list[str]:
    """Returns the names of the scenarios."""
    return sorted(path.stem for path in SCENARIOS.glob("*.toml"))


def load(name: str) -> Scenario:
    """Reads a scenario.

    Raises:
        UsageError: there is none of that name, or the file does not say what a scenario must.
    """
    _known("scenario", [name], names())
    path = SCENARIOS / f"{name}.toml"
    try:
        return parse(name, tomllib.loads(path.read_text()))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: {type(error).__name__}: {error}") from error


def parse(name: str, data: dict[str, Any]) -> Scenario:
    """Makes a scenario of the content of its file."""
    sets = data.get("sets", {})
    workloads = tuple(one for table in data["workload"] for one in _each(Workload(**_with_sets(_tuples(table), sets))))
    bars = tuple(
        Bar(**_tuples(bar))
        for table in data.get("bar", [])
        for on_loop in _on_each_loop(table)
        for bar in _in_each_workload(on_loop, workloads)
    )
    charts = tuple(Chart(**_with_sets(_tuples(chart), sets)) for chart in data.get("chart", []))
    for chart in charts:
        _known("kind of chart", [chart.kind], ["bars", "lines", "percentiles"])
        _known("workload", chart.workloads, [name for one in workloads for name in (one.name, one.group) if name])
        shown = [one for one in workloads if any(one.is_called(name) for name in chart.workloads)]
        _known(
            "x of a chart", [chart.x], ["size", "workload", "loop", *{name for one in shown for name in one.options}]
        )
        _known("figure", [chart.figure], ["value", "throughput", *FIGURES])
        _some_known(chart.peers or (), data["peers"])
    for workload in workloads:
        _known("measure", [workload.measures], list(KINDS))
        _some_known((*(workload.peers or ()), *(workload.quick_peers or ())), data["peers"])
    for bar in bars:
        if [bar.at_least, bar.at_most, bar.above].count(None) != 2:
            raise ValueError(f"bar {bar.text!r} needs one of at_least, at_most and above")
        _known("figure", [] if bar.figure is None else [bar.figure], list(FIGURES))
        if bar.figure is not None and bar.versus is not None:
            raise ValueError(f"bar {bar.text!r} names a figure, but a rival is compared by what the workload compares")
        _known("workload", [bar.workload], [workload.name for workload in workloads])
        _known("peer", [bar.peer, *bar.rivals], data["peers"])
    counterparts = data.get("counterparts", {})
    _known("peer", [name for ours, rivals in counterparts.items() for name in (ours, *rivals)], data["peers"])
    return Scenario(
        name=name,
        title=data["title"],
        peers=tuple(data["peers"]),
        subject=data["subject"],
        limits=tuple(data["limits"]),
        measure=Measure(**data["measure"]),
        quick=Measure(**(data["measure"] | data["quick"])),
        workloads=workloads,
        bars=bars,
        cores=data.get("cores", "one"),
        charts=charts,
        counterparts=counterparts,
    )


def size_text(size: int) -> str:
    """Returns a size as people write it."""
    for factor, unit in ((1 << 20, "MiB"), (1 << 10, "KiB"), (1000, "kB")):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def _with_sets(table: dict[str, Any], sets: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Returns a table with the names of sets in its lists of peers replaced by the peers in them."""
    lists = {key: table[key] for key in ("peers", "quick_peers") if table.get(key) is not None}
    return table | {
        key: tuple(peer for name in names for peer in sets.get(name, (name,))) for key, names in lists.items()
    }


def _each(workload: Workload) -> list[Workload]:
    """Returns a workload once for each value of its `each`, {NAME} replaced in its title."""
    if not workload.each:
        return [workload]
    ((option, values),) = workload.each.items()
    return [
        dataclasses.replace(
            workload,
            name=f"{workload.name}-{value}",
            group=workload.name,
            title=workload.title.format(**{option: f"{value:,}" if isinstance(value, int) else value}),
            options=workload.options | {option: value},
            quick=workload.quick and (workload.quick_values is None or value in workload.quick_values),
            each={},
        )
        for value in values
    ]


def _on_each_loop(bar: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a bar once for each of its `loops`, {loop} replaced in the names of its peers."""
    if "loops" not in bar:
        return [bar]
    rest = {key: value for key, value in bar.items() if key != "loops"}
    versus = rest.get("versus")
    bars = []
    for loop in bar["loops"]:
        one = rest | {"peer": rest["peer"].format(loop=loop)}
        if isinstance(versus, str):
            one["versus"] = versus.format(loop=loop)
        elif versus is not None:
            one["versus"] = [name.format(loop=loop) for name in versus]
        bars.append(one)
    return bars


def _in_each_workload(bar: dict[str, Any], workloads: Sequence[Workload]) -> list[dict[str, Any]]:
    """Returns a bar once for each of the workloads of its group, if it names one."""
    return [bar | {"workload": one.name} for one in workloads if one.is_called(bar["workload"])] or [bar]


def _tuples(table: dict[str, Any]) -> dict[str, Any]:
    return {key: _tuples(value) if isinstance(value, dict) else _tuple(value) for key, value in table.items()}


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _some_known(asked: Iterable[str], known: Sequence[str]) -> None:
    """Complains about names, whole or in part, that mean none of the known peers."""
    for one in asked:
        if not any(PeerName.of(peer).is_asked_for(one) for peer in known):
            _known("peer", [one], known)


def _known(kind: str, asked: Iterable[object], known: Sequence[object]) -> None:
    for one in asked:
        if one not in known:
            choice = f"choose from {', '.join(map(str, known))}" if known else "there is none"
            raise UsageError(f"unknown {kind} {one}: {choice}")
