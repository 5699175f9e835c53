"""The outcomes of the newest complete runs: stored, compared, and shown as a table."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

from .ends import ENDS, End
from .verdicts import order, tolerated

__all__ = ["PAGE", "differences", "read", "record", "table"]

FOLDER = Path(__file__).resolve().parents[1]
RECORD = FOLDER / "outcomes.json"
PAGE = FOLDER.parent / "docs" / "conformance.md"

# Markers in the page; the table stands between them.
BEGIN, END = "<!-- outcomes -->\n", "<!-- end of outcomes -->\n"


def read() -> dict[str, dict[str, Any]]:
    """Returns, for each end, the number of cases and the two verdicts of each case that is not OK twice."""
    if not RECORD.exists():
        return {}
    outcomes: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())
    return outcomes


def record(found: dict[str, dict[str, Any]]) -> None:
    """Stores the outcome of runs that had no fewer cases than the stored ones, and rewrites the table."""
    known = read()
    for name, outcome in found.items():
        if outcome["cases"] >= known.get(name, {"cases": 0})["cases"]:
            known[name] = outcome
    kept = {end.name: known[end.name] for end in ENDS if end.name in known}
    lines = [f" {json.dumps(name)}: {json.dumps(outcome)}" for name, outcome in kept.items()]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(kept)}\n{END}{after}")


def differences(end: End, outcome: dict[str, Any]) -> list[str]:
    """Returns a line for each case whose outcome differs from the stored one. Cases that may end in two ways are left
    out.
    """
    known = read().get(end.name)
    if known is None:
        return [f"{end.name} is not on record: --record"]
    lines = []
    whole = outcome["cases"] == known["cases"]
    for case in sorted({*known["other"], *outcome["other"]} - tolerated(end.api), key=order):
        before, now = known["other"].get(case, ["OK", "OK"]), outcome["other"].get(case, ["OK", "OK"])
        # Cases that did not run are not part of the outcome either.
        if before != now and (whole or case in outcome["other"]):
            lines.append(f"{case} was {' '.join(before)}, is {' '.join(now)}")
    return lines


def table(outcomes: dict[str, dict[str, Any]]) -> str:
    """Returns a Markdown table with a row for each end."""
    lines = [
        "| end | cases | OK | non-strict | informational | unimplemented or failed |",
        "|---|---|---|---|---|---|",
    ]
    for end in ENDS:
        if end.name not in outcomes:
            continue
        outcome = outcomes[end.name]
        counts = collections.Counter(verdicts[0] for verdicts in outcome["other"].values())
        loose, told = counts.pop("NON-STRICT", 0), counts.pop("INFORMATIONAL", 0)
        rest = counts.total()
        good = outcome["cases"] - loose - told - rest
        lines.append(f"| {end.name} | {outcome['cases']} | {good} | {loose} | {told} | {rest} |")
    return "\n".join(lines) + "\n"
