"""Optuna's samplers as proposers: `tpe`, the Tree-structured Parzen Estimator.

Optuna keeps nothing for us: the study lives in memory, holds scored trials only, and is built again from them on load,
so there is no storage of Optuna's to lose and nothing is pickled. Each proposal is asked of a sampler newly seeded by
study seed and trial number, so many can be asked for at once. A sampler fits, as a subclass with a name of its own, if
its proposals are random and depend on scored trials alone. That leaves out CMA-ES and NSGA-II, which keep their state
inside trials (CMA-ES as a pickle), and the Gaussian process, which answers every number with the same tokens.
Tokens are categorical: a sampler learns nothing from the order of values.

Needs `pip install 'autodropout[optuna]'`, imported on first use.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from autodropout.controller.draws import words
from autodropout.controller.history import Seen, from_tensors, to_tensors
from autodropout.controller.state import pack, unpack
from autodropout.search.protocols import Proposal, Scored
from autodropout.spaces import Space

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class OptunaSearch(ABC):
    """An Optuna sampler behind the proposer's protocol; each sampler is a subclass with its `name`."""

    name: str

    def __init__(self, space: Space, seed: int) -> None:
        optuna = _optuna(self.name)
        self.version = 0
        self._space = space
        self._seed = seed
        self._seen: list[Seen] = []
        self._distributions = {
            token.name: optuna.distributions.CategoricalDistribution(tuple(range(len(token.values))))
            for token in space.tokens
        }
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # a study in memory is no news
        self._study = optuna.create_study(direction="maximize")
        optuna.logging.set_verbosity(verbosity)

    def propose(self, numbers: Sequence[int]) -> list[Proposal]:
        return [Proposal(self._tokens(number), None, self.version) for number in numbers]

    def update(self, batch: Sequence[Scored]) -> dict[str, float]:
        self._observe([(trial.tokens, trial.value) for trial in sorted(batch, key=lambda trial: trial.number)])
        self.version += 1
        return {"mean_value": math.fsum(trial.value for trial in batch) / len(batch)}

    def save(self) -> bytes:
        tensors = to_tensors(self._seen, len(self._space.tokens))
        return pack(self.name, self._space, self._seed, {"version": self.version}, tensors)

    @classmethod
    def load(cls, space: Space, seed: int, state: bytes) -> Self:
        facts, tensors = unpack(cls.name, space, seed, state)
        search = cls(space, seed)
        search.version = facts["version"]
        search._observe(from_tensors(tensors))
        return search

    @abstractmethod
    def _sampler(self, seed: int) -> "BaseSampler":
        """The sampler of one proposal."""

    def _observe(self, seen: Sequence[Seen]) -> None:
        optuna = _optuna(self.name)
        self._seen.extend(seen)
        for tokens, value in seen:
            params = dict(zip(self._distributions, tokens, strict=True))
            self._study.add_trial(
                optuna.trial.create_trial(params=params, distributions=self._distributions, value=value)
            )

    def _tokens(self, number: int) -> tuple[int, ...]:
        optuna = _optuna(self.name)
        (word,) = words(self.name, self._seed, number, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study.sampler = self._sampler(word >> 32)  # numpy's seeds have 32 bits
            trial = self._study.ask(self._distributions)
        tokens = tuple(int(trial.params[name]) for name in self._distributions)
        self._study.tell(trial, state=optuna.trial.TrialState.FAIL)  # invisible to samplers: proposing changes nothing
        return tokens


class TPE(OptunaSearch):
    """Tree-structured Parzen Estimator over all tokens together."""

    name = "tpe"

    def _sampler(self, seed: int) -> "BaseSampler":
        sampler: BaseSampler = _optuna(self.name).samplers.TPESampler(seed=seed, multivariate=True)
        return sampler


def _optuna(name: str) -> Any:
    try:
        import optuna
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"the proposer {name!r} needs Optuna: pip install 'autodropout[optuna]'") from None
    return optuna
