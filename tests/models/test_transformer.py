"""The Transformer for translation: its size, its arithmetic against torch's own, masks, cached decoding, its sites."""

import math
import warnings

import pytest
import torch
from torch import Tensor, nn

import autodropout as ad
from autodropout.models.transformer import State, Transformer, TransformerSize, sinusoids

ATTENTION = tuple(
    f"attention.{part}" for part in ("query", "key", "value", "probabilities", "context", "output", "residual")
)
FEEDFORWARD = tuple(f"feedforward.{part}" for part in ("input", "hidden", "output", "residual"))
ROLES = ATTENTION + FEEDFORWARD

PAD, START, VOCABULARY, WIDTH, HEADS, INNER = 0, 1, 13, 16, 4, 24
SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 2, PAD, PAD], [3, 2, PAD, PAD, PAD]])
TARGET = torch.tensor([[START, 4, 5, 6], [START, 7, 8, PAD], [START, 9, PAD, PAD]])


def small(norm_first: bool = True, layers: int = 2) -> Transformer:
    torch.manual_seed(0)
    size = TransformerSize(layers=layers, width=WIDTH, heads=HEADS, inner=INNER, norm_first=norm_first)
    model = Transformer(VOCABULARY, size, padding=PAD, longest=32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # gains and biases off their round values
    return model.eval()


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("vocabulary", [10_000, 32_000])
def test_the_size_of_transformer_base(vocabulary: int, norm_first: bool) -> None:
    with torch.device("meta"):
        model = Transformer(vocabulary, TransformerSize(norm_first=norm_first))
    c, f, norm = 512, 2048, 2 * 512
    feedforward = 2 * c * f + f + c
    encoder, decoder = 4 * c * c + feedforward + 2 * norm, 8 * c * c + feedforward + 3 * norm
    expected = vocabulary * c + 6 * (encoder + decoder) + (2 * norm if norm_first else 0)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
    if norm_first:
        assert expected == {10_000: 49_223_680, 32_000: 60_487_680}[vocabulary]
    assert "positions" not in model.state_dict()


def test_positions() -> None:
    table = sinusoids(50, WIDTH)
    for position in (0, 1, 49):
        for pair in range(WIDTH // 2):
            angle = position / 10000 ** (2 * pair / WIDTH)
            assert table[position, 2 * pair].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 2 * pair + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def as_torch(model: Transformer, norm_first: bool) -> nn.Transformer:
    """The same weights in torch's own layers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are not for normalization first
        theirs = nn.Transformer(
            WIDTH, HEADS, 2, 2, INNER, dropout=0.0, batch_first=True, norm_first=norm_first
        )  # fmt: skip
    if not norm_first:
        theirs.encoder.norm = theirs.decoder.norm = None  # torch normalizes once more in either order

    def attention(mine, other) -> None:
        other.in_proj_weight.copy_(torch.cat((mine.query.weight, mine.key.weight, mine.value.weight)))
        other.in_proj_bias.zero_()
        other.out_proj.weight.copy_(mine.output.weight)
        other.out_proj.bias.zero_()

    with torch.no_grad():
        ours = [*model.encoder, *model.decoder]
        for mine, other in zip(ours, [*theirs.encoder.layers, *theirs.decoder.layers], strict=True):
            attention(mine.attention, other.self_attn)
            other.norm1.load_state_dict(mine.attention_norm.state_dict())
            other.linear1.load_state_dict(mine.feedforward.first.state_dict())
            other.linear2.load_state_dict(mine.feedforward.second.state_dict())
            last = other.norm2
            if hasattr(mine, "cross_attention"):
                attention(mine.cross_attention, other.multihead_attn)
                other.norm2.load_state_dict(mine.cross_attention_norm.state_dict())
                last = other.norm3
            last.load_state_dict(mine.feedforward_norm.state_dict())
        if norm_first:
            theirs.encoder.norm.load_state_dict(model.encoder_norm.state_dict())
            theirs.decoder.norm.load_state_dict(model.decoder_norm.state_dict())
    return theirs.train()  # no dropout, and not the fused path


@pytest.mark.parametrize("norm_first", [True, False])
def test_it_computes_what_torch_does(norm_first: bool) -> None:
    model = small(norm_first)
    theirs, padded = as_torch(model, norm_first), SOURCE == PAD

    def embedded(tokens: Tensor) -> Tensor:
        return model.embedding.weight[tokens] * math.sqrt(WIDTH) + sinusoids(tokens.shape[1], WIDTH)

    hidden = theirs(
        embedded(SOURCE),
        embedded(TARGET),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(TARGET.shape[1]),
        src_key_padding_mask=padded,
        memory_key_padding_mask=padded,
    )
    torch.testing.assert_close(model(SOURCE, TARGET), hidden @ model.embedding.weight.T, rtol=1e-4, atol=1e-4)


def test_padding_changes_nothing() -> None:
    model = small()
    together = model(SOURCE, TARGET)
    for row in range(3):
        source, target = SOURCE[row][SOURCE[row] != PAD], TARGET[row][TARGET[row] != PAD]
        alone = model(source[None], target[None])
        torch.testing.assert_close(together[row, : len(target)], alone[0], rtol=1e-5, atol=1e-5)


def test_no_token_sees_those_after_it() -> None:
    model = small()
    logits, changed = model(SOURCE, TARGET), TARGET.clone()
    changed[:, 2] = 11
    other = model(SOURCE, changed)
    assert torch.equal(logits[:, :2], other[:, :2])
    assert not torch.isclose(logits[:, 2:], other[:, 2:]).all(-1).any()


def test_a_source_of_padding_alone_gives_numbers() -> None:
    assert small()(torch.full((1, 3), PAD), TARGET[:1]).isfinite().all()


@pytest.mark.parametrize("norm_first", [True, False])
def test_cached_decoding_equals_uncached(norm_first: bool) -> None:
    model = small(norm_first)
    state: State = model.start(SOURCE)
    expected = model(SOURCE, TARGET)
    for position in range(TARGET.shape[1]):
        assert state.length == position
        logits, state = model.step(TARGET[:, position], state)
        torch.testing.assert_close(logits, expected[:, position], rtol=1e-5, atol=1e-5)


def test_rows_are_repeated_and_go_on_from_each_other() -> None:
    model = small()
    state = model.start(SOURCE).repeated(2)
    first = torch.tensor([START] * 6)
    second = torch.tensor([4, 5, 6, 7, 8, 9])
    _, state = model.step(first, state)
    _, state = model.step(second, state)
    rows = torch.tensor([1, 1, 2, 3, 5, 4])  # of one source each: 0 and 1, 2 and 3, 4 and 5
    logits, _ = model.step(torch.full((6,), 10), state.reordered(rows))
    told = torch.stack((first, second[rows], torch.full((6,), 10)), 1)  # (6, 3)
    expected = model(SOURCE.repeat_interleave(2, 0), told)[:, -1]
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def expected_shape(role: str, target: int, source: int) -> tuple[int, ...]:
    """As a drop is shown a tensor: `target` tokens that ask, `source` tokens that are read."""
    if role in ("attention.query", "attention.context"):
        return 3, HEADS, target, WIDTH // HEADS
    if role in ("attention.key", "attention.value"):
        return 3, HEADS, source, WIDTH // HEADS
    if role == "attention.probabilities":
        return 3, HEADS, target, source
    return 3, target, INNER if role == "feedforward.hidden" else WIDTH


@pytest.mark.parametrize("norm_first", [True, False])
def test_every_site_is_reached(norm_first: bool) -> None:
    model = small(norm_first)
    space = ad.space(model, (SOURCE, TARGET))
    assert isinstance(space, ad.TransformerSpace)
    assert sorted(space.sites) == sorted(ROLES)
    pattern = ad.SequencePattern(size=10, stride=5, share_t=True, share_c=False)
    policy = ad.TransformerPolicy(sites=dict.fromkeys(ROLES, pattern))
    on = ad.attach(model, policy, rate=0.5, example=(SOURCE, TARGET))
    assert on.unreached == ()
    encoder, self_attention, cross = (ROLES, 5, 5), (ATTENTION, 4, 4), (ATTENTION + FEEDFORWARD, 4, 5)
    layers = [encoder, encoder, self_attention, cross, self_attention, cross]
    for number, (roles, target, source) in enumerate(layers):
        sites = [site for site in on.sites if site.site.layer == number]
        assert [site.role for site in sites] == list(roles)
        for site in sites:
            assert site.shape == expected_shape(site.role, target, source), site.name
            assert site.rule is not None


def test_cross_attention_takes_the_patterns_of_self_attention() -> None:
    model = small()
    patterns = {
        role: ad.SequencePattern(size=10 * (number % 7 + 1), stride=5 * (number // 7), share_t=False, share_c=False)
        for number, role in enumerate(ROLES)
    }
    on = ad.attach(model, ad.TransformerPolicy(sites=patterns), rate=0.5, example=(SOURCE, TARGET))
    cross = [site for site in on.sites if ".cross_attention:" in site.name]
    assert len(cross) == 2 * len(ATTENTION)
    assert all(site.rule.pattern == patterns[site.role] for site in cross)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("role", ROLES)
def test_every_site_acts_in_training_and_only_there(role: str, norm_first: bool) -> None:
    model = small(norm_first)
    expected = model(SOURCE, TARGET)
    keys = list(model.state_dict())
    baseline = ad.baseline("dropout", sites=(role,))
    on = ad.attach(model, baseline, rate=0.3, example=(SOURCE, TARGET))
    assert torch.equal(model(SOURCE, TARGET), expected)
    model.train()
    one, other = model(SOURCE, TARGET), model(SOURCE, TARGET)
    assert not torch.equal(one, expected)
    assert not torch.equal(one, other)
    assert list(model.state_dict()) == keys
    on.set_rate(0.0)
    torch.testing.assert_close(model(SOURCE, TARGET), expected)


def test_one_matrix_embeds_and_predicts() -> None:
    model = small()
    assert [n for n, parameter in model.named_parameters() if VOCABULARY in parameter.shape] == ["embedding.weight"]
    model(SOURCE, TARGET).sum().backward()
    unused = 12  # in no sentence: its gradient comes through the softmax alone
    assert unused not in SOURCE
    assert unused not in TARGET
    assert model.embedding.weight.grad[unused].abs().sum() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, "layers .* got 0"),
        ({"heads": 0}, "heads .* got 0"),
        ({"inner": -1}, "inner .* got -1"),
        ({"width": 18}, "4 heads, got 18"),
        ({"width": 9, "heads": 3}, "even .* got 9"),
    ],
)
def test_sizes_that_are_none(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformerSize(**({"width": WIDTH, "heads": HEADS} | options))


@pytest.mark.parametrize(
    ("options", "message"), [({"padding": 13}, "vocabulary, of 13, got 13"), ({"longest": 0}, "longest .* got 0")]
)
def test_mistakes(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Transformer(VOCABULARY, TransformerSize(layers=1, width=WIDTH, heads=HEADS), **options)


def test_a_row_that_is_too_long() -> None:
    model = small()
    with pytest.raises(ValueError, match=r"a row of 33 tokens is longer than .* 32"):
        model(torch.full((1, 33), 4), TARGET[:1])
