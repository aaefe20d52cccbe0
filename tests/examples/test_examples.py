"""The examples run, and a policy is at work in them."""

import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def test_first_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import autodropout as ad

    monkeypatch.chdir(tmp_path)
    import first_look

    first_look.main()
    said = capsys.readouterr().out
    assert "layer4.2.bn3" in said
    assert ad.load(tmp_path / "out" / "policy.json").kind == "convnet"
    assert (tmp_path / "out" / "masks.png").read_bytes().startswith(b"\x89PNG")


def test_plain_loop() -> None:
    import plain_loop

    model, losses = plain_loop.train(steps=2)
    assert all(0 < loss < 20 for loss in losses)
    assert not model.training


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)  # the trainers'
def test_hugging_face_trainer() -> None:
    pytest.importorskip("accelerate", reason="accelerate, which the Trainer needs, is not installed")
    import hugging_face_trainer

    on, loss = hugging_face_trainer.train(steps=4)
    assert 0 < loss < 5
    assert on.rate == 0.1, "the late schedule was stepped by the trainer"


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)  # the trainers'
def test_lightning_trainer() -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")
    import lightning_trainer

    module = lightning_trainer.train(steps=2)
    assert module.on.rate == pytest.approx(0.2)
    assert module.rate.state_dict()["step"] == 2
    assert "lightning" in sys.modules
