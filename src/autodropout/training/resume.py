"""What the later steps of a training depend on, taken out of its objects and put back; on several ranks too.

Rank 0 reads and writes for all. What is equal on all ranks is taken from rank 0; what is not, torch's generators among
it, is gathered from each.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist

from autodropout.training.distributed import world
from autodropout.training.packing import CheckpointError, pack, unpack


class Stateful(Protocol):
    """What a checkpoint can hold: modules, optimizers, schedulers and the like."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> object: ...


State = Mapping[str, Stateful | torch.Generator]


def states(objects: State) -> dict[str, Any]:
    """The state of each."""
    return {
        name: item.get_state() if isinstance(item, torch.Generator) else item.state_dict()
        for name, item in objects.items()
    }


def load_states(objects: State, saved: Mapping[str, Any]) -> None:
    """Put them back, in place."""
    if saved.keys() != objects.keys():
        raise CheckpointError(
            f"the checkpoint has the states {', '.join(saved) or 'of nothing'}; "
            f"this training needs {', '.join(objects) or 'none'}"
        )
    for name, item in objects.items():
        if isinstance(item, torch.Generator):
            item.set_state(saved[name])
        else:
            item.load_state_dict(saved[name])


def generators(device: torch.device) -> dict[str, Any]:
    """Where torch's own generators are: the CPU's, and the device's where it is a GPU."""
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"device": device.type, "cpu": torch.get_rng_state(), "cuda": on_device}


def set_generators(saved: Mapping[str, Any], device: torch.device) -> None:
    torch.set_rng_state(saved["cpu"])
    if saved["cuda"] is not None:
        torch.cuda.set_rng_state(saved["cuda"], device)


def refuse_another(saved: Mapping[str, Any], present: Mapping[str, Any], where: object) -> None:
    """Compare configurations; an error names the first difference."""
    for place, theirs, ours in _differences(saved, present, ""):
        raise CheckpointError(
            f"{where} has the checkpoints of another training, with {place} = {theirs}; this one has {ours}"
        )


def _differences(theirs: Any, ours: Any, place: str) -> Iterator[tuple[str, str, str]]:
    """Where two pieces of JSON data differ, and what is there, as JSON."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in dict(theirs) | dict(ours):
            inner = f"{place}.{key}" if place else key
            if key in theirs and key in ours:
                yield from _differences(theirs[key], ours[key], inner)
            else:
                yield inner, _said(theirs, key), _said(ours, key)
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for number, (their_item, our_item) in enumerate(zip(theirs, ours, strict=True)):
            yield from _differences(their_item, our_item, f"{place}[{number}]")
    elif theirs != ours:
        yield place, json.dumps(theirs), json.dumps(ours)


def _said(data: Mapping[str, Any], key: str) -> str:
    return json.dumps(data[key]) if key in data else "nothing"


def gathered(own: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """What each rank has, on rank 0."""
    if group is None:
        return [own]
    packed: list[bytes] | None = [b""] * world().size if world().writes else None
    dist.gather_object(b"".join(pack(own)), packed, group=group)  # packed, since tensors of GPUs would come as such
    return [unpack(content, f"the state of rank {rank}") for rank, content in enumerate(packed or ())]


def from_rank_0(read: Callable[[], Any], group: dist.ProcessGroup | None) -> Any:
    """What rank 0 reads, on every rank; or what it raises, there too, so that none waits for it."""
    if group is None:
        return read()
    answer: list[Any] = [None, None]
    if world().writes:
        try:
            answer[0] = read()
        except (OSError, ValueError) as error:
            answer[1] = error
    dist.broadcast_object_list(answer, group=group)
    if answer[1] is not None:
        raise answer[1]
    return answer[0]
