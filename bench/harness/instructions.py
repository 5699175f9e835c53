"""Counts the instructions for each message on each hot path, and fails if a path needs more than before.

Wall time on shared machines differs by percents from run to run, instructions do not: the same build counts the same to
some thousandths. They say nothing of caches and of the system, so they guard, and do not measure.
"""

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

import msgspec
from rich.text import Text

from harness import machine
from harness.errors import BenchError, UsageError
from harness.places import BENCH, ROOT, SERVER
from harness.process import child, environment, output_of
from harness.scenario import known
from harness.server import Server
from harness.tables import console, table

__all__ = ["HotPath", "Kept", "add_arguments", "load_paths", "run", "verdict"]

FOLDER = BENCH / "instructions"
KEPT = FOLDER / "kept.json"
# Another compiler lays out the same code differently, another processor has other ways to copy, another
# release of Python another interpreter: how many times the tolerance that may need.
OTHERWISE = 3.0
RUN_SECONDS = 120.0


class HotPath(msgspec.Struct, forbid_unknown_fields=True):
    """A path of `path.py`: the messages of its short and long runs, the share that may be added to what is kept, and of
    how many runs of each the least counts.
    """

    low: int = 1000
    high: int = 3000
    tolerance: float = 0.04
    runs: int = 1


class Kept(msgspec.Struct):
    """What is kept of an interpreter: what had compiled and run the code, and the counts by path."""

    made_by: str
    counts: dict[str, int]

    def factor(self, made_by: str) -> float:
        """Returns how many times the tolerances may be needed."""
        return 1.0 if self.made_by == made_by else OTHERWISE


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
    made_by = f"{_compiler()}, {release}, {cpu}"
    counted = _count_all(valgrind, paths, options.python)
    whole = msgspec.json.decode(KEPT.read_bytes(), type=dict[str, Kept]) if KEPT.exists() else {}
    kept = whole.get(key, Kept(made_by, {}))
    out = console()
    rows: list[list[str | Text]] = [["path", "instructions", "kept", "change", "tolerance", ""]]
    grown = False
    for name, path in paths.items():
        now, before, tolerance = counted[name], kept.counts.get(name), path.tolerance * kept.factor(made_by)
        text = verdict(now, before, tolerance)
        grown |= text.startswith("MORE")
        old = "-" if before is None else f"{before:,}"
        change = "" if before is None else f"{now / before - 1:+.2%}"
        rows.append([name, f"{now:,}", old, change, f"{tolerance:.0%}", Text(text)])
    out.print(f"Instructions for each message, {key}, {made_by}", soft_wrap=True)
    out.print(table(rows))
    if not kept.counts:
        out.print(f"No counts are kept for {key}: nothing to compare with (--write keeps these).", soft_wrap=True)
    if options.write:
        counts = {name: count for name, count in (kept.counts | counted).items() if name in load_paths([])}
        data = msgspec.json.encode({**whole, key: Kept(made_by, counts)}, order="sorted")
        KEPT.write_bytes(msgspec.json.format(data) + b"\n")
        out.print(f"Kept in {KEPT}", soft_wrap=True)
        return 0
    return int(grown)


def load_paths(asked: Sequence[str]) -> dict[str, HotPath]:
    """Returns the paths that are asked for, all of them if none is.

    Raises:
        UsageError: there is none of that name.
    """
    paths = msgspec.toml.decode((FOLDER / "paths.toml").read_text(), type=dict[str, HotPath])
    known("path", asked, paths)
    return {name: paths[name] for name in asked or paths}


def verdict(now: int, before: int | None, tolerance: float) -> str:
    """Says what a count is worth beside the one that is kept."""
    if before is None:
        return "new"
    if now > before * (1 + tolerance):
        return "MORE"
    return "less: --write keeps it" if now < before * (1 - tolerance) else ""


def _count_all(valgrind: str, paths: Mapping[str, HotPath], python: str) -> dict[str, int]:
    """Returns the instructions for each message, by path."""
    env = environment(BENCH) | {"PYTHONHASHSEED": "0"}
    server = Server(SERVER, tls=False, cores=None, cwd=ROOT, env=env)
    server.start()
    try:
        url = server.endpoint("", tls=False).url
        # Without randomness, so that addresses, and with them hashes of objects, are the same in each run.
        setarch = shutil.which("setarch")
        command = [*([setarch, "-R"] if setarch else []), valgrind, "--tool=cachegrind", "--cache-sim=no"]
        command += ["--cachegrind-out-file=/dev/null", python, str(FOLDER / "path.py")]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = {
                (name, count): [pool.submit(_count, [*command, name, str(count), url], env) for _ in range(path.runs)]
                for name, path in paths.items()
                for count in (path.low, path.high)
            }
            least = {key: min(job.result() for job in own) for key, own in jobs.items()}
    finally:
        server.stop()
    return {
        name: round((least[name, path.high] - least[name, path.low]) / (path.high - path.low))
        for name, path in paths.items()
    }


def _count(command: Sequence[str], env: dict[str, str]) -> int:
    with child(command, cwd=ROOT, env=env) as process:
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


def _interpreter(python: str) -> tuple[str, str]:
    """Returns the version of an interpreter as counts are kept for it, and in full."""
    code = "import platform, sys; print(sys.implementation.name, platform.python_version())"
    text = output_of([python, "-c", code])
    if text is None:
        raise UsageError(f"--python {python} does not run")
    name, version = text.split()
    return f"{name}-{'.'.join(version.split('.')[:2])}", text


def _compiler() -> str:
    return " ".join((output_of(["rustc", "--version"]) or "unknown rustc").split()[:2])
