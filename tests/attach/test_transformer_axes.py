"""Tokens on maps, time first where no projection tells, and sums and products that only look like parts of a layer."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from transformer_tools import (
    BATCH,
    ENCODER_LAYER,
    HEADS,
    INNER,
    LENGTH,
    SIZE,
    WIDTH,
    Block,
    assert_layers,
    find,
    put,
)

from autodropout.attach.sites import NoSites

SIDE = 3
MAPS = torch.randn(BATCH, WIDTH, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))


class OnMaps(nn.Module):
    """Attention of 1x1 convolutions over the cells of a map, then a feed-forward with channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Conv2d(WIDTH, 3 * WIDTH, 1), nn.Conv2d(WIDTH, WIDTH, 1)
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.attend, self.feed = nn.Identity(), nn.Identity()

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).flatten(2).unflatten(1, (3, HEADS, SIZE)).transpose(-2, -1).unbind(1)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(-2, -1).reshape(x.shape))

    def forward(self, x: Tensor) -> Tensor:
        x = self.attend(x) + self.attention(x)
        y = self.fc2(F.gelu(self.fc1(self.norm(x.permute(0, 2, 3, 1)))))
        return self.feed(x) + y.permute(0, 3, 1, 2)


class FirstToken:
    """A rule that empties the first token."""

    def __call__(self, h: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
        return torch.cat((torch.zeros_like(h[:, :1]), h[:, 1:]), 1)


def test_the_skip_inputs_of_maps_are_tokens_of_channels():
    model = OnMaps()
    finding = find(model, MAPS)
    skips = {site.role: site for site in finding.sites if "residual" in site.role}
    assert {role: site.shape for role, site in skips.items()} == {
        "attention.residual": (BATCH, SIDE**2, WIDTH),
        "feedforward.residual": (BATCH, SIDE**2, WIDTH),
    }
    model.train()
    put(model, finding, FirstToken(), only=lambda site: site.role == "attention.residual")
    seen: list[Tensor] = []
    model.attend.register_forward_hook(lambda module, args, output: seen.append(output))
    model(MAPS)
    expected = MAPS.clone()
    expected[:, :, 0, 0] = 0
    assert torch.equal(seen[0], expected)


class Classifier(nn.Module):
    """Attention that a convolution projects, without a sum, and a linear layer far behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = OnMaps(), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block.attention(x).flatten(2).transpose(1, 2))


def test_a_linear_layer_behind_a_convolution_is_no_output_projection():
    with pytest.raises(NoSites, match=r"attention\.output: no linear layer follows the attention"):
        find(Classifier(), MAPS)


class TimeFirst(nn.Module):
    """An attention by einsum with weights of its own, which tell no order of axes; then a feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(WIDTH, HEADS, SIZE) / 8 for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("tbc,chd->tbhd", x, weight) for weight in self.weights[:3])
        probabilities = torch.softmax(torch.einsum("ibhd,jbhd->bhij", q, k), -1)
        context = torch.einsum("bhij,jbhd->ibhd", probabilities, v)
        x = x + torch.einsum("tbhd,chd->tbc", context, self.weights[3])
        return x + self.mlp(self.norm(x))


def test_time_first_is_seen_by_the_length_of_the_attention():
    shapes = {site.role: site.shape for site in find(TimeFirst(), TOKENS.transpose(0, 1)).sites}
    assert shapes["feedforward.residual"] == (BATCH, LENGTH, WIDTH)
    assert shapes["feedforward.hidden"] == (BATCH, LENGTH, INNER)


class Sampling(nn.Module):
    """Attention to sampled places: the weights, and what they weigh, come of linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.weights, self.proj = Block("module"), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(x)
        return x + self.proj(torch.softmax(self.weights(x), -1) * x.roll(1, 1))


def test_a_softmax_between_linear_layers_is_no_feed_forward():
    finding = find(Sampling(), TOKENS)
    assert {site.layer for site in finding.sites} == {0}
    assert [told.split(": ")[-1] for told in finding.unreached] == [
        "a softmax between its linear layers, and no attention that is understood"
    ]


@pytest.mark.parametrize("normalized", [weight_norm, spectral_norm])
def test_parametrized_linear_layers_are_linear_layers(normalized: Callable[[nn.Module], nn.Module]):
    model = Block("module")
    for module in list(model.modules()):
        if isinstance(module, nn.Linear):
            normalized(module)
    assert_layers(find(model, TOKENS), [ENCODER_LAYER])


class Positions(nn.Module):
    """Blocks that share what they know of positions: one bias of all scores, one tensor for queries and keys."""

    def __init__(self, *, biases: bool) -> None:
        super().__init__()
        self.biases = biases
        self.blocks = nn.ModuleList(Block("module") for _ in range(2))
        self.places = nn.Linear(WIDTH, LENGTH if biases else WIDTH)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        places = self.places(places)
        if self.biases:
            places = places.unsqueeze(1).expand(BATCH, HEADS, LENGTH, LENGTH)
        for block in self.blocks:
            y = block.norm1(x)
            q, k, v = block.split(y)
            if self.biases:
                scores = q @ k.transpose(-2, -1) + places
            else:
                q, k, _ = block.split(y + places)
                scores = q @ k.transpose(-2, -1)
            context = block.attn_drop(torch.softmax(scores, -1)) @ v
            x = x + block.proj(context.transpose(1, 2).flatten(2))
            x = x + block.mlp(block.norm2(x))
        return x


@pytest.mark.parametrize("biases", [False, True])
def test_positions_that_layers_share_are_no_skip_inputs(biases: bool):
    finding = find(Positions(biases=biases), (TOKENS, TOKENS.flip(1)))
    assert [told for told in finding.unreached if "feedforward" in told] == []
    assert sum(site.role == "feedforward.hidden" for site in finding.sites) == 2
