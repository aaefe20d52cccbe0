"""Checkpoints: every type comes back as it was, damage is seen, and what was there before survives."""

import json
import math
import os
import pickle
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from autodropout.training import packing
from autodropout.training.checkpoint import CheckpointError, Checkpoints, load, save
from autodropout.training.packing import DTYPES
from small_disk import mounted


def again(state: Any, folder: Path) -> Any:
    save(folder / "state.safetensors", state)
    return load(folder / "state.safetensors")


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down; nan equals nan."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bits(one) == bits(other)
    if isinstance(one, dict):
        return list(map(repr, one)) == list(map(repr, other)) and all(map(same, one.values(), other.values()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


def bits(tensor: Tensor) -> list[int]:
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
keys = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
nested = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner), max_leaves=20
)


@given(nested)
def test_what_json_would_change_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, state: Any) -> None:
    assert same(again(state, tmp_path_factory.getbasetemp()), state)


@pytest.mark.parametrize("dtype", sorted(DTYPES, key=str), ids=str)
def test_tensors_of_every_type(tmp_path: Path, dtype: torch.dtype) -> None:
    raw = torch.arange(48, dtype=torch.uint8)
    if dtype is torch.bool:
        raw %= 2
    tensor = raw.view(dtype)
    state = {
        "all": tensor,
        "scalar": tensor[1],
        "none of it": tensor[:0],
        "no columns": tensor[:0].reshape(3, 0),
        "transposed": tensor.reshape(2, -1).t(),
        "every second": tensor[::2],
        "expanded": tensor[0].expand(2, 3),
    }
    assert same(again(state, tmp_path), state)


def test_numbers_that_are_none(tmp_path: Path) -> None:
    state = {"a": math.nan, "b": [math.inf, -math.inf], "c": torch.tensor([math.nan, math.inf]), "d": -0.0}
    assert same(again(state, tmp_path), state)
    content = (tmp_path / "state.safetensors").read_bytes()
    assert b"NaN" not in content, "which no other reader of JSON would take"


def test_memory_formats_come_back(tmp_path: Path) -> None:
    tensor = torch.randn(2, 3, 4, 5)
    state = [tensor.to(memory_format=torch.channels_last), tensor.permute(3, 1, 0, 2), tensor[:, :, ::2], tensor]
    loaded = again(state, tmp_path)
    assert same(loaded, state)
    assert [one.stride() for one in loaded] == [state[0].stride(), state[1].stride(), (30, 10, 5, 1), tensor.stride()]


def test_tied_tensors_come_back_tied_and_views_apart(tmp_path: Path) -> None:
    table = torch.randn(4, 3)
    image = torch.randn(1, 2, 3, 3).to(memory_format=torch.channels_last)
    state = {"embedding": table, "softmax": table, "part": table[1:], "flat": table.view(-1), "images": (image, image)}
    loaded = again(state, tmp_path)
    assert same(loaded, state)
    loaded["embedding"].zero_()
    assert not loaded["softmax"].any()
    assert torch.equal(loaded["part"], table[1:])
    assert torch.equal(loaded["flat"], table.view(-1))
    assert loaded["images"][0] is loaded["images"][1]
    assert len(safetensors.torch.load_file(tmp_path / "state.safetensors")) == 4, "what is tied is written once"


def test_names_that_look_alike(tmp_path: Path) -> None:
    state = {"a/b": {"c": torch.zeros(1)}, "a": {"b/c": torch.ones(1)}, 1: torch.zeros(2), "1": torch.ones(2)}
    assert same(again(state, tmp_path), state)


class TiedModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.softmax = nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, 7)
        self.softmax.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.softmax(self.norm(self.embedding(words)))


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.SGD(parameters, 0.1),
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, nesterov=True),
        lambda parameters: torch.optim.Adam(parameters, 1e-3, amsgrad=True),
        lambda parameters: torch.optim.AdamW(parameters, torch.tensor(1e-3), foreach=False),
        lambda parameters: torch.optim.RMSprop(parameters, 1e-3, momentum=0.9),
        lambda parameters: torch.optim.Adagrad(parameters, 1e-3),
        lambda parameters: torch.optim.LBFGS(parameters, 1e-3, max_iter=2),
    ],
    ids=["sgd", "momentum", "adam", "adamw", "rmsprop", "adagrad", "lbfgs"],
)
def test_optimizers(tmp_path: Path, make: Any) -> None:
    model = TiedModel()
    optimizer = make(model.parameters())
    words = torch.arange(7)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words), words)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    before = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    loaded = again(before, tmp_path)
    assert same(loaded["optimizer"], before["optimizer"])
    other = TiedModel()
    other_optimizer = make(other.parameters())
    other.load_state_dict(loaded["model"])
    other_optimizer.load_state_dict(loaded["optimizer"])
    assert other.softmax.weight is other.embedding.weight
    optimizer.step(closure)
    model, mine, optimizer = other, model, other_optimizer
    optimizer.step(closure)
    assert all(map(torch.equal, model.parameters(), mine.parameters()))


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "thing",
    [
        {1, 2},
        numpy.float64(1.0),
        torch.float32,
        torch.Size([1]),
        Text("x"),
        b"bytes",
        1j,
        torch.zeros(1, dtype=torch.complex128),
        torch.zeros(2, 2).to_sparse(),
        torch.zeros(1, device="meta"),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_what_cannot_be_saved_is_named(tmp_path: Path, thing: Any) -> None:
    with pytest.raises(ValueError, match=r"cannot hold.*state/optimizer/3/0"):
        save(tmp_path / "state.safetensors", {"optimizer": {3: [thing]}})
    with pytest.raises(ValueError, match=r"key \(1, 2\), at state/a"):
        save(tmp_path / "state.safetensors", {"a": {(1, 2): 1}})
    assert not list(tmp_path.iterdir())


def test_ordered_dicts_and_parameters_come_back_plain(tmp_path: Path) -> None:
    loaded = again(OrderedDict(a=nn.Parameter(torch.ones(2)), b=nn.Buffer(torch.ones(2))), tmp_path)
    assert same(loaded, {"a": torch.ones(2), "b": torch.ones(2)})


SMALL = {"step": 3, "weights": torch.arange(4.0), "best": None}


def test_the_same_state_gives_the_same_bytes_which_safetensors_can_read(tmp_path: Path) -> None:
    save(tmp_path / "a", SMALL)
    save(tmp_path / "b", SMALL)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert torch.equal(safetensors.torch.load_file(tmp_path / "a")["state/weights"], SMALL["weights"])


def test_every_flipped_bit_and_every_cut_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "state"
    save(path, SMALL)
    whole = path.read_bytes()
    for position in range(len(whole)):
        for damaged in (
            whole[:position] + bytes([whole[position] ^ 1 << position % 8]) + whole[position + 1 :],
            whole[:position],
        ):
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError, match=str(path)):
                load(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match="damaged"):
        load(path)


@pytest.mark.parametrize(
    "content", [b"", b"x" * 100, pickle.dumps(SMALL), safetensors.torch.save({"a": torch.ones(1)})]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        load(tmp_path / "state")


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "FORMAT", 2)
    save(tmp_path / "state", SMALL)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="has format 2, this autodropout reads 1"):
        load(tmp_path / "state")


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "state", SMALL)

    def fails(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path / "state", {"step": 4})
    assert same(load(tmp_path / "state"), SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path, megabytes=1) as disk:
        yield disk


def test_a_full_disk_leaves_the_checkpoints_before(small_disk: Path) -> None:
    with Checkpoints(small_disk) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"step": step, "weights": torch.full((100_000,), step, dtype=torch.uint8)})
        with pytest.raises(OSError, match=r"No space left on device: '.*checkpoint-000000003"):
            checkpoints.save(3, {"step": 3, "weights": torch.zeros(900_000, dtype=torch.uint8)})
        assert checkpoints.newest()["step"] == 2
        assert sorted(path.name for path in small_disk.glob("*checkpoint*")) == names(1, 2)
        checkpoints.save(3, {"step": 3, "weights": torch.zeros(100_000, dtype=torch.uint8)})
        assert checkpoints.newest()["step"] == 3


def names(*steps: int) -> list[str]:
    return [f"checkpoint-{step:09d}.safetensors" for step in steps]


def found(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*checkpoint*"))


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "for it"
    with Checkpoints(folder) as checkpoints:
        assert checkpoints.newest() is None
        for step in (5, 10, 15):
            checkpoints.save(step, {"step": step})
        assert found(folder) == names(10, 15)
        checkpoints.save(12, {"step": 12})  # a training that had to go back
        assert found(folder) == names(10, 12)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_damaged_checkpoints(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    def spoil(path: Path) -> None:
        whole = path.read_bytes()
        flipped = whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:]
        path.write_bytes({"cut": whole[:-1], "flipped": flipped, "empty": b""}[damage])

    with Checkpoints(tmp_path) as checkpoints:
        for step in (5, 10):
            checkpoints.save(step, {"step": step, "weights": torch.ones(3)})
        spoil(tmp_path / names(10)[0])
        assert checkpoints.newest()["step"] == 5
        assert "checkpoint-000000010.safetensors is" in caplog.text
        assert "damaged" in caplog.text
        assert "going on from the one before, of step 5" in caplog.text
        spoil(tmp_path / names(5)[0])
        with pytest.raises(CheckpointError, match=r"0010.* damaged.*0005.* damaged.*Remove"):
            checkpoints.newest()


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".autodropout-0123.tmp").write_bytes(b"half")
    (tmp_path / "checkpoint-notes.txt").write_text("mine")
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.newest() is None
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "checkpoint-notes.txt"]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / ".lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    other.stdout.readline()
    with pytest.raises(BlockingIOError, match=f"another process is training in {tmp_path}"):
        Checkpoints(tmp_path)
    other.send_signal(signal.SIGKILL)
    other.communicate()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {})


def test_the_note_is_json_that_others_can_read(tmp_path: Path) -> None:
    save(tmp_path / "state", {"step": 3, "rate": math.inf})
    with safetensors.safe_open(tmp_path / "state", "pt") as file:
        note = json.loads(file.metadata()["autodropout"], parse_constant=pytest.fail)
    assert note["state"] == {"dict": [["step", 3], ["rate", {"float": "inf"}]]}
