"""The full configuration of one experiment: what its search trains, what is trained at the end, the paper's figures."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import torch

from autodropout.data import Reads
from autodropout.search.jobs import Report, Stopped
from autodropout.spaces import Policy, Space
from autodropout.training.run import Curve, Ended, Regularizer, Run, Scores
from autodropout.training.threads import threads

RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
"""What the paper tunes the final rate over (appendix, "Image Recognition Models")."""


class Training(Protocol):
    """A training with everything that defines it: picklable, so that workers and clusters can have it."""

    @property
    def reads(self) -> Reads:
        """What it needs to have on the disk."""
        ...

    def space(self) -> Space:
        """What a policy for its model can choose."""
        ...

    def fit(self, regularizer: Regularizer, rate: float, seed: int, run: Run) -> Scores:
        """Train one model under a policy, a baseline or nothing, and judge it."""
        ...

    def smoke(self) -> Self:
        """The same, at a size that one CPU core trains in well under a minute."""
        ...


class CrowdTraining(Training, Protocol):
    """A training that trains several models at once, as it would each alone."""

    @property
    def crowds(self) -> bool:
        """Whether it does; what has no such attribute does not."""
        ...

    @property
    def steps(self) -> int: ...

    def crowded(self, regularizer: Regularizer) -> bool:
        """Whether `fit_many` can train under it."""
        ...

    def fit_many(
        self,
        regularizers: Sequence[Any],
        rate: float | Sequence[float],
        seeds: Sequence[int],
        run: Run,
        reports: Sequence[Report] | None,
        test_reports: Sequence[Report] | None = None,
        /,
    ) -> list[float]:
        """Their rewards; nan for one that diverged or was ended by its report."""
        ...

    def result_step(self, curve: Curve) -> int:
        """Of which step the weights are the result, by what was reported of all."""
        ...

    def metrics(self, part: str, reward: float) -> dict[str, float]:
        """What `fit` says of a reward on a part of the data."""
        ...


TrainMany = Callable[[Sequence[Policy], Sequence[int], Sequence[Report]], list[float]]


@dataclass(frozen=True, slots=True)
class RecipeChild:
    """A search's child: trains under a policy, at one rate; its reward is the score.

    On a GPU children are trained in bfloat16 by code that is compiled and captured once for all of them, even where
    they are trained one at a time: a crowd of one.
    """

    training: Training
    rate: float
    on_cpu: bool = False  # on one thread there, since as many children run as there are cores
    crowd: int = 1  # how many it likes to train at once on a GPU

    def __call__(self, policy: Policy, seed: int, report: Report) -> float:
        if self.train_many is not None:
            return self.train_many([policy], [seed], [report])[0]
        device = "cpu" if self.on_cpu else None
        with threads(1) if self.on_cpu else nullcontext():
            return self.training.fit(policy, self.rate, seed, Run(device=device, report=report)).reward

    @property
    def train_many(self) -> TrainMany | None:
        """Several children at once; None where there is no GPU, or a training that makes no use of it in this way."""
        possible = not self.on_cpu and getattr(self.training, "crowds", False)
        return self._train_many if possible and torch.cuda.is_available() else None

    def _train_many(self, policies: Sequence[Policy], seeds: Sequence[int], reports: Sequence[Report]) -> list[float]:
        training: CrowdTraining = self.training  # type: ignore[assignment]  # `Recipe` has looked
        run = Run(precision="bfloat16", compile=True)
        return training.fit_many(policies, self.rate, seeds, run, [_ending(report) for report in reports])


def _ending(report: Report) -> Report:
    """A search's report as trainings, which know of no search, understand it."""

    def reported(step: int, value: float) -> None:
        try:
            report(step, value)
        except Stopped as stopped:
            raise Ended from stopped

    return reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One experiment. Its numbers are defaults that a user may change; those of the search are the paper's."""

    name: str
    what: str  # in one line
    proxy: Training  # what a child of the search trains
    final: Training  # the experiment at its full size
    tuning: Training | None = None  # the same with validation data held out, where the final one trains on everything
    methods: Mapping[str, Training] = field(default_factory=dict)  # the final training with another method, by name
    rate: float = 0.2  # at which children put policies on their models
    rates: tuple[float, ...] = RATES  # for the final training
    trials: int = 16_384  # policies in each of the paper's searches
    workers: int = 1  # whoever has more machines says so
    capacity: int = 64  # the paper: much larger than the minibatch
    crowd: int = 1  # children of one job, trained at once on one GPU
    minibatch: int = 16
    floor: float = 0.0  # what a child that diverges scores
    reproduces: str = ""  # where it stands in the paper
    paper: Mapping[str, str] = field(default_factory=dict)  # the paper's figures, by method
    cost: str = ""  # of the search and of the final training
    measured: str = ""  # here; the file under results/ that shows it
    policy_from: str = ""  # the recipe whose policy it takes, where the paper searches no own one
    on_cpu: bool = False  # so small that a GPU would only be slower

    def __post_init__(self) -> None:
        for name in ("trials", "workers", "capacity", "crowd", "minibatch"):
            if getattr(self, name) < 1:
                raise ValueError(f"recipe {self.name!r}: {name} must be at least 1, got {getattr(self, name)}")
        if self.crowd > 1 and not getattr(self.proxy, "crowds", False):
            raise ValueError(
                f"recipe {self.name!r}: {type(self.proxy).__name__} trains one model at a time, not crowds"
            )
        for rate in (self.rate, *self.rates):
            if not 0.0 <= rate <= 1.0:
                raise ValueError(f"recipe {self.name!r}: rate must lie in [0, 1], got {rate}")

    def space(self) -> Space:
        return self.proxy.space()

    @property
    def child(self) -> RecipeChild:
        return RecipeChild(self.proxy, self.rate, self.on_cpu, crowd=1 if self.on_cpu else self.crowd)

    def smoke(self) -> "Recipe":
        """The same experiment, small enough to see that it runs."""
        return replace(
            self,
            proxy=self.proxy.smoke(),
            final=self.final.smoke(),
            tuning=None if self.tuning is None else self.tuning.smoke(),
            methods={name: training.smoke() for name, training in self.methods.items()},
            trials=2,
            capacity=2,
            minibatch=2,
        )
