"""Draws the series of a soak as a picture: a row for each kind, a line for each program."""

from __future__ import annotations

from pathlib import Path

from .campaign import Soak
from .lines import TOLERANCES, warm_up

UNITS = {"memory": "memory, MiB", "latency": "reply, p99, ms", "opening": "slowest opening, ms"}


def draw(soak: Soak, path: Path) -> None:
    """Writes a picture."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    verdicts = soak.verdicts()
    kinds = [kind for kind in TOLERANCES if any(key[1] == kind for key in soak.lines)]
    figure, axes = plt.subplots(len(kinds), 1, figsize=(9, 2.2 * len(kinds)), sharex=True, squeeze=False)
    names = sorted({name for name, _ in soak.lines})
    colors = {name: plt.get_cmap("tab20")(number % 20) for number, name in enumerate(names)}
    for kind, (axis,) in zip(kinds, axes, strict=True):
        end = 0.0
        for (name, of), line in soak.lines.items():
            if of != kind:
                continue
            style = "-" if not verdicts[name, kind].rises else "--"
            axis.plot([time / 60 for time in line.times], line.figures, style, color=colors[name], linewidth=1)
            end = max(end, line.times[-1] / 60)
        axis.axvspan(0, warm_up(60 * end) / 60, color="0.93")
        axis.set_ylabel(UNITS.get(kind, kind))
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1][0].set_xlabel("minutes; grey: not judged; dashed: rises")
    handles = [Line2D([], [], color=colors[name], label=name) for name in names]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, fontsize="small", frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
