"""What `attach` promises, on every kind of model."""

import copy
import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import autodropout as ad
from attach.zoo import MAKERS, Case


@pytest.fixture(params=MAKERS)
def case(request: pytest.FixtureRequest) -> Case:
    return MAKERS[request.param]()


def attach(case: Case, rate: float = 0.3) -> ad.Attachment:
    return ad.attach(case.model, case.policy, rate=rate, example=case.example)


def anatomy(model: nn.Module) -> dict[str, Any]:
    """Everything about a model's modules that attaching could leave behind."""
    return {
        name: (
            type(module),
            sorted(module.__dict__),
            module.training,
            [list(hooks.values()) for hooks in (module._forward_hooks, module._forward_pre_hooks)],
            len(module._forward_hooks_with_kwargs) + len(module._forward_pre_hooks_with_kwargs),
            module.__dict__.get("forward"),
        )
        for name, module in model.named_modules()
    }


def equal_states(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[key], other[key]) for key in one)


@contextmanager
def compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_attach_and_detach_leave_the_model_as_it_was(case: Case) -> None:
    case.model.train()
    state = copy.deepcopy(case.model.state_dict())
    names = [name for name, _ in case.model.named_modules()]
    before, rng = anatomy(case.model), torch.get_rng_state()
    on = attach(case)
    assert torch.equal(rng, torch.get_rng_state())
    assert equal_states(state, case.model.state_dict())
    assert names == [name for name, _ in case.model.named_modules()]
    on.detach()
    assert torch.equal(rng, torch.get_rng_state())
    assert equal_states(state, case.model.state_dict())
    assert anatomy(case.model) == before


def test_it_acts_in_training_and_only_there(case: Case) -> None:
    bare = case.run(case.model.eval())
    on = attach(case)
    assert torch.equal(case.run(case.model.eval()), bare)
    case.model.train()
    one, two = case.run(), case.run()
    assert not torch.equal(one, two)
    assert one.isfinite().all()
    on.set_rate(0.0)
    assert torch.equal(case.run(), case.run())
    on.detach()
    assert torch.equal(case.run(case.model.eval()), bare) or any(
        isinstance(module, nn.BatchNorm2d) for module in case.model.modules()
    )  # a batch normalization has learned from the training calls above


def test_every_site_fires(case: Case) -> None:
    on = attach(case)
    assert all(row.drop is not None for row in on.sites)
    calls: list[int] = []
    for row in on.sites:
        row.drop.rule = Recorder(row.drop.rule, row.drop.site, calls)
    case.run(case.model.train())
    assert sorted(calls) == list(range(len(on.sites)))


class Recorder:
    """A rule that notes its site's number and does what the rule it stands for does."""

    def __init__(self, rule: Any, site: int, calls: list[int]) -> None:
        self.rule, self.site, self.calls = rule, site, calls

    def __call__(self, h: torch.Tensor, rate: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
        self.calls.append(self.site)
        return self.rule(h, rate, seed)


def test_gradients_flow_and_manual_seed_repeats_a_step(case: Case) -> None:
    attach(case)
    case.model.train()
    grads = []
    for _ in range(2):
        case.model.zero_grad()
        torch.manual_seed(5)
        case.run().square().sum().backward()
        grads.append([p.grad.clone() for p in case.model.parameters() if p.grad is not None])
    assert grads[0]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_a_second_policy_is_refused_until_the_first_is_off(case: Case) -> None:
    on = attach(case)
    with pytest.raises(ValueError, match="attached already"):
        attach(case)
    on.detach()
    attach(case).detach()


def test_a_deep_copy_has_drops_of_its_own(case: Case) -> None:
    on = attach(case)
    twin = copy.deepcopy(case.model).train()
    case.model.train()
    its = ad.attached(twin)
    assert its is not None
    assert its is not on
    its.set_rate(0.0)
    assert torch.equal(case.run(twin), case.run(twin))
    assert not torch.equal(case.run(), case.run())
    its.detach()
    assert ad.attached(twin) is None
    assert not torch.equal(case.run(), case.run())
    fresh = copy.deepcopy(twin)
    assert not any("autodropout" in str(hook) for m in fresh.modules() for hook in m._forward_hooks.values())


def test_state_is_saved_and_loaded_while_attached(case: Case) -> None:
    bare = copy.deepcopy(case.model)
    attach(case)
    file = io.BytesIO()
    torch.save(case.model.state_dict(), file)
    file.seek(0)
    bare.load_state_dict(torch.load(file, weights_only=True))
    case.model.load_state_dict(bare.state_dict())
    assert torch.equal(case.run(case.model.eval()), case.run(bare.eval()))


def test_an_attached_model_can_be_pickled(case: Case) -> None:
    attach(case)
    twin = pickle.loads(pickle.dumps(case.model))
    torch.manual_seed(1)
    one = case.run(case.model.train())
    torch.manual_seed(1)
    assert torch.equal(one, case.run(twin.train()))


def test_export_in_eval_mode(case: Case) -> None:
    attach(case)
    case.model.eval()
    args, kwargs = ((), case.example) if isinstance(case.example, dict) else ((case.example,), {})
    program = torch.export.export(case.model, args, kwargs)
    assert "autodropout" not in str(program.graph)
    torch.testing.assert_close(case.run(program.module()), case.run())


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated", "ignore::torch.jit.TracerWarning")
class TestTorchScript:
    """Not supported while a policy is attached, but for traces in eval mode; and it says so in plain words."""

    def test_scripts(self, case: Case) -> None:
        on = attach(case)
        for training in (True, False):
            case.model.train(training)
            with pytest.raises(RuntimeError, match=r"^torch.jit.script cannot .* attached: call detach\(\) first$"):
                torch.jit.script(case.model)
        on.detach()
        assert "__prepare_scriptable__" not in {name for module in case.model.modules() for name in vars(module)}

    def test_traces(self, case: Case) -> None:
        attach(case)
        given = {} if isinstance(case.example, dict) else {"example_inputs": case.example}
        given |= {"example_kwarg_inputs": case.example} if isinstance(case.example, dict) else {}
        case.model.train()
        with pytest.raises(
            RuntimeError, match=r"^torch.jit.trace cannot follow masks, .*: trace in eval mode, or call"
        ):
            torch.jit.trace(case.model, **given, strict=False)


class TestCompiled:
    """`torch.compile(fullgraph=True)`: one graph for all rates, and the masks it draws."""

    def test_one_graph_over_twenty_rates(self, case: Case) -> None:
        on = attach(case)
        case.model.train()
        with compiler():
            counter = CompileCounterWithBackend("aot_eager")
            model = torch.compile(case.model, fullgraph=True, backend=counter)
            outputs = []
            for k in range(20):
                on.set_rate(0.05 * (k + 1) - 0.01)
                outputs.append(case.run(model))
                outputs[-1].sum().backward()
            assert counter.frame_count == 1
        assert all(out.isfinite().all() for out in outputs)
        assert not torch.equal(outputs[0], outputs[1])

    def test_a_rate_that_rises_from_zero(self, case: Case) -> None:
        """As under a linear schedule: compiled once more, and then no more."""
        on = attach(case)
        case.model.train()
        with compiler():
            counter = CompileCounterWithBackend("aot_eager")
            model = torch.compile(case.model, fullgraph=True, backend=counter)
            schedule = ad.RateSchedule(on, "linear", rate=0.4, steps=2)
            counts, random = [], []
            for _ in range(3):
                random.append(not torch.equal(case.run(model), case.run(model)))
                counts.append(counter.frame_count)
                schedule.step()
        assert counts == [1, 2, 2]
        assert random == [False, True, True]

    def test_attaching_and_detaching_after_a_compiled_call(self, case: Case) -> None:
        case.model.eval()
        for module in case.model.modules():  # batch statistics would make training calls differ
            module.train(not isinstance(module, nn.BatchNorm2d))
        with compiler():
            model = torch.compile(case.model, backend="aot_eager")
            bare = case.run(model)
            on = ad.attach(model, case.policy, rate=0.5, example=case.example)
            case.model.train()
            assert not torch.equal(case.run(model), case.run(model))
            on.detach()
            case.model.eval()
            for module in case.model.modules():
                module.train(not isinstance(module, nn.BatchNorm2d))
            assert torch.equal(case.run(model), case.run(model))
            assert bare.shape == case.run(model).shape


@pytest.mark.parametrize("name", ["resnet18", "encoder"])
def test_inductor_draws_masks_of_the_same_statistics(name: str) -> None:
    """The share of zeros at the first site over 40 calls, eager against compiled: 5 standard errors apart at most."""
    case = MAKERS[name]()
    on = attach(case, rate=1.0)
    row = on.sites[0]
    row.drop.set_rate(0.5)
    shares: dict[str, list[float]] = {"eager": [], "compiled": []}
    rule = row.drop.rule
    h = torch.ones(row.shape)
    with compiler():
        compiled = torch.compile(lambda h: row.drop(h), fullgraph=True)
        for _ in range(40):
            shares["eager"].append((row.drop(h) == 0).double().mean().item())
            shares["compiled"].append((compiled(h) == 0).double().mean().item())
    eager, other = (torch.tensor(values, dtype=torch.float64) for values in shares.values())
    assert rule is row.drop.rule
    assert other.std() > 0
    assert (eager.mean() - other.mean()).abs() < 5 * ((eager.var() + other.var()) / 40).sqrt()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(case: Case, dtype: torch.dtype) -> None:
    attach(case)
    case.model.train()
    with torch.autocast("cpu", dtype):
        out = case.run()
    out.float().sum().backward()
    assert out.isfinite().all()
    assert all(p.grad.isfinite().all() for p in case.model.parameters() if p.grad is not None)


def test_the_table_and_the_data(case: Case) -> None:
    on = attach(case, rate=0.4)
    assert str(on).startswith(repr(on)[1:-1])
    for row in on.sites:
        assert str(row).startswith(f"{row.name} (")
        assert row.role in str(row)
        assert "x".join(map(str, row.shape)) in str(row)
        assert str(row).endswith(f", rate {row.rate:.4g}")
    rates = [row.rate for row in on.sites]
    assert max(rates) == pytest.approx(0.4)
    assert ("rates rise linearly" in str(on)) == (min(rates) < max(rates))
