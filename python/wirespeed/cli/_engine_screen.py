"""Shows the rates of an engine on the whole terminal, with ``rich``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..engine import Engine
from ._engine_rates import Rates, size

if TYPE_CHECKING:
    from rich.console import Console, Group

__all__ = ["draw", "screen"]

Show = Callable[[Rates, list[str], Engine], None]


@contextlib.contextmanager
def screen(console: Console | None = None) -> Iterator[Show]:
    """Use the whole terminal; restore it at the end.

    Args:
        console: The console; by default the standard output.

    Yields:
        A function that shows the rates and the last lines of the log.
    """
    from rich.console import Console
    from rich.live import Live

    with Live(console=console or Console(), screen=True, auto_refresh=False) as live:
        yield lambda rates, records, engine: live.update(draw(rates, records, engine), refresh=True)


def draw(rates: Rates, records: list[str], engine: Engine) -> Group:
    """Return the content of the screen.

    Args:
        rates: The rates.
        records: The last lines of the log.
        engine: The engine.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    now = rates.now
    places = ", ".join(f"{at[0]}:{at[1]}" if isinstance(at, tuple) else str(at) for at in engine.addresses)
    title = Text.assemble(("wirespeed engine", "bold"), f"  {places}  {len(now['workers'])} workers")
    table = Table(expand=True, box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    for name in ("sessions", "in/s", "bytes in/s", "out/s", "bytes out/s", "outbox", "mailbox", "lag p99"):
        table.add_column(name, justify="right", no_wrap=True)
    for worker, of in [(None, now), *enumerate(now["workers"])]:
        table.add_row(
            "all" if worker is None else str(worker),
            f"{of['sessions']:,}",
            f"{rates('messages_received', worker):,.0f}",
            size(rates("bytes_received", worker)),
            f"{rates('messages_sent', worker):,.0f}",
            size(rates("bytes_sent", worker)),
            size(of["outbox_bytes"]),
            size(of["mailbox_bytes"]),
            rates.p99("loop_lag", worker),
            style="bold" if worker is None else "",
        )
    lost = [(name.replace("_", " "), count) for name, count in now["handshakes_failed_by_reason"].items() if count]
    refused = ", ".join(f"{name} {count:,}" for name, count in lost) or "none"
    rest = Text.assemble(
        ("connections ", "dim"), f"{now['connections']:,}",
        ("   opened/s ", "dim"), f"{rates('sessions_opened'):,.0f}",
        ("   events waiting ", "dim"), f"{now['events_waiting']:,}",
        ("   dropped ", "dim"), (f"{now['messages_dropped']:,}", "red" if now["messages_dropped"] else ""),
        ("   publish p99 ", "dim"), rates.p99("publish_latency"),
        ("\nno session: ", "dim"), refused,
    )  # fmt: skip
    # Log lines may contain text of peers, so they are shown without markup.
    log = Text("\n".join(records), style="dim", overflow="ellipsis", no_wrap=True)
    return Group(title, Text(), table, Text(), rest, Text(), log)
