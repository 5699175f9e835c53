"""Compares outcomes with expectations. Every exception for one API has its reason there."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

from .errors import RunError

__all__ = ["OUTCOME", "expected_number", "judge", "order", "tolerated"]

EXPECTATIONS = Path(__file__).resolve().parents[1] / "expectations.json"

# The part of a report that holds the outcome.
OUTCOME = "outcome.json"


def outcome(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns the part of a run that is stored: the number of cases, and the two verdicts of each case that is not OK
    twice.
    """
    verdicts = {case: [result["behavior"], result["behaviorClose"]] for case, result in results.items()}
    other = {case: verdicts[case] for case in sorted(verdicts, key=order) if verdicts[case] != ["OK", "OK"]}
    return {"cases": len(results), "other": other}


def tolerated(api: str) -> set[str]:
    """Returns the cases for which an API may have more than one verdict."""
    return set(json.loads(EXPECTATIONS.read_text())["of"].get(api, {}))


def expected_number(cases: str) -> int:
    """Returns the number of cases in a set."""
    return int(json.loads(EXPECTATIONS.read_text())["cases"][cases])


def judge(agent: str, report: Path, ran: int, wanted: int | None, problems: list[str], api: str = "") -> int:
    """Compares the report with the general and the API's expectations, prints the result, and returns the
    exit status.
    """
    results = read(agent, report, ran, wanted)
    expectations = json.loads(EXPECTATIONS.read_text())
    exceptions = expectations["exceptions"] | expectations["of"].get(api, {})
    counts = collections.Counter(result["behavior"] for result in results.values())
    (report / OUTCOME).write_text(json.dumps(outcome(results), indent=1))
    summary = ", ".join(f"{number} {name}" for name, number in counts.most_common())
    print(f"{agent}: {len(results)} cases: {summary}")
    differences = compare(results, exceptions)
    if not differences and not problems:
        for case in sorted(set(results) & set(exceptions), key=order):
            print(f"  {case} {results[case]['behavior']}: {exceptions[case]['reason']}")
        print("as expected")
        return 0
    if differences:
        print(f"{len(differences)} verdicts are not as expected; the reports are in {report}")
    if problems:
        print(f"{len(problems)} times the client raised what it should not have")
    for line in differences + problems:
        print(f"  {line}")
    return 1


def read(agent: str, report: Path, ran: int, wanted: int | None) -> dict[str, dict[str, Any]]:
    index = report / "index.json"
    if not index.exists():
        raise RunError(f"the suite wrote no {index}")
    results: dict[str, dict[str, Any]] = json.loads(index.read_text()).get(agent, {})
    # The suite exits with 0 and omits cases that did not run, so the number of cases is part of the result.
    if len(results) != ran:
        raise RunError(f"{ran} cases ran, but the report has {len(results)}")
    if wanted is not None and ran != wanted:
        raise RunError(f"the suite ran {ran} cases, {wanted} were expected")
    return results


def compare(results: dict[str, dict[str, Any]], exceptions: dict[str, dict[str, Any]]) -> list[str]:
    """Returns the differences, one line each."""
    lines = []
    for case in sorted(results, key=order):
        allowed = exceptions.get(case, {"behavior": ["OK"], "behaviorClose": ["OK"]})
        for verdict in ("behavior", "behaviorClose"):
            found = results[case][verdict]
            if found not in allowed[verdict]:
                wanted = " or ".join(allowed[verdict])
                lines.append(f"{case:8} {verdict:13} {found}, expected {wanted}   {results[case]['reportfile']}")
    return lines


def order(case: str) -> list[int]:
    return [int(part) for part in case.split(".")]
