#!/usr/bin/env python3
"""Writes what follows from the table of options: `make generate`, or with --check, only tells what is not up to date.

    scripts/generate_options.py [--check]

The keyword arguments in the signatures of `connect`, `serve` and their variants, their descriptions in the docstrings,
and the attributes of the classes of options. Positional arguments and all other text are written by hand.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1] / "python/wirespeed"
WIDTH = 120
BEGIN, END = "    # Generated from table.py", "    # End of the generated lines"

# The file, the function or class, whose options it has, and whether it is for Unix sockets: its docstring has no
# descriptions of these options. None: the signature has a `TypedDict` of the options, one of the classes below.
FUNCTIONS = [
    ("asyncio/_client.py", "connect", "connect", None),
    ("asyncio/_client.py", "unix_connect", "connect", True),
    ("sync/_client.py", "connect", "sync.connect", None),
    ("sync/_client.py", "unix_connect", "sync.connect", True),
    ("asyncio/_serve.py", "serve", "serve", False),
    ("asyncio/_serve.py", "unix_serve", "serve", True),
    ("sync/_serve.py", "serve", "sync.serve", False),
    ("sync/_serve.py", "unix_serve", "sync.serve", True),
]

# The class, whose options it has, and whose options its base class has; "": it is a `TypedDict`. `Policy` keeps the
# options left out.
CLASSES = [
    ("asyncio/_client.py", "ConnectOptions", "connect", ""),
    ("sync/_client.py", "ConnectOptions", "sync.connect", ""),
    ("_options/client.py", "ClientOptions", "sync.connect", None),
    ("_options/client.py", "AsyncClientOptions", "connect", "sync.connect"),
    ("_options/server.py", "ServerOptions", "sync.serve", None),
    ("_options/server.py", "AsyncServerOptions", "serve", "sync.serve"),
]
LEFT_OUT = {"process_exception", "reconnect_delays", "reconnect_after_close", "refresh"}
# A class of options has types that its functions share.
CLASS_TYPES = {
    "create_connection": "Callable[..., Any] | None",
    "listener": {"connect": "object | None", "serve": "Callable[[], object] | None"},
    **dict.fromkeys(("process_request", "process_response", "select_subprotocol"), "Callable[..., Any] | None"),
}

# Where a function looks for its own type, default or description.
FALLBACK = {"sync.connect": "connect", "sync.serve": "serve", "serve": "connect"}
REFERENCE = {"serve": ":class:`wirespeed.connect`", "sync.serve": ":func:`wirespeed.sync.connect`"}


def load_table() -> Any:
    """Import the table from its file, without the package: the native module need not have been built."""
    spec = importlib.util.spec_from_file_location("options_table", PACKAGE / "_options/table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


OPTIONS = load_table().OPTIONS


def chosen(value: Any, function: str) -> str | None:
    """Return the value for a function."""
    if isinstance(value, str):
        return value
    at: str | None = function
    while at is not None:
        if at in value:
            return str(value[at])
        at = FALLBACK.get(at)
    return None


def described(option: Any, function: str) -> str:
    doc = option.doc if isinstance(option.doc, dict) else {option.functions[0]: option.doc}
    # A server has the descriptions of servers, and refers to those of the client.
    own = function if function in doc else FALLBACK.get(function) if "sync" in function else None
    return doc[own] if own in doc else f"As for {REFERENCE[function]}."


def options_of(function: str, unix: bool = False) -> Iterator[tuple[str | None, Any]]:
    """Yield the options of a function, each with the heading that precedes it."""
    heading: str | None = None
    for option in OPTIONS:
        heading = option.section or heading
        if function in option.functions and (option.unix or not unix):
            yield heading, option
            heading = None


def signature(function: str, unix: bool, indent: str) -> list[str]:
    lines = []
    for heading, option in options_of(function, unix):
        if heading is not None:
            lines.append(f"{indent}# {heading}")
        lines.append(f"{indent}{option.name}: {chosen(option.type, function)} = {option.default},")
    return [*lines, f"{indent}# Others are errors.", f"{indent}**_unknown: Unpack[NoMore],"]


def descriptions(function: str, indent: str) -> list[str]:
    lines = []
    for _, option in options_of(function):
        text = f"{option.name}: {described(option, function)}"
        lines += textwrap.wrap(
            text, WIDTH, initial_indent=indent, subsequent_indent=indent + "    ", break_on_hyphens=False
        )
    return lines


def attributes(function: str, base: str | None) -> list[str]:
    if base == "":
        return [f"    {option.name}: {chosen(option.type, function)}" for _, option in options_of(function)]
    lines = []
    for _, option in options_of(function):
        if base not in option.functions and option.name not in LEFT_OUT:
            kind = chosen(CLASS_TYPES.get(option.name, option.type), function)
            lines.append(f"    {option.name}: {kind} = {option.default}")
    return lines


def between(lines: list[str], first: int, begin: str, end: str, new: list[str]) -> list[str]:
    """Replace the lines between two lines that begin so, from a line on."""
    at = next(number for number in range(first, len(lines)) if lines[number].startswith(begin))
    until = next(number for number in range(at + 1, len(lines)) if lines[number].startswith(end))
    return [*lines[: at + 1], *new, *lines[until:]]


def generate_function(text: str, name: str, function: str, unix: bool | None) -> str:
    lines = text.splitlines()
    node = next(node for node in ast.parse(text).body if getattr(node, "name", None) == name)
    assert isinstance(node, (ast.FunctionDef, ast.ClassDef))
    if unix is not None:
        definition: Any = node
        if isinstance(node, ast.ClassDef):
            definition = next(part for part in node.body if getattr(part, "name", None) == "__init__")
        indent = " " * definition.col_offset
        parameters = signature(function, unix, indent + "    ")
        lines = between(lines, definition.lineno - 1, f"{indent}    *,", f"{indent})", parameters)
    if unix:
        return "\n".join(lines) + "\n"
    inner = " " * (node.col_offset + 4)
    arguments = lines.index(f"{inner}Args:", node.lineno - 1)
    end = lines.index("", arguments)
    # Positional arguments come first.
    positional = {"uri", "handler", "host", "port"} if "serve" in name else {"uri"}
    kept: list[str] = []
    for line in lines[arguments + 1 : end]:
        argument = line.startswith(f"{inner}    ") and not line.startswith(f"{inner}     ")
        if argument and line.strip().partition(":")[0] not in positional:
            break
        kept.append(line)
    new = [*kept, *descriptions(function, inner + "    ")]
    return "\n".join([*lines[: arguments + 1], *new, *lines[end:]]) + "\n"


def generate_class(text: str, name: str, function: str, base: str | None) -> str:
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith((f"class {name}:", f"class {name}(")))
    return "\n".join(between(lines, at, BEGIN, END, attributes(function, base))) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a file is not up to date")
    check = parser.parse_args().check
    texts: dict[str, str] = {}
    for path, *arguments in FUNCTIONS:
        text = texts.setdefault(path, (PACKAGE / path).read_text())
        texts[path] = generate_function(text, *arguments)
    for path, *arguments in CLASSES:
        text = texts.setdefault(path, (PACKAGE / path).read_text())
        texts[path] = generate_class(text, *arguments)
    stale = [path for path, text in texts.items() if (PACKAGE / path).read_text() != text]
    for path in stale:
        if check:
            print(f"python/wirespeed/{path} is not up to date: run `make generate`", file=sys.stderr)
        else:
            (PACKAGE / path).write_text(texts[path])
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
