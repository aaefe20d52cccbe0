"""The controller as a proposer: it writes policies, learns from their scores, and saves itself to the bit.

Reproducible by construction: proposals are functions of study seed, trial number and weights; updates of their trials,
in whatever order these are handed over. Everything runs on one CPU thread, so that sums are taken in
one order. That holds on one kind of CPU with one version of torch; elsewhere the last bits of float32 may differ.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from autodropout.controller.draws import uniforms, words
from autodropout.controller.reinforce import FAST, PAPER, Learner, Settings, Weighting
from autodropout.controller.state import pack, unpack
from autodropout.controller.transformer import ControllerNetwork
from autodropout.search.protocols import Proposal, Scored
from autodropout.spaces import Space

ROWS = 16
"""How many strings are sampled together, always: matrix products of another height may round differently."""


class Controller:
    """The paper's network, learning by `settings`: ours, unless others are given."""

    name = "controller"

    def __init__(self, space: Space, seed: int, settings: Settings = FAST) -> None:
        self.version = 0
        self.settings = settings
        self._space = space
        self._seed = seed
        (weights_seed,) = words("controller weights", seed, 0, 1)
        self._network = ControllerNetwork([len(token.values) for token in space.tokens], weights_seed >> 1)
        self._learner = Learner(self._network, settings)

    def propose(self, numbers: Sequence[int]) -> list[Proposal]:
        """One proposal for each number; which numbers are asked for together makes no difference, not in a bit."""
        tokens, log_probs = self._sampled(numbers)
        strings, values = tokens.tolist(), log_probs.tolist()
        return [Proposal(tuple(string), value, self.version) for string, value in zip(strings, values, strict=True)]

    def update(self, batch: Sequence[Scored]) -> dict[str, float]:
        """One step of REINFORCE; the order of the batch makes no difference."""
        trials = sorted(batch, key=lambda trial: trial.number)
        if not trials:
            raise ValueError("an update needs at least one trial")
        for trial in trials:
            if trial.log_prob is None:
                raise ValueError(f"trial {trial.number} has no log-probability: the controller cannot weigh it")
            if not math.isfinite(trial.value):
                raise ValueError(f"trial {trial.number} has the value {trial.value}, which is not finite")
        tokens = torch.tensor([trial.tokens for trial in trials], device="cpu")
        sampled = torch.tensor([trial.log_prob for trial in trials], dtype=torch.float64, device="cpu")
        values = torch.tensor([trial.value for trial in trials], dtype=torch.float64, device="cpu")
        with _one_thread():
            record = self._learner.step(tokens, sampled, values)
        record["lag"] = sum(self.version - trial.version for trial in trials) / len(trials)
        record["mean_value"] = values.mean().item()
        self.version += 1
        return record

    def save(self) -> bytes:
        learner = self._learner
        facts = {
            "version": self.version,
            "settings": _settings_to_json(self.settings),
            "baseline": {"mean": learner.baseline.mean, "square": learner.baseline.square},
            "imitated": learner.imitation.best,
        }
        return pack(self.name, self._space, self._seed, facts, self._tensors())

    @classmethod
    def load(cls, space: Space, seed: int, state: bytes) -> Self:
        facts, tensors = unpack(cls.name, space, seed, state)
        controller = cls(space, seed, _settings_from_json(facts["settings"]))
        controller.version = facts["version"]
        learner = controller._learner
        learner.baseline.mean = facts["baseline"]["mean"]
        learner.baseline.square = facts["baseline"]["square"]
        learner.imitation.best = [(tuple(tokens), value) for tokens, value in facts["imitated"]]
        with torch.no_grad():
            for name, parameter in controller._network.named_parameters():
                parameter.copy_(tensors[f"weights.{name}"])
                if controller.version:
                    learner.adam.state[parameter] = {
                        "step": tensors["adam.step"].clone(),
                        "exp_avg": tensors[f"adam.mean.{name}"].clone(),
                        "exp_avg_sq": tensors[f"adam.square.{name}"].clone(),
                    }
        return controller

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {}
        for name, parameter in self._network.named_parameters():
            tensors[f"weights.{name}"] = parameter.detach()
            if self.version:
                adam = self._learner.adam.state[parameter]
                tensors["adam.step"] = adam["step"]  # the same for all
                tensors[f"adam.mean.{name}"] = adam["exp_avg"]
                tensors[f"adam.square.{name}"] = adam["exp_avg_sq"]
        return tensors

    def _sampled(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Strings (N, T) and log-probabilities (N,) for the numbers, each from row `number % ROWS` of a block."""
        positions = len(self._network.choices)
        tokens = torch.empty(len(numbers), positions, dtype=torch.int64, device="cpu")
        log_probs = torch.empty(len(numbers), dtype=torch.float64, device="cpu")
        with _one_thread():
            for block in _blocks(numbers):
                draws = torch.zeros(ROWS, positions, dtype=torch.float64, device="cpu")
                for row, place in block.items():
                    draw = uniforms("controller", self._seed, numbers[place], positions)
                    draws[row] = torch.tensor(draw, dtype=torch.float64, device="cpu")
                block_tokens, block_log_probs = self._network.sample(draws)
                rows, places = list(block), list(block.values())
                tokens[places] = block_tokens[rows]
                log_probs[places] = block_log_probs[rows]
        return tokens, log_probs


class PaperController(Controller):
    """The same with the paper's numbers; under a name of its own, so that neither loads what the other saved."""

    name = "controller-paper"

    def __init__(self, space: Space, seed: int, settings: Settings = PAPER) -> None:
        super().__init__(space, seed, settings)


def _blocks(numbers: Sequence[int]) -> list[dict[int, int]]:
    """The places of `numbers` packed into blocks of one place per row, at row `number % ROWS`: row -> place."""
    blocks: list[dict[int, int]] = []
    filled = [0] * ROWS  # how many blocks have this row taken
    for place, number in enumerate(numbers):
        row = number % ROWS
        if filled[row] == len(blocks):
            blocks.append({})
        blocks[filled[row]][row] = place
        filled[row] += 1
    return blocks


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """One thread for torch: the matrices are too small for more, and the order of sums must not depend on it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _settings_to_json(settings: Settings) -> dict[str, Any]:
    return dataclasses.asdict(settings) | {"weighting": settings.weighting.value}


def _settings_from_json(data: dict[str, Any]) -> Settings:
    return Settings(**(data | {"weighting": Weighting(data["weighting"])}))
