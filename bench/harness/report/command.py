"""The command `report`: records in, a page, Markdown and pictures out."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from harness.errors import BenchError
from harness.places import RECORDS, REPORT
from harness.report.build import Draw, build
from harness.report.document import Picture
from harness.report.markdown import markdown
from harness.report.page import page
from harness.report.selection import Chosen, choose

__all__ = ["Written", "main", "write"]


@dataclass(frozen=True)
class Written:
    """The files of a report."""

    page: Path
    markdown: Path
    pictures: tuple[Path, ...]
    docs: tuple[Path, ...] = ()

    @property
    def all(self) -> tuple[Path, ...]:
        """All of them."""
        return (self.page, self.markdown, *self.pictures, *self.docs)


def main(arguments: Sequence[str], program: str = "wirespeed bench report") -> int:
    """Runs `report` with these arguments and returns the exit status.

    Raises:
        UsageError: there is no such record, or it is none.
        BenchError: what it takes to draw is missing, or a file cannot be written.
    """
    parser = argparse.ArgumentParser(prog=program, description=__doc__, allow_abbrev=False)
    record = "a file as kept in bench/records, or a scenario: its newest record. Default: the newest record of each"
    parser.add_argument("record", nargs="*", metavar="RECORD", help=f"{record} scenario, of the machine measured last")
    parser.add_argument("--out", type=Path, default=REPORT, metavar="FOLDER", help="where index.html and report.md go")
    where = "where the pictures go; default: pictures, in the folder of the page"
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help=where)
    parser.add_argument("--no-pictures", action="store_true", help="tables only: needs no matplotlib")
    parser.add_argument("--records", type=Path, default=RECORDS, metavar="FOLDER", help="where records are kept")
    clone = "also write FOLDER/bench/benchmarks.md, and the pictures that a README shows to FOLDER/docs/pictures"
    parser.add_argument("--clone", type=Path, metavar="FOLDER", help=clone)
    options = parser.parse_args(arguments)
    records = choose(options.record, options.records)
    draw = None if options.no_pictures else _drawing()
    for path in write(records, options.out, options.pictures, draw=draw, clone=options.clone).all:
        print(path)
    return 0


def write(
    records: Sequence[Chosen], out: Path, pictures: Path | None = None, *, draw: Draw | None, clone: Path | None = None
) -> Written:
    """Writes the report of some records, and its pictures if there is something to draw them with.

    Args:
        records: the records.
        out: where page and Markdown go.
        pictures: where the pictures go; None: into a folder there.
        draw: what draws; None: there are no pictures.
        clone: in whose `bench` the Markdown goes as well, and the headline pictures alone in its `docs`; None: nowhere.

    Raises:
        UsageError: a chart asks for what cannot be drawn.
        BenchError: a file cannot be written.
    """
    report = build(records, draw)
    folder = out / "pictures" if pictures is None else pictures
    drawn = [picture for part in report.parts for picture in part.pictures]
    headlines = [picture for picture in drawn if picture.headline]
    try:
        out.mkdir(parents=True, exist_ok=True)
        written = Written(out / "index.html", out / "report.md", _save(drawn, folder))
        written.page.write_text(page(report), encoding="utf-8")
        written.markdown.write_text(markdown(report, _links(drawn, folder, out)), encoding="utf-8")
        if clone is not None:
            shown, kept = clone / "docs" / "pictures", clone / "bench"
            kept.mkdir(parents=True, exist_ok=True)
            files = (kept / "benchmarks.md", *_save(headlines, shown))
            files[0].write_text(markdown(report, _links(headlines, shown, kept)), encoding="utf-8")
            written = dataclasses.replace(written, docs=files)
    except OSError as error:
        raise BenchError(f"cannot write {error.filename or out}: {error.strerror}") from error
    return written


def _save(pictures: Sequence[Picture], folder: Path) -> tuple[Path, ...]:
    """Writes pictures and returns their files."""
    if pictures:
        folder.mkdir(parents=True, exist_ok=True)
    files = tuple(folder / f"{picture.name}.svg" for picture in pictures)
    for picture, file in zip(pictures, files, strict=True):
        file.write_text(picture.svg, encoding="utf-8")
    return files


def _links(pictures: Sequence[Picture], folder: Path, page_folder: Path) -> dict[str, str]:
    """Returns the address of each picture, from a page in a folder."""
    base = Path(os.path.relpath(folder, page_folder))
    return {picture.name: quote((base / f"{picture.name}.svg").as_posix()) for picture in pictures}


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
