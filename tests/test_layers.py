"""The dependency rules between crates and packages, and the modules that may have unsafe code.

    protocol <- driver <- engine, bench <- python        Rust crates, by Cargo.toml and by source
    _net, _connection <- _options <- _server <- asyncio, sync <- asgi, cli, compat     Python
    public names <- tests, examples, conformance, bench, interop

The other half of the first rule, that crates/protocol needs nothing of a host, is scripts/check-no-host.sh.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found]  # comes with pytest

ROOT = Path(__file__).parents[1]
CRATES = ROOT / "crates"
PACKAGE = ROOT / "python" / "wirespeed"

pytestmark = pytest.mark.wirespeed_only("the rules are ours")


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return loaded


# Rust: dependencies

OURS = {
    "protocol": set(),
    "driver": {"protocol"},
    "engine": {"driver"},
    "brokers": {"engine"},
    "bench": {"driver", "protocol"},
    "sans-io": {"driver"},
    "python": {"brokers", "driver", "engine", "protocol"},
}


def dependencies(manifest: dict[str, Any]) -> set[str]:
    """Returns packages of every kind of dependency, for every target."""
    tables = [manifest, *manifest.get("target", {}).values()]
    kinds = ("dependencies", "dev-dependencies", "build-dependencies")
    entries = [(name, entry) for table in tables for kind in kinds for name, entry in table.get(kind, {}).items()]
    return {entry.get("package", name) if isinstance(entry, dict) else name for name, entry in entries}


def rust_files(crate: str) -> list[Path]:
    return sorted((CRATES / crate).rglob("*.rs"))


def code_of(path: Path) -> str:
    """Returns Rust source without comments and strings, each line in its position."""
    token = re.compile(
        r"""(?P<comment>//[^\n]*|/\*.*?\*/)"""
        r"""|(?P<text>b?r(?P<hashes>\#*)".*?"(?P=hashes)|b?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^'\\])')""",
        re.DOTALL,
    )
    return token.sub(lambda match: "\n" * match[0].count("\n") or " ", path.read_text(encoding="utf-8"))


def test_every_crate_has_a_rule() -> None:
    assert {path.parent.name for path in CRATES.glob("*/Cargo.toml")} == set(OURS)
    members = load(ROOT / "Cargo.toml")["workspace"]["members"]
    assert set(members) == {f"crates/{crate}" for crate in OURS} | {"fuzz"}


@pytest.mark.parametrize("crate", OURS)
def test_crate_dependencies(crate: str) -> None:
    ours = {name for name in dependencies(load(CRATES / crate / "Cargo.toml")) if name.startswith("wirespeed")}
    assert ours == {f"wirespeed-{name}" for name in OURS[crate]}


@pytest.mark.parametrize("crate", OURS)
def test_crate_names_no_crate_above(crate: str) -> None:
    """By source, so that a hastily edited manifest does not suffice."""
    allowed = {f"wirespeed_{name}" for name in {crate, *OURS[crate]}}
    used = {
        (name, str(path.relative_to(ROOT)))
        for path in rust_files(crate)
        for name in re.findall(rf"\bwirespeed_(?:{'|'.join(OURS)})\b", code_of(path))
    }
    assert {(name, path) for name, path in used if name not in allowed} == set()


@pytest.mark.parametrize("crate", sorted(set(OURS) - {"python"}))
def test_only_the_bindings_depend_on_python(crate: str) -> None:
    assert not {name for name in dependencies(load(CRATES / crate / "Cargo.toml")) if "pyo3" in name}
    assert [path for path in rust_files(crate) if "pyo3" in code_of(path)] == []


def test_protocol_is_no_std() -> None:
    """It declares it, uses `std` only in tests, and requires no dependency with more than `alloc` by default."""
    manifest = load(CRATES / "protocol" / "Cargo.toml")
    shared = load(ROOT / "Cargo.toml")["workspace"]["dependencies"]
    library = (CRATES / "protocol" / "src" / "lib.rs").read_text(encoding="utf-8")
    assert '#![cfg_attr(not(feature = "std"), no_std)]' in library
    for name in manifest["dependencies"]:
        assert shared[name].get("default-features") is False, f"{name} brings its default features"
        assert "std" not in shared[name].get("features", []), f"{name} brings std"
    named = {
        (str(path.relative_to(ROOT)), line)
        for path in sorted((CRATES / "protocol" / "src").rglob("*.rs"))
        for line in code_of(path).split("#[cfg(test)]")[0].splitlines()
        # The feature is for CPU detection, which is a single instruction and needs nothing of the host.
        if re.search(r"\bstd::", line) and "is_x86_feature_detected" not in line
    }
    assert named == set()


def test_protocol_needs_no_host() -> None:
    used = set(load(CRATES / "protocol" / "Cargo.toml")["dependencies"])
    assert not {"getrandom", "libc", "mio", "rand", "rustls", "socket2"} & used


def test_bindings_make_no_system_calls() -> None:
    """They convert, wake and map errors; sockets, readiness and timers are the driver's."""
    used = dependencies(load(CRATES / "python" / "Cargo.toml"))
    assert not {"libc", "mio", "nix", "rustix", "socket2", "tokio"} & used


# Rust: unsafe code

UNSAFE = {
    "crates/protocol/src/mask/mod.rs": None,
    "crates/protocol/src/mask/portable.rs": None,
    "crates/protocol/src/mask/x86_64.rs": None,
    "crates/protocol/src/deflate/codec.rs": None,
    "crates/protocol/src/payload.rs": None,
    "crates/protocol/src/connection/receive.rs": "put_destination",
    "crates/driver/src/readiness.rs": None,
    "crates/driver/src/socket.rs": None,
    "crates/driver/src/thread.rs": None,
    "crates/driver/src/endpoint/mod.rs": "put_destination",
    "crates/python/src/thread_exit.rs": None,
    "crates/python/src/gil_yield.rs": None,
    "crates/python/src/payload.rs": None,
    "crates/python/src/source.rs": None,
    "crates/python/src/asyncio/fast_methods.rs": None,
    "crates/python/src/asyncio/owner_mutex.rs": None,
    "crates/python/src/asyncio/gil_mutex.rs": None,
    "crates/python/src/asyncio/invoke.rs": None,
    "crates/python/src/asyncio/listener.rs": None,
    "crates/python/src/asyncio/operation.rs": None,
    "crates/python/src/asyncio/raw.rs": None,
    "crates/python/src/asyncio/waiter/mod.rs": None,
    "crates/python/src/asyncio/waiter/slots.rs": None,
    "crates/python/src/engine/message.rs": None,
    "crates/python/src/opening/connected.rs": None,
    "crates/python/src/opening/mod.rs": "from_raw_fd",
}
"""Where unsafe code is, and the only function that it is for, if there is one."""

SOURCES = [path for crate in OURS for path in sorted((CRATES / crate / "src").rglob("*.rs"))]


def test_unsafe_is_where_it_may_be() -> None:
    found = {str(path.relative_to(ROOT)) for path in SOURCES if re.search(r"\bunsafe\b", code_of(path))}
    assert found == set(UNSAFE)


@pytest.mark.parametrize("path", [path for path, function in UNSAFE.items() if function])
def test_unsafe_is_for_one_function(path: str) -> None:
    code = code_of(ROOT / path)
    for match in re.finditer(r"\bunsafe\b", code):
        # In its own definition, or in a call of it.
        assert str(UNSAFE[path]) in code[max(0, match.start() - 200) : match.start() + 100]


@pytest.mark.parametrize("path", [*SOURCES, *(CRATES / "protocol" / "tests").rglob("*.rs")], ids=lambda p: p.name)
def test_unsafe_has_its_reason(path: Path) -> None:
    """``// SAFETY:`` above each block and impl, ``# Safety`` in the documentation of each function."""
    lines = path.read_text(encoding="utf-8").splitlines()
    missing = []
    for number, line in enumerate(code_of(path).splitlines()):
        for match in re.finditer(r"\bunsafe\b\s*(\(|impl\b|extern\b|fn\b)?", line):
            above = "\n".join(comment_above(lines, number))
            if match[1] in {"(", "extern"}:
                continue  # an attribute, or foreign functions, each of which is unsafe to call
            if match[1] == "fn":
                # A method of a trait keeps the contract of the trait; helpers of tests have no other callers.
                if not in_trait_impl(lines, number) and is_source(path) and "# Safety" not in above:
                    missing.append(number + 1)
            elif "SAFETY:" not in above:
                missing.append(number + 1)
    assert missing == [], f"{path}: unsafe code without a reason"


def is_source(path: Path) -> bool:
    return "tests" not in path.relative_to(CRATES).parts


def comment_above(lines: list[str], number: int) -> Iterator[str]:
    """Returns the comment above the statement that a line belongs to; attributes may stand between."""
    at = number - 1
    # Up to the start of the statement: the first after a blank line, a comment, or the end of another one.
    while at >= 0 and not re.search(r"^\s*//|^\s*$|[;{}]\s*(//.*)?$|^\s*#!?\[.*\]", lines[at]):
        at -= 1
    while at >= 0 and re.match(r"\s*(//|#\[)", lines[at]):
        yield lines[at]
        at -= 1


def in_trait_impl(lines: list[str], number: int) -> bool:
    indent = len(lines[number]) - len(lines[number].lstrip())
    for line in reversed(lines[:number]):
        if line.strip() and len(line) - len(line.lstrip()) < indent:
            return re.match(r"\s*(unsafe )?impl\b.* for ", line) is not None
    return False


def test_workspace_lints() -> None:
    lints = load(ROOT / "Cargo.toml")["workspace"]["lints"]
    assert lints["rust"]["unsafe_code"] == "deny"
    assert lints["clippy"]["undocumented_unsafe_blocks"] == "deny"
    for crate in OURS:
        assert load(CRATES / crate / "Cargo.toml")["lints"] == {"workspace": True}


# Rust: panics

PANICS = ("expect_used", "indexing_slicing", "panic", "string_slice", "unreachable", "unwrap_used")
"""Lints that keep code from panicking on what a peer causes, in the crates whose input is a peer's."""


@pytest.mark.parametrize("crate", ["protocol", "driver", "engine", "brokers"])
def test_peers_cannot_cause_a_panic(crate: str) -> None:
    """The lints are denied for the whole crate, and where one is allowed the reason stands beside it."""
    library = (CRATES / crate / "src" / "lib.rs").read_text(encoding="utf-8")
    denied = re.search(r"#!\[cfg_attr\(\s*not\(test\),\s*deny\(([^)]*)\)\s*\)\]", library)
    assert denied is not None
    assert set(re.findall(r"clippy::(\w+)", denied[1])) == set(PANICS)
    named = "|".join(PANICS)
    for path in sorted((CRATES / crate / "src").rglob("*.rs")):
        source = path.read_text(encoding="utf-8").split("#[cfg(test)]")[0]
        for match in re.finditer(rf"#!?\[(?:allow|expect|warn)\(([^\]]*clippy::(?:{named})[^\]]*)\]", source):
            assert re.search(r'reason = "[^"]{15,}"', match[1]), f"{path}: {match[0]}"
        assert not re.search(rf"#!\[(?:allow|expect|warn)\([^\]]*clippy::(?:{named})", source), f"{path}: all of it"


def test_packages_contain_no_failpoints() -> None:
    """The feature is for tests: it is never a default, and only scripts/panics.sh builds with it."""
    manifests = [load(path) for path in CRATES.glob("*/Cargo.toml")]
    having = [manifest for manifest in manifests if "fault-injection" in manifest.get("features", {})]
    assert len(having) == 5
    assert all("fault-injection" not in manifest["features"].get("default", []) for manifest in having)
    assert "fault-injection" not in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert not any("fault-injection" in str(entry) for manifest in manifests for entry in dependency_tables(manifest))


def dependency_tables(manifest: dict[str, Any]) -> list[Any]:
    return [manifest.get(kind, {}) for kind in ("dependencies", "dev-dependencies", "build-dependencies")]


# Python: imports

FOLDERS = {"sync", "asyncio"}
# Modules made of these: no other module may import them.
ABOVE = {"__main__.py", "asgi", "cli", "compat", "_patching.py"}
"""Parts of the package that stand side by side, above the rest."""

INNER = {
    "_net": set(),
    "_connection": set(),
    "_options": {"_net", "_connection"},
    "_server": {"_net", "_connection", "_options"},
}
"""The packages and modules that threads and event loops share, and those that each may know."""

PYTHON = sorted(PACKAGE.rglob("*.py*"))
STDLIB = sys.stdlib_module_names


def module_of(path: Path) -> list[str]:
    parts = list(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    return parts[:-1] if parts[-1] == "__init__" else parts


def type_checking_only(tree: ast.AST) -> set[ast.AST]:
    """Returns the nodes under ``if TYPE_CHECKING``, which do not run."""
    blocks = [
        node.body for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    return {inner for body in blocks for statement in body for inner in ast.walk(statement)}


def imports(path: Path, *, running: bool = False) -> Iterator[tuple[str, str | None]]:
    """Returns absolute names of the modules that a file imports, each with a name taken from it, ``None`` for the
    module.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left_out = type_checking_only(tree) if running else set()
    here = module_of(path) if path.is_relative_to(PACKAGE) else []
    package = here if path.stem == "__init__" else here[:-1]
    for node in ast.walk(tree):
        if node in left_out:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            yield from ((module, alias.name) for alias in node.names)


def modules_imported(path: Path) -> set[str]:
    """Also ``from package import module``, which imports both."""
    return {part for module, name in imports(path) for part in (module, f"{module}.{name}") if module}


@pytest.mark.parametrize("path", [path for path in PYTHON if path.suffix in {".py", ".pyi"}], ids=lambda p: p.name)
def test_python_layers(path: Path) -> None:
    parts = path.relative_to(PACKAGE).parts
    mine = parts[0] if parts[0] in FOLDERS else None
    if parts == ("__init__.py",):
        return  # it collects the public names
    if parts[0] in ABOVE:
        return
    forbidden = [f"wirespeed.{folder}" for folder in {*FOLDERS, *ABOVE} if folder != mine]
    wrong = {name for name in modules_imported(path) if any(f"{name}.".startswith(f"{other}.") for other in forbidden)}
    assert wrong == set()


def test_every_inner_package_has_a_rule() -> None:
    packages = {path.name for path in PACKAGE.glob("_*") if path.is_dir() and path.name != "__pycache__"}
    assert packages <= set(INNER)
    assert all(list(files_of(name)) for name in INNER)


def files_of(name: str) -> Iterator[Path]:
    yield from (PACKAGE / name).rglob("*.py")
    yield from PACKAGE.glob(f"{name}.py")


@pytest.mark.parametrize("folder", INNER)
def test_inner_packages(folder: str) -> None:
    forbidden = {f"wirespeed.{other}" for other in set(INNER) - INNER[folder] - {folder}}
    wrong = {
        (path.name, name)
        for path in files_of(folder)
        for name in modules_imported(path)
        if any(f"{name}.".startswith(f"{other}.") for other in forbidden)
    }
    assert wrong == set()


MODULES = {".".join(module_of(path)): path for path in PACKAGE.rglob("*.py")}


def packages_of(module: str) -> set[str]:
    parts = module.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts))}


def imported_by(module: str) -> set[str]:
    """Returns modules that run before a module is imported, or when a function of it imports them; packages
    included.
    """
    found = set()
    for name, item in imports(MODULES[module], running=True):
        imported = f"{name}.{item}" if f"{name}.{item}" in MODULES else name
        if imported in MODULES:
            # Packages that contain both are imported already.
            found |= {imported, *packages_of(imported)} - packages_of(module)
    return found - {module}


def test_no_module_is_imported_by_what_it_imports() -> None:
    graph = {module: imported_by(module) for module in MODULES}
    assert graph["wirespeed.sync._client"] >= {"wirespeed._options", "wirespeed._options.client", "wirespeed.tls"}
    while leaves := {module for module, needed in graph.items() if not needed & set(graph)}:
        graph = {module: needed for module, needed in graph.items() if module not in leaves}
    assert {module: sorted(needed & set(graph)) for module, needed in graph.items()} == {}


def test_blocking_code_does_not_know_asyncio() -> None:
    for path in (PACKAGE / "sync").rglob("*.py"):
        assert not {name for name in modules_imported(path) if name.split(".")[0] == "asyncio"}


def test_python_needs_only_what_it_declares() -> None:
    """`pip install wirespeed` into an empty environment must be enough."""
    project = load(ROOT / "pyproject.toml")["project"]
    declared = {re.split(r"[^\w-]", text)[0].replace("-", "_") for text in project.get("dependencies", [])}
    optional = {
        re.split(r"[^\w-]", text)[0].replace("-", "_")
        for extra in project.get("optional-dependencies", {}).values()
        for text in extra
    }
    for path in PACKAGE.rglob("*.py"):
        needed = {module.split(".")[0] for module, _ in imports(path, running=True)} - STDLIB - {"wirespeed", ""}
        assert needed - declared - optional == set(), f"{path.name} imports what pip does not install"
        # Extras are imported where they are needed: importing wirespeed must work without.
        top_level = {
            alias.name.split(".")[0] if isinstance(node, ast.Import) else (node.module or "").split(".")[0]
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, (ast.Import, ast.ImportFrom)) and not getattr(node, "level", 0)
            for alias in node.names
        }
        assert top_level & (optional - declared) == set()


# Users of the package

USERS = sorted(
    path
    for folder in ("tests", "examples", "conformance", "bench", "interop")
    for path in (ROOT / folder).rglob("*.py")
    if not {"__pycache__", "report", "node_modules"} & set(path.parts)
)


TESTED_INSIDE = {
    "tests/campaigns/api/heads.py": {"_net.uri"},
    "tests/cli/test_engine.py": {"cli._engine"},
    "tests/asyncio/test_client_codecs.py": {"_connection", "asyncio._connection"},
    "tests/asyncio/test_connect_routes.py": {"asyncio._opening"},
    "tests/asyncio/test_dial.py": {"_net.addresses", "asyncio._opening", "asyncio._sockets"},
    "tests/asyncio/test_reconnect.py": {"asyncio._reconnect"},
    "tests/asyncio/test_server_broadcast_slow.py": {"asyncio._broadcasting"},
    "tests/asyncio/test_server_flood.py": {"_server.accept"},
    "tests/asyncio/test_server_pending_handshake.py": {"_server.accept"},
    "tests/asyncio/test_server_handshake.py": {"_server.accept"},
    "tests/asyncio/test_server_failure_log.py": {"_connection", "_server.accept", "_server.log"},
    "tests/compat/test_iteration.py": {"compat.websockets._views"},
    "tests/compat/test_log_records.py": {"compat.websockets._server"},
    "tests/compat/test_linking.py": {"compat.websockets._installed"},
    "tests/compat/test_tls.py": {"compat.websockets._views"},
    "tests/sync/test_client_codecs.py": {"_connection", "sync._connection"},
    "tests/sync/test_dial.py": {"sync._dial"},
    "tests/sync/test_server_flood.py": {"_server.accept"},
    "tests/sync/test_server_shutdown.py": {"_server.accept"},
    "tests/sync/test_server_failure_log.py": {"_server.log"},
    "tests/test_accepting.py": {"_server.accept"},
    "tests/asgi/test_slow_application.py": {"asgi._after_close"},
    "tests/asgi/test_requests.py": {"asgi._uvicorn"},
    "tests/cli/test_renewal.py": {"cli._serve"},
    "tests/asyncio/test_io_backends.py": {"_native"},
    "tests/test_cycles.py": {"_native", "_options.client", "_options.server"},
    "tests/test_client_options.py": {"_native", "_net.uri", "_options.client"},
    "tests/test_handshake_limiter.py": {"_native", "_server.accept", "asyncio._accept", "sync._accept"},
    "tests/test_pending_handshake.py": {
        "_native",
        "_options.server",
        "_server.accept",
        "asyncio._accept",
        "sync._accept",
    },
    "tests/test_hints.py": {"_options.hints"},
    "tests/test_options_table.py": {"_options.client", "_options.server", "_options.table"},
    "tests/test_proxy.py": {"_net.proxy", "_net.uri"},
    "tests/test_race.py": {"_net.addresses"},
    "tests/test_redaction.py": {"_redaction"},
    "tests/test_redirects.py": {"_net.uri"},
    "tests/test_responses.py": {"_server.responses"},
    "tests/test_log_throttle.py": {"_server.log"},
    "tests/asyncio/test_started_tasks.py": {"asyncio._tasks"},
    "tests/test_uri.py": {"_net.uri"},
}
"""Tests of modules that are not public, because what they decide is hard to bring about from outside."""


@pytest.mark.parametrize("path", USERS, ids=lambda p: str(p.relative_to(ROOT)))
def test_users_take_public_names(path: Path) -> None:
    """No module with an underscore except the allowed ones, and no name that its module does not list."""
    wrong = []
    inside: set[str] = set()
    for name, item in imports(path):
        if name.split(".")[0] != "wirespeed":
            continue
        module = f"{name}.{item}" if item is not None and is_module(f"{name}.{item}") else name
        if "._" in module:
            inside.add(module.removeprefix("wirespeed."))
        if module == name and item is not None and item not in getattr(importlib.import_module(name), "__all__", []):
            wrong.append(f"{name}.{item}")
    assert wrong == []
    assert inside == TESTED_INSIDE.get(str(path.relative_to(ROOT)), set())


def is_module(name: str) -> bool:
    relative = Path(*name.split(".")[1:])
    return (PACKAGE / relative).is_dir() or (PACKAGE / relative).with_suffix(".py").exists()
