"""What an interrupted run has measured already: a record in the making, and which scenarios are over."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from harness.errors import BenchError, UsageError
from harness.peers import Peers, Sample
from harness.record import CIRCUMSTANCES, new_path, read_csv, rows_text, start_text
from harness.scenario import Cell

__all__ = ["Journal", "Journals"]

# What must be the same for a record to be continued: what makes records comparable, and the code.
SAME = (*CIRCUMSTANCES, "revision", "choice")


class Journal:
    """The record of one scenario while it runs. Cells are kept whole, as ratios are taken within them.

    Attributes:
        samples: what was measured before, by cell.
    """

    def __init__(self, path: Path, facts: Mapping[str, str], peers: Peers) -> None:
        self.path = path
        self.samples: dict[Cell, list[Sample]] = {}
        self.discarded: str | None = None
        if path.exists():
            self._continue(facts, peers)
        if not self.samples:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(start_text(facts, peers))
            except OSError as error:
                raise BenchError(f"cannot keep the record: {error}") from error

    def _continue(self, facts: Mapping[str, str], peers: Peers) -> None:
        try:
            before = read_csv(self.path)
        except UsageError:
            return  # nothing was measured, or the system stopped in the middle of writing
        changed = [key for key in SAME if before.facts.get(key) != facts.get(key)]
        versions = {(one.peer, one.version) for one in before.samples}
        changed += [
            f"version of {name}" for name, peer in peers.ready.items() if _is_other(versions, name, peer.version)
        ]
        if changed:
            self.discarded = ", ".join(changed)
            return
        for sample in before.samples:
            self.samples.setdefault(sample.cell, []).append(sample)

    def add(self, samples: Sequence[Sample]) -> None:
        """Keeps a cell that is over."""
        try:
            with self.path.open("a") as file:
                file.write(rows_text(samples))
        except OSError as error:
            raise BenchError(f"cannot keep the record: {error}") from error

    def finish(self, folder: Path, name: str) -> Path:
        """Moves the record to where records are, and returns its path."""
        path = new_path(folder, name)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.move(self.path, path)
        except OSError as error:
            raise BenchError(f"cannot keep the record: {error}") from error
        return path


def _is_other(versions: set[tuple[str, str]], name: str, version: str) -> bool:
    return any(peer == name and before != version for peer, before in versions)


class Journals:
    """The journals of a run over several scenarios, each in a file of a common folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        """Returns where the journal of a scenario is."""
        return self.folder / f"{name}.csv"

    def is_over(self, name: str) -> bool:
        """Tells whether a scenario was finished by the run that is continued."""
        return self._mark(name).exists()

    def finished(self, name: str) -> None:
        """Takes note that a scenario is over, its record kept."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._mark(name).touch()

    def forget(self, names: Iterable[str]) -> None:
        """Removes what is kept of these scenarios; others may be of another run that was interrupted."""
        for name in names:
            self.path(name).unlink(missing_ok=True)
            self._mark(name).unlink(missing_ok=True)

    def _mark(self, name: str) -> Path:
        return self.folder / f"{name}.over"
