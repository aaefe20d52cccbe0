"""What `attach` returns: the `Attachment` a user holds, and the rows of its `sites`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor, nn

from autodropout.attach.arguments import check_policy
from autodropout.attach.assign import at_every_site, left_out, rules
from autodropout.attach.guard import forget_compiled
from autodropout.attach.hooks import KEY, remove_all, store
from autodropout.attach.sites import Finding, Site
from autodropout.attach.table import brief, line, table
from autodropout.attach.together import Together
from autodropout.layers import Baseline, Drop, Rule
from autodropout.layers.drop import is_channels_last
from autodropout.layers.given import checked_rate
from autodropout.spaces import Policy


@dataclass(frozen=True)
class BoundSite:
    """One of `Attachment.sites`: a site, the rule put there (None: left alone) and its share of the rate."""

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

    def __str__(self) -> str:
        return line(self)


_INSTEAD = {"rate": "; call set_rate(...)", "policy": "; call set_policy(...) on a live attachment"}


class Attachment:
    """A policy on a model. `print(on)` shows its sites; `on.set_rate` changes the rate; `on.detach()` takes it off.

    What it shows is read, never assigned: a change reaches the model by a method alone. So `on.rate = 0.2` is refused,
    with the name of the method. It could do what `set_rate` does, but an assignment that runs through a whole model,
    and may make compiled code compile once more, had better look like the call that it is; and a schedule, a
    `DropLayer` and an attachment all have `set_rate`.
    """

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
        self._model = model
        self._policy = what
        self._finding = finding
        self._sites = tuple(sites)
        self._rate = rate
        self._live = live
        self._skip_missing = skip_missing

    if not TYPE_CHECKING:  # which knows that properties are not assigned

        def __setattr__(self, name: str, value: object) -> None:
            if isinstance(getattr(type(self), name, None), property):
                raise AttributeError(f"{name} of an attachment cannot be assigned{_INSTEAD.get(name, '')}")
            super().__setattr__(name, value)

    @property
    def model(self) -> nn.Module:
        """The model that it is on, without what wraps it as a whole."""
        return self._model

    @property
    def policy(self) -> Policy | Baseline:
        """What is attached."""
        return self._policy

    @property
    def kind(self) -> str:
        """Of the model: "convnet" or "transformer"."""
        return self._finding.kind

    @property
    def sites(self) -> tuple[BoundSite, ...]:
        """All sites in forward order, those too that are left alone."""
        return self._sites

    @property
    def unreached(self) -> tuple[str, ...]:
        """What looked like a site but cannot be reached, with the reason; and what the policy asks for in vain."""
        return self._finding.unreached + left_out(self._policy, self._finding)

    @property
    def rate(self) -> float:
        """The rate that was set: that of a site which has all of it."""
        return self._rate

    @property
    def live(self) -> bool:
        """Whether `set_policy` may replace the policy."""
        return self._live

    @property
    def detached(self) -> bool:
        """Whether this is no longer on its model; nothing that is set here would then do anything."""
        return self.model.__dict__.get(KEY, {}).get("attachment") is not self

    def _check_on(self) -> None:
        if self.detached:
            raise RuntimeError("this attachment was taken off its model by detach(): attach the policy again")

    def set_rate(self, rate: float) -> None:
        """Give every site its share of `rate`. Compiled code and captured CUDA graphs take it up as they are.

        Rate 0 is apart: nothing is masked then, and nothing spent. What `torch.compile` compiled at 0 it compiles once
        more when the rate rises, by itself, as under a `RateSchedule` that starts at 0 (and the other way round); only
        a CUDA graph captured at 0 stays without masks. A live attachment masks at 0 too, and neither happens.

        Raises:
            RuntimeError: after `detach()`.
        """
        self._check_on()
        rate = checked_rate(rate)
        for bound in self.sites:
            if bound.drop is not None:
                bound.drop.set_rate(rate * bound.share)
        self._rate = rate

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
        self._sites = tuple(replace(bound, rule=chosen.get(bound.name)) for bound in self.sites)
        self._policy = policy

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
