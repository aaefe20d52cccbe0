"""Recording a forward pass: what the graph holds, and that the model does not notice."""

import weakref

import pytest
import torch
from convnet_tools import Block, library_model, pictures, small, snapshot
from torch import Tensor, nn
from torch.nn import functional as F

from autodropout.attach.record import quiet, record


class Stumbling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch.rand(3)
        raise ZeroDivisionError


class Random(nn.Module):
    """Draws in eval mode too."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(())


def names(graph) -> list[str]:
    return [getattr(node.function, "__name__", "-") for node in graph.nodes]


def test_a_block_as_a_graph():
    graph = record(Block(), pictures(8, channels=4))
    expected = ["-", "conv2d", "batch_norm", "relu", "conv2d", "batch_norm", "add", "relu"]
    assert names(graph) == expected
    assert [node.inputs for node in graph.nodes] == [(), (0,), (1,), (2,), (3,), (4,), (5, 0), (6,)]
    assert [run.path for run in graph.calls] == ["", "conv1", "bn1", "conv2", "bn2"]
    assert [(run.first, run.end, run.output) for run in graph.calls] == [
        (1, 8, 7),
        (1, 2, 1),
        (2, 3, 2),
        (4, 5, 4),
        (5, 6, 5),
    ]
    assert [run.arguments for run in graph.calls] == [(0,), (0,), (1,), (3,), (4,)]
    assert graph.consumers()[0] == [1, 6]


def test_modules_that_hand_their_input_through_have_nodes_of_their_own():
    graph = record(nn.Sequential(nn.Identity(), nn.Sequential(), nn.Dropout(), nn.ReLU(inplace=True)), pictures(4))
    assert [node.inputs for node in graph.nodes if node.function is None] == [(), (0,), (1,)]
    relu = graph.calls[-1]
    assert (relu.path, relu.end - relu.first) == ("3", 1)  # in place: the same tensor, but made by a function


def test_assignments_to_slices_and_scripted_modules_stay_in_the_graph():
    class Assigning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.square = Square()

        def forward(self, x: Tensor) -> Tensor:
            x[:, :1] = self.square(x)[:, :1]
            return x.exp()

    class Square(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Squaring.apply(x)

    class Squaring(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            return x * x

        @staticmethod
        def backward(ctx, grad: Tensor) -> Tensor:
            return grad

    graph = record(Assigning(), pictures(4))
    last = len(graph.nodes) - 1
    assert names(graph)[last] == "exp"
    assigned = graph.nodes[last].inputs[0]
    assert names(graph)[assigned] == "__setitem__"
    square = graph.calls[1].output
    assert square is not None
    assert graph.nodes[square].inputs == (0,)


@pytest.mark.parametrize("example", [pictures(8), (pictures(8),), {"x": pictures(8)}], ids=["tensor", "tuple", "dict"])
def test_examples_can_be_passed_in_three_ways(example):
    assert "add" in names(record(small(Block()), example))


def test_nothing_of_the_model_changes():
    model = library_model("timm/efficientnet_b0")
    model.train()
    model.blocks[2].eval()  # frozen parts stay frozen
    example = pictures(64)
    before, state = snapshot(model), torch.get_rng_state()
    record(model, example)
    assert snapshot(model) == before
    assert torch.equal(torch.get_rng_state(), state)
    model.train()


def test_random_numbers_drawn_by_the_model_are_given_back():
    example = pictures(4)
    state = torch.get_rng_state()
    record(Random(), example)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_error_in_the_model_leaves_nothing_behind():
    model = nn.Sequential(Block(), Stumbling())
    model[0].bn1.eval()
    example = pictures(8, channels=4)
    before, state = snapshot(model), torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        record(model, example)
    assert snapshot(model) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    assert "add" in names(record(Block(), pictures(8, channels=4)))  # and no hook of the first recording is alive
    hooks = torch.nn.modules.module
    assert not hooks._global_forward_hooks
    assert not hooks._global_forward_pre_hooks


def test_the_own_train_method_of_a_model_is_not_called():
    class Touchy(Block):
        def train(self, mode: bool = True) -> "Touchy":
            raise AssertionError("train() was called")

    record(Touchy(), pictures(8, channels=4))


def test_quiet_is_eval_without_gradients():
    model = Block()
    with quiet(model):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
    assert all(module.training for module in model.modules())


def test_a_lazy_model_is_refused_and_stays_lazy():
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU())
    with pytest.raises(ValueError, match=r"'0\.weight' has no shape yet"):
        record(model, pictures(8))
    assert isinstance(model[0], nn.LazyConv2d)


def test_a_compiled_model_is_recorded_as_its_python_runs():
    model = small(Block())
    model.compile(backend="eager", fullgraph=True)
    model(pictures(8))
    assert "add" in names(record(model, pictures(8)))


def test_activations_are_not_kept_alive():
    class Peak(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.alive: list[int] = []

        def forward(self, x: Tensor) -> Tensor:
            refs = []
            for _ in range(5):
                x = F.relu(x + 1)
                refs.append(weakref.ref(x))
            self.alive.append(sum(ref() is not None for ref in refs))
            return x

    model = Peak()
    record(model, pictures(4))
    assert model.alive == [1]
