"""Our own protocol in Rust: ``wirespeed-sans-io`` in a process of its own, and its answers as outcomes."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from support.children import Child
from support.native import find_sans_io

from .case import Case
from .outcome import Event, Happening, Outcome, Sent

# A case takes microseconds; a machine may be busy.
PATIENCE = 60.0


class CoreMissing(Exception):
    """The binary was not built, or does not run."""


class Core:
    """The process. It is stopped when the context is left."""

    def __init__(self) -> None:
        binary = find_sans_io()
        if binary is None:
            raise CoreMissing("build it: cargo build --release -p wirespeed-sans-io")
        self.command = [str(binary)]
        if subprocess.run([*self.command, "--help"], capture_output=True, timeout=PATIENCE, check=False).returncode:
            raise CoreMissing(f"{binary} does not run: cargo build --release -p wirespeed-sans-io")
        self.child = Child(self.command)

    def restart(self) -> None:
        """Restarts the process after a crash."""
        self.child.stop()
        self.child = Child(self.command)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Writes a case, returns the answer.

        Raises:
            EOFError: The process has ended: it panicked.
        """
        stdin = self.child.process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise EOFError("the process has ended") from None
        line = self.child.read_line(PATIENCE)
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            raise EOFError(f"no answer: {line}") from None
        return answer

    def run(self, case: Case) -> Outcome:
        """Returns the outcome of a case."""
        answer = self.ask(case.as_request())
        reader = Sent(masked=case.side == "client", deflate=case.deflate)
        outcome = Outcome()
        # The last event is the end of a connection: a close frame, or a protocol error.
        close: list[Any] | None = answer["received"]
        fault = answer["fault"] if close is None else None
        for step in answer["steps"]:
            events: list[Event] = []
            faulty = False
            for name, *rest in step["events"]:
                if name == "closing" and fault is not None:
                    events.append(("fault", fault))
                    faulty = True
                elif name == "closing":
                    code, reason = close or (None, "")
                    events.append(("close", 1005 if code is None else code, reason))
                elif name in ("ping", "pong"):
                    events.append((name, bytes.fromhex(rest[0])))
                else:
                    events.append((name, bytes.fromhex(rest[0]), rest[1]))
            frames = reader.read(bytes.fromhex(step["sent"]), faulty=faulty)
            outcome.steps.append(Happening(events, frames, step["refused"] is not None))
        if close is not None:
            outcome.close = 1005 if close[0] is None else close[0]
        if answer["sent"] is not None:
            code = answer["sent"][0]
            outcome.sent = 1005 if code is None else code
        if answer["first"] is not None:
            outcome.received_first = answer["first"] == "received"
        return outcome

    def stop(self) -> None:
        self.child.stop()

    def __enter__(self) -> Core:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()
