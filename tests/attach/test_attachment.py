"""What an attachment shows is read, and changed by its methods: an assignment would reach no drop."""

import copy

import numpy as np
import pytest
import torch
from torchvision.models import resnet18

import autodropout as ad

IMAGE = torch.randn(1, 3, 160, 160)


@pytest.fixture(scope="module")
def space() -> ad.ConvSpace:
    return ad.space(resnet18(), IMAGE)


def test_numpys_numbers_are_rates(space: ad.ConvSpace) -> None:
    on = ad.attach(resnet18(), space.sample(seed=0), rate=np.float32(0.25), example=IMAGE)
    assert (type(on.rate), on.rate) == (float, 0.25)
    for rate in (*np.linspace(0, 1, 3, dtype=np.float32), np.float16(0.5), np.int64(1)):
        on.set_rate(rate)
        assert (type(on.rate), on.rate) == (float, float(rate))


def test_assignments_are_refused(space: ad.ConvSpace) -> None:
    on = ad.attach(resnet18(), space.sample(seed=1), rate=0.3, example=IMAGE, live=True)
    with pytest.raises(AttributeError, match=r"^rate of an attachment cannot be assigned; call set_rate\(\.\.\.\)$"):
        on.rate = 0.9
    with pytest.raises(AttributeError, match=r"^policy of .* call set_policy\(\.\.\.\) on a live attachment$"):
        on.policy = space.sample(seed=0)
    for name in ("kind", "sites", "live", "model", "unreached", "detached"):
        with pytest.raises(AttributeError, match=f"^{name} of an attachment cannot be assigned$"):
            setattr(on, name, None)
    assert "rate 0.3" in repr(on)
    assert on.sites[-1].rate == pytest.approx(0.3)


def test_methods_change_what_is_shown(space: ad.ConvSpace) -> None:
    on = ad.attach(resnet18(), space.sample(seed=1), rate=0.3, example=IMAGE, live=True)
    other = space.sample(seed=0)
    on.set_rate(0.2)
    on.set_policy(other)
    assert (on.rate, on.policy, on.kind, on.live) == (0.2, other, "convnet", True)


def test_a_copy_has_its_own(space: ad.ConvSpace) -> None:
    model = resnet18()
    on = ad.attach(model, space.sample(seed=0), rate=0.3, example=IMAGE)
    twin = ad.attached(copy.deepcopy(model))
    twin.set_rate(0.1)
    assert (twin.rate, on.rate) == (0.1, 0.3)
    assert twin.model is not on.model
