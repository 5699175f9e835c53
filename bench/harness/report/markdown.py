"""The report as Markdown, for the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from harness.report.document import FAILED, Part, Report, Row, Table

__all__ = ["markdown"]


def markdown(report: Report, pictures: Mapping[str, str]) -> str:
    """Returns the report; `pictures` has the address of each chart that is to be linked."""
    return "\n".join(_lines(report, pictures))


def _lines(report: Report, pictures: Mapping[str, str]) -> Iterator[str]:
    yield f"# {_text(report.title)}\n"
    yield from (f"{_text(sentence)}\n" for sentence in report.summary)
    yield from (f"- [{_text(part.title)}](#{part.anchor})" for part in report.parts)
    yield ""
    if report.failed:
        yield f"## {FAILED}\n"
        yield from _items(report.failed)
    for table in (report.slower, report.faster, report.missed, report.level, report.score):
        yield f"## {_text(table.title)}\n"
        yield from _table(table)
    for part in report.parts:
        yield from _part(part, pictures)


def _part(part: Part, pictures: Mapping[str, str]) -> Iterator[str]:
    yield f'<a id="{part.anchor}"></a>\n'
    yield f"## {_text(part.title)}\n"
    yield from (f"{_text(note)}\n" for note in part.notes)
    for picture in part.pictures:
        if picture.name not in pictures:
            continue
        yield f"![{_text(picture.text)}]({pictures[picture.name]})\n"
        yield from _items(picture.failures)
    if part.failures:
        yield "### Failed\n"
        yield from _items(part.failures)
    if part.bars is not None:
        yield f"### {_text(part.bars.title)}\n"
        yield from _table(part.bars)
    for table in part.tables:
        yield f"### {_text(table.title)}\n"
        yield from _table(table)
    yield "### Circumstances\n"
    yield from _table(Table("", ("", ""), tuple(Row(item) for item in part.facts.items()), left=2))
    yield from _table(part.versions)
    if part.without:
        yield "Not measured:\n"
        yield from _items(f"{peer}: {reason}" for peer, reason in part.without.items())


def _table(table: Table) -> Iterator[str]:
    if table.note:
        yield f"{_text(table.note)}\n"
    if table.rows:
        yield _row(table.head)
        yield _row([":---" if column < table.left else "---:" for column in range(len(table.head))], raw=True)
        for row in table.rows:
            yield _row(row.texts, bold=row.mark == "ours")
    elif not table.failures:
        yield "None."
    yield ""
    if table.failures:
        yield from _items(table.failures)


def _row(texts: Iterable[str], *, bold: bool = False, raw: bool = False) -> str:
    cells = [text if raw else "<br>".join(map(_text, text.split("\n"))) for text in texts]
    if bold:
        cells[0] = f"**{cells[0]}**"
    return f"| {' | '.join(cells)} |"


def _items(lines: Iterable[str]) -> Iterator[str]:
    yield from (f"- {_text(line)}" for line in lines)
    yield ""


def _text(text: str) -> str:
    """Returns a text in one line that means only itself."""
    return re.sub(r"([\\`*_\[\]<>|&~$#])", r"\\\1", " ".join(text.split()))
