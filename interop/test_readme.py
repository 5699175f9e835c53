"""The table in README.md of the abilities that each peer lacks matches the harness."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.peers import PEERS, Peer

README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")


def row(ends: list[Peer]) -> str:
    """Returns a row: the abilities that both ends lack, then those that only one end lacks."""
    common = [ability for ability in ends[0].lacks if all(ability in peer.lacks for peer in ends)]
    parts = [", ".join(common)]
    for peer in ends:
        own = [ability for ability in peer.lacks if ability not in common]
        parts.append(f"{peer.end}: {', '.join(own)}" if own else "")
    return f"| {ends[0].name} | {', '.join(peer.end for peer in ends)} | {'; '.join(filter(None, parts))} |"


@pytest.mark.parametrize("name", dict.fromkeys(peer.name for peer in PEERS))
def test_readme_row_matches_harness(name: str) -> None:
    assert row([peer for peer in PEERS if peer.name == name]) in README.splitlines()
