"""Live attachments: another policy without compiling anew; masks that are a function of a tensor."""

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

import autodropout as ad
from autodropout.layers import ConvRule
from autodropout.models import wide_resnet

MAPS = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def conv_model() -> nn.Module:
    torch.manual_seed(0)
    return wide_resnet(10, 1, classes=5)


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


SEQUENCES = torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(0))
CASES = [(conv_model, MAPS), (encoder, SEQUENCES)]


def seeded(model: nn.Module, example: Tensor, seed: int = 7) -> Tensor:
    torch.manual_seed(seed)
    return model(example)


@pytest.mark.parametrize(("build", "example"), CASES)
def test_each_policy_in_turn_acts_as_if_it_were_attached_alone(build, example) -> None:
    model = build()
    space = ad.space(model, example)
    policies = [space.sample(seed=seed) for seed in range(4)]
    live = ad.attach(build(), policies[0], rate=0.5, example=example, live=True)
    noise = torch.tensor(0)
    live.draw_from(noise)
    for number, policy in enumerate([*policies, policies[0]]):
        live.set_policy(policy)
        noise.fill_(0x123456789ABCDEF * (number + 1))
        alone = ad.attach(build(), policy, rate=0.5, example=example)
        alone.draw_from(noise)
        expected, got = alone.model(example), live.model(example)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
        assert live.policy == policy
        assert [(row.name, row.rule) for row in live.sites] == [(row.name, row.rule) for row in alone.sites]
    assert str(live).replace(", live\n", "\n", 1) == str(alone)


def test_nothing_is_compiled_anew() -> None:
    model = encoder()
    space = ad.space(model, SEQUENCES)
    on = ad.attach(model, space.sample(seed=0), rate=0.5, example=SEQUENCES, live=True)
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    outputs = []
    for seed in range(5):
        on.set_policy(space.sample(seed=seed))
        on.set_rate(0.1 * seed)
        outputs.append(seeded(compiled, SEQUENCES))
    assert counter.frame_count == 1
    assert len({tuple(output.flatten()[::50].tolist()) for output in outputs}) == 5


def test_masks_drawn_from_a_tensor() -> None:
    model = conv_model()
    policy = next(
        p for p in map(ad.space(model, MAPS).sample, range(9)) if all(not g.pattern.is_none for g in p.groups)
    )
    on = ad.attach(model, policy, rate=1.0, example=MAPS)
    noise = torch.tensor(12345 << 40)
    on.draw_from(noise)
    state = torch.get_rng_state()
    first, again = model(MAPS), model(MAPS)
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), state)
    noise.add_(1 << 50)
    assert not torch.equal(model(MAPS), first)
    on.draw_from(None)
    assert not torch.equal(seeded(model, MAPS, 1), seeded(model, MAPS, 2))
    assert torch.equal(seeded(model, MAPS, 1), seeded(model, MAPS, 1))


def test_refusals() -> None:
    model = conv_model()
    space = ad.space(model, MAPS)
    with pytest.raises(ValueError, match=r"a baseline \(dropblock\) cannot be live"):
        ad.attach(model, ad.baseline("dropblock"), rate=0.1, example=MAPS, live=True)
    on = ad.attach(model, space.sample(seed=0), rate=0.1, example=MAPS)
    with pytest.raises(ValueError, match="needs a live attachment"):
        on.set_policy(space.sample(seed=1))
    on.detach()
    on = ad.attach(model, space.sample(seed=0), rate=0.1, example=MAPS, live=True)
    with pytest.raises(ValueError, match="this is a convnet, and the policy is for a transformer"):
        on.set_policy(ad.space(encoder(), SEQUENCES).sample(seed=0))
    with pytest.raises(TypeError, match=r"set_policy wants a policy, got 'x'; ad\.load\('x'\) reads"):
        on.set_policy("x")
    with pytest.raises(TypeError, match="set_policy wants a policy, got the baseline 'dropblock'"):
        on.set_policy(ad.baseline("dropblock"))
    with pytest.raises(ValueError, match="after draw_from"):
        on.draw_together()
    with pytest.raises(ValueError, match="the policy has 4 groups"):
        on.set_policy(ad.space(torchvision.models.resnet18(), torch.randn(1, 3, 64, 64)).sample(seed=0))
    assert on.policy == space.sample(seed=0)


@pytest.mark.parametrize(
    ("compiled", "layout"),
    [
        (False, torch.contiguous_format),
        (False, torch.channels_last),
        pytest.param(True, torch.contiguous_format, marks=pytest.mark.slow),
        pytest.param(True, torch.channels_last, marks=pytest.mark.slow),
    ],
)
def test_drawn_together_the_masks_are_the_same(compiled: bool, layout: torch.memory_format) -> None:
    example = torch.randn(3, 3, 16, 16).contiguous(memory_format=layout)
    models = [conv_model().to(memory_format=layout) for _ in range(2)]
    space = ad.space(models[0], example)
    attachments = [ad.attach(model, space.sample(seed=0), rate=0.5, example=example, live=True) for model in models]
    noise = torch.tensor(0)
    for on in attachments:
        on.draw_from(noise)
    attachments[1].draw_together()
    forwards = [torch.compile(model, fullgraph=True) if compiled else model for model in models]
    for seed in (1, 2):
        noise.fill_(seed * 0x123456789ABCDEF)
        for on in attachments:
            on.set_policy(space.sample(seed=seed))
            on.set_rate(0.3 * seed)
        one_by_one, together = (forward(example) for forward in forwards)
        torch.testing.assert_close(together, one_by_one)
        attachments[1].set_rate(0.0)
        assert not torch.allclose(forwards[1](example), together), "a rate that is set acts"
        attachments[1].set_rate(0.3 * seed)
    smaller = torch.randn(2, 3, 12, 12)
    noise.fill_(77 << 50)
    torch.testing.assert_close(models[1](smaller), models[0](smaller))


@pytest.mark.parametrize("images", [torch.contiguous_format, torch.channels_last])
def test_drawn_together_no_site_draws_again(images: torch.memory_format, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights in channels_last make such maps of images that are not."""
    model, example = conv_model().to(memory_format=torch.channels_last), MAPS.contiguous(memory_format=images)
    on = ad.attach(model, ad.space(model, example).sample(seed=0), rate=0.5, example=example, live=True)
    on.draw_from(torch.tensor(5))
    on.draw_together()
    drawn: list[object] = []
    monkeypatch.setattr(ConvRule, "bits", lambda *given: drawn.append(given))
    model(example)
    assert not drawn


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_drawn_ahead_the_masks_are_of_the_noise_of_then(compiled: bool) -> None:
    model = conv_model()
    on = ad.attach(model, ad.space(model, MAPS).sample(seed=0), rate=0.5, example=MAPS, live=True)
    noise = torch.tensor(5)
    on.draw_from(noise)
    with pytest.raises(ValueError, match=r"after draw_together\(\)"):
        on.draw_ahead(len(MAPS))
    on.draw_together()
    forward = torch.compile(model, fullgraph=True) if compiled else model
    first = forward(MAPS)
    on.draw_ahead(len(MAPS))
    noise.fill_(6)
    torch.testing.assert_close(forward(MAPS), first)
    second = forward(MAPS)  # they serve one pass
    assert not torch.allclose(second, first)
    on.draw_ahead(len(MAPS) + 1)  # of no use for this one, whose sites then draw their own
    torch.testing.assert_close(forward(MAPS), second)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_compiled_code_keeps_bits_for_backward(layout: torch.memory_format, together: bool) -> None:
    """An eighth of a byte a value: neither a byte, as a boolean takes, nor a copy of the bits in another layout."""
    model = nn.Sequential(*(nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.SiLU()) for _ in range(5)))
    model, example = model.to(memory_format=layout), torch.randn(4, 8, 16, 16).contiguous(memory_format=layout)
    on = ad.attach(model, ad.space(model, example).sample(seed=0), rate=0.5, example=example, live=True)
    on.draw_from(torch.tensor(5))
    if together:
        on.draw_together()
    kept: list[Tensor] = []

    def keep(value: Tensor) -> Tensor:
        kept.append(value)
        return value

    forward = torch.compile(model, backend="aot_eager_decomp_partition", fullgraph=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        forward(example)
    masks = [value for value in kept if value.dtype in (torch.bool, torch.uint8)]
    assert sum(value.numel() for value in masks) == len(on.sites) * example.numel() / 8
    assert layout == torch.contiguous_format or all(value.dim() != 4 for value in masks), "Inductor would copy those"
