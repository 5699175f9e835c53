"""The table of ``SECURITY.md`` and the tested one have the same attacks and bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.wirespeed_only("the bounds are ours")

SECURITY = Path(__file__).parents[3] / "SECURITY.md"


def documented() -> list[tuple[str, str]]:
    """Returns the names and bounds of the section about attacks."""
    text = SECURITY.read_text(encoding="utf-8")
    section = text.partition("## Attacks, measured\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [(row[0].removeprefix("| "), row[1]) for row in rows[1:]]


def test_documented_rows_match_the_tested_ones() -> None:
    from campaigns.attack.table import ROWS

    assert documented() == [(row.name, row.bound) for row in ROWS]


def test_names_and_kinds() -> None:
    """Names are unique, and each attack meets one kind in a short run of the tests."""
    from campaigns.attack.table import KINDS, ROWS, chosen

    assert len({row.slug for row in ROWS}) == len(ROWS)
    met = [row.slug for kind in KINDS for row in chosen(kind, "short")]
    assert sorted(met) == sorted(row.slug for row in ROWS)
    assert set(met) == {row.slug for kind in KINDS for row in chosen(kind, "default")}
    assert all((row.attack is None) != (row.harm is None) for row in ROWS)
    # Each kind is the target of an attack that concerns it.
    assert all(chosen(kind, matrix) for kind in KINDS for matrix in ("short", "default"))
