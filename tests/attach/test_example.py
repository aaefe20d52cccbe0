"""The example: three ways to give it, and what is said of any other and where the model refuses it."""

import re

import numpy as np
import pytest
import torch
from convnet_tools import Block, pictures
from torch import Tensor, nn
from transformer_tools import t5

import autodropout as ad
from autodropout.attach.example import call

X = pictures(8, channels=4)
SHAPE = tuple(X.shape)
DICT = r"a dict is passed by its names, and what is one argument as a whole goes into a tuple: example=\(it,\)"


def refused(model: nn.Module, example: object, kind: type[Exception], *words: str) -> str:
    """What is said, on lines; each of `words` in it."""
    with pytest.raises(kind) as problem:
        call(model, example)
    assert type(problem.value) is kind
    assert type(problem.value.__cause__) is kind, "the model's own error stays in sight"
    assert str(problem.value.__cause__) in str(problem.value)
    for word in words:
        assert re.search(word, str(problem.value)), (word, str(problem.value))
    return str(problem.value)


def test_a_shape_is_no_input() -> None:
    said = refused(Block(), (2, 3, 8, 8), TypeError, r"takes 2 positional arguments but 5 were given")
    assert said.startswith("the model could not run on the example (positional arguments: 2, 3, 8, 8): ")
    assert said.endswith("\n  an example is an input, not its shape: torch.randn(2, 3, 8, 8), say")


def test_a_sample_is_no_batch() -> None:
    said = refused(Block(), X[0], ValueError, "expected 4D input")
    assert said.startswith(f"the model could not run on the example (float32 tensor of shape {SHAPE[1:]}): ")
    assert said.endswith("\n  an example is a batch, as the model's forward takes it: (x)")


def test_other_names() -> None:
    what = re.escape(f"(keyword arguments: image=float32 tensor of shape {SHAPE}, label=3)")
    refused(Block(), {"image": X, "label": 3}, TypeError, what, r"forward takes it: \(x\); " + DICT)


def test_a_model_that_wants_more() -> None:
    model, example = t5()
    ids = example["input_ids"]
    takes = r"takes it: \(input_ids, attention_mask, decoder_input_ids, .*\.\.\.\)"
    refused(model, ids, ValueError, rf"\(int64 tensor of shape \({len(ids)}, .*exactly one of input_ids", takes)


def test_arrays() -> None:
    with pytest.raises(
        ValueError, match=r"got NumPy array of shape \(2, 3\); torch.from_numpy\(it\) makes a tensor of it$"
    ):
        call(Block(), np.zeros((2, 3)))
    for example in ((X.numpy(),), {"x": X.numpy()}):
        refused(
            Block(), example, TypeError, r"NumPy array of shape \(", r"\(x\); torch.from_numpy\(it\) makes a tensor"
        )


def test_what_is_no_example() -> None:
    with pytest.raises(ValueError, match=r"got list; what is one argument as a whole .* example=\(it,\)"):
        call(Block(), [X])
    with pytest.raises(ValueError, match="got None; what is one"):
        call(Block(), None)


def test_nothing_long_is_repeated() -> None:
    said = refused(
        Block(), (X, [X] * 90, {"a": X}, *[1.5] * 90), TypeError, r": float32 .*, list, a dict of a, 1\.5, 1\.5"
    )
    assert len(said) < 600


def test_other_errors_stay_what_they_are() -> None:
    """Their constructors may take anything; a note goes with them."""

    class OwnError(Exception):
        def __init__(self, one: int, other: int) -> None:
            super().__init__(one + other)

    class Own(nn.Module):
        def forward(self, *x: Tensor, **more: Tensor) -> Tensor:
            raise OwnError(1, 2)

    with pytest.raises(OwnError) as problem:
        call(Own(), X)
    (note,) = problem.value.__notes__
    assert note.startswith("the model could not run on the example (float32 tensor of shape")
    assert note.endswith("forward takes it: (*x, **more)")


def test_it_is_said_wherever_a_model_is_looked_at() -> None:
    for look in (
        lambda: ad.space(Block(), X[0, 0]),
        lambda: ad.attach(Block(), ad.baseline("dropout"), X[0, 0], rate=0.1),
    ):
        with pytest.raises(RuntimeError, match="could not run on the example"):
            look()


def test_a_forward_that_tells_no_names() -> None:
    model = nn.Identity()
    model.forward = torch.relu
    assert refused(model, (X, 1.5), TypeError).endswith("\n  an example is a batch, as the model's forward takes it")
