"""What every change must pass. ``.ci/run`` installs the system packages that this needs and then calls it.

Three lanes run beside each other: the builds, the checks of the sources, and the tests, which mostly wait. Tests that
measure time run last, when nothing else does. One twelfth of the full matrix runs, and one file in five on the
newest interpreter; the hash of the commit chooses which.

    scripts/ci.py              run everything
    scripts/ci.py --list       show the steps and their commands
    scripts/ci.py --only NAME  run only these steps, and those that they need
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from steps import ROOT, Step, run_steps, table

# Shares of the full matrix, and of the files on the newest interpreter, that one run of CI covers.
MATRIX_SHARES = 12
FILE_SHARES = 5

# Niceness of builds and checks: the tests go first.
BEHIND_TESTS = 15

PASSED = r"(\d+ passed[^\n]*?)(?: in [^\n]*)?\n"

MEMBERS = ("protocol", "driver", "engine", "brokers", "python", "bench", "sans-io", "fuzz")


def main() -> int:
    """Run the steps; return 0 if all have passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="show the steps and their commands")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these steps and those that they need")
    parser.add_argument("--logs", type=Path, default=ROOT / "build" / "ci", help="folder of the logs (%(default)s)")
    options = parser.parse_args()
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
    for name in bad:
        print(f"not passed: {name}, see {options.logs / name}.log")
    return int(bool(bad))


def _commit() -> int:
    """Return a number made from the hash of the commit, 0 outside a repository."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return int(done.stdout[:8], 16) if done.returncode == 0 else 0


def _steps(commit: int) -> list[Step]:
    rotation = f"{commit % MATRIX_SHARES}/{MATRIX_SHARES}"
    files = f"{commit % FILE_SHARES}/{FILE_SHARES}"
    print(f"share of the full matrix: make test-python ROTATION={rotation}")
    print(f"share of the files on the newest interpreter: make test-python-newest FILES={files}", flush=True)

    def make(name: str, *arguments: str, **options: object) -> Step:
        return Step(name, ["make", *arguments], **options)  # type: ignore[arg-type]

    return [
        make("environment", "environment", lane="checks"),
        make("compile", "compile", lane="build"),
        make("build", "build", lane="build", needs=["environment", "compile"]),
        make("check-format", "lint-format", lane="checks", needs=["environment"], nice=BEHIND_TESTS),
        make("build-newest", "build-newest", lane="build", needs=["build"], nice=BEHIND_TESTS),
        make("build-panics", "build-panics", lane="build", needs=["build"], nice=BEHIND_TESTS),
        make("wheel", "wheel", lane="build", needs=["build"], nice=BEHIND_TESTS, result=r"wheel: ([^\n]*)"),
        make("check-types", "lint-types", lane="checks", needs=["build"], nice=BEHIND_TESTS),
        make("check-rust", "lint-rust", lane="checks", needs=["build"], nice=BEHIND_TESTS),
        make("build-peers", "interop-peers", lane="checks", needs=["environment"], nice=BEHIND_TESTS),
        make("dependencies", "lint-dependencies", lane="checks", nice=BEHIND_TESTS, result=r"(advisories[^\n]*)"),
        make("test-rust", "test-rust", lane="tests", needs=["build"], result=r"fuzz: ([^\n]*)\n"),
        make(
            "test-python",
            "test-python",
            f"ROTATION={rotation}",
            "PYTEST_ARGS=-p no:sugar",
            lane="tests",
            needs=["build"],
            result=PASSED,
            tail=40,
        ),
        make(
            "test-newest",
            "test-python-newest",
            f"FILES={files}",
            "PYTEST_ARGS=-p no:sugar",
            lane="tests",
            needs=["build-newest"],
            result=PASSED,
        ),
        make("panics", "panics", "PYTEST_ARGS=-p no:sugar", lane="tests", needs=["build-panics"], result=PASSED),
        make(
            "interop",
            "interop",
            "WAYS=one",
            "PYTEST_ARGS=-p no:sugar",
            lane="tests",
            needs=["build-peers", "build"],
            result=PASSED,
        ),
        make("check-wheel", "check-wheel", lane="build", needs=["wheel"], result=PASSED),
        make("instructions", "instructions-wheel", lane="build", needs=["check-wheel"], nice=BEHIND_TESTS, tail=24),
        make(
            "test-serial",
            "test-python-serial",
            "PYTEST_ARGS=-p no:sugar",
            lane="tests",
            # Nothing else may run.
            needs=["test-python", "instructions", "check-types", "check-rust", "dependencies"],
            result=PASSED,
        ),
    ]


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
    }
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wirespeed-ci"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if not os.access(cache, os.W_OK):
            raise PermissionError(cache)
    except OSError as exc:
        print(f"no cache, everything is built here: {exc}", flush=True)
        return environment
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
        # Those of the workspace are of another clone, and would only pile up.
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
