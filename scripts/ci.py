"""What every change must pass. ``.ci/run`` installs the system packages that this needs and then calls it.

Three lanes run beside each other: the builds, the checks of the sources, and the tests. The Python tests, some of which
are sensitive to load, begin when everything is built; those that measure time run last, when nothing else does. One
twelfth of the full matrix runs, and one file in five on the newest interpreter; the hash of the commit chooses which.

    scripts/ci.py              run everything
    scripts/ci.py --list       show the steps and their commands
    scripts/ci.py --only NAME  run only these steps, and those that they need
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from steps import ROOT, Step, run_steps, table

# Shares of the full matrix, and of the files on the newest interpreter, that one run of CI covers.
MATRIX_SHARES = 12
FILE_SHARES = 5

# Niceness of the checks: builds and tests go first.
BEHIND_TESTS = 15

# Tests that failed in parallel and passed alone are counted as failed here, so that they are visible.
PASSED = r"((?:\d+ failed, )?\d+ passed[^\n]*?)(?: in [^\n]*)?\n"
NEWEST_PASSED = PASSED.replace("((", "(no newer Python[^\n]*?|(", 1)

MEMBERS = ("protocol", "driver", "engine", "brokers", "python", "bench", "sans-io", "fuzz")


def main() -> int:
    """Run the steps; return 0 if all have passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="show the steps and their commands")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these steps and those that they need")
    parser.add_argument("--logs", type=Path, default=ROOT / "build" / "ci", help="folder of the logs (%(default)s)")
    options = parser.parse_args()
    # The output of a step may have characters that this terminal has not.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    steps = _steps(_commit())
    if options.only:
        steps = _chosen(steps, options.only)
    if options.list:
        for step in steps:
            print(f"{step.name:18} {' '.join(step.command)}")
        return 0
    environment = _environment()
    outcomes = run_steps(steps, options.logs, environment)
    print(f"\n{table(outcomes)}\n")
    bad = [outcome.step.name for outcome in outcomes if outcome.status != "passed"]
    minutes = max(outcome.start + outcome.seconds for outcome in outcomes) / 60
    print(f"{len(outcomes) - len(bad)} of {len(outcomes)} steps passed in {minutes:.1f} minutes")
    for outcome in outcomes:
        if outcome.status not in ("passed", "not run"):
            print(f"not passed: {outcome.step.name}, see {options.logs / outcome.step.name}.log")
    return int(bool(bad))


def _commit() -> int:
    """Return a number made from the hash of the commit, 0 outside a repository."""
    # The clone may belong to another user, as in a container.
    command = ["git", "-c", "safe.directory=*", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(done.stdout[:8], 16)


def _steps(commit: int) -> list[Step]:
    rotation = f"{commit % MATRIX_SHARES}/{MATRIX_SHARES}"
    files = f"{commit % FILE_SHARES}/{FILE_SHARES}"
    print(f"share of the full matrix: make test-python ROTATION={rotation}")
    print(f"share of the files on the newest interpreter: make test-python-newest FILES={files}", flush=True)

    return [
        _make("environment", lane="checks"),
        _make("compile", lane="build"),
        _make("build", lane="build", needs=["environment", "compile"]),
        _make("build-newest", lane="build", needs=["build"]),
        _make("build-panics", lane="build", needs=["build"]),
        _make("wheel", lane="build", needs=["build"], result=r"wheel: ([^\n]*)"),
        _make("check-wheel", lane="build", needs=["wheel"], result=PASSED),
        _make("interop-peers", lane="checks", needs=["environment"], nice=BEHIND_TESTS),
        _make("lint-format", lane="checks", needs=["environment"], nice=BEHIND_TESTS),
        _make("lint-prose", lane="checks", needs=["environment"], nice=BEHIND_TESTS),
        _make("lint-dependencies", lane="checks", nice=BEHIND_TESTS, result=r"(advisories[^\n]*)"),
        _make("lint-types", lane="checks", needs=["build"], nice=BEHIND_TESTS),
        _make("lint-rust", lane="checks", needs=["build"], nice=BEHIND_TESTS),
        # The wheel is linked by one thread, which leaves a processor to these.
        _make("test-rust", needs=["build"], after=["build-panics"], result=r"(check-no-host: [^\n]*)"),
        _make("test-python", f"ROTATION={rotation}", needs=["build"], after=["check-wheel"], result=PASSED),
        _make("test-python-newest", f"FILES={files}", needs=["build-newest"], result=NEWEST_PASSED),
        _make("panics", needs=["build-panics"], result=PASSED),
        _make("interop", "WAYS=one", needs=["interop-peers", "build"], result=PASSED),
        _make("instructions", needs=["check-wheel"], tail=18),
        # No other step may run.
        _make("test-python-serial", needs=["build"], after=["lint-types", "lint-rust"], result=PASSED),
    ]


def _make(target: str, *variables: str, lane: str = "tests", **options: Any) -> Step:
    return Step(target, ["make", target, *variables], lane, **options)


def _chosen(steps: list[Step], names: list[str]) -> list[Step]:
    by_name = {step.name: step for step in steps}
    if unknown := sorted(set(names) - set(by_name)):
        sys.exit(f"no steps of these names: {', '.join(unknown)} (--list shows all)")
    chosen: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        chosen.add(name)
        left += [needed for needed in by_name[name].needs if needed not in chosen]
    return [step for step in steps if step.name in chosen]


def _environment() -> dict[str, str]:
    """Return the variables of the commands: where builds and downloads are kept between runs.

    The folder is ``$XDG_CACHE_HOME/wirespeed-ci``, by default under ``~/.cache``. Compiled dependencies are kept for
    one compiler and one ``Cargo.lock``; those of others are removed. Without a folder that can be written, everything
    is built in this clone.
    """
    environment = {
        "CARGO_INCREMENTAL": "0",
        "WIRESPEED_BROKERS": "all",
        "WIRESPEED_BROWSERS": "all",
        "WIRESPEED_INTEROP": "all",
        # Its progress bar is for terminals.
        "PYTEST_ADDOPTS": "-p no:sugar",
    }
    try:
        # A relative path is invalid, and ignored (XDG Base Directory Specification).
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        if not base.is_absolute():
            environment["XDG_CACHE_HOME"] = str(base := Path.home() / ".cache")
        cache = base / "wirespeed-ci"
        cache.mkdir(parents=True, exist_ok=True)
        # One run at a time: the next one would remove files that this one builds, and the artifacts of two clones have
        # the same names. The lock is held until this process ends.
        lock = os.open(cache / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"another run uses {cache}: everything is built here", flush=True)
        return environment
    except (OSError, RuntimeError) as exc:
        print(f"no cache, everything is built here: {exc}", flush=True)
        return environment
    if shutil.which("rustc") is None:
        sys.exit("Rust is missing: install it from https://rustup.rs")
    compiler = subprocess.run(["rustc", "-vV"], capture_output=True, check=True).stdout
    key = hashlib.sha256(compiler + (ROOT / "Cargo.lock").read_bytes()).hexdigest()[:16]
    targets = cache / "target"
    for other in targets.glob("*"):
        if other.name != key:
            shutil.rmtree(other, ignore_errors=True)
    target = targets / key
    print(f"cache: {cache}, {'warm' if target.exists() else 'cold'}", flush=True)
    environment |= {
        "CARGO_TARGET_DIR": str(target),
        "CARGO_INSTALL_ROOT": str(cache / "tools"),
        "PIP_CACHE_DIR": str(cache / "pip"),
        "PATH": f"{cache / 'tools' / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    if target.exists():
        # Artifacts of the workspace belong to another clone, and would only accumulate.
        packages = [argument for member in MEMBERS for argument in ("-p", f"wirespeed-{member}")]
        for profile in ("quick", "release"):
            command = ["cargo", "clean", "--quiet", "--profile", profile, *packages]
            subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=False)
    return environment


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped")
