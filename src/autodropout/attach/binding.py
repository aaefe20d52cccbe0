"""Bind a policy or a baseline to a model, and take it off again: `attach`, `space`, and the `Attachment` a user holds.

    attach:  discover the sites -> choose a rule for each -> give each its rate -> put drops into their places

Rates follow the paper's appendix: linear over depth for ConvNets, the last site of the main branch at the full rate, a
shortcut at the rate of its block's last site; constant for Transformers.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from autodropout.attach.arguments import check_model, check_model_and_policy, check_policy, choose_rate
from autodropout.attach.assign import Depth, at_every_site, group_sizes, left_out, rules, shares
from autodropout.attach.guard import forget_compiled, unwrap, watch
from autodropout.attach.hooks import KEY, remove_all, store
from autodropout.attach.kinds import Kind, discover, discover_for
from autodropout.attach.record import tensors_in
from autodropout.attach.sites import Finding, Site
from autodropout.attach.table import brief, can_drop, table
from autodropout.attach.together import Together
from autodropout.layers import Baseline, Drop, Rule
from autodropout.layers.drop import is_channels_last
from autodropout.layers.given import checked_rate
from autodropout.spaces import ConvSpace, Policy, TransformerSpace


@dataclass(frozen=True)
class BoundSite:
    """One row of `Attachment.sites`: a site, the rule put there (None: left alone) and its share of the rate."""

    site: Site
    rule: Rule | None
    share: float  # of the attachment's rate: l/L for a ConvNet's site l
    drop: Drop | None

    @property
    def name(self) -> str:
        return self.site.name

    @property
    def role(self) -> str:
        return self.site.role

    @property
    def group(self) -> int | None:
        return self.site.group

    @property
    def shape(self) -> tuple[int, ...]:
        return self.site.shape

    @property
    def rate(self) -> float:
        """The rate in force; 0 where nothing is put."""
        return self.drop.rate.item() if self.drop is not None else 0.0


class Attachment:
    """A policy on a model. `print(on)` shows its sites; `on.set_rate` changes the rate; `on.detach()` takes it off."""

    def __init__(
        self,
        model: nn.Module,
        what: Policy | Baseline,
        finding: Finding,
        sites: Sequence[BoundSite],
        rate: float,
        live: bool,
        skip_missing: bool,
    ) -> None:
        self.model = model
        self.policy = what
        self.kind = finding.kind
        self.sites = tuple(sites)
        self.unreached = finding.unreached + left_out(what, finding)
        self.rate = rate
        self.live = live
        self._finding = finding
        self._skip_missing = skip_missing

    @property
    def detached(self) -> bool:
        """Whether this is no longer on its model; nothing that is set here would then do anything."""
        return self.model.__dict__.get(KEY, {}).get("attachment") is not self

    def _check_on(self) -> None:
        if self.detached:
            raise RuntimeError("this attachment was taken off its model by detach(): attach the policy again")

    def set_rate(self, rate: float) -> None:
        """Give every site its share of `rate`. Compiled code and captured CUDA graphs take it up as they are; from 0
        to more than 0 only those of a live attachment, since at 0 no drop is compiled or captured.

        Raises:
            RuntimeError: after `detach()`.
        """
        self._check_on()
        rate = checked_rate(rate)
        for bound in self.sites:
            if bound.drop is not None:
                bound.drop.set_rate(rate * bound.share)
        self.rate = rate

    def set_policy(self, policy: Policy) -> None:
        """Put another policy in this one's place, at the same rate; compiled code and captured graphs take it up.

        Raises:
            ValueError: the attachment is not live, or the policy does not fit the model.
            TypeError: it is no policy.
            RuntimeError: after `detach()`.
        """
        self._check_on()
        check_policy(policy)
        if not self.live:
            raise ValueError("set_policy needs a live attachment: ad.attach(..., live=True)")
        if policy.kind != self.kind:
            raise ValueError(f"this is a {self.kind}, and the policy is for a {policy.kind}")
        chosen = rules(policy, self._finding, skip_missing=self._skip_missing)
        acting = at_every_site(chosen, self._finding)
        for bound in self.sites:
            assert bound.drop is not None, "a live attachment has a drop at every site"
            bound.drop.set_rule(acting[bound.name])
        self.sites = tuple(replace(bound, rule=chosen.get(bound.name)) for bound in self.sites)
        self.policy = policy
        self.unreached = self._finding.unreached + left_out(policy, self._finding)

    def draw_from(self, noise: Tensor | None) -> None:
        """Make every mask a function of `noise`, a 0-d int64 tensor that whoever trains changes from step to step.

        None: back to the device's generator.
        """
        self._check_on()
        for bound in self.sites:
            if bound.drop is not None:
                bound.drop.noise = noise

    def draw_together(self) -> None:
        """Make the masks of a ConvNet before each forward pass, those of one map size at once (`together.py`).

        A pass over maps of another size than the example's still has its masks: sites draw what was not made for them.

        Raises:
            ValueError: the attachment is not live, not a ConvNet's, or does not draw from a tensor (`draw_from`).
        """
        self._check_on()
        drops = {bound.name: bound.drop for bound in self.sites if bound.drop is not None}
        if not self.live or self.kind != "convnet" or any(drop.noise is None for drop in drops.values()):
            raise ValueError("masks are drawn together for a live attachment to a ConvNet, after draw_from(noise)")
        sizes: dict[tuple[int, int], list[BoundSite]] = {}
        for bound in self.sites:
            sizes.setdefault((bound.shape[2], bound.shape[3]), []).append(bound)
        last = any(is_channels_last(weight) for weight in self.model.parameters())
        store(self.model)["together"] = tuple(
            Together.of([drops[row.name] for row in rows], [row.shape[1] for row in rows], size, last)
            for size, rows in sizes.items()
        )

    def draw_ahead(self, samples: int) -> None:
        """After `draw_together`: make the masks of the next forward pass now, for so many samples.

        They depend on no image, so a GPU can make them on another stream while images are prepared.
        """
        self._check_on()
        if "together" not in store(self.model):
            raise ValueError("masks are drawn ahead after draw_together(), which says that they are drawn at once")
        for group in store(self.model)["together"]:
            group.draw_ahead(samples)

    def detach(self) -> None:
        """Take everything off: the model is then as it was before `attach`. A policy attached since stays."""
        if not self.detached:
            remove_all(self.model)
            forget_compiled()

    def __str__(self) -> str:
        return brief(self) if self.detached else table(self)

    def __repr__(self) -> str:
        return f"<{brief(self)}>"


def attach(
    model: nn.Module,
    policy: Policy | Baseline,
    *,
    example: Any,
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
