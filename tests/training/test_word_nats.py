"""Cross-entropies as an operator: torch's own, its gradients, under `vmap`; and the kernels in Triton's interpreter."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from autodropout.training import word_nats_kernel
from autodropout.training.word_nats import word_nats, word_nats_backward


def given(children: int, vocabulary: int, words: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    scores = 8 * torch.randn(children, vocabulary, words, generator=draw)
    bias = torch.randn(children, vocabulary, generator=draw)
    return scores, bias, torch.randint(vocabulary, (words,), generator=draw)


def test_it_is_torchs_under_vmap() -> None:
    scores, bias, targets = given(3, 17, 30)
    leaves = scores.requires_grad_(), bias.requires_grad_()
    nats, _ = torch.vmap(word_nats, in_dims=(0, 0, None))(scores, bias, targets)
    expected = torch.stack(
        [
            F.cross_entropy((score + own[:, None]).mT, targets, reduction="none")
            for score, own in zip(scores, bias, strict=True)
        ]
    )
    torch.testing.assert_close(nats, expected)
    weights = torch.randn(3, 30)
    torch.testing.assert_close(
        torch.autograd.grad((nats * weights).sum(), leaves), torch.autograd.grad((expected * weights).sum(), leaves)
    )


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of what opcheck itself looks at
def test_as_an_operator() -> None:
    scores, bias, targets = given(2, 9, 5)
    torch.library.opcheck(word_nats, (scores.requires_grad_(), bias.requires_grad_(), targets))


@pytest.mark.parametrize(
    ("children", "vocabulary", "words"), [(1, 1, 1), (2, 37, 5), (3, 300, 131), (1, 1025, 128), (2, 16, 257)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_kernels(children: int, vocabulary: int, words: int, dtype: torch.dtype) -> None:
    scores, bias, targets = given(children, vocabulary, words)
    scores = scores.to(dtype)
    nats, logs = word_nats(scores, bias, targets)
    torch.testing.assert_close(word_nats_kernel.forward(scores, bias, targets), (nats, logs), rtol=1e-5, atol=1e-5)
    gradient = torch.randn(children, words)
    ours = word_nats_kernel.backward(gradient, scores, bias, targets, logs)
    theirs = word_nats_backward(gradient, scores, bias, targets, logs)
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-5 if dtype == torch.float32 else 2e-3, atol=1e-6)
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-4, atol=1e-4)


def test_several_parts_of_a_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose number may leave nothing to the last."""
    scores, bias, targets = given(1, 1300, 3)
    expected = word_nats(scores, bias, targets)
    for parts in (1, 2, 7, 10, 1000):
        monkeypatch.setattr(word_nats_kernel, "PROGRAMS", parts)
        torch.testing.assert_close(word_nats_kernel.forward(scores, bias, targets), expected, rtol=1e-5, atol=1e-5)


def test_what_is_not_a_number_is_not_lost() -> None:
    scores, bias, targets = given(2, 40, 6)
    scores[1, 7, 2] = torch.nan
    nats, _ = word_nats_kernel.forward(scores, bias, targets)
    assert nats.isnan().nonzero().tolist() == [[1, 2]]
