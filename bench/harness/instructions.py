"""The subcommand `instructions`: how many instructions a message costs on each hot path, and whether that has grown.

Wall time on shared machines differs by percents from run to run, instructions do not: the same build counts the same to
some thousandths. They say nothing of caches and of the system, so they guard, and do not measure.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from harness import machine
from harness.errors import BenchError, UsageError
from harness.places import BENCH, ROOT, SERVER
from harness.process import child, environment
from harness.server import Server
from harness.tables import console, table

__all__ = ["HotPath", "add_arguments", "kept_text", "load_kept", "load_paths", "run", "verdict"]

FOLDER = BENCH / "instructions"
KEPT = FOLDER / "kept.toml"
# Another compiler lays out the same code differently, another processor has other ways to copy, another
# release of Python another interpreter: how many times the tolerance that may need.
OTHERWISE = 3.0
RUN_SECONDS = 120.0


@dataclass(frozen=True)
class HotPath:
    """A path of `path.py`: the messages of its short and long runs, the share that may be added to what is kept, and of
    how many runs of each the least counts.
    """

    name: str
    low: int
    high: int
    tolerance: float
    runs: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `instructions` takes."""
    parser.add_argument("path", nargs="*", metavar="PATH", help="one or more; default: all of instructions/paths.toml")
    parser.add_argument("--write", action="store_true", help="keep what was counted, to compare with from now on")
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="the interpreter")


def run(options: argparse.Namespace) -> int:
    """Counts, compares, prints; returns 1 if a path costs more than is kept, beyond the tolerance."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise BenchError("valgrind is not installed: apt-get install valgrind")
    paths = load_paths(options.path)
    (key, release), cpu = _interpreter(options.python), machine.cpu_model()
    built_by = f"{_compiler()}, {release}, {cpu}"
    counted = _count_all(valgrind, paths, options.python)
    whole = tomllib.loads(KEPT.read_text()) if KEPT.exists() else {}
    kept, factor = load_kept(whole, key, built_by)
    out = console()
    rows: list[list[str | Text]] = [["path", "instructions", "kept", "change", "tolerance", ""]]
    grown = False
    for path in paths:
        now, before = counted[path.name], kept.get(path.name)
        text = verdict(now, before, path.tolerance * factor)
        grown |= text.startswith("MORE")
        old = "-" if before is None else f"{before:,.0f}"
        change = "" if before is None else f"{now / before - 1:+.2%}"
        rows.append([path.name, f"{now:,.0f}", old, change, f"{path.tolerance * factor:.0%}", Text(text)])
    out.print(f"Instructions for each message, {key}, {built_by}", soft_wrap=True)
    out.print(table(rows))
    if not kept:
        out.print(f"No counts are kept for {key}: nothing to compare with (--write keeps these).", soft_wrap=True)
    if options.write:
        known = {path.name for path in load_paths([])}
        KEPT.write_text(
            kept_text(whole, key, built_by, {name: count for name, count in (kept | counted).items() if name in known})
        )
        out.print(f"Kept in {KEPT}", soft_wrap=True)
        return 0
    return int(grown)


def load_paths(asked: Sequence[str]) -> list[HotPath]:
    """Returns the paths that are asked for, all of them if none is.

    Raises:
        UsageError: there is none of that name.
    """
    data = tomllib.loads((FOLDER / "paths.toml").read_text())
    known = {name: HotPath(name, **(data["default"] | own)) for name, own in data["path"].items()}
    for name in asked:
        if name not in known:
            raise UsageError(f"unknown path {name}: choose from {', '.join(known)}")
    return [known[name] for name in asked or known]


def load_kept(whole: Mapping[str, object], key: str, built_by: str) -> tuple[dict[str, float], float]:
    """Returns the counts that are kept for an interpreter, and the factor of the tolerance: more, if made otherwise."""
    own = whole.get(key)
    if not isinstance(own, dict):
        return {}, 1.0
    counts = {name: float(count) for name, count in own.items() if name != "made_by"}
    return counts, 1.0 if own.get("made_by") == built_by else OTHERWISE


def kept_text(whole: Mapping[str, object], key: str, built_by: str, counts: Mapping[str, float]) -> str:
    """Returns the file of kept counts with those of one interpreter renewed."""
    tables = {name: own for name, own in whole.items() if isinstance(own, dict)}
    tables[key] = {"made_by": built_by, **{name: round(count) for name, count in counts.items()}}
    lines = ["# Written by `wirespeed bench instructions --write`."]
    for name in sorted(tables):
        rest = dict(tables[name])
        lines += ["", f"[{_quoted(name)}]", f"made_by = {_quoted(str(rest.pop('made_by')))}"]
        lines += [f"{_quoted(path)} = {count}" for path, count in rest.items()]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text)  # a basic string of TOML is one of JSON


def verdict(now: float, before: float | None, tolerance: float) -> str:
    """Says what a count is worth beside the one that is kept."""
    if before is None:
        return "new"
    if now > before * (1 + tolerance):
        return "MORE"
    return "less: --write keeps it" if now < before * (1 - tolerance) else ""


def _count_all(valgrind: str, paths: Sequence[HotPath], python: str) -> dict[str, float]:
    """Returns the instructions for each message, by path."""
    env = environment(BENCH) | {"PYTHONHASHSEED": "0"}
    server = Server(SERVER, tls=False, cores=None, cwd=ROOT, env=env)
    server.start()
    try:
        url = server.endpoint("", tls=False).url
        command = [*_without_randomness(), valgrind, "--tool=cachegrind", "--cache-sim=no"]
        command += ["--cachegrind-out-file=/dev/null", python, str(FOLDER / "path.py")]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = {
                (path.name, count): [
                    pool.submit(_count, [*command, path.name, str(count), url], ROOT, env) for _ in range(path.runs)
                ]
                for path in paths
                for count in (path.low, path.high)
            }
            least = {key: min(job.result() for job in own) for key, own in jobs.items()}
    finally:
        server.stop()
    return {
        path.name: (least[path.name, path.high] - least[path.name, path.low]) / (path.high - path.low) for path in paths
    }


def _count(command: Sequence[str], cwd: Path, env: dict[str, str]) -> int:
    with child(command, cwd=cwd, env=env) as process:
        try:
            _, errors = process.communicate(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{' '.join(command[-3:])} did not end within {RUN_SECONDS:.0f} s") from None
    text = errors.decode(errors="replace")
    found = re.search(r"I +refs: +([\d,]+)", text)
    if process.returncode or found is None:
        lines = [line for line in text.splitlines() if not line.startswith("==")]
        raise BenchError(f"{' '.join(command[-3:])} failed: {lines[-1] if lines else process.returncode}")
    return int(found[1].replace(",", ""))


def _without_randomness() -> list[str]:
    """Returns what makes addresses, and with them hashes of objects, the same in each run."""
    setarch = shutil.which("setarch")
    return [] if setarch is None else [setarch, "-R"]


def _interpreter(python: str) -> tuple[str, str]:
    """Returns the version of an interpreter as counts are kept for it, and in full."""
    code = "import platform, sys; print(sys.implementation.name, platform.python_version())"
    try:
        result = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"--python {python} does not run: {error}") from error
    name, version = result.stdout.split()
    return f"{name}-{'.'.join(version.split('.')[:2])}", f"{name} {version}"


def _compiler() -> str:
    try:
        result = subprocess.run(["rustc", "--version"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown rustc"
    return " ".join(result.stdout.split()[:2])
