"""The table that `print(on)` shows."""

from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from autodropout.layers import ConvRule, Rule, SequenceRule

if TYPE_CHECKING:
    from autodropout.attach.binding import Attachment


def table(on: "Attachment") -> str:
    """One row a site: its name, role, group or layer, shape as traced, what is put there, and the rate in force."""
    position = "group" if on.kind == "convnet" else "layer"
    grid = Table(box=None, pad_edge=False, header_style="", padding=(0, 2, 0, 0))
    for heading in ("site", "role", position, "shape", "pattern"):
        grid.add_column(heading, no_wrap=True)
    grid.add_column("rate", justify="right", no_wrap=True)
    for row in on.sites:
        number = row.site.group if on.kind == "convnet" else row.site.layer
        shape = "x".join(map(str, row.shape))
        grid.add_row(row.name, row.role, str(number), shape, describe(row.rule), f"{row.rate:.3f}" if row.rule else "")
    for reason in on.unreached:
        grid.add_row("not reached", "", "", "", reason, "")
    out = StringIO()
    Console(file=out, width=1000, color_system=None, markup=False, highlight=False).print(grid)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def describe(rule: Rule | None) -> str:
    """A rule in a few words."""
    if rule is None:
        return "-"
    return str(rule.pattern) if isinstance(rule, ConvRule | SequenceRule) else str(rule)
