"""Masks of many sites, made at once before the forward pass that uses them.

A mask is a function of a seed and not of what it masks, so all of a step can be made at its beginning: those of one map
size in the launches of a single one. That is for small networks on a large GPU, where a launch costs as much as the
mask. `Attachment.draw_together()` arranges it; what the sites get are the masks that they would have drawn themselves.

They can also be made earlier still, beside other work (`Attachment.draw_ahead`): then the forward pass makes none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autodropout.layers.drop import Drop, Ready, scale_of
from autodropout.patterns.bits import conv_bits_together
from autodropout.patterns.draws import stream


@dataclass
class Together:
    """Live drops of one map size, their tokens and rates in one tensor each."""

    drops: Sequence[Drop]
    channels: list[int]
    size: tuple[int, int]  # of the map
    tokens: Tensor  # (S, 9)
    rates: Tensor  # (S,)
    sites: Tensor  # (S, 2): channels and stream
    channels_last: bool  # whether the model's weights are, which makes its maps so whatever the images are
    ahead: bool = False  # whether the masks of the forward pass to come are there

    @classmethod
    def of(cls, drops: Sequence[Drop], channels: list[int], size: tuple[int, int], channels_last: bool) -> "Together":
        """Gathers what the drops say; from then on their tokens and rates are views."""
        tokens = torch.stack([drop.tokens for drop in drops])
        rates = torch.stack([drop.rate for drop in drops])
        for number, drop in enumerate(drops):
            drop.tokens, drop.rate = tokens[number], rates[number]
        rows = [[count, stream(drop.site)] for drop, count in zip(drops, channels, strict=True)]
        sites = torch.tensor(rows, dtype=torch.int64, device=tokens.device)
        return cls(drops, channels, size, tokens, rates, sites, channels_last)

    def draw_ahead(self, samples: int) -> None:
        """Make the masks of the forward pass to come, now."""
        self.draw(samples, self.channels_last)
        self.ahead = True

    def before_forward(self, samples: int, channels_last: bool) -> None:
        """Make them, unless they are there."""
        if not self.ahead:
            self.draw(samples, channels_last)
        self.ahead = False

    def draw(self, samples: int, channels_last: bool) -> None:
        """Make the masks of the forward pass to come, of so many samples, given in such a memory format."""
        channels_last = channels_last or self.channels_last
        noise = self.drops[0].noise
        assert noise is not None, "drawn together, masks are a function of `draw_from`'s tensor"
        arguments = (noise, samples, self.channels, list(self.size), channels_last)
        bits, kept = conv_bits_together(self.tokens, self.rates, self.sites, *arguments)
        cells = self.size[0] * self.size[1]
        scales = scale_of((self.sites[:, 0] * (samples * cells)).float(), kept)  # (S,): one launch, not one a site
        unit_bytes = (cells + 7) // 8
        lengths = [samples * count * unit_bytes for count in self.channels]
        for number, (drop, count, own) in enumerate(zip(self.drops, self.channels, bits.split(lengths), strict=True)):
            layout = (samples, unit_bytes, count) if channels_last else (samples, count, unit_bytes)
            shape = (samples, count, *self.size)
            drop.ready = Ready(shape, channels_last, own.view(layout), kept[number], scales[number])
