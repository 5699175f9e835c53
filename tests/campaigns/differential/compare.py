"""Runs one case through both implementations and finds the difference."""

from __future__ import annotations

import dataclasses

from .case import Case
from .core import Core
from .decisions import Decided, Unexplained
from .oracle import Oracle
from .outcome import Outcome, Violation


@dataclasses.dataclass
class Result:
    """The result of comparing a case.

    Attributes:
        difference: The difference that no decision explains; empty: none.
        decisions: The names of those that explain a difference.
    """

    case: Case
    difference: str = ""
    decisions: frozenset[str] = frozenset()
    ours: Outcome | None = None
    theirs: Outcome | None = None


def compare(core: Core, case: Case) -> Result:
    """Runs a case through both implementations."""
    try:
        ours = core.run(case)
    except Violation as exc:
        return Result(case, f"we break the RFC: {exc}")
    except EOFError as exc:
        core.restart()
        return Result(case, f"we crash: {exc}")
    theirs = Oracle(case).run()
    if ours == theirs:
        return Result(case, ours=ours, theirs=theirs)
    decided = Decided(case)
    try:
        expected = decided.run()
    except Unexplained as exc:
        return Result(case, str(exc), ours=ours, theirs=theirs)
    found = first_difference(ours, expected)
    if found:
        return Result(case, found, frozenset(decided.fired), ours, theirs)
    if not decided.fired:
        return Result(case, "a decision that has no name", ours=ours, theirs=theirs)
    return Result(case, "", frozenset(decided.fired), ours, theirs)


def first_difference(ours: Outcome, theirs: Outcome) -> str:
    """Returns where two outcomes differ first; empty: nowhere."""
    for number, (our, their) in enumerate(zip(ours.steps, theirs.steps, strict=True)):
        for field in ("events", "frames", "refused"):
            if getattr(our, field) != getattr(their, field):
                return f"step {number}, {field}: ours {getattr(our, field)}, expected {getattr(their, field)}"
    for field in ("close", "sent", "received_first"):
        if getattr(ours, field) != getattr(theirs, field):
            return f"in the end, {field}: ours {getattr(ours, field)}, expected {getattr(theirs, field)}"
    return ""


def report(result: Result, seed: str) -> str:
    """Returns everything needed to understand and repeat a difference."""
    decisions = f" (decisions taken: {', '.join(sorted(result.decisions))})" if result.decisions else ""
    return "\n".join(
        [
            f"DIFFERS: {result.difference}{decisions}",
            f"seed {seed}; the smallest case that was found:",
            str(result.case),
            f"ours:\n{result.ours}",
            f"websockets:\n{result.theirs}",
            f"again: PYTHONPATH=tests python -m campaigns.differential --case '{result.case.dump()}'",
        ]
    )
