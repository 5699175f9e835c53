"""The suite itself: its sets of cases, its installation, its server and its client."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from .certificate import Certificate
from .errors import RunError

__all__ = ["AUTOBAHN", "SETS", "SKIPPED", "START_TIMEOUT", "Cases", "fuzzing_client", "fuzzing_server", "install"]

AUTOBAHN = Path(__file__).resolve().parents[2] / "build" / "autobahn"
SETUP = Path(__file__).resolve().parents[1] / "setup.sh"
SKIPPED = 77
START_TIMEOUT = 30.0


@dataclasses.dataclass(frozen=True)
class Cases:
    """Patterns of cases as the suite has them: regular expressions except for "." and "*"."""

    included: list[str]
    excluded: list[str]


SETS = {
    "quick": Cases(["*"], ["9.*", "12.*", "13.*"]),
    "small": Cases(["*"], ["9.*", "12.*.[5-9]$", "12.*.1[0-8]$", "13.*.[5-9]$", "13.*.1[0-8]$"]),
    "all": Cases(["*"], []),
}


def install(target: Path) -> int:
    """Makes sure that the suite is installed; returns the exit status of the script."""
    return subprocess.run([str(SETUP), str(target)], check=False).returncode


@contextlib.contextmanager
def fuzzing_server(wstest: Path, report: Path, cases: Cases, certificate: Certificate | None = None) -> Iterator[str]:
    """Runs the suite's server on a free loopback port, over TLS if a certificate is given; yields its URI."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spec = report / "spec.json"
    uri = f"ws://127.0.0.1:{port}" if certificate is None else f"wss://127.0.0.1:{port}"
    spec.write_text(
        json.dumps(
            {
                **({} if certificate is None else {"key": certificate.key, "cert": certificate.cert}),
                "url": uri,
                "outdir": str(report),
                "cases": cases.included,
                "exclude-cases": cases.excluded,
                "exclude-agent-cases": {},
            }
        )
    )
    with (report / "server.log").open("w") as log:
        # In a session of its own, so that Ctrl-C in the terminal reaches only this process, which then stops the
        # server.
        child = subprocess.Popen(
            [str(wstest), "-m", "fuzzingserver", "-s", str(spec)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_listening(child, port, report / "server.log")
        yield uri
    finally:
        child.terminate()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(5)


def wait_until_listening(child: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        if child.poll() is not None:
            raise RunError(f"the fuzzing server ended with status {child.returncode}:\n{log.read_text()[-2000:]}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if time.monotonic() > deadline:
            raise RunError(f"the fuzzing server does not listen after {START_TIMEOUT:.0f} s")
        time.sleep(0.05)


def fuzzing_client(autobahn: Path, report: Path, cases: Cases, agent: str, uri: str, seconds: float) -> int:
    """Runs the suite's client against a server; returns the number of cases that it meant to run."""
    spec = report / "spec.json"
    spec.write_text(
        json.dumps(
            {
                "outdir": str(report),
                "servers": [{"agent": agent, "url": uri}],
                "cases": cases.included,
                "exclude-cases": cases.excluded,
                "exclude-agent-cases": {},
            }
        )
    )
    wstest = autobahn.resolve() / "bin" / "wstest-local"
    log = report / "client.log"
    with log.open("w") as out:
        child = subprocess.Popen(
            [str(wstest), "-m", "fuzzingclient", "-s", str(spec)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        raise RunError(f"the suite takes more than {seconds:.0f} s") from None
    finally:
        child.kill()
        child.wait()
    number = re.search(r"will run (\d+) test cases", log.read_text())
    if number is None:
        raise RunError(f"the suite did not run:\n{log.read_text()[-2000:]}")
    return int(number[1])
