"""Bind a policy or a baseline to a model: `attach`, `attached` and `space`.

    attach:  discover the sites -> choose a rule for each -> give each its rate -> put drops into their places

Rates follow the paper's appendix: linear over depth for ConvNets, the last site of the main branch at the full rate, a
shortcut at the rate of its block's last site; constant for Transformers.
"""

import warnings
from typing import Any

from torch import nn

from autodropout.attach.arguments import check_model, check_model_and_policy, choose_rate
from autodropout.attach.assign import Depth, at_every_site, group_sizes, rules, shares
from autodropout.attach.attachment import Attachment, BoundSite
from autodropout.attach.guard import forget_compiled, unwrap, watch
from autodropout.attach.hooks import KEY, remove_all, store
from autodropout.attach.kinds import Kind, discover, discover_for
from autodropout.attach.record import tensors_in
from autodropout.attach.table import can_drop
from autodropout.layers import Baseline, Drop
from autodropout.spaces import ConvSpace, Policy, TransformerSpace


def attach(
    model: nn.Module,
    policy: Policy | Baseline,
    example: Any,
    *,
    rate: float | None = None,
    depth: Depth | None = None,
    stem: bool = False,
    kind: Kind | None = None,
    live: bool = False,
    skip_missing: bool = False,
) -> Attachment:
    """Put a policy, or a baseline, on a model. It acts while the model trains; in eval mode nothing changes.

    Args:
        model: any `nn.Module`; it is not copied or wrapped, and its `state_dict` stays as it is.
        policy: from `ad.load`, a space's `sample`, a study, or `ad.baseline`.
        example: one input: a tensor, a tuple of positional or a dict of keyword arguments. One eval forward is traced
            on it.
        rate: the drop rate; when left out, the one recorded with the policy.
        depth: "linear" or "constant" over depth; when left out, linear for ConvNets and constant for Transformers.
        stem: whether normalizations before a ConvNet's first residual block are sites too.
        kind: "convnet" or "transformer", for a baseline that both have on a model that is both.
        live: whether the policy may be replaced by `set_policy` without compiling or capturing anything anew; every
            site then has a mask, which is empty where the policy says nothing.
        skip_missing: whether sites that a Transformer policy asks for and the model lacks (attention probabilities,
            where attention is fused) are left out rather than refused; `unreached` says which and why.

    Raises:
        ValueError: the model has no sites, lacks some that the policy asks for, is of another kind than the policy, or
            has a policy attached already; or a baseline is to be live.
        TypeError: the model is no `nn.Module`, or the policy neither a policy nor a baseline.
    """
    check_model_and_policy(model, policy)
    model = unwrap(model)
    if any(KEY in module.__dict__ for module in model.modules()):
        raise ValueError("this model has a policy attached already; call detach() on its attachment first")
    rate = choose_rate(policy, rate)
    if depth not in (None, "linear", "constant"):
        raise ValueError(f'depth must be "linear" or "constant", got {depth!r}')
    if live and isinstance(policy, Baseline):
        raise ValueError(f"a baseline ({policy.name}) cannot be live; only policies are made of tokens")
    finding = discover_for(policy, model, example, kind=kind, stem=stem)
    rule_of = rules(policy, finding, skip_missing=skip_missing)
    acting = at_every_site(rule_of, finding) if live else rule_of
    share_of = shares(finding, depth or ("linear" if finding.kind == "convnet" else "constant"))
    device = next((parameter.device for parameter in model.parameters()), None)
    bound = []
    for number, site in enumerate(finding.sites):
        acts, share = acting.get(site.name), share_of[site.name]
        drop = Drop(acts, rate * share, number, device, live=live) if acts is not None else None
        bound.append(BoundSite(site, rule_of.get(site.name), share, drop))
    on = Attachment(model, policy, finding, bound, rate, live, skip_missing)
    try:
        for row in bound:
            if row.drop is not None:
                row.site.place.put(model, row.drop)
    except BaseException:
        remove_all(model)
        raise
    store(model)["attachment"] = on
    watch(model)
    forget_compiled()
    if not isinstance(policy, Baseline) and not policy.drops_nothing and not any(map(can_drop, bound)):
        warnings.warn("the policy drops nothing here: on maps this small its rectangles have no cells", stacklevel=2)
    return on


def attached(model: nn.Module) -> Attachment | None:
    """What is attached to a model, or to a deep copy of one, whose attachment is a copy too; None when nothing is."""
    check_model(model)
    on: Attachment | None = unwrap(model).__dict__.get(KEY, {}).get("attachment")
    return on


def space(
    model: nn.Module, example: Any, *, kind: Kind | None = None, stem: bool = False
) -> ConvSpace | TransformerSpace:
    """The space of a model's policies: its groups, or its sites, found by tracing one eval forward on `example`."""
    on = attached(model)
    if on is not None and on.kind == "transformer" and kind in (None, on.kind):
        # What is found already: torch's own attention is another function there, which a trace would not know.
        finding = on._finding
    else:
        finding = discover(unwrap(model), example, kind=kind, stem=stem)
    if finding.kind == "convnet":
        return ConvSpace(groups=group_sizes(finding), resolution=_resolution(example))
    return TransformerSpace(sites=tuple(dict.fromkeys(site.role for site in finding.sites)))


def _resolution(example: Any) -> tuple[int, int] | None:
    """(height, width) of the images in an example: its first 4-D tensor, however deep."""
    return next(((image.shape[2], image.shape[3]) for image in tensors_in(example) if image.dim() == 4), None)
