"""The command `report`: records in, a page, Markdown and pictures out."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from harness.errors import BenchError
from harness.report.build import Draw, build
from harness.report.markdown import markdown
from harness.report.page import page
from harness.report.selection import RECORDS, Chosen, choose

__all__ = ["Written", "main", "write"]

# Git ignores it, `make clean` removes it.
OUT = Path(__file__).resolve().parents[3] / "build" / "bench-report"


@dataclass(frozen=True)
class Written:
    """The files of a report."""

    page: Path
    markdown: Path
    pictures: tuple[Path, ...]


def main(arguments: Sequence[str], program: str = "wirespeed bench report") -> int:
    """Runs `report` with these arguments and returns the exit status.

    Raises:
        UsageError: there is no such record, or it is none.
        BenchError: what it takes to draw is missing, or a file cannot be written.
    """
    parser = argparse.ArgumentParser(prog=program, description=__doc__, allow_abbrev=False)
    record = "a file as kept in bench/records, or a scenario: its newest record. Default: the newest record of each"
    parser.add_argument("record", nargs="*", metavar="RECORD", help=f"{record} scenario, of the machine measured last")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FOLDER", help="where index.html and report.md go")
    where = "where the pictures go; default: pictures, in the folder of the page"
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help=where)
    parser.add_argument("--no-pictures", action="store_true", help="tables only: needs no matplotlib")
    parser.add_argument("--records", type=Path, default=RECORDS, metavar="FOLDER", help="where records are kept")
    options = parser.parse_args(arguments)
    records = choose(options.record, options.records)
    written = write(records, options.out, options.pictures, draw=None if options.no_pictures else _drawing())
    for path in (written.page, written.markdown, *written.pictures):
        print(path)
    return 0


def write(records: Sequence[Chosen], out: Path, pictures: Path | None = None, *, draw: Draw | None) -> Written:
    """Writes the report of some records, and its pictures if there is something to draw them with.

    Raises:
        UsageError: a chart asks for what cannot be drawn.
        BenchError: a file cannot be written.
    """
    report = build(records, draw)
    folder = out / "pictures" if pictures is None else pictures
    drawn = [picture for part in report.parts for picture in part.pictures]
    files = {picture.name: folder / f"{picture.name}.svg" for picture in drawn}
    links = {name: quote(Path(os.path.relpath(path, out)).as_posix()) for name, path in files.items()}
    written = Written(out / "index.html", out / "report.md", tuple(files.values()))
    try:
        out.mkdir(parents=True, exist_ok=True)
        written.page.write_text(page(report), encoding="utf-8")
        written.markdown.write_text(markdown(report, links), encoding="utf-8")
        for picture in drawn:
            folder.mkdir(parents=True, exist_ok=True)
            files[picture.name].write_text(picture.svg, encoding="utf-8")
    except OSError as error:
        raise BenchError(f"cannot write {error.filename or out}: {error.strerror}") from error
    return written


def _drawing() -> Draw:
    """Returns what draws.

    Raises:
        BenchError: matplotlib is not here.
    """
    try:
        from harness.report import drawing
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("matplotlib", "numpy"):
            raise
        needed = 'pip install "wirespeed[bench]"'
        raise BenchError(f"pictures need {error.name}: {needed}, or --no-pictures for the tables alone") from None
    return lambda data, name: drawing.svg(drawing.figure(data), name)
