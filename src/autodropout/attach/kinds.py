"""ConvNet or Transformer: which of the two a model is, by what is found in it, and which a policy is for."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from torch import nn

from autodropout.attach.convnet.find import find as find_convnet
from autodropout.attach.sites import Finding, NoSites
from autodropout.attach.transformer.find import find as find_transformer
from autodropout.layers import Baseline
from autodropout.spaces import ConvPolicy, Policy, TransformerPolicy

Kind = Literal["convnet", "transformer"]
_NAMES: dict[Kind, str] = {"convnet": "ConvNet", "transformer": "Transformer"}


def discover(model: nn.Module, example: Any, *, kind: Kind | None = None, stem: bool = False) -> Finding:
    """The sites of a model. Without a kind both are tried, and a model that is both must be told which is meant."""
    finders: dict[Kind, Callable[[], Finding]] = {
        "convnet": partial(find_convnet, model, example, stem=stem),
        "transformer": partial(find_transformer, model, example),
    }
    if kind is not None:
        if kind not in finders:
            raise ValueError(f'kind must be "convnet" or "transformer", got {kind!r}')
        return finders[kind]()
    found: list[Finding] = []
    details: list[str] = []
    for name, find in finders.items():
        try:
            found.append(find())
        except NoSites as problem:
            looked_for, *seen = problem.details
            details += [f"of a {_NAMES[name]}: {looked_for}", *seen]
    if len(found) > 1:
        raise ValueError(
            'this model has sites of a ConvNet and of a Transformer: say kind="convnet" or kind="transformer"'
        )
    if not found:
        raise NoSites("this model has no sites", *details)
    return found[0]


def discover_for(
    policy: Policy | Baseline, model: nn.Module, example: Any, *, kind: Kind | None = None, stem: bool = False
) -> Finding:
    """The sites of a model that a policy can go to. Of a model of the other kind, that is what the error says."""
    own = kind_of(policy)
    if kind in _NAMES and own is not None and kind != own:
        raise ValueError(f"{_title(policy)} cannot go on a {_NAMES[kind]}, which kind={kind!r} says the model is")
    wanted = kind or own
    try:
        return discover(model, example, kind=wanted, stem=stem)
    except NoSites as problem:
        other: Kind = "transformer" if wanted == "convnet" else "convnet"
        if wanted is None or not _is(other, model, example):
            raise
        who = f"kind={kind!r}" if own is None else _title(policy)
        raise NoSites(f"{who} cannot go on a {_NAMES[other]}, which this model is", *problem.details) from None


def kind_of(policy: Policy | Baseline) -> Kind | None:
    """The kind of model that a policy is for; None for a baseline that both have."""
    if isinstance(policy, ConvPolicy | TransformerPolicy):
        return policy.kind
    if policy.convnet and policy.transformer:
        return None
    return "convnet" if policy.convnet else "transformer"


def _is(kind: Kind, model: nn.Module, example: Any) -> bool:
    try:
        discover(model, example, kind=kind)
    except NoSites:
        return False
    return True


def _title(policy: Policy | Baseline) -> str:
    return f"the baseline {policy.name!r}" if isinstance(policy, Baseline) else f"a {_NAMES[policy.kind]} policy"
