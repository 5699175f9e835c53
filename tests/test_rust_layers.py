"""The order of the modules of each Rust crate: which may import which, by the paths in their source.

The folders of `crates/engine/src` have the order of `ENGINE`. In every crate no module imports one that imports it,
directly or by others. A module and those inside it may import each other, as they are one unit in parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CRATES = ROOT / "crates"

pytestmark = pytest.mark.wirespeed_only("the rules are ours")

ENGINE = [
    {"util"},  # locks, wakers, containers, timers, descriptors
    {"reasons", "topics"},  # the reasons of refusals; the names of topics, and their subscribers
    {"logs"},
    {"auth", "broker"},  # tokens and permissions; the interface between an engine and a broker
    {"config"},  # all options; it names tokens, topics and brokers
    {"admission", "delivery", "listen", "metrics"},  # mechanisms that do not know each other
    {"control"},  # commands to workers, which contain messages and accepted sockets
    {"session"},
    {"events"},
    {"shared"},  # the state that all workers share
    {"http", "pubsub"},
    {"connection"},
    {"worker"},
    {"ops"},  # the start and the end of an engine
    {"engine"},
    {"fuzzing"},
]
"""The modules directly in `crates/engine/src`, each row above the rows that it may import."""

CYCLES: dict[str, list[tuple[str, str]]] = {
    "bench": [("load::{client_pool threads}", "a thread has a pool, which knows its thread")],
    "driver": [
        ("connection::{send_queue wait_state watchers}", "the parts of one state, which name each other's types")
    ],
    "protocol": [("close error event frame::opcode payload", "plain types that contain each other")],
    "python": [
        (
            "asyncio::{connection epoll_registry listener loop_adapter loop_callbacks loop_state operation ready "
            "selector}",
            "Python objects that own each other: a loop has adapters, which have connections, which have operations, "
            "which wait on the loop",
        ),
        ("blocking::{connection ping}", "a connection returns a ping, which waits for its pong on the connection"),
        ("errors headers", "exceptions contain header fields, and header fields raise exceptions"),
    ],
}
"""By crate: modules that may be in one cycle, and the reason."""

Module = tuple[str, ...]


# Source


def without_tests(code: str) -> str:
    """Removes test modules, which may import anything."""
    return re.split(
        r"^#\[cfg\((?:all\()?test\b[^\n]*\n(?:#\[[^\n]*\n)*mod \w+ \{", code, maxsplit=1, flags=re.MULTILINE
    )[0]


def without_comments(code: str) -> str:
    """Removes comments and the content of strings."""
    token = re.compile(
        r"""//[^\n]*|/\*.*?\*/|b?r(?P<hashes>\#*)".*?"(?P=hashes)|b?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^'\\])'""",
        re.DOTALL,
    )
    return token.sub(lambda match: "\n" * match[0].count("\n") or " ", code)


def leaves(tree: str) -> Iterator[tuple[list[str], str]]:
    """Yields the paths of a `use` tree, each with the name that it gets: `a::{b, c as d}` is `a::b` and `a::c`."""
    tree = tree.strip()
    if "{" not in tree:
        path, _, alias = tree.partition(" as ")
        segments = path.replace(" ", "").split("::")
        if segments[-1] == "self":
            segments.pop()
        if segments and segments[0]:
            yield segments, alias.strip() or segments[-1]
        return
    start = tree.index("{")
    prefix = [segment for segment in tree[:start].replace(" ", "").split("::") if segment]
    depth, begin = 0, start + 1
    for at in range(start, len(tree)):
        depth += {"{": 1, "}": -1}.get(tree[at], 0)
        if (tree[at] == "," and depth == 1) or depth == 0:
            for segments, name in leaves(tree[begin:at]) if tree[begin:at].strip() else ():
                yield [*prefix, *segments], name
            inner = tree[begin:at].strip()
            if inner == "self":
                yield prefix, prefix[-1]
            begin = at + 1
        if depth == 0:
            return


class Crate:
    """The modules of a crate, and their imports."""

    def __init__(self, source: Path) -> None:
        self.code: dict[Module, str] = {}
        for path in sorted(source.rglob("*.rs")):
            parts = path.relative_to(source).with_suffix("").parts
            module = parts[:-1] if parts[-1] in {"mod", "lib", "main"} else parts
            self.code[module] = without_tests(without_comments(path.read_text(encoding="utf-8")))
        self.exported = {module: dict(self.exports(module)) for module in self.code}

    def absolute(self, module: Module, segments: list[str]) -> Module | None:
        """Returns a path from the root of the crate; `None` for a path into another crate."""
        first, *rest = segments
        if first in {"crate", "$crate"}:
            return tuple(rest)
        base = module
        if first == "self":
            return (*base, *rest)
        if first == "super":
            base = base[:-1]
            while rest and rest[0] == "super":
                base, rest = base[:-1], rest[1:]
            return (*base, *rest)
        # A module inside this one.
        return (*base, *segments) if (*base, first) in self.code else None

    def uses(self, module: Module) -> Iterator[tuple[bool, Module, str]]:
        """Yields each import of a module: whether it is exported, its path, and its name."""
        for match in re.finditer(r"(?<![\w:])(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", self.code[module]):
            for segments, name in leaves(match[2]):
                if (path := self.absolute(module, segments)) is not None:
                    yield match[1] is not None, path, name

    def exports(self, module: Module) -> Iterator[tuple[str, Module]]:
        return ((name, path) for exported, path, name in self.uses(module) if exported)

    def defining(self, path: Module, seen: frozenset[Module] = frozenset()) -> Module:
        """Returns the module in which the item at a path is defined, through re-exports."""
        module = path
        while module not in self.code:
            module = module[:-1]
        rest = path[len(module) :]
        target = self.exported[module].get(rest[0]) if rest else None
        return self.defining(target, seen | {path}) if target is not None and path not in seen else module

    def imports(self, module: Module) -> set[Module]:
        """Returns the other modules that a module names, without those inside it and around it."""
        paths = [path for _, path, _ in self.uses(module)]
        # Also outside of `use`.
        code = re.sub(r"(?<![\w:])(pub(?:\([^)]*\))?\s+)?use\s+[^;]+;", "", self.code[module])
        for match in re.finditer(r"(?<![\w:])(?:\$?crate|self|super)(?:::\w+)+", code):
            if (path := self.absolute(module, match[0].split("::"))) is not None:
                paths.append(path)
        found = {self.defining(path) for path in paths}
        return {other for other in found if other[: len(module)] != module and module[: len(other)] != other}

    def graph(self) -> dict[Module, set[Module]]:
        return {module: self.imports(module) for module in self.code}


# Rules


def upward(crate: Crate, layers: list[set[str]]) -> list[str]:
    """Returns the imports from a layer into itself or one above it."""
    rank = {name: number for number, names in enumerate(layers) for name in names}
    return sorted(
        f"{name(module)} imports {name(other)}"
        for module, others in crate.graph().items()
        for other in others
        if module and module[0] != other[0] and rank[other[0]] >= rank[module[0]]
    )


def cycles(crate: Crate) -> list[set[str]]:
    """Returns the largest sets of modules of which each imports all others, directly or by others."""
    graph = crate.graph()
    reached = {module: reachable(graph, module) for module in graph}
    groups = {frozenset(other for other in reached[module] if module in reached[other]) for module in graph}
    return [{name(module) for module in group} for group in groups if len(group) > 1]


def reachable(graph: dict[Module, set[Module]], start: Module) -> set[Module]:
    found: set[Module] = set()
    waiting = list(graph[start])
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting.extend(graph[module])
    return found


def expanded(modules: str) -> set[str]:
    """Returns the modules of an entry of `CYCLES`: `a::{b c} d` is `a::b`, `a::c` and `d`."""
    folder, braced, inner = modules.partition("::{")
    return {f"{folder}::{module}" for module in inner.rstrip("}").split()} if braced else set(modules.split())


def name(module: Module) -> str:
    return "::".join(module) or "lib.rs"


def test_engine_folders_import_only_those_below_them() -> None:
    crate = Crate(CRATES / "engine" / "src")
    assert {module[0] for module in crate.code if module} == set().union(*ENGINE)
    assert upward(crate, ENGINE) == []


@pytest.mark.parametrize("crate", [path.parent.name for path in sorted(CRATES.glob("*/Cargo.toml"))])
def test_modules_do_not_import_each_other_in_a_cycle(crate: str) -> None:
    allowed = [expanded(modules) for modules, _ in CYCLES.get(crate, [])]
    found = cycles(Crate(CRATES / crate / "src"))
    assert [sorted(group) for group in found if not any(group <= modules for modules in allowed)] == []
    assert all(any(group <= modules for group in found) for modules in allowed), "an exception is not needed any more"


# The checker itself, on a small tree that breaks the rules

LAYERS = [{"low"}, {"left", "right"}, {"high"}]
SOURCE = {
    "lib.rs": "mod low; mod left; mod right; mod high;\npub use high::Tall;",
    "low.rs": "pub struct Low;",
    "left/mod.rs": "mod inner;\npub(crate) use self::inner::Deep;\nuse crate::low::Low;",
    "left/inner.rs": "use super::super::low::{self, Low as Lowest};\npub(crate) struct Deep;",
    "right.rs": '// use crate::high::Tall;\nfn text() -> &\'static str { "crate::high::Tall" }\nuse crate::low;',
    "high.rs": "use crate::{left::{Deep, self}, low::Low};\npub struct Tall;",
}


def tree(folder: Path, **changed: str) -> Crate:
    for path, code in {**SOURCE, **{f"{path}.rs": code for path, code in changed.items()}}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(code, encoding="utf-8")
    return Crate(folder)


def test_tree_without_violations(tmp_path: Path) -> None:
    crate = tree(tmp_path)
    assert crate.imports(("high",)) == {("left",), ("left", "inner"), ("low",)}
    assert crate.imports(("left", "inner")) == {("low",)}
    assert (upward(crate, LAYERS), cycles(crate)) == ([], [])


@pytest.mark.parametrize(
    "code",
    [
        "use crate::high::Tall;",
        "use crate::Tall;",
        "pub(crate) use super::{high::{Tall as Short}, low};",
        "fn tall() -> crate::high::Tall { loop {} }",
        "#[cfg(unix)]\nuse crate::{\n    high::{\n        Tall,\n    },\n};",
    ],
)
def test_upward_imports_are_found(tmp_path: Path, code: str) -> None:
    assert upward(tree(tmp_path, right=code), LAYERS) == ["right imports high"]


def test_imports_beside_a_layer_are_found(tmp_path: Path) -> None:
    assert upward(tree(tmp_path, right="use crate::left::Deep;"), LAYERS) == ["right imports left::inner"]


def test_cycles_are_found_through_reexports(tmp_path: Path) -> None:
    """`left::inner` imports `left::other` by the name that `left` exports."""
    crate = tree(
        tmp_path,
        **{
            "left/mod": "mod inner; mod other;\npub use inner::Deep;\npub use self::other::Other;",
            "left/inner": "use crate::left::Other;\npub struct Deep;",
            "left/other": "use super::Deep;\npub struct Other;",
        },
    )
    assert cycles(crate) == [{"left::inner", "left::other"}]


def test_longer_cycles_are_found(tmp_path: Path) -> None:
    crate = tree(tmp_path, low="use crate::high::Tall;", right="use crate::low::Low;")
    assert cycles(crate) == [{"high", "left", "left::inner", "low"}]


def test_modules_may_import_those_inside_them(tmp_path: Path) -> None:
    crate = tree(tmp_path, **{"left/inner": "use super::Outer;\npub(crate) struct Deep;"})
    assert cycles(crate) == []


def test_tests_may_import_anything(tmp_path: Path) -> None:
    code = "fn f() {}\n#[cfg(test)]\n#[allow(unused)] // a reason\nmod tests {\n    use crate::high::Tall;\n}\n"
    assert upward(tree(tmp_path, right=code), LAYERS) == []
