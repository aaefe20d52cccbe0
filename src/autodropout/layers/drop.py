"""Mask, rescale: `h * m * Size(m) / Sum(m)` (paper, equation 1), and the object that does it at one site of a model.

A *rule* says which mask to draw for a tensor: our patterns and the peers are rules (`layers/rules.py`). A *drop* is a
rule at a rate. `Drop` is for models somebody else wrote: it is no `nn.Module`, so that attaching it leaves
`state_dict`, `named_modules` and `export` alone. `DropLayer` is the same thing as a module, for models of one's own.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from autodropout.layers.given import checked_rate, told
from autodropout.patterns.draws import fresh, stream
from autodropout.patterns.switch import on_gpu


class Rule(Protocol):
    """How one site's mask is drawn and applied. Frozen and hashable; all randomness comes from the seed."""

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        """`h` under a fresh mask, rescaled; same shape, dtype and memory format."""
        ...


class PatternRule(ABC):
    """A rule whose pattern can also be read from a tensor: the same masks, packed (`patterns/bits.py`)."""

    @abstractmethod
    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor: ...

    @abstractmethod
    def tokens(self) -> list[int]:
        """The pattern as integers; as many for every pattern of this kind."""

    @abstractmethod
    def bits(self, h: Tensor, tokens: Tensor, rate: Tensor, seed: Tensor, stream: int) -> tuple[Tensor, Tensor]:
        """The mask of `h` for the pattern that `tokens` say, packed, and how many values it keeps."""

    @abstractmethod
    def put(self, h: Tensor, bits: Tensor, kept: Tensor, site: int = 0, scale: Tensor | None = None) -> Tensor:
        """`h` under such a mask, rescaled; by `scale`, where somebody has it already."""

    def packed(self, h: Tensor, tokens: Tensor, rate: Tensor, seed: Tensor, stream: int, site: int = 0) -> Tensor:
        """`self(h, rate, seed ^ stream)`, had this rule the pattern that `tokens` say."""
        return self.put(h, *self.bits(h, tokens, rate, seed, stream), site)


class Ready(NamedTuple):
    """A mask made beforehand, for a tensor of this shape and memory format."""

    shape: tuple[int, ...]
    channels_last: bool
    bits: Tensor
    kept: Tensor
    scale: Tensor  # Size / Sum

    def fits(self, h: Tensor) -> bool:
        return h.shape == self.shape and is_channels_last(h) == self.channels_last


def rescale(h: Tensor, mask: Tensor, kept: Tensor) -> Tensor:
    """`h * mask * Size / Sum`, zeros where nothing is kept. `kept` counts cells of `h`, not of a broadcast mask.

    The count is an integer and the scale float32 whatever `h.dtype`: in float16 a sum over a map overflows.
    `where` rather than a product: only the boolean mask is held for backward, and a dropped inf or NaN is gone.
    It comes last, hence first in backward: where a gradient goes through two masks, a branch's and its shortcut's,
    compiled code would else cast it for both, and keep the cast in memory.
    """
    return torch.where(mask, scaled(h, scale_for(h, kept)), 0)


def scale_for(h: Tensor, kept: Tensor) -> Tensor:
    """`Size / Sum` of a mask on `h`."""
    return scale_of(torch.full_like(kept, h.numel(), dtype=torch.float32), kept)


def scale_of(size: Tensor, kept: Tensor) -> Tensor:
    """`Size / Sum`; of a number in place of `size` PyTorch would take a reciprocal, which need not give 1."""
    return size / kept.clamp(min=1)


def scaled(values: Tensor, scale: Tensor) -> Tensor:
    """`values * scale` for a 0-d float32, rounded once.

    A GPU and compiled code would first round the scale to the type of the values: in bfloat16 by up to 0.4%, all alike.
    """
    if values.dtype in (torch.float16, torch.bfloat16):
        return values.float().mul_(scale).to(values.dtype)
    return values * scale


def is_channels_last(h: Tensor) -> bool:
    return h.dim() == 4 and h.is_contiguous(memory_format=torch.channels_last) and not h.is_contiguous()


class Drop:
    """A rule at a rate, at one numbered site.

    A *live* one reads its pattern from `tokens` wherever it runs, and acts whatever they and the rate say: both may be
    changed in compiled code and captured CUDA graphs.
    """

    def __init__(
        self, rule: Rule, rate: float, site: int, device: torch.device | None = None, *, live: bool = False
    ) -> None:
        assert not live or isinstance(rule, PatternRule)
        self.rule = rule
        self.site = site
        self.live = live
        device = device or torch.get_default_device()
        if device.type == "meta":
            device = torch.device("cpu")  # a model without values gets its own later, and nobody would give us ours
        tokens = rule.tokens() if isinstance(rule, PatternRule) else []
        with torch.inference_mode(False):  # what is made in inference mode can never be set again
            self.rate = torch.zeros((), dtype=torch.float32, device=device)
            self.tokens = torch.tensor(tokens, dtype=torch.int32, device=device)
        self.noise: Tensor | None = None  # where seeds come from; None: the device's default generator
        self.ready: Ready | None = None  # for the next call
        self.active = live
        self.set_rate(rate)

    def set_rate(self, rate: float) -> None:
        """In place, so that compiled code and captured CUDA graphs see it; only a change from or to zero recompiles."""
        rate = checked_rate(rate)
        self.rate.fill_(rate)
        self.active = self.live or rate > 0.0

    def set_rule(self, rule: Rule) -> None:
        """Another pattern of the same kind, in place."""
        assert isinstance(rule, PatternRule)
        assert type(rule) is type(self.rule)
        self.rule = rule
        self.tokens.copy_(torch.tensor(rule.tokens(), dtype=torch.int32))

    def __call__(self, h: Tensor) -> Tensor:
        return self.acting_as(self.rule, h)

    def bits(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The packed mask that a call would put on `h`, of which only the shape matters, and its Size / Sum.

        Of a live drop that is told where its seeds come from.
        """
        assert self.live
        assert self.noise is not None
        assert isinstance(self.rule, PatternRule)
        bits, kept = self.rule.bits(h, self.tokens, self.rate, self.noise, stream(self.site))
        return bits, scale_for(h, kept)

    def acting_as(self, rule: Rule, h: Tensor) -> Tensor:
        """`h` under another rule at this rate and with this site's draws."""
        if not self.active:
            return h
        if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            raise RuntimeError(
                "torch.jit.trace cannot follow masks, which are drawn anew at every call: trace in eval mode, or call "
                "detach() first"
            )
        if h.numel() == 0 or h.is_meta:
            return h
        if self.rate.device != h.device:  # `model.to(...)` does not move what is not registered
            self.rate, self.tokens = self.rate.to(h.device), self.tokens.to(h.device)
        if self.ready is not None:
            ready, self.ready = self.ready, None
            if isinstance(rule, PatternRule) and ready.fits(h):
                return rule.put(h, ready.bits, ready.kept, self.site, ready.scale)
        seed = fresh(h.device) if self.noise is None else self.noise
        if isinstance(rule, PatternRule) and (self.live or on_gpu(h)):
            return rule.packed(h, self.tokens, self.rate, seed, stream(self.site), self.site)
        return rule(h, self.rate, seed ^ stream(self.site))


class DropLayer(nn.Module):
    """`Drop` as a module, for models of one's own: `DropLayer(DropBlock(7), rate=0.1)` after a normalization."""

    def __init__(self, rule: Rule, rate: float, site: int = 0) -> None:
        super().__init__()
        _check_rule(rule)
        self.drop = Drop(rule, rate, site)

    def set_rate(self, rate: float) -> None:
        self.drop.set_rate(rate)

    def forward(self, h: Tensor) -> Tensor:
        return self.drop(h) if self.training else h

    def extra_repr(self) -> str:
        return f"{self.drop.rule}, rate={self.drop.rate.item():.3g}"


def _check_rule(rule: object) -> None:
    """Refuse what only a forward pass would find out to be no rule."""
    if callable(rule) and not isinstance(rule, type | nn.Module):
        return
    hint = ""
    if isinstance(rule, nn.Module):
        hint = ", a module"
    elif hasattr(rule, "rule"):
        hint = ", whose rule is its `.rule`"
    raise TypeError(
        "a DropLayer wants a rule, which is called with (h, rate, seed); rules are in autodropout.layers: "
        f"DropBlock(7), Dropout(), ConvRule(pattern, (32, 32)), SequenceRule(pattern), ...; got {told(rule)}{hint}"
    )
