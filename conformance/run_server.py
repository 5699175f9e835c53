"""Run the Autobahn test suite against a server and compare the result with what is expected.

    python conformance/run_server.py [--api sync] [--cases quick|small|all|PATTERN ...]
    python conformance/run_server.py --api asyncio [--port fd|transport] [--loop asyncio|uvloop|wirespeed] [...]
    python conformance/run_server.py --api engine|engine-handler [--tls] [...]

Exit status: 0 as expected, 1 not as expected, 2 the run itself failed, 77 there is no CPython 2.7 to run the suite
with."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from runner.errors import RunError
from runner.options import parse, prepare
from runner.suite import fuzzing_client
from runner.testees import ENGINES, Choice
from runner.verdicts import judge

__all__ = ["main"]

HERE = Path(__file__).resolve().parent


@contextlib.contextmanager
def echo_server(choice: Choice, report: Path) -> Iterator[str]:
    """Run the server under test; yields its URI."""
    if choice.api in ENGINES:
        command = [sys.executable, str(HERE / "engine_server.py"), "--api", choice.api]
        command += ["--tls", str(report)] if choice.tls else []
    else:
        command = [sys.executable, str(HERE / "echo_server.py"), "--library", choice.library, "--api", choice.api]
        for name, value in (("--port", choice.port), ("--loop", choice.loop)):
            if value is not None:
                command += [name, value]
    with (report / "testee.log").open("w") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
    with child:
        try:
            line = child.stdout.readline() if child.stdout is not None else ""
            if not line.strip().isdigit():
                raise RunError(f"the server did not start: see {report / 'testee.log'}")
            yield f"{'wss' if choice.tls else 'ws'}://127.0.0.1:{line.strip()}"
        finally:
            if child.stdin is not None:
                child.stdin.close()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()


def main(arguments: list[str] | None = None) -> int:
    options, choice, cases, wanted = parse(__doc__ or "", "server", arguments)
    status, report = prepare(options, choice, "server")
    if status:
        return status
    try:
        with echo_server(choice, report) as uri:
            ran = fuzzing_client(options.autobahn, report, cases, choice.agent, uri, options.timeout)
        problems = (report / "testee.log").read_text().splitlines()
        return judge(choice.agent, report, ran, wanted, problems, choice.api)
    except (RunError, OSError) as exc:
        print(f"\n{exc}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
