"""The table that `print(on)` shows, and the one line that `repr(on)` is."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import StringIO
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from autodropout.attach.assign import group_sizes
from autodropout.attach.guard import covered, lost
from autodropout.attach.sites import numberless, told_once
from autodropout.layers import Baseline, ConvRule, DropLayer, Rule, SequenceRule

if TYPE_CHECKING:
    from autodropout.attach.attachment import Attachment, BoundSite

K = TypeVar("K")

_HELD = ("dropout", "attention_dropout", "activation_dropout", "drop_prob")
"""Where modules that are no `nn.Dropout` keep a rate of their own: torch's attention and recurrent layers,
transformers, and everybody's DropPath."""


def table(on: "Attachment") -> str:
    """What an attachment is, in one line; how its rates are spread; then its sites, those that are alike in one row.

    Then what is not reached, what was lost, what rests although the model trains, and the dropout that the model brings
    along.
    """
    sites = _of_convnet(on) if on.kind == "convnet" else _of_transformer(on)
    lines = [brief(on), *_spread(on), "", *sites, *_every(on), *_unreached(on), *_lost(on), *_at_rest(on)]
    return "\n".join(lines + _own_dropout(on.model))


def line(row: "BoundSite") -> str:
    """One site, whole: its name, role, group or layer, shape as traced, what is put there, and the rate in force."""
    site = row.site
    where = f"layer {site.layer}" if site.group is None else f"{site.role}, group {site.group}"
    rate = f", rate {row.rate:.4g}" if can_drop(row) else ""
    return f"{site.name} ({where}, {_by(site.shape)}): {_told(row)}{rate}"


def brief(on: "Attachment") -> str:
    """An attachment in one line."""
    what = f"the baseline {on.policy.name!r}" if isinstance(on.policy, Baseline) else f"a {on.kind} policy"
    place = f"{sum(map(can_drop, on.sites))} of {len(on.sites)} sites, rate {on.rate:g}{', live' if on.live else ''}"
    return f"Attachment of {what} on {type(on.model).__name__}: {'detached' if on.detached else place}"


def can_drop(row: "BoundSite") -> bool:
    """Whether what is put here has anything to drop, at whatever rate."""
    return row.rule is not None and _empty(row) is None


def _pattern(rule: Rule | None) -> object:
    return rule.pattern if isinstance(rule, ConvRule | SequenceRule) else rule


def _idle(row: "BoundSite") -> str | None:
    """Why nothing can be dropped here, in a few words; None where something can."""
    return "-" if row.rule is None else _empty(row)


def _empty(row: "BoundSite") -> str | None:
    """How a ConvNet pattern comes to nothing on a side below 5 cells; None where it does not."""
    if not isinstance(row.rule, ConvRule):
        return None
    height, width = row.rule.tiling(row.shape[2], row.shape[3]).size
    return None if height and width else f"- (size={row.rule.pattern.size} is {height}x{width} cells here)"


def _told(row: "BoundSite") -> str:
    """What is put here, in a few words."""
    return _idle(row) or str(_pattern(row.rule))


def _of_convnet(on: "Attachment") -> list[str]:
    """The pattern of each group, and the sites of each group by their role."""
    of_group = {row.group: str(_pattern(row.rule)) for row in on.sites if row.rule is not None}
    sizes = [[str(n), _by(size), of_group.get(n, "-")] for n, size in enumerate(group_sizes(on._finding), start=1)]
    rows = []
    for (group, role, idle), alike in _folded(on.sites, lambda row: (row.group, row.role, _idle(row))):
        last = alike[-1].name if len(alike) > 1 else ""
        rows.append(
            [str(group), role, str(len(alike)), alike[0].name, last, _rates_of(alike) if idle is None else idle]
        )
    grid = _grid(["group", "role", "sites", "first", "last", "rate"], rows)
    return [*_grid(["group", "maps", "pattern"], sizes), "", *grid]


def _of_transformer(on: "Attachment") -> list[str]:
    """The same site of all layers in one row: a policy has one pattern for them."""
    rows = []
    for (_, role, told), alike in _folded(on.sites, lambda row: (numberless(_module(row)), row.role, _told(row))):
        shapes = _span([_by(row.shape) for row in alike])
        rate = _rates_of(alike) if can_drop(alike[0]) else ""
        rows.append([role, str(len(alike)), _starred([_module(row) for row in alike]), shapes, rate, told])
    return _grid(["site", "layers", "in", "shape", "rate", "pattern"], rows)


def _grid(headings: list[str], rows: list[list[str]]) -> list[str]:
    grid = Table(box=None, pad_edge=False, header_style="", padding=(0, 2, 0, 0))
    for heading in headings:
        grid.add_column(heading, no_wrap=True)
    for row in rows:
        grid.add_row(*row)
    out = StringIO()
    Console(file=out, width=1000, color_system=None, markup=False, highlight=False).print(grid)
    return [text.rstrip() for text in out.getvalue().splitlines()]


def _folded(sites: Iterable["BoundSite"], key: Callable[["BoundSite"], K]) -> list[tuple[K, list["BoundSite"]]]:
    """Sites with equal keys together, in the order of the first of each."""
    found: dict[K, list[BoundSite]] = {}
    for row in sites:
        found.setdefault(key(row), []).append(row)
    return list(found.items())


def _module(row: "BoundSite") -> str:
    """The path of the module that a Transformer's site is named after: its name without the role."""
    return row.name.rpartition(":")[0]


def _starred(paths: list[str]) -> str:
    """Paths that differ in numbers as one, with a star for each number that differs."""
    parts = zip(*(path.split(".") for path in paths), strict=True)
    return ".".join(same[0] if len(set(same)) == 1 else "*" for same in parts) or "the model"


def _rates_of(rows: list["BoundSite"]) -> str:
    rates = [row.rate for row in rows]
    return _span([f"{rate:.4g}" for rate in (min(rates), max(rates))])


def _span(texts: list[str]) -> str:
    return texts[0] if len(set(texts)) == 1 else f"{texts[0]} to {texts[-1]}"


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _spread(on: "Attachment") -> list[str]:
    """A line on rates that differ, for whoever asked for one."""
    if all(row.share == 1 for row in on.sites):
        return []
    return [f'rates rise linearly with depth, up to {on.rate:g} at the last site; depth="constant" gives it to all']


def _every(on: "Attachment") -> list[str]:
    return ['each site on a line of its own: print(*on.sites, sep="\\n")'] if len(on.sites) > 1 else []


def _unreached(on: "Attachment") -> list[str]:
    lines = told_once(on.unreached)
    return [*lines, *(["each of them: on.unreached"] if len(lines) < len(on.unreached) else [])]


def _lost(on: "Attachment") -> list[str]:
    """Lines on parts of the model that were replaced, or wrapped in what their drops do not see."""
    told = (
        {} if on.detached else {"lost, since replaced": lost(on.model), "not seen whole, since in": covered(on.model)}
    )
    return [f"{what}: {', '.join(names)}; detach and attach again" for what, names in told.items() if names]


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
