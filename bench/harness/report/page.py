"""The report as one page of HTML: nothing beside it is needed, no script runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from harness.report.document import FAILED, Part, Picture, Report, Row, Table
from harness.report.sheet import SHEET

__all__ = ["page"]


def page(report: Report) -> str:
    """Returns the page."""
    body = "\n".join(_body(report))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(report.title)}</title>
<style>
{SHEET}</style>
</head>
<body>
{body}
</body>
</html>
"""


def _body(report: Report) -> Iterator[str]:
    yield f"<header><h1>{escape(report.title)}</h1>"
    yield from (f"<p>{escape(sentence)}</p>" for sentence in report.summary)
    yield "</header>"
    yield from _contents(report)
    yield "<main>"
    if report.failed:
        yield '<section id="failed" class="bad"><h2>' + f"{escape(FAILED)}</h2>"
        yield from _items(report.failed)
        yield "</section>"
    slower, faster, *others = _lists(report).items()
    yield '<div class="beside">'
    yield from _list(*slower)
    yield from _list(*faster)
    yield "</div>"
    for other in others:
        yield from _list(*other)
    for part in report.parts:
        yield from _part(part)
    yield "</main>"


def _contents(report: Report) -> Iterator[str]:
    yield '<nav aria-label="Contents"><ul>'
    if report.failed:
        yield f'<li><a href="#failed">{escape(FAILED)}</a></li>'
    for anchor, table in _lists(report).items():
        yield f'<li><a href="#{anchor}">{escape(table.title)}</a></li>'
    for part in report.parts:
        yield f'<li><a href="#{_anchor(part)}">{escape(part.title)}</a><ul>'
        for number, title in enumerate(_groups(part)):
            yield f'<li><a href="#{_anchor(part)}-{number}">{escape(title)}</a></li>'
        yield "</ul></li>"
    yield "</ul></nav>"


def _anchor(part: Part) -> str:
    return f"record-{part.anchor}"


def _groups(part: Part) -> dict[str, list[Table]]:
    """Returns the tables of a record by the title that they stand under."""
    groups: dict[str, list[Table]] = {}
    for table in part.tables:
        groups.setdefault(table.group, []).append(table)
    return groups


def _lists(report: Report) -> dict[str, Table]:
    """Returns the lists of the top, by anchor; what is lost and what is won stand side by side."""
    return {
        "slower": report.slower,
        "faster": report.faster,
        "missed": report.missed,
        "level": report.level,
        "score": report.score,
    }


def _list(anchor: str, table: Table) -> Iterator[str]:
    """Yields a list: of the same form for what is lost and for what is won."""
    yield f'<section id="{anchor}" class="list"><h2>{escape(table.title)}</h2>'
    yield from _table(table)
    yield "</section>"


def _part(part: Part) -> Iterator[str]:
    anchor = _anchor(part)
    yield f'<section id="{anchor}"><h2>{escape(part.title)}</h2>'
    yield from (f"<p>{escape(note)}</p>" for note in part.notes)
    for picture in part.pictures:
        yield from _picture(picture)
    if part.failures:
        yield '<div class="bad"><h3>Failed</h3>'
        yield from _items(part.failures)
        yield "</div>"
    if part.bars is not None:
        yield f"<h3>{escape(part.bars.title)}</h3>"
        yield from _table(part.bars)
    for number, (title, tables) in enumerate(_groups(part).items()):
        yield f'<h3 id="{anchor}-{number}">{escape(title)}</h3>'
        for table in tables:
            yield f"<h4>{escape(table.title)}</h4>"
            yield from _table(table)
    yield "<h3>Circumstances</h3><dl>"
    yield from (f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd>" for key, text in part.facts.items())
    yield "</dl>"
    yield from _table(part.versions)
    if part.without:
        yield "<p>Not measured:</p>"
        yield from _items(f"{peer}: {reason}" for peer, reason in part.without.items())
    yield "</section>"


def _picture(picture: Picture) -> Iterator[str]:
    drawing = picture.svg.replace("<svg ", f'<svg role="img" aria-label="{escape(picture.text)}" ', 1)
    yield f'<figure id="picture-{escape(picture.name)}"><div class="picture">{drawing}</div>'
    if picture.failures:
        yield "<figcaption>"
        yield from _items(picture.failures)
        yield "</figcaption>"
    yield "</figure>"


def _table(table: Table) -> Iterator[str]:
    if table.note:
        yield f'<p class="note">{escape(table.note)}</p>'
    if table.rows:
        yield '<div class="scroll"><table><thead><tr>'
        yield "".join(_cell("th", text, column, table) for column, text in enumerate(table.head))
        yield "</tr></thead><tbody>"
        yield from (_row(row, table) for row in table.rows)
        yield "</tbody></table></div>"
    elif not table.failures:
        yield "<p>None.</p>"
    if table.failures:
        yield from _items(table.failures, "bad")


def _row(row: Row, table: Table) -> str:
    mark = f' class="{row.mark}"' if row.mark else ""
    cells = "".join(
        _cell("td", text, column, table, row.share if column == 1 else None) for column, text in enumerate(row.texts)
    )
    return f"<tr{mark}>{cells}</tr>"


def _cell(tag: str, text: str, column: int, table: Table, share: float | None = None) -> str:
    classes = ["figure"] if column >= table.left else []
    style = ""
    if share is not None:
        classes.append("share")
        style = f' style="--share:{share:.1%}"'
    names = f' class="{" ".join(classes)}"' if classes else ""
    scope = ' scope="col"' if tag == "th" else ""
    lines = "<br>".join(map(escape, text.split("\n")))
    return f"<{tag}{scope}{names}{style}>{lines}</{tag}>"


def _items(lines: Iterable[str], mark: str = "") -> Iterator[str]:
    yield f'<ul class="{mark}">' if mark else "<ul>"
    yield from (f"<li>{escape(line)}</li>" for line in lines)
    yield "</ul>"
