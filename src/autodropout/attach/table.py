"""The table that `print(on)` shows, and the one line that `repr(on)` is."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from autodropout.attach.guard import lost
from autodropout.layers import Baseline, ConvRule, DropLayer, SequenceRule

if TYPE_CHECKING:
    from autodropout.attach.attachment import Attachment, BoundSite

_HELD = ("dropout", "attention_dropout", "activation_dropout", "drop_prob")
"""Where modules that are no `nn.Dropout` keep a rate of their own: torch's attention and recurrent layers,
transformers, and everybody's DropPath."""


def table(on: "Attachment") -> str:
    """One row a site: its name, role, group or layer, shape as traced, what is put there, and the rate in force.

    Then what is not reached, what was lost, what rests although the model trains, and the dropout that the model brings
    along.
    """
    position = "group" if on.kind == "convnet" else "layer"
    grid = Table(box=None, pad_edge=False, header_style="", padding=(0, 2, 0, 0))
    for heading in ("site", "role", position, "shape", "pattern"):
        grid.add_column(heading, no_wrap=True)
    grid.add_column("rate", justify="right", no_wrap=True)
    for row in on.sites:
        number = row.site.group if on.kind == "convnet" else row.site.layer
        shape = "x".join(map(str, row.shape))
        grid.add_row(row.name, row.role, str(number), shape, _told(row), f"{row.rate:.4g}" if can_drop(row) else "")
    for reason in on.unreached:
        grid.add_row("not reached", "", "", "", reason, "")
    out = StringIO()
    Console(file=out, width=1000, color_system=None, markup=False, highlight=False).print(grid)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return "\n".join(lines + _lost(on) + _at_rest(on) + _own_dropout(on.model))


def brief(on: "Attachment") -> str:
    """An attachment in one line."""
    what = f"the baseline {on.policy.name!r}" if isinstance(on.policy, Baseline) else f"a {on.kind} policy"
    place = f"{sum(map(can_drop, on.sites))} of {len(on.sites)} sites, rate {on.rate:g}{', live' if on.live else ''}"
    return f"Attachment of {what} on {type(on.model).__name__}: {'detached' if on.detached else place}"


def can_drop(row: "BoundSite") -> bool:
    """Whether what is put here has anything to drop, at whatever rate."""
    return row.rule is not None and _empty(row) is None


def _empty(row: "BoundSite") -> str | None:
    """How a ConvNet pattern comes to nothing on a side below 5 cells; None where it does not."""
    if not isinstance(row.rule, ConvRule):
        return None
    height, width = row.rule.tiling(row.shape[2], row.shape[3]).size
    return None if height and width else f"- (size={row.rule.pattern.size} is {height}x{width} cells here)"


def _told(row: "BoundSite") -> str:
    """What is put here, in a few words."""
    rule = row.rule
    if rule is None:
        return "-"
    return _empty(row) or (str(rule.pattern) if isinstance(rule, ConvRule | SequenceRule) else str(rule))


def _lost(on: "Attachment") -> list[str]:
    """A line on parts of the model that were replaced."""
    names = [] if on.detached else lost(on.model)
    return [f"lost, since replaced: {', '.join(names)}; detach and attach again"] if names else []


def _at_rest(on: "Attachment") -> list[str]:
    """A line on frozen parts: drops obey the flag of the module they are on, and all may be in eval mode."""
    if not on.model.training:
        return []
    there = []
    for row in filter(can_drop, on.sites):
        with suppress(AttributeError):  # one that was replaced
            there.append(on.model.get_submodule(row.site.place.path))
    still = sum(not module.training for module in there)
    return [f"at rest: {still} of {len(there)} sites with a pattern, in modules in eval mode"] if still else []


def _own_dropout(model: nn.Module) -> list[str]:
    """A line on the dropout that the model has besides: a policy may have been learned without any."""
    rates = [found for module in model.modules() if (found := max(_rates(module), default=0.0)) > 0]
    if not rates:
        return []
    modules = f"{len(rates)} module{'s' if len(rates) > 1 else ''}"
    low, high = f"{min(rates):.3g}", f"{max(rates):.3g}"
    return [f"the model's own dropout stays: {modules}, {low if low == high else f'{low} to {high}'}"]


def _rates(module: nn.Module) -> Iterator[float]:
    """The rates at which a module itself drops something."""
    if isinstance(module, DropLayer):
        yield module.drop.rate.item()
    vision = sys.modules.get("torchvision.ops")  # a model that has some of its modules has imported it
    peers = () if vision is None else (vision.StochasticDepth, vision.DropBlock2d)
    for name in ("p",) if isinstance(module, (_DropoutNd, *peers)) else _HELD:
        if isinstance(rate := module.__dict__.get(name), float):
            yield rate
    # Models of timm drop before their head at this rate: by a function, or by a module, which is seen by itself.
    rate = module.__dict__.get("drop_rate")
    if isinstance(rate, float) and all(inner.p != rate for inner in module.modules() if isinstance(inner, _DropoutNd)):
        yield rate
